"""How numbers become words: the result of one test, and the verdict from both. Pure functions, used by judge and by its simulation."""

from __future__ import annotations

import math

from .. import stats
from .arms import Array
from .values import MARGIN_POINTS, Comparison, TestResult, VerdictWord

ITEMS_FOR_EQUIVALENCE = stats.items_for_equivalence(MARGIN_POINTS / 100)
"""150: with fewer, even two arms that never differ may truly differ by two points."""


def result_of(comparison: Comparison, draws: Array, *, p_gain: float, p_loss: float, chosen_among: int, alpha: float) -> TestResult:
    """One test's result.

    A gain comes first: significant and small is still a gain. Equivalence needs the interval within +-2 points at the level
    that the choice among arms calls for (90 % for one arm), and at least 150 items.

    Args:
        draws: the resampled macro differences behind the comparison, in points.
        p_gain: what a gain rests on: the largest p-value over the arms that the comparator was chosen from.
        p_loss: what a loss rests on: the comparator's p-value times their number.
        chosen_among: how many arms the comparator was chosen from.
    """
    if comparison.delta_points > 0 and p_gain < alpha:
        return "gain"
    if comparison.delta_points < 0 and p_loss < alpha:
        return "loss"
    interval = stats.percentile_interval(draws, 1 - 0.10 / chosen_among)
    if comparison.num_items >= ITEMS_FOR_EQUIVALENCE and stats.equivalent(interval, MARGIN_POINTS):
        return "equivalent"
    return "not shown"


def final_word(first: TestResult, second: TestResult | None) -> VerdictWord:
    """The verdict: the second test decides only if the first is a gain. None is a second test that did not take place."""
    deciding = first if first != "gain" else second
    if deciding == "gain":
        return "pays"
    return "does not pay" if deciding in ("loss", "equivalent") else "not shown"


def smallest_detectable_points(comparison: Comparison, alpha: float) -> float:
    """The gain that these items and seeds would have shown four times in five, given how much the two arms differ on them.

    At least what the fewest items that can be significant at all amount to (six at 5 %), so that arms that never differ
    do not seem to have been compared with perfect precision.
    """
    least = 1
    while stats.sign_floor(least) >= alpha:
        least += 1
    smallest_step = 100 * least / (comparison.num_items * max(1, len(comparison.seeds)))
    return max(stats.detectable_effect(comparison.standard_error_points, alpha), smallest_step)


def threshold_effect_points(cost_ratio: float, parameter_ratio: float, accuracy_gap_points: float) -> float:
    """Delta* (section 4.3): log c / log(P_large / P_small) * (Acc_large - Acc_small).

    >>> round(threshold_effect_points(1.29, 2.25, 7.9), 1)
    2.5
    """
    return math.log(cost_ratio) / math.log(parameter_ratio) * accuracy_gap_points
