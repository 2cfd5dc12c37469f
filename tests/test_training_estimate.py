"""The estimate of a run before it begins: depths that steps draw, loops without gradients, and activations against measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwise.cost import CostError, cost_of, read_shape
from loopwise.nets import LoopedTransformer, Recurrence
from loopwise.training import Execution, TrainingError, TrainSettings, check_fits, estimate, train
from loopwise.training.estimate import Estimate, activation_bytes
from loopwise.training.flops import StepFlops
from tiny_nets import DESIGNS, tiny_architecture, token_ids
from training_cases import Kept, Walks, fresh_net

SIZES: dict[str, Any] = dict(hidden_size=128, intermediate_size=512, head_dim=32, num_attention_heads=4, num_key_value_heads=4)


def estimated(recurrence: Recurrence | None, *, num_steps: int = 20, num_loops: int = 3, name: str = "span") -> Estimate:
    shape = read_shape(tiny_architecture(name, num_loops=num_loops).as_config())
    settings = TrainSettings(num_steps=num_steps, recurrence=recurrence, seed=3)
    return estimate(shape, settings, Execution(), num_sequences=4, sequence_tokens=16)


def measured_bytes(net: LoopedTransformer, inputs: Tensor, num_loops: int, grad_loops: int | None) -> int:
    """Of what autograd keeps, weights left out."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = net.model(inputs, use_cache=False, num_loops=num_loops, grad_loops=grad_loops).last_hidden_state
    assert hidden.requires_grad
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)


@pytest.mark.parametrize("name", ["sandwich", "parcae", "arloop-full", "arloop-sw", "span", "span-damped", "injected"])
@pytest.mark.parametrize(("num_loops", "grad_loops"), [(1, None), (5, None), (5, 2)])
def test_activations_of_a_depth_are_within_a_third_of_measured_ones(name: str, num_loops: int, grad_loops: int | None) -> None:
    net = LoopedTransformer.from_architecture(tiny_architecture(name, **SIZES)).train()
    inputs = token_ids(2, 32)
    shape = read_shape(net.model.arch.as_config()).at_depth(grad_loops or num_loops)
    found = activation_bytes(shape, inputs.numel(), TrainSettings(num_steps=1), Execution())
    measured = measured_bytes(net, inputs, num_loops, grad_loops)
    assert 0.75 * measured < found < 4 / 3 * measured, found / measured


def test_a_fixed_depth_is_that_depths_own_estimate() -> None:
    for loops in (1, 2, 6):
        assert estimated(Recurrence(mean=loops)) == estimated(None, num_loops=loops)
        assert estimated(Recurrence(mean=loops), num_loops=1) == estimated(None, num_loops=loops)


@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize("kind", ["poisson", "lognormal_poisson", "uniform"])
def test_drawn_depths_take_the_memory_of_the_deepest_and_the_flops_of_all(kind: Any, per_sequence: bool) -> None:
    recurrence = Recurrence(kind=kind, mean=4, most=9, per_sequence=per_sequence)
    flops = StepFlops(tiny_architecture("span").as_config())
    drawn = [recurrence.draw(seed=3, step=step, num_sequences=4) for step in range(20)]
    found = estimated(recurrence)
    assert found.activations_bytes == estimated(None, num_loops=max(depth.num_loops for depth in drawn)).activations_bytes
    assert found.flops == pytest.approx(sum(flops.per_token(depth) for depth in drawn) * 4 * 16)
    assert found.activations_bytes > estimated(None).activations_bytes and found.tokens == estimated(None).tokens


def test_loops_without_gradients_keep_nothing_and_count_once() -> None:
    whole, cut = estimated(Recurrence(mean=6)), estimated(Recurrence(mean=6, backprop_loops=2))
    assert cut.activations_bytes == estimated(None, num_loops=2).activations_bytes < whole.activations_bytes
    forward = [cost_of(read_shape(tiny_architecture("span", num_loops=loops).as_config()), ()).flops_per_token for loops in (6, 2)]
    assert cut.flops == pytest.approx((forward[0] + 2 * forward[1]) * cut.tokens)
    assert estimated(Recurrence(mean=2, backprop_loops=5)) == estimated(None, num_loops=2)


@pytest.mark.parametrize("kept", [None, 1])
def test_the_flops_estimated_are_those_that_the_run_counts(tmp_path: Path, kept: int | None) -> None:
    recurrence = Recurrence(kind="uniform", least=1, most=4, backprop_loops=kept)
    settings = TrainSettings(num_steps=4, recurrence=recurrence, seed=3)
    source, net, told = Walks(num_sequences=4), fresh_net("span"), Kept()
    needed = estimate(read_shape(net.model.arch.as_config()), settings, Execution(), num_sequences=4, sequence_tokens=12)
    result = train(net, source, settings, tmp_path / "run", execution=Execution(device="cpu"), reporter=told)
    assert result.state.flops == pytest.approx(needed.flops)
    assert needed.words() in told.notes


def test_a_deep_draw_that_cannot_fit_is_refused() -> None:
    plain, deep = estimated(None), estimated(Recurrence(mean=50))
    check_fits(plain, plain.total_bytes + 1, 4)
    with pytest.raises(TrainingError, match="the run needs about"):
        check_fits(deep, plain.total_bytes + 1, 4)


def test_only_architectures_with_a_loop_of_their_own_have_a_depth() -> None:
    config = dict(model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64)
    shape = read_shape(config)
    with pytest.raises(CostError, match="a llama has no loop of its own to run 2 times; leave its depth out"):
        shape.at_depth(2)
    settings = TrainSettings(num_steps=1, recurrence=Recurrence(mean=2))
    with pytest.raises(TrainingError, match=r"recurrence is for networks of nets:\.\.\., not for a llama"):
        estimate(shape, settings, Execution(), num_sequences=1, sequence_tokens=8)


@pytest.mark.parametrize("name", DESIGNS)
def test_a_shape_at_a_depth_is_that_of_an_architecture_with_it(name: str) -> None:
    for loops in (1, 2, 5):
        wanted = read_shape(tiny_architecture(name, num_loops=loops).as_config())
        found = read_shape(tiny_architecture(name).as_config()).at_depth(loops)
        assert found.own_loops == wanted.own_loops and cost_of(found, ()).breakdown == cost_of(wanted, ()).breakdown
