"""The passes of inserted loops for one forward pass: one is the plain model, n is the model with n passes put in, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from loop_sets import loop_sets
from looped import EVERYTHING, every_family, logits, looped_model, plain_model, with_cache
from loopwise.loops import LoopError, call_sites, check_loops, format_loops, parse_loops, with_passes
from loopwise.models import ModelError, dynamic_cache, insert, loop_passes, loops_of, remove
from tiny import tokens

DEEPER = {
    "1:4 x2": "1:4 x3",
    "1:4 x2 damped beta=0.25": "1:4 x3 damped beta=0.25",
    "0:2 x2 + 3:5 x2": "0:2 x3 + 3:5 x3",
    "1:4 x2 + 2.mlp x3 in pass 2": "1:4 x3 + 2.mlp x3 in pass 2",
    "2.mlp x2": "2.mlp x3",
}


@every_family
def test_one_pass_is_the_plain_model_bit_for_bit(family: str) -> None:
    ids = tokens(2, 12)
    model = looped_model(family, EVERYTHING)
    looped = logits(model, ids)
    with loop_passes(model, 1):
        assert torch.equal(logits(model, ids), logits(plain_model(family), ids))
    assert torch.equal(logits(model, ids), looped) and not torch.equal(looped, logits(plain_model(family), ids))


@pytest.mark.parametrize("loops", DEEPER)
def test_n_passes_are_those_of_a_loop_put_in_with_n(loops: str) -> None:
    ids = tokens(2, 12)
    model = looped_model("llama", loops)
    looped = logits(model, ids)
    with loop_passes(model, 3):
        assert torch.equal(logits(model, ids), logits(looped_model("llama", DEEPER[loops]), ids))
        with loop_passes(model, None):
            assert torch.equal(logits(model, ids), looped)
        with loop_passes(model, 1):
            assert torch.equal(logits(model, ids), logits(plain_model("llama"), ids))
        assert torch.equal(logits(model, ids), logits(looped_model("llama", DEEPER[loops]), ids))
        assert format_loops(loops_of(model)) == loops, "the loops themselves stay"


def gradients(model: Any, ids: torch.Tensor, passes: int | None) -> dict[str, torch.Tensor]:
    model.train()
    with loop_passes(model, passes):
        loss = model(ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()  # after the block, and a checkpointed layer runs again here
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_gradients_are_those_of_the_passes_that_ran(family: str, checkpointed: bool) -> None:
    ids = tokens(2, 10)
    for passes, same in ((1, None), (3, "1:4 x3 damped beta=0.25")):
        model, other = looped_model(family, "1:4 x2 damped beta=0.25"), plain_model(family)
        if same:
            insert(other, same)
        for one in (model, other):
            if checkpointed:
                one.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        ours, theirs = gradients(model, ids, passes), gradients(other, ids, None)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_passes_are_back_after_an_error_and_the_loop_comes_out() -> None:
    ids, model = tokens(2, 12), looped_model("llama", "1:4 x2")
    looped = logits(model, ids)
    with pytest.raises(RuntimeError), loop_passes(model, 3):
        raise RuntimeError
    assert torch.equal(logits(model, ids), looped)
    assert torch.equal(logits(remove(model), ids), logits(plain_model("llama"), ids))
    with loop_passes(model, 1), loop_passes(model, None):  # a model without loops has one pass
        assert torch.equal(logits(model, ids), logits(plain_model("llama"), ids))


def test_a_cache_of_other_passes_is_refused() -> None:
    ids, model = tokens(2, 12), looped_model("llama", "1:4 x2")
    cache = dynamic_cache(model)
    logits(model, ids, cache=cache)
    mask = torch.ones(2, 13, dtype=torch.long)
    with pytest.raises(ModelError, match="under the loops 1:4 x2"), loop_passes(model, 1):
        model(ids[:, :1], attention_mask=mask, use_cache=True, **with_cache(model, cache))


@pytest.mark.parametrize("passes", [0, -1])
def test_fewer_passes_than_one_are_refused(passes: int) -> None:
    for model in (plain_model("llama"), looped_model("llama", "1:4 x2")):
        with pytest.raises(LoopError, match="at least 1"), loop_passes(model, passes):
            pass


def test_passes_of_a_model_without_loops_are_refused() -> None:
    with pytest.raises(ModelError, match="has no loop that was put in"), loop_passes(plain_model("llama"), 2):
        pass


def test_nested_loops_keep_their_passes() -> None:
    loops = parse_loops("0:8 x4 + 1:6 x2 in pass 3 + 2:4 x2 + 7.mlp x3 in pass 2", 8)
    assert format_loops(with_passes(loops, 4)) == format_loops(loops)
    assert format_loops(with_passes(loops, 2)) == "0:8 x2 + 7.mlp x3 in pass 2", "what lies in a pass that does not come goes with it"
    assert format_loops(with_passes(loops, 1)) == "0:8 x1"


@given(loop_sets())
def test_passes_change_the_outermost_loops_alone(case: tuple[Any, int]) -> None:
    loops, num_layers = case
    assert [site.layer for site in call_sites(with_passes(loops, 1), num_layers)] == list(range(num_layers))
    for passes in (2, 5):
        changed = with_passes(loops, passes)
        assert check_loops(changed, num_layers) == changed
        assert with_passes(changed, passes) == changed
