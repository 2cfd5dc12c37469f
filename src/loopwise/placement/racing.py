"""Races: a candidate is dropped as soon as the text read so far shows that it loses to the leader.

The test is on paired losses: the candidate's at the one temperature that is best on what was read, the leader's at its
fitted one. Its null hypothesis is not "no worse than the leader" but "on the whole text within one paired standard error of
the leader": what the whole text could not tell apart is not for a part of it to tell.

The unlooped model's losses are known on the whole text, and where a candidate does worse than the leader is partly where
the unlooped model does: so the difference is regressed on theirs, and what the regression says of the unread part is taken
as read (the regression estimator of finite populations, Cochran 1977, chapter 7). The text is finite, so only what is not
read yet is uncertain: a factor sqrt(1 - read/whole). The error is divided equally among the looks (Bonferroni): over all
looks a candidate that the whole text would put within one standard error of the leader is dropped with at most that
probability, as far as positions are independent and their mean is normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float32]
FEWEST_POSITIONS = 24
"""Below this no look drops anything: a mean of so few losses is not normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """How candidates are dropped."""

    error: float = 0.02
    """Probability, over all looks at one candidate, that it is dropped although the whole text would put it within one paired
    standard error of the leader."""

    def __post_init__(self) -> None:
        if not 0.0 < self.error < 0.5:
            raise ValueError(f"race error {self.error} is not in (0, 0.5); give e.g. 0.02")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one look says of a candidate against the leader."""

    difference_nats: float
    """Mean loss of the candidate minus the leader's on the whole text, as estimated from what was read."""
    standard_error_nats: float
    """Of that estimate."""
    dropped: bool


def look(
    race: Race, candidate: Losses, leader: Losses, unlooped: Losses, unlooped_leader_nats: float, *, part: float, num_looks: int
) -> Evidence:
    """Compare the losses read so far, position by position.

    Args:
        candidate, leader, unlooped: losses in nats at the positions read, [positions].
        unlooped_leader_nats: the unlooped model's mean loss minus the leader's, on the whole text.
        part: how much of the text's positions that is.
        num_looks: looks that there will be in all.
    """
    reference = leader.astype(np.float64)
    differences, known = candidate - reference, unlooped - reference
    num = len(differences)
    if num < FEWEST_POSITIONS:
        return Evidence(difference_nats=float(differences.mean()), standard_error_nats=math.inf, dropped=False)
    known_spread = known - known.mean()
    square = float(known_spread @ known_spread)
    slope = float(known_spread @ differences) / square if square > 0 else 0.0
    estimate = float(differences.mean()) + slope * (unlooped_leader_nats - float(known.mean()))
    residual = differences - differences.mean() - slope * known_spread
    variance = float(residual @ residual) / (num - 2)
    leverage = (unlooped_leader_nats - float(known.mean())) ** 2 / square if square > 0 else 0.0
    error = math.sqrt(variance * (1 / num + leverage) * (1.0 - part))
    margin = float(differences.std(ddof=1)) / math.sqrt(num / part)
    quantile = _t_quantile(race.error / num_looks, num - 2)
    return Evidence(difference_nats=estimate, standard_error_nats=error, dropped=estimate - quantile * error > margin)


@lru_cache(maxsize=1024)
def _t_quantile(tail: float, freedom: int) -> float:
    from scipy.stats import t  # takes seconds to import

    return float(t.isf(tail, freedom))
