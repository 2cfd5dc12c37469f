"""Replayed layers give bit for bit what the looped model's own forward gives, for every family, operator and part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from loop_sets import loop_sets
from loopwise.loops import Loop, format_loops, parse_loops
from loopwise.models import Iterates, ModelError, Replay, insert, remove
from tiny import FAMILIES, tiny_model, tokens

LOOPS = (
    "1:3 x2",
    "1:3 x3",
    "1:3 x3 damped beta=0.25",
    "0:2 x2 damped beta=0.5",
    "2:6 x4 damped beta=0",
    "2.mlp x3",
    "1:4.mlp x2 damped beta=0.5",
    "1:4 x2 + 2:3 x2",
    "1:4 x2 damped beta=0.25 + 1.mlp x3 in pass 1",
    "1:4 x2 + 1.mlp x3",
    "0:2 x2 + 3:5 x3 damped beta=0.75",
    "1:4 x3 + 2:4 x2 in pass 2",
)


def _calls(model: Any, ids: Any, mask: Any) -> Any:
    return lambda: model(input_ids=ids, attention_mask=mask, use_cache=False)


def _replayed(replay: Replay, run: Any, loops: tuple[Loop, ...], iterates: Iterates) -> torch.Tensor:
    recorded, arguments = replay.record(run), replay.arguments(run)
    hidden = replay.looped(loops, recorded.states, arguments, iterates)
    logits: torch.Tensor = replay.finish(replay.onwards(hidden, replay.last_stop(loops), arguments), run).logits
    return logits


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_replay_is_the_looped_forward_bit_for_bit(family: str) -> None:
    model = tiny_model(family)
    ids = tokens(2, 13)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    run = _calls(model, ids, mask)
    replay, iterates = Replay(model), Iterates()
    for text in LOOPS:
        loops = parse_loops(text, 6)
        found = _replayed(replay, run, loops, iterates)
        insert(model, loops)
        expected = run().logits
        remove(model)
        assert torch.equal(found, expected), text
        iterates = Iterates()


@settings(max_examples=60, deadline=None)
@given(loop_sets(layers=(6, 6), max_passes=4, max_depth=2))
def test_any_loops(case: tuple[tuple[Loop, ...], int]) -> None:
    loops = parse_loops(format_loops(case[0]), 6) if case[0] else ()
    if not loops:
        return
    model = tiny_model("llama")
    with torch.inference_mode():
        run = _calls(model, tokens(1, 11), None)
        found = _replayed(Replay(model), run, loops, Iterates())
        insert(model, loops)
        assert torch.equal(found, run().logits)
        remove(model)


@torch.inference_mode()
def test_iterates_are_shared_over_betas_and_passes_and_nothing_else() -> None:
    model = tiny_model("llama")
    run = _calls(model, tokens(1, 9), None)
    replay = Replay(model)
    recorded, arguments = replay.record(run), replay.arguments(run)
    runs = [0]
    for layer in replay.layers:
        layer.register_forward_pre_hook(lambda *_: runs.__setitem__(0, runs[0] + 1))
    iterates, counts = Iterates(), []
    chain = ["1:3 x2 damped beta=0.25", "1:3 x2 damped beta=0.5", "1:3 x3 damped beta=0.5", "1:3 x2", "1:3 x4", "1:3 x3", "2:3 x2"]
    for text in chain:
        loops, runs[0] = parse_loops(text, 6), 0
        shared = replay.looped(loops, recorded.states, arguments, iterates)
        counts.append(runs[0])
        assert torch.equal(shared, replay.looped(loops, recorded.states, arguments, Iterates())), text
    assert counts == [2, 0, 4, 2, 4, 0, 1]  # 2 layers a further pass; the first pass is always free


@torch.inference_mode()
def test_what_the_plain_model_computed_is_not_computed_again() -> None:
    model = tiny_model("llama")
    run = _calls(model, tokens(1, 9), None)
    replay = Replay(model)
    recorded, arguments = replay.record(run), replay.arguments(run)
    ran: list[int] = []
    for index, layer in enumerate(replay.layers):
        layer.register_forward_pre_hook(lambda *_, index=index: ran.append(index))
    replay.looped(parse_loops("1:4 x2 + 2:3 x2", 6), recorded.states, arguments, Iterates())
    assert ran == [2, 3, 1, 2, 2, 3]  # first visits of layers 1 and 2 are the plain model's
    ran.clear()
    replay.looped(parse_loops("1:3 x2 + 4:5 x2", 6), recorded.states, arguments, Iterates())
    assert ran == [1, 2, 3, 4, 4]


def test_refusals() -> None:
    model = insert(tiny_model("llama"), "1:3 x2")
    with pytest.raises(ModelError, match="has loops"):
        Replay(model)
    remove(model)
    changed = tiny_model("llama")
    changed.model.layers[3].register_forward_pre_hook(lambda module, args: (args[0] * 1.0,))
    with pytest.raises(ModelError, match="something between layers"):
        Replay(changed).record(_calls(changed, tokens(1, 5), None))


def test_a_wrapped_forward_survives() -> None:
    model = tiny_model("llama")
    layer: Any = model.model.layers[2]
    own = layer.forward
    layer.forward = wrapped = lambda *args, **kwargs: own(*args, **kwargs)
    Replay(model).arguments(_calls(model, tokens(1, 5), None))
    assert layer.forward is wrapped
    assert "forward" not in vars(model.model.layers[1])
