"""Races: a candidate is dropped as soon as the text read so far shows that it loses to the leader.

The test is on paired losses: the candidate's at the one temperature at which it is foretold to do best, the leader's at its
fitted one. Its null hypothesis is not "no worse than the leader" but "on the whole text within one paired standard error of
the leader": what the whole text could not tell apart is not for a part of it to tell. Where only the best is sought, and one as good
to within a tolerance does as well, it is "better than the leader by more than the tolerance" (an indifference zone, Bechhofer 1954).

Some losses are known on the whole text: the unlooped model's, and those of candidates that were read to the end. Where a
candidate does worse than the leader is largely where its neighbours do: so the difference is regressed on theirs, and what
the regression says of the unread part is taken as read (the regression estimator of finite populations, Cochran 1977,
chapter 7). The text is finite, so only what is not read yet is uncertain: a factor sqrt(1 - read/whole).

A sibling, of the same structure with other passes or another beta, says more than any other neighbour, also where it was read
only further than the candidate and not to the end. Then it takes two steps (double sampling, Cochran 1977, chapter 12): the
candidate is regressed on its sibling and on what is known, and the sibling's mean on the whole text is foretold from its own
longer reading. The residuals of the two steps are uncorrelated; their margins are added, not their squares, because where the
sibling's reading ended was a race's decision.

The error is divided equally among the looks (Bonferroni), those at siblings that speak for a candidate among them: over all looks
a candidate that the whole text would put within one standard error of the leader is dropped with at most that probability, as
far as positions are independent and their means are normal. It is stated of each candidate, not of all of them at once.
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
    standard error of the leader, or better than it by more than the tolerance."""
    tolerance_nats: float | None = None
    """The race keeps what is better than the leader by more than this; None: also what is within one paired standard error of it."""

    def __post_init__(self) -> None:
        if not 0.0 < self.error < 0.5:
            raise ValueError(f"race error {self.error} is not in (0, 0.5); give e.g. 0.02")
        if self.tolerance_nats is not None and not 0.0 <= self.tolerance_nats < math.inf:
            raise ValueError(f"race tolerance {self.tolerance_nats} is not a number of nats from 0; give e.g. 0.002")

    def margin(self, standard_error: float) -> float:
        """How far behind the leader a candidate must be shown to be: one standard error of the whole text, or less than not at all."""
        return standard_error if self.tolerance_nats is None else -self.tolerance_nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one look says of a candidate against the leader."""

    difference_nats: float
    """Mean loss of the candidate minus the leader's on the whole text, as estimated from what was read."""
    standard_error_nats: float
    """Of that estimate."""
    dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """A mean on the whole text, foretold from a part."""

    mean: float
    error: float
    """Its standard error."""
    freedom: int
    slopes: NDArray[np.float64]
    """By each covariate, [covariates]."""
    variance: float
    """Of the residuals."""


class _Regression:
    """On covariates at the first positions of a text, [covariates, read], whose means on all ``positions`` are known."""

    def __init__(self, read: NDArray[np.float64], means: NDArray[np.float64], positions: int) -> None:
        self.num, self.positions = read.shape[1], positions
        self.spread = read - read.mean(axis=1, keepdims=True)
        self.unread = means - read.mean(axis=1)
        self.inverse, self.rank = _pseudo_inverse(self.spread @ self.spread.T)

    def weights(self) -> NDArray[np.float64]:
        """How much each value that was read counts in the mean that is foretold, [read]."""
        weights: NDArray[np.float64] = 1 / self.num + self.unread @ self.inverse @ self.spread
        return weights

    def foretell(self, values: NDArray[np.float64]) -> _Forecast:
        """The mean of all positions from the first ones' values, [read]."""
        mean, slopes = float(values.mean()), self.inverse @ (self.spread @ values)
        residual = values - mean - slopes @ self.spread
        freedom = self.num - 1 - self.rank
        variance = float(residual @ residual) / freedom
        spread = 1 / self.num + float(self.unread @ self.inverse @ self.unread)
        error = math.sqrt(variance * spread * (1.0 - self.num / self.positions))
        return _Forecast(mean=mean + float(slopes @ self.unread), error=error, freedom=freedom, slopes=slopes, variance=variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a candidate's differences to the leader are regressed on."""

    covariates: NDArray[np.float64]
    """As far as all of them were read, [covariates, read further]; a sibling's first."""
    own: _Regression
    sibling: _Forecast | None


def _step(num: int, leader: Losses, known: Losses, sibling: Losses | None) -> _Step:
    """The regression of the first ``num`` differences; arguments as those of `look`."""
    reference, positions = leader.astype(np.float64), len(leader)
    covariates = known - reference
    means = covariates.mean(axis=1)
    theirs = None
    if sibling is not None and len(sibling) > num:
        covariates, further = covariates[:, : len(sibling)], sibling.astype(np.float64) - reference[: len(sibling)]
        theirs = _Regression(covariates, means, positions).foretell(further)
        covariates, means = np.vstack([further, covariates]), np.append(theirs.mean, means)
    return _Step(covariates=covariates, own=_Regression(covariates[:, :num], means, positions), sibling=theirs)


def weigh(num: int, leader: Losses, known: Losses, sibling: Losses | None = None) -> NDArray[np.float64]:
    """How much each of the first ``num`` losses of a candidate counts in what `look` foretells of the whole text, [num].

    What is foretold is linear in the losses: so the temperature at which it is best is found without refitting.
    """
    return _step(num, leader, known, sibling).own.weights()


def look(race: Race, candidate: Losses, leader: Losses, known: Losses, *, num_looks: int, sibling: Losses | None = None) -> Evidence:
    """Compare the losses read so far, position by position.

    Args:
        candidate: losses in nats at the positions read, [read].
        leader: the leader's on the whole text, [positions].
        known: those of the unlooped model and of others on the whole text, [models, positions].
        num_looks: looks that there will be in all, at this candidate and at siblings that speak for it.
        sibling: of one of the same structure, [read further]; what was read no further than the candidate is ignored.
    """
    num, positions = len(candidate), len(leader)
    differences = candidate.astype(np.float64) - leader[:num]
    if num < FEWEST_POSITIONS:
        return Evidence(difference_nats=float(differences.mean()), standard_error_nats=math.inf, dropped=False)
    step = _step(num, leader, known, sibling)
    own = step.own.foretell(differences)
    tail = race.error / num_looks
    reach, square = _t_quantile(tail, own.freedom) * own.error, own.error**2
    if step.sibling is not None:
        error = abs(float(own.slopes[0])) * step.sibling.error
        reach += _t_quantile(tail, step.sibling.freedom) * error
        square += error**2
    # The spread where covariates were read as well: a spread from few losses with heavy tails is mostly too small.
    variance = max(float(differences.var(ddof=1)), float((own.slopes @ step.covariates).var()) + own.variance)
    margin = race.margin(math.sqrt(variance / positions))
    return Evidence(difference_nats=own.mean, standard_error_nats=math.sqrt(square), dropped=own.mean - reach > margin)


def _pseudo_inverse(products: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Of a positive semi-definite matrix, and its rank: two models that say the same count once."""
    values, vectors = np.linalg.eigh(products)
    kept = values > max(float(values[-1]), 0.0) * 1e-10
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T, int(kept.sum())


@lru_cache(maxsize=1024)
def _t_quantile(tail: float, freedom: int) -> float:
    from scipy.stats import t  # takes seconds to import

    return float(t.isf(tail, freedom))
