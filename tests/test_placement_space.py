"""The space of candidates: counted, numbered and walked, against a plain enumeration under the same rules."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from loopwise.cost import ModelShape, cost_of, read_shape
from loopwise.loops import Loop, check_loops, format_loops, parse_loops
from loopwise.placement.space import Candidate, Form, PlacementError, Space

ALL = ("window", "windows", "window+mlp", "mlp")


def shape_of(num_layers: int) -> ModelShape:
    """A Llama with so many layers of equal shares."""
    return read_shape(
        dict(model_type="llama", hidden_size=576, intermediate_size=1536, num_hidden_layers=num_layers, num_attention_heads=9)
        | dict(num_key_value_heads=3, head_dim=64, vocab_size=49152, tie_word_embeddings=True)
    )


def hybrid_shape(num_layers: int) -> ModelShape:
    """A Qwen3.5, whose layers of linear and full attention give their MLPs different shares."""
    return read_shape(
        dict(model_type="qwen3_5_text", hidden_size=1024, intermediate_size=3584, num_hidden_layers=num_layers, num_attention_heads=8)
        | dict(num_key_value_heads=2, head_dim=256, linear_num_value_heads=16, linear_num_key_heads=16, linear_key_head_dim=128)
        | dict(linear_value_head_dim=128, vocab_size=248320, tie_word_embeddings=True)
    )


SMALL: dict[str, Any] = dict(widths=(2, 3), passes=(2, 3), betas=(0.25,), operators=("damped", "repeat"), structures=ALL)


def listed(shape: ModelShape, structures: Any, cap: float | None, centre: Any) -> set[Candidate]:
    """What `SMALL`'s rules allow, by trying every pair of loops."""
    layers = shape.num_layers
    settings: list[Any] = [("repeat", None), ("damped", 0.25)]
    spans = [(start, stop) for start in range(layers) for stop in range(start + 1, layers + 1)]
    low, high = centre or (0.0, 1.0)
    banded = [(start, stop) for start, stop in spans if low * 2 * layers <= start + stop <= high * 2 * layers]
    windows = [Loop(*span, k, *how) for span in banded if span[1] - span[0] in (2, 3) for k in (2, 3) for how in settings]
    mlps = [Loop(*span, k, *how, "mlp") for span in banded if span[1] - span[0] in (1, 2, 3) for k in (2, 3) for how in settings]
    inner = [Loop(layer, layer + 1, k, part="mlp", in_pass=p) for layer in range(layers) for k in (2, 3) for p in (None, 1)]
    found: list[tuple[Loop, ...]] = []
    if {"window", "windows"} & set(structures):
        found += [(loop,) for loop in windows]
    if "windows" in structures:
        found += [pair for pair in itertools.combinations(windows, 2) if pair[0].stop <= pair[1].start or pair[1].stop <= pair[0].start]
    if "window+mlp" in structures:
        found += [(outer, loop) for outer in windows for loop in inner if outer.start <= loop.start < outer.stop]
    if "mlp" in structures:
        found += [(loop,) for loop in mlps]
        found += [pair for pair in itertools.combinations(mlps, 2) if pair[0].stop < pair[1].start or pair[1].stop < pair[0].start]
    most = (cap or float("inf")) + 1e-9
    return {check_loops(loops, layers) for loops in found if cost_of(shape, loops).layer_pass_ratio <= most}


def test_the_papers_grid_is_2016_and_smollm2s_1638() -> None:
    assert len(Space(shape=shape_of(36))) == 2016
    assert len(Space(shape=shape_of(30))) == 1638
    assert len(Space(shape=shape_of(30), passes=(2,), betas=(0.25,))) == 182


@pytest.mark.parametrize("structures", [*((one,) for one in ALL), ALL, ("window", "mlp")])
@pytest.mark.parametrize(
    ("cap", "centre"), [(None, None), (1 + 2 / 6, None), (1.45, None), (4 / 3, (0.3, 0.6)), (None, (0.5, 0.5))], ids=str
)
@pytest.mark.parametrize("make", [shape_of, hybrid_shape])
def test_it_holds_what_a_plain_enumeration_finds(make: Any, structures: Any, cap: Any, centre: Any) -> None:
    wanted = listed(make(6), structures, cap, centre)
    try:
        space = Space(shape=make(6), **SMALL | dict(structures=structures), max_cost=cap, centre=centre)
    except PlacementError as error:
        assert not wanted and "the cheapest" in str(error)
        return
    found = list(space)
    assert len(found) == len(set(found)) == len(space), "each once, and counted without listing"
    assert set(found) == wanted
    assert [space.nth(form, index) for form in space.forms for index in range(space.size(form))] == found
    for candidate in found:
        assert candidate in space and check_loops(candidate, 6) == candidate
        assert parse_loops(format_loops(candidate)) == candidate
        assert space.cost(candidate) == cost_of(space.shape, candidate).layer_pass_ratio <= (cap or 9) + 1e-9


