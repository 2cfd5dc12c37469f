"""The contract, first part: what a looped forward pass computes. Every family passes, in fp32.

Doing nothing is exact, an undamped loop is the physically unrolled model, a damped one is the paper's formula.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from loop_sets import loop_sets
from looped import TOLERANCE, assert_same_decoding, every_family, greedy_cached, logits, looped_model, padded, plain_model, with_cache
from loopwise.loops import Loop, call_sites, parse_loops
from loopwise.models import decoder_layers, dynamic_cache, insert, loops_of, remove
from reference import FORMULAS, Halves, recursive_logits, reference_logits
from tiny import tokens
from unrolled import unrolled_model

UNROLLED: dict[str, tuple[int, ...]] = {
    "1:4 x2": (0, 1, 2, 3, 1, 2, 3, 4, 5),
    "0:1 x4": (0, 0, 0, 0, 1, 2, 3, 4, 5),
    "0:6 x2": (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5),
    "0:2 x2 + 3:4 x2 + 4:6 x3": (0, 1, 0, 1, 2, 3, 3, 4, 5, 4, 5, 4, 5),
    "1:5 x2 + 2:4 x2": (0, 1, 2, 3, 2, 3, 4, 1, 2, 3, 2, 3, 4, 5),
    "1:5 x3 + 2:4 x3 in pass 2": (0, 1, 2, 3, 4, 1, 2, 3, 2, 3, 2, 3, 4, 1, 2, 3, 4, 5),
    "0:6 x2 + 0:3 x2 in pass 2 + 1:2 x2": (0, 1, 1, 2, 3, 4, 5, 0, 1, 1, 2, 0, 1, 1, 2, 3, 4, 5),
}
"""Undamped loops of a model of six layers, and the layers that it then runs, written out by hand."""

NO_LOOPS = (
    "1:4 x1",
    "0:6 x1 damped beta=0.3",
    "2.mlp x1 damped beta=0.5 + 3:5 x1",
    "0:6 x1 + 1:3.mlp x1",
)
ROWS = [tokens(1, length, seed=length)[0] for length in (24, 17, 3)]
"""Longer than the tiny models' window of 7, and shorter."""


@every_family
@pytest.mark.parametrize("loops", NO_LOOPS)
def test_one_pass_is_the_plain_model_bit_for_bit(family: str, loops: str) -> None:
    ids, mask = padded(ROWS)
    plain, model = plain_model(family), looped_model(family, loops)
    assert torch.equal(logits(model, ids, mask), logits(plain, ids, mask))
    ours, theirs = greedy_cached(model, ids, mask, 4), greedy_cached(plain, ids, mask, 4)
    assert torch.equal(ours[1], theirs[1])


@every_family
def test_removal_gives_the_plain_model_back_bit_for_bit(family: str) -> None:
    ids, mask = padded(ROWS)
    model = plain_model(family)
    before, keys = logits(model, ids, mask), list(model.state_dict())
    modules, attributes = dict(model.named_modules()), set(vars(decoder_layers(model)))
    for loops in FORMULAS:
        assert insert(model, loops) is model
        assert loops_of(model) == parse_loops(loops)
        assert list(model.state_dict()) == keys, "a loop renames or adds no weight"
        assert dict(model.named_modules()) == modules, "a loop copies or wraps no module"
        during = logits(model, ids, mask)
        assert remove(model) is model
        if "beta=1" not in loops:
            assert (during - before).abs().max() > 0.05
        assert torch.equal(logits(model, ids, mask), before)
    assert loops_of(model) == ()
    assert type(decoder_layers(model)) is nn.ModuleList
    assert set(vars(decoder_layers(model))) == attributes
    assert not any(module._forward_pre_hooks for module in model.modules())


@every_family
@pytest.mark.parametrize("loops", UNROLLED)
def test_undamped_loops_are_the_unrolled_model(family: str, loops: str) -> None:
    ids, mask = padded(ROWS)
    model = looped_model(family, loops)
    deeper = unrolled_model(plain_model(family), UNROLLED[loops])
    assert (logits(model, ids, mask) - logits(deeper, ids, mask)).abs().max() <= 1e-6
    assert_same_decoding(greedy_cached(model, ids, mask, 6), greedy_cached(deeper, ids, mask, 6), 1e-6)


@every_family
def test_the_reference_halves_make_the_plain_layer(family: str) -> None:
    """A check of the reference itself: both halves in a row are the layer."""
    with torch.no_grad():
        halves = Halves(family, plain_model(family), *padded(ROWS))
        for layer in range(6):
            whole, parts = halves.layer(layer, halves.entry), halves.mlp(layer, halves.attention(layer, halves.entry))
            assert torch.allclose(whole, parts, rtol=0, atol=1e-6)


@every_family
def test_loops_are_the_formulas_written_out(family: str) -> None:
    ids, mask = padded(ROWS)
    with torch.no_grad():
        halves = Halves(family, plain_model(family), ids, mask)
    seen = mask.bool()
    for loops in FORMULAS:
        difference = logits(looped_model(family, loops), ids, mask) - reference_logits(loops, halves)
        assert difference[seen].abs().max() <= TOLERANCE / 5, loops


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(drawn=loop_sets(layers=(6, 6), max_passes=3, max_depth=3))
def test_any_loops_are_their_formula_and_decode_from_a_cache(family: str, drawn: tuple[tuple[Loop, ...], int]) -> None:
    ids, mask = tokens(1, 10), torch.ones(1, 10, dtype=torch.long)
    with torch.no_grad():
        halves = Halves(family, plain_model(family), ids, mask)
    model = insert(plain_model(family), drawn[0])
    whole = logits(model, ids, mask)
    assert (whole - recursive_logits(drawn[0], halves)).abs().max() <= TOLERANCE
    cache = dynamic_cache(model)
    steps = [logits(model, ids[:, :7], cache=cache)]
    with torch.no_grad():
        steps += [model(ids[:, place : place + 1], use_cache=True, **with_cache(model, cache)).logits for place in range(7, 10)]
    assert (whole - torch.cat(steps, dim=1)).abs().max() <= TOLERANCE
    assert len(cache.layers) == sum(site.slot is not None for site in call_sites(drawn[0], 6))


@every_family
def test_the_order_of_a_forward_is_that_of_its_call_sites(family: str) -> None:
    loops = "1:5 x3 + 2:4 x3 in pass 2"
    model = looped_model(family, loops)
    ran: list[int] = []
    for index, layer in enumerate(decoder_layers(model)._modules.values()):
        assert layer is not None
        layer.register_forward_pre_hook(lambda module, args, index=index: ran.append(index))
    logits(model, tokens(1, 5))
    assert tuple(ran) == UNROLLED[loops]


@every_family
def test_hidden_states_have_one_entry_for_each_call_site(family: str) -> None:
    model = looped_model(family, "1:4 x2 + 1.mlp x3")
    with torch.no_grad():
        output = model(tokens(1, 5), output_hidden_states=True)
    assert len(output.hidden_states) == 1 + 9
