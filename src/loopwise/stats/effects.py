"""Equivalence, the smallest effect a trial can show, per-seed differences, rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .bootstrap import StatsError, check_arrays


class Correlation(NamedTuple):
    """Spearman's rank correlation."""

    rho: float
    p_value: float


def equivalent(ci90: tuple[float, float], margin: float) -> bool:
    """Two one-sided tests at 5 %: the 90 % interval lies within ``margin`` of zero."""
    return -margin < ci90[0] and ci90[1] < margin


def items_for_equivalence(margin: float) -> int:
    """Items below which even two arms without any difference show no equivalence: by the rule of three, differences on
    up to 3/n of the items go unseen in n items one time in twenty."""
    return math.ceil(3 / margin - 1e-9)


def per_seed(differences: Sequence[npt.ArrayLike]) -> tuple[float, ...]:
    """The macro mean difference of each seed.

    Raises:
        StatsError: benchmarks with other numbers of seeds.
    """
    arrays = check_arrays(differences)
    if len({a.shape[0] for a in arrays}) > 1:
        raise StatsError(f"seeds per benchmark are {[a.shape[0] for a in arrays]}: give each benchmark the same seeds")
    return tuple(float(x) for x in np.mean([a.mean(axis=1) for a in arrays], axis=0))


def detectable_effect(standard_error: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The effect that a two-sided test at ``alpha`` finds with probability ``power``: (z_{1-alpha/2} + z_power) * se."""
    z = NormalDist().inv_cdf
    return (z(1 - alpha / 2) + z(power)) * standard_error


def planned_standard_error(num_items: Sequence[int], num_seeds: int, discordance: float, seed_correlation: float = 0.0) -> float:
    """Standard error of a macro difference before any run.

    Args:
        num_items: items of each benchmark.
        discordance: share of items on which the two arms differ in one seed, e.g. 0.2.
        seed_correlation: correlation of an item's differences between two seeds; 0 when only training noise makes them
            differ, 1 when the loop helps and harms the same items in every seed (then more seeds buy nothing).

    Raises:
        StatsError: a number that cannot be.
    """
    if not num_items or min(num_items) < 1 or num_seeds < 1:
        raise StatsError(f"items {list(num_items)} and seeds {num_seeds}: give at least 1 of each")
    if not (0 <= discordance <= 1 and 0 <= seed_correlation <= 1):
        raise StatsError(f"discordance {discordance} and seed correlation {seed_correlation}: give shares in [0, 1]")
    per_item = discordance * (1 + (num_seeds - 1) * seed_correlation) / num_seeds
    return math.sqrt(sum(per_item / n for n in num_items)) / len(num_items)


def smallest_detectable(
    num_items: Sequence[int], num_seeds: int, discordance: float, *, seed_correlation: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest macro gain, as a share, that this many items and seeds would show.

    Raises:
        StatsError: as `planned_standard_error`.
    """
    return detectable_effect(planned_standard_error(num_items, num_seeds, discordance, seed_correlation), alpha, power)


def spearman(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Spearman's rank correlation with its two-sided p-value.

    Raises:
        StatsError: unequal lengths, fewer than three values, or a constant list (its correlation is not defined).
    """
    from scipy.stats import spearmanr  # costs a second to import

    if len(first) != len(second) or len(first) < 3:
        raise StatsError(f"{len(first)} and {len(second)} values: give two equally long lists of at least 3")
    if min(first) == max(first) or min(second) == max(second):
        raise StatsError("all values of one list are equal: their rank correlation is not defined")
    found = spearmanr(first, second)
    return Correlation(float(found.statistic), float(found.pvalue))
