"""The paired bootstrap of a macro mean (no-free-loop, A.5): items are drawn again inside each benchmark, both arms keep their pairing.

A benchmark is an array ``[seeds, items]`` of differences, looped minus the other, sampled answers already averaged per
item. One draw of items serves all seeds and both arms, so the statistic is linear in the items' rows and a resample is
a multinomial draw over the *distinct* rows: a few binomials in place of thousands of indices.

``items``: intervals conditional on the training seeds, the paper's. ``items and seeds``: to each draw of items comes an
independent draw of the seeds' deviations from the mean over seeds, one draw for all benchmarks, enlarged by sqrt(S/(S-1))
because S resampled seeds show only (S-1)/S of their variance. (Drawing rows and columns of the array at once counts the noise
of single answers up to three times; simulated, this sum covers best. See docs/two-tests.md.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Resampling = Literal["items", "items and seeds"]

_TIE = 1e-10
"""Smaller than the step between two possible macro means, larger than rounding."""
_CHUNK = 500_000
_SEED_STREAM = 1_000_003


class StatsError(ValueError):
    """Arrays that a statistic is not defined for: names the array and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How to resample; the same value gives the same numbers."""

    resamples: int = 10_000
    seed: int = 0
    resampling: Resampling = "items"

    def __post_init__(self) -> None:
        if self.resamples < 100:
            raise StatsError(f"resamples is {self.resamples}; give at least 100")
        if self.resampling not in ("items", "items and seeds"):
            raise StatsError(f"unknown resampling {self.resampling!r}; use 'items' or 'items and seeds'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A statistic with its uncertainty, in the unit of the arrays."""

    value: float
    ci95: tuple[float, float]
    ci90: tuple[float, float]
    p_value: float
    """Two-sided against zero; a bootstrap's is at least 2 / (resamples + 1)."""
    standard_error: float


def resample_sums(rows: Array, resamples: int, rng: np.random.Generator) -> Array:
    """Column sums of ``rows`` ([items, columns]) over items drawn with replacement: ``[resamples, columns]``."""
    num_items = len(rows)
    distinct, counts = np.unique(np.round(rows, 12) + 0.0, axis=0, return_counts=True)
    if 8 * len(distinct) <= num_items:
        return np.asarray(rng.multinomial(num_items, counts / num_items, size=resamples) @ distinct)
    sums = np.empty((resamples, rows.shape[1]))
    step = max(1, _CHUNK // num_items)
    for first in range(0, resamples, step):
        size = min(step, resamples - first)
        drawn = rng.integers(num_items, size=(size, num_items)) + num_items * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * num_items).reshape(size, num_items)
        sums[first : first + size] = times @ rows
    return sums


def resample_means(differences: Sequence[npt.ArrayLike], bootstrap: Bootstrap) -> Array:
    """Resampled mean differences, ``[benchmarks, resamples]``; the macro mean is the mean over the first axis.

    Args:
        differences: one array ``[seeds, items]`` for each benchmark.

    Raises:
        StatsError: no benchmark, an array that is empty or not finite, or seeds resampled with fewer than two, or unequally many.
    """
    arrays = check_arrays(differences)
    by_items = np.stack([_item_draws(array, bootstrap, task) for task, array in enumerate(arrays)])
    return by_items if bootstrap.resampling == "items" else by_items + _seed_draws(arrays, bootstrap)


def _item_draws(array: Array, bootstrap: Bootstrap, task: int) -> Array:
    sums = resample_sums(array.mean(axis=0)[:, None], bootstrap.resamples, _rng(bootstrap, task))
    return np.asarray(sums[:, 0] / array.shape[1])


def _seed_draws(arrays: Sequence[Array], bootstrap: Bootstrap) -> Array:
    num_seeds = arrays[0].shape[0]
    if num_seeds < 2 or any(array.shape[0] != num_seeds for array in arrays):
        raise StatsError(f"seeds per benchmark are {[a.shape[0] for a in arrays]}: resampling seeds needs at least 2, equally many in each")
    drawn = _rng(bootstrap, _SEED_STREAM).multinomial(num_seeds, [1 / num_seeds] * num_seeds, size=bootstrap.resamples) / num_seeds
    by_seed = np.stack([array.mean(axis=1) for array in arrays])
    deviations = math.sqrt(num_seeds / (num_seeds - 1)) * (by_seed - by_seed.mean(axis=1, keepdims=True))
    return np.asarray(deviations @ drawn.T)


def macro_bootstrap(differences: Sequence[npt.ArrayLike], bootstrap: Bootstrap | None = None) -> Estimate:
    """The unweighted mean over benchmarks of the mean difference, with intervals and p-value.

    Raises:
        StatsError: as `resample_means`.
    """
    draws = resample_means(differences, bootstrap or Bootstrap())
    return estimate(macro_mean(differences), draws.mean(axis=0))


