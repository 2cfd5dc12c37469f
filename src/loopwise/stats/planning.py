"""What a trial of a given size could show, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from .bootstrap import StatsError
from .effects import planned_standard_error, smallest_detectable
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


def smallest_gain_over_training_runs(
    num_items: Sequence[int], discordance: float, training_sd: float, *, num_seeds: int, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest gain on average over training runs, as a share, that is found with seeds resampled too; None where none could be.

    Over S training runs the observed mean difference has the variance sd^2/S + v/S, where sd is that of a pair's true difference from
    one training run to the next and v = mean(discordance/n)/benchmarks the chance of one seed's items. The interval that resamples
    items and seeds adds the variance of the seeds' own differences, sd^2 + v, over S to that of the items, v/S (see `bootstrap`), so
    that it is wider than what happens by chance:

        z_{1-alpha/2} * sqrt((sd^2 + 2v) / S) + z_power * sqrt((sd^2 + v) / S)

    Args:
        training_sd: as a share of macro accuracy.
        num_seeds: of training, at least 2.

    Raises:
        StatsError: as `smallest_gain`; one seed, or a spread that cannot be.
    """
    if num_seeds < 2:
        raise StatsError(f"{num_seeds} training seeds; the variance over training runs needs at least 2")
    if not (math.isfinite(training_sd) and 0 <= training_sd <= 1):
        raise StatsError(f"a standard deviation of {training_sd} over training runs; give a share from 0 to 1")
    conditional = smallest_gain(num_items, discordance, num_seeds=num_seeds, alpha=alpha, power=power)
    if conditional is None:
        return None
    by_items = planned_standard_error(num_items, num_seeds, discordance) ** 2
    over_runs = training_sd**2 / num_seeds
    z = NormalDist().inv_cdf
    gain = z(1 - alpha / 2) * math.sqrt(over_runs + 2 * by_items) + z(power) * math.sqrt(over_runs + by_items)
    return max(gain, conditional) if gain <= discordance else None


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