def test_large_spaces_are_counted_without_listing() -> None:
    space = Space(shape=shape_of(30), structures=ALL, max_windows=4)
    spans = [(start, start + width) for width in range(2, 9) for start in range(31 - width)]
    pairs = sum(first[1] <= second[0] for first in spans for second in spans)
    assert [space.size(form) for form in space.forms if form.kind == "window"][:2] == [1638, pairs * 81]
    assert len(space) > 10**9
    deep = next(form for form in space.forms if form == ("window", 4))
    candidate = space.nth(deep, space.size(deep) // 2)
    assert len(candidate) == 4 and candidate in space
    with pytest.raises(IndexError):
        space.nth(deep, space.size(deep))


def test_what_is_not_in_it() -> None:
    space = Space(shape=shape_of(12), structures=("window", "windows", "window+mlp"), max_cost=1.5)
    for text in ("2:4 x2 damped beta=0.25", "2:4 x2 damped beta=0.5 + 4:6 x2 damped beta=0.75", "2:5 x2 damped beta=0.25 + 3.mlp x3"):
        assert parse_loops(text) in space
    outside = """2:4 x2; 2:4 x5 damped beta=0.25; 2:4 x2 damped beta=0.3; 11:13 x2 damped beta=0.25; 2:11 x2 damped beta=0.25; none
        2:8 x3 damped beta=0.25; 1:3 x2 damped beta=0.5 + 4:6 x2 damped beta=0.5 + 7:9 x2 damped beta=0.5; 3.mlp x2
        2:5 x2 damped beta=0.25 + 3.mlp x3 in pass 2; 2:5 x2 damped beta=0.25 + 6.mlp x3; 2:5 x2 damped beta=0.25 + 3:5.mlp x3
        2:8 x2 damped beta=0.25 + 3:5 x2 damped beta=0.25; 2:5 x2 damped beta=0.25 + 3.mlp x3 damped beta=0.25"""
    for text in outside.replace("\n", ";").split(";"):
        assert parse_loops(text) not in space, text
    assert parse_loops("4:6 x2 damped beta=0.25 + 1:3 x2 damped beta=0.25")[::-1] not in space, "not in canonical order"
    assert "2:4 x2" not in space and None not in space
    with pytest.raises(PlacementError, match=r"^the candidate 2:4 x2 is not in the space; give one that is$"):
        space.neighbours(parse_loops("2:4 x2"))


@pytest.mark.parametrize("cap", [None, 1.5])
def test_neighbours_are_inside_and_symmetric(cap: float | None) -> None:
    space = Space(shape=shape_of(6), **SMALL | dict(betas=(0.25, 0.5, 0.75), mlp_passes=(2, 3, 5)), max_cost=cap)
    rng = random.Random(0)
    for _ in range(80):
        candidate = space.sample(rng)
        near = space.neighbours(candidate)
        assert len(set(near)) == len(near) and candidate not in near
        for other in near:
            assert other in space
            assert candidate in space.neighbours(other), (format_loops(candidate), format_loops(other))
        assert (mutated := space.mutate(candidate, rng)) in space and mutated != candidate


def test_every_candidate_is_reached_by_steps() -> None:
    space = Space(shape=shape_of(6), **SMALL)
    reached, edge = set(), [next(iter(space))]
    while edge:
        candidate = edge.pop()
        if candidate not in reached:
            reached.add(candidate)
            edge += space.neighbours(candidate)
    assert reached == set(space)


def test_the_steps_of_one_candidate() -> None:
    space = Space(shape=shape_of(30), structures=("window", "window+mlp"), mlp_passes=(3,))
    near = {format_loops(other) for other in space.neighbours(parse_loops("10:14 x2 damped beta=0.5"))}
    assert {text for text in near if ".mlp" not in text} == {
        f"{span} x2 damped beta=0.5" for span in ("9:13", "11:15", "10:13", "11:14", "10:15", "9:14")
    } | {"10:14 x3 damped beta=0.5", "10:14 x2 damped beta=0.25", "10:14 x2 damped beta=0.75"}
    assert len(near) == 9 + 4 * 2, "an MLP loop at each of four layers, in every pass or in the first"
    moved = {format_loops(other) for other in space.neighbours(parse_loops("10:14 x2 damped beta=0.5 + 10.mlp x3"))}
    assert "9:13 x2 damped beta=0.5 + 10.mlp x3" in moved and "9:13 x2 damped beta=0.5 + 9.mlp x3" in moved
    assert "10:14 x2 damped beta=0.5" in moved and "10:14 x2 damped beta=0.5 + 10.mlp x3 in pass 1" in moved


def test_samples_cover_the_forms_evenly_and_shuffles_every_candidate_once() -> None:
    space = Space(shape=shape_of(6), **SMALL)
    counts = Counter(format_loops(space.sample(rng)).count("+") for rng in [random.Random(7)] for _ in range(1000))
    assert 300 < counts[0] < 500, "two of the five forms are single loops"
    shuffled = list(space.shuffled(random.Random(1)))
    assert shuffled != list(space) and sorted(map(format_loops, shuffled)) == sorted(map(format_loops, space))
    assert shuffled == list(space.shuffled(random.Random(1))) != list(space.shuffled(random.Random(2)))


def test_samples_within_a_form_are_even() -> None:
    space = Space(shape=shape_of(8), widths=(2, 3), passes=(2,), betas=(0.25,), structures=("windows",), max_cost=1.7)
    pairs = Form("window", 2)
    sums = Counter(sum(loop.start for loop in space.nth(pairs, index)) for index in range(space.size(pairs)))
    rng = random.Random(3)
    drawn = Counter(sum(loop.start for loop in pair) for pair in (space.sample(rng) for _ in range(4000)) if len(pair) == 2)
    for total, count in sums.items():
        share = count / space.size(pairs)
        assert abs(drawn[total] / drawn.total() - share) < 4 * (share / drawn.total()) ** 0.5


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("structures", [("windows", "window+mlp", "mlp"), ("window", "mlp"), ("window+mlp",)], ids=str)
def test_additions_are_the_candidates_with_one_loop_more(structures: Any, cap: float | None) -> None:
    space = Space(shape=shape_of(6), **SMALL | dict(structures=structures), max_cost=cap)
    everything = set(space)
    first = list(space.additions(()))
    assert len(set(first)) == len(first)
    assert set(first) == {c for c in everything if len(c) == 1} or (structures == ("window+mlp",) and set(first) == everything)
    rng = random.Random(0)
    for candidate in rng.sample(first, 20):
        grown = list(space.additions(candidate))
        assert len(set(grown)) == len(grown)
        assert set(grown) == {c for c in everything if len(c) == len(candidate) + 1 and set(candidate) < set(c)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(widths=()), "widths is empty; give whole numbers of 1 to 6 (the model has 6 layers)"),
        (dict(widths=(2, 7)), "widths has 7; give whole numbers of 1 to 6 (the model has 6 layers)"),
        (dict(passes=(1, 2)), "passes has 1; give whole numbers of 2 to 1000 (1 pass is the plain model)"),
        (dict(mlp_passes=(1,)), "mlp_passes has 1; give whole numbers of 2 to 1000 (1 pass is the plain model)"),
        (dict(betas=()), "betas is empty; the damped operator needs its anchor, e.g. 0.25"),
        (dict(betas=(0.5, 1.5)), "betas has 1.5; give numbers in [0, 1] (0 never anchors, 1 is the plain span)"),
        (dict(operators=()), "operators is empty; use some of repeat, damped"),
        (dict(operators=("damp",)), "operators has 'damp'; use some of repeat, damped"),
        (dict(structures=("windws",)), "structures has 'windws'; use some of window, windows, window+mlp, mlp"),
        (dict(max_windows=0), "max_windows is 0; give at least 1"),
        (dict(centre=(0.6, 0.4)), "centre is (0.6, 0.4); give a band in parts of depth, from low to high, e.g. 0.45 and 0.6"),
        (dict(max_cost=1.0), "max_cost is 1.0; the plain model costs 1, give more, e.g. 1.25, or no cap"),
        (
            dict(centre=(0.0, 0.1)),
            "no placement (window) of 2, 3 layers has its centre at (0.0, 0.1) of depth; allow other widths or a wider band",
        ),
        (
            dict(max_cost=1.2),
            "no placement (window) of 2, 3 layers costs at most 1.2 times the plain model; "
            "the cheapest, 0:2 x2 damped beta=0.25, costs 1.333",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError) as caught:
        Space(**dict(shape=shape_of(6), widths=(2, 3)) | changed)
    assert str(caught.value) == message


def test_the_order_of_the_values_does_not_matter_and_json_says_them() -> None:
    one = Space(shape=shape_of(6), widths=(3, 2, 3), passes=(3, 2), betas=(0.5, 0.25))
    two = Space(shape=shape_of(6), widths=(2, 3), passes=(2, 3), betas=(0.25, 0.5))
    assert one == two and list(one) == list(two) and one.to_json() == two.to_json()
    assert one.to_json()["widths"] == [2, 3] and one.to_json()["max_cost"] is None
