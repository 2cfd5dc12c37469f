"""Values of a loop, their notation in both forms, what is refused and how, and the call sites of a forward pass."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from loop_sets import loop_sets
from loopwise.loops import CallSite, Loop, LoopError, SpanNode, call_sites, format_loops, loop_tree, parse_loops

# --- Notation ----------------------------------------------------------------------------------------------------------

READ: dict[str, tuple[Loop, ...]] = {
    "": (),
    "none": (),
    "  None ": (),
    "10:14 x2": (Loop(10, 14),),
    "10-13 x2": (Loop(10, 14),),
    "10:14x2": (Loop(10, 14),),
    "10:14 X3": (Loop(10, 14, 3),),
    "10:14 ×3": (Loop(10, 14, 3),),
    "10:14 x1": (Loop(10, 14, 1),),
    "10:14 x3 repeat": (Loop(10, 14, 3),),
    "12 x2": (Loop(12, 13),),
    "12-12 x2": (Loop(12, 13),),
    "0-0 x2": (Loop(0, 1),),
    "12:19 x2 damped beta=0.25": (Loop(12, 19, 2, "damped", 0.25),),
    "12-18 x2 damped beta=.25": (Loop(12, 19, 2, "damped", 0.25),),
    "12-18 x2 beta=0.25": (Loop(12, 19, 2, "damped", 0.25),),
    "12-18 x2 damped beta=0": (Loop(12, 19, 2, "damped", 0.0),),
    "12-18 x2 damped beta=1": (Loop(12, 19, 2, "damped", 1.0),),
    "12-18 x2 damped beta=1e-3": (Loop(12, 19, 2, "damped", 0.001),),
    "12.mlp x3": (Loop(12, 13, 3, part="mlp"),),
    "12:14.mlp x3 damped beta=0.5": (Loop(12, 14, 3, "damped", 0.5, "mlp"),),
    "12-13.mlp x3": (Loop(12, 14, 3, part="mlp"),),
    "12:19 x2 damped beta=0.25 + 12.mlp x3": (Loop(12, 19, 2, "damped", 0.25), Loop(12, 13, 3, part="mlp")),
    "0:8 x2 + 0.mlp x3 in pass 1": (Loop(0, 8), Loop(0, 1, 3, part="mlp", in_pass=1)),
    "3:5 x2 in pass 2+0:8 x2": (Loop(0, 8), Loop(3, 5, in_pass=2)),
    "4:6 x2 + 0:2 x3": (Loop(0, 2, 3), Loop(4, 6)),
}


@pytest.mark.parametrize("text", READ)
def test_the_notation_reads_half_open_and_inclusive_spans(text: str) -> None:
    assert parse_loops(text) == READ[text]
    assert parse_loops(text, 32) == READ[text]


WRITTEN = {
    "10-13 x2": "10:14 x2",
    "12 x2": "12:13 x2",
    "12-18 x2 beta=.250": "12:19 x2 damped beta=0.25",
    "3.mlp x2 + 1-2 x2": "1:3 x2 + 3.mlp x2",
    "3-4.mlp x2": "3:5.mlp x2",
    "3-3.mlp x2": "3.mlp x2",
    "0.mlp x3 in pass 1 + 0-7 x2": "0:8 x2 + 0.mlp x3 in pass 1",
    "2:4 x2 + 0:8 x2 + 1:5 x3": "0:8 x2 + 1:5 x3 + 2:4 x2",
    "": "none",
    "1:3 x2 damped beta=0.1234567890123": "1:3 x2 damped beta=0.1234567890123",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_loops_print_in_canonical_form(text: str) -> None:
    assert format_loops(parse_loops(text)) == WRITTEN[text]
    assert format_loops(parse_loops(WRITTEN[text])) == WRITTEN[text]


def test_a_beta_from_numpy_prints_as_a_number() -> None:
    loops = (Loop(1, 3, 2, "damped", np.float64(1 / 3)),)
    assert format_loops(loops) == f"1:3 x2 damped beta={1 / 3!r}"
    assert parse_loops(format_loops(loops)) == loops


@settings(max_examples=400, deadline=None)
@given(loop_sets())
def test_what_is_printed_is_read_back(drawn: tuple[tuple[Loop, ...], int]) -> None:
    loops, num_layers = drawn
    text = format_loops(loops)
    read = parse_loops(text, num_layers)
    assert set(read) == set(loops) and len(read) == len(loops)
    assert format_loops(read) == text
    assert format_loops(reversed(loops)) == text, "the order in which loops are given does not matter"
    assert "\n" not in text


# --- Refusals ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, str] = {
    # out of range
    "30:34 x2": "loop 30:34 is out of range",
    "30-32 x2": "loop 30:33 is out of range",
    "32.mlp x2": r"loop 32\.mlp is out of range",
    "40 x2": "loop 40:41 is out of range",
    "-1:3 x2": "loop -1:3 starts before layer 0",
    "-3 x2": "loop -3:-2 starts before layer 0",
    # empty and reversed
    "3:3 x2": "loop 3:3 is empty: .* write 3:4",
    "5:3 x2": "loop 5:3 is reversed: write 3:5",
    "5-3 x2": "loop 5-3 is reversed: write 3-5",
    "5:3.mlp x2": r"loop 5:3\.mlp is reversed",
    # overlapping
    "3:6 x2 + 5:8 x2": "loops 3:6 and 5:8 .*overlap",
    "5:8 x2 + 3:6 x3": "loops 3:6 and 5:8 .*overlap",
    "3:6 x2 + 3:6 x2": "loops 3:6 and 3:6 .*overlap",
    "3.mlp x2 + 3.mlp x3": r"loops 3\.mlp and 3\.mlp .*overlap",
    "3:6.mlp x2 + 4:5 x2": r"loops 3:6\.mlp and 4:5 .*overlap",
    "3:6.mlp x2 + 5:8 x2": r"loops 3:6\.mlp and 5:8 .*overlap",
    "0:9 x2 + 3:6 x2 + 5:8 x2": "loops 3:6 and 5:8 .*overlap",
    "0:9 x2 + 3.mlp x2 in pass 1 + 3.mlp x3 in pass 2": r"loops 3\.mlp and 3\.mlp .*overlap",
    # passes and beta
    "3:5 x0": "loop 3:5 has 0 passes: at least 1",
    "3:5 x-2": "loop 3:5 has -2 passes",
    "3:5 x2 damped beta=1.5": r"loop 3:5: beta=1\.5 is outside \[0, 1\]",
    "3:5 x2 damped beta=-0.1": r"loop 3:5: beta=-0\.1 is outside \[0, 1\]",
    "3:5 x2 damped beta=nan": r"loop 3:5: beta=nan is outside \[0, 1\]",
    "3:5 x2 damped beta=inf": r"loop 3:5: beta=inf is outside \[0, 1\]",
    "3:5 x2 damped beta=half": r"loop '3:5 x2 damped beta=half': beta=half is not a number",
    "3:5 x2 damped": "loop 3:5: damped needs its anchor",
    "3:5 x2 repeat beta=0.5": "loop 3:5: beta=0.5 has no meaning for repeat",
    "3:5 x2 soaked": "loop 3:5: unknown operator 'soaked'; use repeat or damped",
    # named passes
    "3:5 x2 in pass 1": "loop 3:5 .*'in pass 1' but lies in no other loop",
    "3.mlp x2 in pass 1": r"loop 3\.mlp .*'in pass 1' but lies in no other loop",
    "0:8 x2 + 3:5 x2 in pass 3": "loop 3:5 .*'in pass 3' but 0:8 has 2 passes",
    "0:8 x3 + 1:6 x2 + 3:5 x2 in pass 3": "loop 3:5 .*'in pass 3' but 1:6 has 2 passes",
    "0:8 x2 + 3:5 x2 in pass 0": "loop 3:5: in pass 0; passes are counted from 1",
    # what is no loop at all
    "3:5": "cannot read the loop '3:5': write e.g.",
    "x2": "cannot read the loop 'x2'",
    "3:5 x2 +": "cannot read the loop ''",
    "3:5 x2, 6:8 x2": "cannot read the loop '3:5 x2, 6:8 x2'",
    "3:5 x2.5": "cannot read the loop",
    "3..5 x2": "cannot read the loop",
    "3.attn x2": "cannot read the loop",
    "3:5 x2 in pass": "cannot read the loop",
    "3:5\nx2\nfoo bar": "cannot read the loop",
    "²:5 x2": "cannot read the loop",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_loop_that_cannot_be_is_refused_in_one_line_with_the_layer_count(text: str) -> None:
    with pytest.raises(LoopError, match=REFUSED[text]) as refusal:
        parse_loops(text, 32)
    assert str(refusal.value).count("32 layers") == 1
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", [text for text in REFUSED if "out of range" not in REFUSED[text]])
def test_without_a_model_all_but_the_range_is_checked(text: str) -> None:
    with pytest.raises(LoopError, match=REFUSED[text]) as refusal:
        parse_loops(text)
    assert "32 layers" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(start=1.0, stop=3), r"loop 1\.0:3: start is 1\.0; give a whole number"),
        (dict(start="a", stop=3, part="mlp"), "start is 'a'; give a whole number"),
        (dict(start=1, stop=None), "stop is None; give a whole number"),
        (dict(start=1, stop=3, passes=True), "loop 1:3: passes is True; give a whole number"),
        (dict(start=1, stop=3, passes=2.0), r"loop 1:3: passes is 2\.0; give a whole number"),
        (dict(start=1, stop=3, operator="soaked"), "loop 1:3: unknown operator 'soaked'; use repeat or damped"),
        (dict(start=1, stop=3, part="attention"), "loop 1:3: unknown part 'attention'; use layer or mlp"),
        (dict(start=1, stop=3, operator="damped", beta="0.5"), r"loop 1:3: beta=0\.5 is outside"),
        (dict(start=1, stop=3, in_pass=1.5), r"loop 1:3: in pass 1\.5; passes are counted from 1"),
        (dict(start=1, stop=3, in_pass=True), "loop 1:3: in pass True; passes are counted from 1"),
    ],
)
def test_a_value_with_a_wrong_field_is_refused_at_birth(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(LoopError, match=words) as refusal:
        Loop(**fields)
    assert "\n" not in str(refusal.value)


def test_a_loop_is_a_value() -> None:
    assert Loop(1, 3) == Loop(1, 3, 2, "repeat", None, "layer", None)
    assert len({Loop(1, 3), Loop(1, 3), Loop(1, 3, 3)}) == 2
    with pytest.raises(AttributeError):
        Loop(1, 3).start = 2  # type: ignore[misc]


# --- Call sites --------------------------------------------------------------------------------------------------------


def shorthand(site: CallSite) -> tuple[Any, ...]:
    """layer ("m" after it for an MLP run), passes, visit, slot."""
    return (f"{site.layer}m" if site.part == "mlp" else site.layer, site.passes, site.visit, site.slot)


SITES: dict[str, list[tuple[Any, ...]]] = {
    "none": [(0, (), 0, 0), (1, (), 0, 1), (2, (), 0, 2), (3, (), 0, 3)],
    "1:3 x1": [(0, (), 0, 0), (1, (1,), 0, 1), (2, (1,), 0, 2), (3, (), 0, 3)],
    "1:3 x3": [
        (0, (), 0, 0),
        (1, (1,), 0, 1),
        (2, (1,), 0, 2),
        (1, (2,), 1, 4),
        (2, (2,), 1, 5),
        (1, (3,), 2, 6),
        (2, (3,), 2, 7),
        (3, (), 0, 3),
    ],
    "0:1 x2 + 2:4 x2": [
        (0, (1,), 0, 0),
        (0, (2,), 1, 4),
        (1, (), 0, 1),
        (2, (1,), 0, 2),
        (3, (1,), 0, 3),
        (2, (2,), 1, 5),
        (3, (2,), 1, 6),
    ],
    "0:3 x2 + 1:2 x2": [
        (0, (1,), 0, 0),
        (1, (1, 1), 0, 1),
        (1, (1, 2), 1, 4),
        (2, (1,), 0, 2),
        (0, (2,), 1, 5),
        (1, (2, 1), 2, 6),
        (1, (2, 2), 3, 7),
        (2, (2,), 1, 8),
        (3, (), 0, 3),
    ],
    "0:3 x2 + 1:2 x3 in pass 2": [
        (0, (1,), 0, 0),
        (1, (1, 1), 0, 1),
        (2, (1,), 0, 2),
        (0, (2,), 1, 4),
        (1, (2, 1), 1, 5),
        (1, (2, 2), 2, 6),
        (1, (2, 3), 3, 7),
        (2, (2,), 1, 8),
        (3, (), 0, 3),
    ],
    "2.mlp x3": [
        (0, (), 0, 0),
        (1, (), 0, 1),
        (2, (), 0, 2),
        ("2m", (2,), 0, None),
        ("2m", (3,), 0, None),
        (3, (), 0, 3),
    ],
    "1:3.mlp x2": [
        (0, (), 0, 0),
        (1, (), 0, 1),
        ("1m", (2,), 0, None),
        (2, (), 0, 2),
        ("2m", (2,), 0, None),
        (3, (), 0, 3),
    ],
    "0:2 x2 + 0.mlp x3": [
        (0, (1,), 0, 0),
        ("0m", (1, 2), 0, None),
        ("0m", (1, 3), 0, None),
        (1, (1,), 0, 1),
        (0, (2,), 1, 4),
        ("0m", (2, 2), 1, None),
        ("0m", (2, 3), 1, None),
        (1, (2,), 1, 5),
        (2, (), 0, 2),
        (3, (), 0, 3),
    ],
    "0:2 x2 + 0.mlp x3 in pass 1": [
        (0, (1,), 0, 0),
        ("0m", (1, 2), 0, None),
        ("0m", (1, 3), 0, None),
        (1, (1,), 0, 1),
        (0, (2,), 1, 4),
        (1, (2,), 1, 5),
        (2, (), 0, 2),
        (3, (), 0, 3),
    ],
    "0:2 x2 + 0:2.mlp x2 in pass 2": [
        (0, (1,), 0, 0),
        (1, (1,), 0, 1),
        (0, (2,), 1, 4),
        ("0m", (2, 2), 1, None),
        (1, (2,), 1, 5),
        ("1m", (2, 2), 1, None),
        (2, (), 0, 2),
        (3, (), 0, 3),
    ],
}
"""Every execution of a model of four layers, written out by hand."""


@pytest.mark.parametrize("text", SITES)
def test_call_sites_are_every_execution_in_order(text: str) -> None:
    sites = call_sites(parse_loops(text), 4)
    assert [shorthand(site) for site in sites] == SITES[text]
    assert [site.index for site in sites] == list(range(len(sites)))


@pytest.mark.parametrize("text", SITES)
def test_operators_do_not_change_the_call_sites(text: str) -> None:
    repeat = parse_loops(text)
    damped = [Loop(loop.start, loop.stop, loop.passes, "damped", 0.3, loop.part, loop.in_pass) for loop in repeat]
    assert call_sites(damped, 4) == call_sites(repeat, 4)


def runs_by_recursion(loops: tuple[Loop, ...], num_layers: int) -> list[tuple[int, str]]:
    """The order of executions by another route: the innermost loop is unrolled in a list of marked layers, then the next."""

    def unroll(start: int, stop: int, inside: Loop | None, number: int) -> list[tuple[int, str]]:
        runs: list[tuple[int, str]] = []
        layer = start
        while layer < stop:
            around = [loop for loop in loops if loop.part == "layer" and loop.start <= layer < loop.stop and loop is not inside]
            nested = [loop for loop in around if inside is None or inside.contains(loop)]
            widest = max(nested, key=lambda loop: loop.stop - loop.start, default=None)
            if widest is not None:
                active = widest.in_pass in (None, number)
                for turn in range(1, (widest.passes if active else 1) + 1):
                    runs += unroll(widest.start, widest.stop, widest, turn)
                layer = widest.stop
                continue
            runs.append((layer, "layer"))
            for loop in loops:
                if loop.part == "mlp" and loop.start <= layer < loop.stop and loop.in_pass in (None, number):
                    runs += [(layer, "mlp")] * (loop.passes - 1)
            layer += 1
        return runs

    return unroll(0, num_layers, None, 0)


@settings(max_examples=300, deadline=None)
@given(loop_sets())
def test_slots_are_unique_and_complete_and_layers_run_in_order(drawn: tuple[tuple[Loop, ...], int]) -> None:
    loops, num_layers = drawn
    sites = call_sites(loops, num_layers)
    assert [(site.layer, site.part) for site in sites] == runs_by_recursion(loops, num_layers)
    whole = [site for site in sites if site.part == "layer"]
    assert sorted(site.slot for site in whole if site.slot is not None) == list(range(len(whole)))
    assert all(site.slot is None for site in sites if site.part == "mlp")
    assert all(site.slot == site.layer for site in whole if site.visit == 0)
    further = [site.slot for site in whole if site.visit > 0]
    assert further == list(range(num_layers, len(whole))), "further slots follow in order of execution"
    for layer in range(num_layers):
        visits = [site.visit for site in whole if site.layer == layer]
        assert visits == list(range(len(visits))) and visits
    for before, site in itertools.pairwise(sites):
        assert site.part == "layer" or (site.layer, site.visit) == (before.layer, before.visit), "an MLP run follows its layer"


def test_loops_of_one_pass_run_every_layer_once() -> None:
    sites = call_sites(parse_loops("0:4 x1 + 1:3 x1 damped beta=0.5 + 2.mlp x1"), 4)
    assert [(site.layer, site.part, site.slot) for site in sites] == [(layer, "layer", layer) for layer in range(4)]


def test_the_searched_span_has_forty_passes_and_two_further_mlp_runs() -> None:
    sites = call_sites(parse_loops("0-7 x2 + 0.mlp x3 in pass 1", 32), 32)
    assert sum(site.part == "layer" for site in sites) == 40
    assert sum(site.part == "mlp" for site in sites) == 2
    every_pass = call_sites(parse_loops("0-7 x2 + 0.mlp x3", 32), 32)
    assert sum(site.part == "mlp" for site in every_pass) == 4


def test_call_sites_refuse_what_the_notation_refuses() -> None:
    for loops in ((Loop(3, 9),), (Loop(1, 4), Loop(3, 5)), (Loop(1, 3), Loop(1, 3)), (Loop(1, 2, in_pass=1),)):
        with pytest.raises(LoopError, match="6 layers"):
            call_sites(loops, 6)


def test_the_tree_nests_loops_in_loops() -> None:
    first, outer, last = loop_tree(parse_loops("1:5 x2 + 2:4 x3 + 4.mlp x2"), 6)
    assert isinstance(outer, SpanNode) and outer.loop == Loop(1, 5)
    one, inner, four = outer.body
    assert isinstance(inner, SpanNode) and inner.loop == Loop(2, 4, 3)
    assert not isinstance(four, SpanNode) and four.mlp_loop == Loop(4, 5, part="mlp")
    assert [node.layer for node in (first, one, four, last) if not isinstance(node, SpanNode)] == [0, 1, 4, 5]
