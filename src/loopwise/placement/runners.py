"""Candidates on their way through a text, and where they end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loopwise.records import CandidateResult

from .nearness import structure
from .racing import Losses
from .space import Candidate

LARGEST_STEP = 0.3
"""How far from where losses are expanded, as a part of 1/T, a race takes the expansion at its word."""
NEAR_STEP = 0.1
"""A first look that finds its best 1/T within this part of where it expanded has expanded near enough."""
SURE_ERRORS = 3.0
"""So many standard errors of the slope by 1/T are beyond doubt. A guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A candidate's result and, where it was scored on the whole text, its losses."""

    result: CandidateResult
    losses: Losses | None = None
    """In nats at the fitted temperature, position after position."""
    read: Losses | None = None
    """Of one that was dropped, as far as it was read, at the temperature that is best there."""


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
    peeked: bool = False
    """Whether all it read is a part of the first batch, which it has to read as a whole to go on."""

    def rested(self) -> Runner:
        """Without the tensors: what is known of it, small enough to keep of every candidate and to send to other processes."""
        return Runner(self.candidate, self.inverse, list(self.expanded), ended=self.ended, peeked=self.peeked)

    @property
    def num_read(self) -> int:
        """Positions."""
        return sum(rows.shape[1] for rows in self.expanded)

    def losses(self, weights: NDArray[np.float64] | None = None) -> Losses:
        """Of what was read, at the one temperature that is best for it: at no other would the candidate look better.

        Args:
            weights: how much each position counts, [read]; None: all alike.
        """
        expanded = np.concatenate(self.expanded, axis=1).astype(np.float64)
        step = best_step(expanded if weights is None else expanded * weights)
        step = min(max(step, -LARGEST_STEP * self.inverse), LARGEST_STEP * self.inverse)
        loss, slope, curvature = expanded
        # The expansion's next term is about |step|/inverse of its last; in the candidate's favour, so that the step drops nobody.
        best: Losses = (loss + slope * step + curvature * step**2 / 2 * (1 - abs(step) / self.inverse)).astype(np.float32)
        return best


def is_far(expanded: NDArray[np.floating[Any]], inverse: float) -> bool:
    """Whether the best 1/T lies far from where losses were expanded, beyond doubt: few losses alone say little of it."""
    slope = expanded[1].astype(np.float64)
    in_doubt = abs(float(slope.sum())) < SURE_ERRORS * float(slope.std()) * math.sqrt(len(slope))
    return abs(best_step(expanded)) > NEAR_STEP * inverse and not in_doubt


def best_step(expanded: NDArray[np.floating[Any]]) -> float:
    """How far the best 1/T lies from where losses were expanded, [3, positions], by their expansion."""
    _, slope, curvature = expanded.sum(axis=1, dtype=np.float64)
    return -float(slope) / float(curvature) if curvature > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLosses:
    """A candidate that was read to the end, which the others race against."""

    candidate: Candidate
    losses: Losses
    """On the whole text, at its fitted temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What was read of other candidates: differences are regressed on it."""

    whole: Mapping[Candidate, Losses] = field(default_factory=dict)
    """Losses of those that were read to the end."""
    partial: Mapping[Candidate, Losses] = field(default_factory=dict)
    """Of each structure the longest reading that was not to the end."""
    are_siblings: bool = False
    """Whether those that race now are siblings of what was read: then looks at these count as looks at them."""

    def with_more(self, found: Mapping[Candidate, Scored]) -> Readings:
        """These, and what was read of further candidates."""
        whole, partial = dict(self.whole), dict(self.partial)
        for candidate, scored in found.items():
            if scored.losses is not None:
                whole[candidate] = scored.losses
            elif scored.read is not None and len(scored.read) > len(partial.get(structure(candidate), ())):
                partial[structure(candidate)] = scored.read
        return replace(self, whole=whole, partial=partial)


NOTHING_READ = Readings()
