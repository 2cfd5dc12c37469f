"""Candidates on their way through a text, and where they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loopwise.records import CandidateResult

from .racing import Losses
from .space import Candidate

LARGEST_STEP = 0.3
"""How far from where losses are expanded, as a part of 1/T, a race takes the expansion at its word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A candidate's result and, where it was scored on the whole text, its losses."""

    result: CandidateResult
    losses: Losses | None = None
    """In nats at the fitted temperature, position after position."""


@dataclass(slots=True)
class Runner:
    """One candidate on its way through the text of a race."""

    candidate: Candidate
    inverse: float
    """The 1/T about which its losses are expanded."""
    expanded: list[Losses] = field(default_factory=list)
    """Of each look, [3, positions]: the losses there, and their first two derivatives by 1/T."""
    kept: list[Tensor] = field(default_factory=list)
    """What the head needs to run again, batch by batch of the scoring split."""
    ended: Scored | None = None

    def rested(self) -> Runner:
        """Without the tensors: what is known of it, small enough to keep of every candidate and to send to other processes."""
        return Runner(self.candidate, self.inverse, list(self.expanded), ended=self.ended)

    def losses(self) -> Losses:
        """Of what was read, at the one temperature that is best for it: at no other would the candidate look better."""
        expanded = np.concatenate(self.expanded, axis=1).astype(np.float64)
        step = min(max(best_step(expanded), -LARGEST_STEP * self.inverse), LARGEST_STEP * self.inverse)
        loss, slope, curvature = expanded
        best: Losses = (loss + slope * step + curvature * step**2 / 2).astype(np.float32)
        return best


def best_step(expanded: NDArray[np.floating[Any]]) -> float:
    """How far the best 1/T lies from where losses were expanded, [3, positions], by their expansion."""
    _, slope, curvature = expanded.sum(axis=1, dtype=np.float64)
    return -float(slope) / float(curvature) if curvature > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLosses:
    """A candidate that was read to the end: the leader of a wave, or a neighbour that says how losses go on."""

    candidate: Candidate
    losses: Losses
    """On the whole text, at its fitted temperature."""
