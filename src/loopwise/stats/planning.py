"""What a trial of a given size could show, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .bootstrap import StatsError
from .effects import smallest_detectable
from .exact import sign_floor


def smallest_gain(
    num_items: Sequence[int], discordance: float, *, num_seeds: int = 1, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest macro gain, as a share, that a trial finds with probability ``power``; None where it could find none.

    A paired difference is +1, -1 or 0, and not 0 with probability ``discordance``: over n items its mean has a standard error of at
    most sqrt(discordance / n), and a two-sided test at ``alpha`` finds (z_{1-alpha/2} + z_power) of them (Miettinen, Biometrics 24,
    1968; Connor, Biometrics 43, 1987, whose further term -gain^2 under the root is left out, so that the gain is a little too large).
    Two limits come on top: a gain cannot be larger than the discordance, and fewer differing items than `sign_floor` asks for are never
    significant.

    Args:
        num_items: items of each benchmark; several sampled answers to an item count as one.
        discordance: share of items on which the two arms differ in one seed.
        num_seeds: replicates, taken as independent given the items: an item's differences in two seeds that agree show less.

    Raises:
        StatsError: counts or shares that cannot be.
    """
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise StatsError(f"alpha {alpha} and power {power}: give shares between 0 and 1")
    by_spread = smallest_detectable(num_items, num_seeds, discordance, alpha=alpha, power=power)
    one_sided = smallest_one_sided(sum(num_items), alpha=alpha, power=power)
    gain = None if one_sided is None else max(by_spread, one_sided)
    return gain if gain is not None and gain <= discordance else None


def smallest_one_sided(num_items: int, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest gain that is found where no answer gets worse: enough of ``num_items`` must differ for a sign test; None: too few.

    Raises:
        StatsError: no item.
    """
    if num_items < 1:
        raise StatsError(f"{num_items} items; give at least 1")
    least = 1
    while sign_floor(least) >= alpha:
        least += 1
    if least > num_items:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _at_least(least, num_items, middle) >= power else (middle, high)
    return high


def _at_least(least: int, total: int, share: float) -> float:
    """The probability of at least so many successes."""
    if share >= 1:
        return 1.0
    return 1.0 - sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(least))
