"""Races: a candidate is dropped as soon as the text read so far shows that it loses to the leader.

The test is on paired losses: the candidate's at the one temperature that is best on what was read, the leader's at its
fitted one. Its null hypothesis is not "no worse than the leader" but "on the whole text within one paired standard error of
the leader": what the whole text could not tell apart is not for a part of it to tell.

Some losses are known on the whole text: the unlooped model's, and those of a few candidates spread over the grid. Where a
candidate does worse than the leader is largely where its neighbours do: so the difference is regressed on theirs, and what
the regression says of the unread part is taken as read (the regression estimator of finite populations, Cochran 1977,
chapter 7). The text is finite, so only what is not read yet is uncertain: a factor sqrt(1 - read/whole). The error is divided
equally among the looks (Bonferroni): over all looks a candidate that the whole text would put within one standard error of
the leader is dropped with at most that probability, as far as positions are independent and their mean is normal.
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

    error: float = 0.05
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


def look(race: Race, candidate: Losses, leader: Losses, known: Losses, *, num_looks: int) -> Evidence:
    """Compare the losses read so far, position by position.

    Args:
        candidate: losses in nats at the positions read, [read].
        leader: the leader's on the whole text, [positions].
        known: those of the unlooped model and of others on the whole text, [models, positions].
        num_looks: looks that there will be in all.
    """
    num, part = len(candidate), len(candidate) / len(leader)
    reference = leader.astype(np.float64)
    differences, others = candidate - reference[:num], known - reference
    mean = float(differences.mean())
    if num < FEWEST_POSITIONS:
        return Evidence(difference_nats=mean, standard_error_nats=math.inf, dropped=False)
    read = others[:, :num]
    spread = read - read.mean(axis=1, keepdims=True)
    unread = others.mean(axis=1) - read.mean(axis=1)
    inverse, rank = _pseudo_inverse(spread @ spread.T)
    slopes = inverse @ (spread @ differences)
    estimate = mean + float(slopes @ unread)
    residual = differences - mean - slopes @ spread
    freedom = num - 1 - rank
    variance = float(residual @ residual) / freedom
    error = math.sqrt(variance * (1 / num + float(unread @ inverse @ unread)) * (1.0 - part))
    margin = float(differences.std(ddof=1)) / math.sqrt(len(leader))
    quantile = _t_quantile(race.error / num_looks, freedom)
    return Evidence(difference_nats=estimate, standard_error_nats=error, dropped=estimate - quantile * error > margin)


def _pseudo_inverse(products: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Of a positive semi-definite matrix, and its rank: two models that say the same count once."""
    values, vectors = np.linalg.eigh(products)
    kept = values > max(float(values[-1]), 0.0) * 1e-10
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T, int(kept.sum())


@lru_cache(maxsize=1024)
def _t_quantile(tail: float, freedom: int) -> float:
    from scipy.stats import t  # takes seconds to import

    return float(t.isf(tail, freedom))
