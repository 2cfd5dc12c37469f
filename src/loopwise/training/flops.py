"""The FLOPs that training steps spend, by the depth that each of them ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from transformers import PreTrainedModel

from ..cost import CostError, ModelShape, cost_of, read_shape
from ..loops import Loop, with_passes
from ..models import loops_of
from ..nets.configuration import MODEL_TYPE, Architecture
from ..nets.recurrence import Depth
from ..nets.schedule import own_loops
from .objectives import Forward


class StepFlops:
    """FLOPs of matrix products by the step: a forward pass, and twice as many backward where gradients are kept.

    Where only a share of the parameters is trained, the others' own gradients are not made: a backward pass then counts 1 + that share.
    An adapter's own products are left out.

    Attention scores are left out, as in the cost room's numbers. Sequences of depths of their own count with these, though all of a
    batch run as long as the deepest.
    """

    def __init__(self, config: Mapping[str, Any], loops: Iterable[Loop] = (), *, trained_share: float = 1.0) -> None:
        """Read a model's config; ``loops`` are those that were put into it.

        Raises:
            CostError: a family that is not known.
        """
        self.shape: ModelShape = read_shape(config)
        self._loops = tuple(loops)
        self._arch = Architecture.from_config(config) if config.get("model_type") == MODEL_TYPE else None
        self._trained_share = trained_share
        self._of_loops = cache(self._forward)
        self._of_passes = cache(self._inserted)

    def per_token(self, depth: Depth | None) -> float:
        """Of one token on average; ``depth`` is None for a model without a depth to choose."""
        if depth is None:
            return self.of_forwards([(None, True)])
        depths = depth.depths or (depth.num_loops,)
        kept = [loops if depth.grad_loops is None else min(loops, depth.grad_loops) for loops in depths]
        flops = (self._of_loops(loops) + 2 * self._of_loops(with_gradients) for loops, with_gradients in zip(depths, kept, strict=True))
        return sum(flops) / len(depths)

    def of_forwards(self, forwards: Iterable[Forward]) -> float:
        """Of one token, all forward passes of a step together."""
        return sum(self._of_passes(passes) * (2 + self._trained_share if kept else 1) for passes, kept in forwards)

    def _inserted(self, passes: int | None) -> float:
        return cost_of(self.shape, self._loops if passes is None else with_passes(self._loops, passes)).flops_per_token

    def _forward(self, num_loops: int) -> float:
        assert self._arch is not None
        return cost_of(replace(self.shape, own_loops=own_loops(self._arch, num_loops)), ()).flops_per_token


def step_flops(model: PreTrainedModel) -> StepFlops | None:
    """The FLOPs of a model's steps; None where its family's cost is not known."""
    try:
        parameters = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        share = sum(count for count, trained in parameters if trained) / sum(count for count, _ in parameters)
        return StepFlops(model.config.to_dict(), loops_of(model), trained_share=share)
    except CostError:
        return None