def macro_mean(differences: Sequence[npt.ArrayLike]) -> float:
    """The mean over benchmarks of the mean over seeds and items."""
    return float(np.mean([np.mean(np.asarray(a, dtype=np.float64)) for a in differences]))


def resample_ratios(numerators: Sequence[npt.ArrayLike], denominators: Sequence[npt.ArrayLike], bootstrap: Bootstrap) -> Array:
    """Resampled ratios of sums, ``[benchmarks, resamples]``: accuracy on a subset of the answers, its items drawn again.

    Args:
        numerators: for each benchmark ``[items]``, e.g. the summed differences of the answers that both arms finish.
        denominators: for each benchmark ``[items]``, e.g. how many such answers the item has.

    Raises:
        StatsError: a benchmark whose denominators are all zero. A resample without any keeps the observed ratio.
    """
    ratios = []
    for task, (numerator, denominator) in enumerate(zip(numerators, denominators, strict=True)):
        rows = np.stack([np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)], axis=1)
        total = rows.sum(axis=0)
        if not total[1] > 0:
            raise StatsError(f"benchmark {task} has no answer in the subset: leave it out")
        sums = resample_sums(rows, bootstrap.resamples, _rng(bootstrap, task))
        empty = sums[:, 1] <= 0
        ratios.append(np.where(empty, total[0] / total[1], sums[:, 0] / np.where(empty, 1.0, sums[:, 1])))
    return np.stack(ratios)


def difference_of_differences(
    first: Sequence[npt.ArrayLike], second: Sequence[npt.ArrayLike], bootstrap: Bootstrap | None = None
) -> Estimate:
    """Whether one contrast is larger than another on the same items (B.1: ARD before against after post-training).

    Args:
        first, second: for each benchmark ``[seeds, items]``, items in the same order; the two may have other seeds.

    Raises:
        StatsError: other benchmarks or items in the two, or as `resample_means`.
    """
    ones, others = check_arrays(first), check_arrays(second)
    if [a.shape[1] for a in ones] != [a.shape[1] for a in others]:
        raise StatsError(f"items per benchmark differ: {[a.shape[1] for a in ones]} and {[a.shape[1] for a in others]}")
    bootstrap = bootstrap or Bootstrap()
    if bootstrap.resampling == "items":
        return macro_bootstrap(
            [a.mean(axis=0, keepdims=True) - b.mean(axis=0, keepdims=True) for a, b in zip(ones, others, strict=True)], bootstrap
        )
    if any(a.shape != b.shape for a, b in zip(ones, others, strict=True)):
        raise StatsError("resampling seeds needs the same seeds in both contrasts: use 'items'")
    return macro_bootstrap([a - b for a, b in zip(ones, others, strict=True)], bootstrap)


def estimate(value: float, draws: Array) -> Estimate:
    """The observed statistic with the percentile intervals, p-value and standard error of its resamples."""
    return Estimate(
        value=value,
        ci95=percentile_interval(draws, 0.95),
        ci90=percentile_interval(draws, 0.90),
        p_value=two_sided_p(draws),
        standard_error=float(draws.std()),
    )


def percentile_interval(draws: Array, level: float) -> tuple[float, float]:
    """The central ``level`` of the resamples."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return _clean(low), _clean(high)


def two_sided_p(draws: Array) -> float:
    """Twice the smaller share of resamples on the far side of zero, (1 + count) / (R + 1) so that it is never zero.

    It agrees with the percentile interval: p < 0.05 where the 95 % interval leaves out zero.
    """
    below, above = int((draws <= _TIE).sum()), int((draws >= -_TIE).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (len(draws) + 1))


def check_arrays(arrays: Sequence[npt.ArrayLike]) -> list[Array]:
    """The arrays as float64 ``[seeds, items]``.

    Raises:
        StatsError: none, or one that is empty, not two-dimensional or not finite.
    """
    checked = [np.asarray(a, dtype=np.float64) for a in arrays]
    if not checked:
        raise StatsError("no benchmark: give at least one array [seeds, items]")
    for task, array in enumerate(checked):
        if array.ndim != 2 or array.size == 0:
            raise StatsError(f"benchmark {task} has shape {array.shape}: give a non-empty array [seeds, items]")
        if not np.isfinite(array).all():
            raise StatsError(f"benchmark {task} holds values that are not finite: missing is not zero, complete the runs")
    return checked


def _rng(bootstrap: Bootstrap, stream: int) -> np.random.Generator:
    return np.random.default_rng([bootstrap.seed, stream])


def _clean(value: Any) -> float:
    return 0.0 if abs(value) < _TIE else float(value)
