"""Exact McNemar, Holm, and the smallest p-value that few differing items allow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .bootstrap import StatsError


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar test of paired right-or-wrong answers.

    Args:
        only_first: items that only the first arm got right.
        only_second: items that only the second did. No discordant pair at all gives p = 1.

    Raises:
        StatsError: a negative count.
    """
    if only_first < 0 or only_second < 0:
        raise StatsError(f"discordant counts are {only_first} and {only_second}; give numbers from 0")
    total = only_first + only_second
    term, tail = 1, 0
    for k in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (total - k) // (k + 1)
    return min(1.0, 2 * tail / (1 << total))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given.

    Raises:
        StatsError: a value outside [0, 1].
    """
    for p in p_values:
        if not 0 <= p <= 1:
            raise StatsError(f"p-value {p} is outside [0, 1]")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def sign_floor(num_differing: int) -> float:
    """The smallest two-sided p-value that ``num_differing`` items could give if all of them pointed one way: 2^(1-m).

    A bootstrap of five items that all improved finds no resample below zero; five coins all heads are no proof at 5 %.
    """
    return min(1.0, math.ldexp(1.0, 1 - num_differing))
