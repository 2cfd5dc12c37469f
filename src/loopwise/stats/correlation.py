"""Rank correlation of a score with accuracy over arms that answered the same items, and how far the items alone move it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .bootstrap import Array, Bootstrap, StatsError, check_arrays, percentile_interval, resample_sums

_DEFINED = 0.95
"""The part of the resamples in which rho must be defined for an interval: accuracies may all be equal in one."""


class RankCorrelation(NamedTuple):
    """Spearman's rho with its interval."""

    rho: float | None
    """None where it is not defined: fewer than three arms, or all scores or all accuracies equal."""
    ci95: tuple[float, float] | None
    """Over items drawn again, the same ones for every arm; the arms are as given, so that it says nothing of other arms."""


def score_accuracy_rho(scores: Sequence[float], correct: Sequence[npt.ArrayLike], bootstrap: Bootstrap | None = None) -> RankCorrelation:
    """Spearman's rho between a score, where lower is better, and the macro mean accuracy; positive where the better has the higher.

    Args:
        scores: one an arm; infinite ones share the last rank.
        correct: for each benchmark ``[arms, items]``, arms in the order of the scores.

    Raises:
        StatsError: a benchmark with another number of arms, or a score that is not a number.
    """
    bootstrap = bootstrap or Bootstrap()
    arrays = check_arrays(correct)
    if any(len(array) != len(scores) for array in arrays):
        raise StatsError(
            f"{len(scores)} scores and {[len(a) for a in arrays]} arms per benchmark: give each arm one score and all benchmarks"
        )
    if any(math.isnan(score) for score in scores):
        raise StatsError("a score is not a number: give an infinite one to an arm that is ruined")
    if len(scores) < 3:
        return RankCorrelation(None, None)
    good = -np.asarray(scores, dtype=np.float64)
    rho = float(_rhos(good, np.mean([array.mean(axis=1) for array in arrays], axis=0)[None])[0])
    if math.isnan(rho):
        return RankCorrelation(None, None)
    draws = _rhos(good, np.mean([_drawn(array, bootstrap, task) for task, array in enumerate(arrays)], axis=0))
    defined = draws[~np.isnan(draws)]
    return RankCorrelation(rho, percentile_interval(defined, 0.95) if len(defined) >= _DEFINED * len(draws) else None)


def _drawn(array: Array, bootstrap: Bootstrap, task: int) -> Array:
    """Accuracies ``[resamples, arms]`` on items drawn with replacement."""
    sums = resample_sums(array.T, bootstrap.resamples, np.random.default_rng([bootstrap.seed, task]))
    return np.asarray(sums / array.shape[1])


def _rhos(good: Array, accuracies: Array) -> Array:
    """Spearman's rho of each row of ``accuracies`` with ``good``; not a number where one of the two is constant."""
    from scipy.stats import rankdata  # costs a second to import

    ours = rankdata(good)
    theirs = rankdata(np.round(accuracies, 12), axis=1)  # equal accuracies tie, whatever the order of their sums
    ours = ours - ours.mean()
    theirs = theirs - theirs.mean(axis=1, keepdims=True)
    spread = np.sqrt((ours**2).sum() * (theirs**2).sum(axis=1))
    return np.asarray(np.divide(theirs @ ours, spread, out=np.full(len(theirs), np.nan), where=spread > 0))
