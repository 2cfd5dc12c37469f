"""What a step minimises: the next token's loss, or what a recipe puts in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from ..models import loop_passes
from .losses import summed_loss

Forward = tuple[int | None, bool]
"""A forward pass of a step: the passes of its loops (None: as they were put in), and whether gradients go through it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Where a micro-batch stands in its run."""

    step: int
    """Counted from 0."""
    num_steps: int
    seed: int
    first_row: int
    """The micro-batch's first row in the whole batch."""
    num_targets: int
    """Of the whole batch, over all processes."""
    passes: int | None
    """What the schedule drew for this step; None is the loops as they were put in."""


class Objective(Protocol):
    """A frozen value that says what a step minimises. It keeps nothing from call to call: a resumed run is the same run."""

    def __call__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, arguments: Mapping[str, Any], context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum over the micro-batch's targets of what is minimised, and sums of named terms for ``metrics.jsonl``.

        The engine divides all of them by the targets of the whole batch. Terms have the same names in every call.

        Args:
            inputs: [rows, tokens].
            targets: [rows, tokens], the token that follows each input, or -100.
            arguments: what else the model's forward takes, e.g. ``position_ids``.
        """

    def forwards(self, passes: int | None) -> tuple[Forward, ...]:
        """The forward passes of a step that drew ``passes``: what it is charged for, and what is kept for the backward pass."""

    def to_json(self) -> dict[str, Any]:
        """What decides its numbers, beside the settings; the run is bound to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """The cross entropy of the next token: what the engine minimises unless told otherwise."""

    def __call__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, arguments: Mapping[str, Any], context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective`; no terms."""
        with loop_passes(model, context.passes):
            return summed_loss(model, inputs, targets, **arguments), {}

    def forwards(self, passes: int | None) -> tuple[Forward, ...]:
        """One, with gradients."""
        return ((passes, True),)

    def to_json(self) -> dict[str, Any]:
        """Its name."""
        return {"objective": "next token"}


class LossModule(nn.Module):
    """A model and its objective as one module: what DDP wraps."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, inputs: Tensor, targets: Tensor, arguments: Mapping[str, Any], context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective`."""
        return self.objective(self.model, inputs, targets, arguments, context)
