"""From where on a curve lies above a level, with intervals; what is not known keeps its bounds and is never filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from .interpolation import Array, Bounds

LEVEL = 0.95
"""Of all intervals."""
Interval = tuple[float | None, float | None]
"""Both ends; None where the curves do not bound it."""
Status = Literal["from", "always", "never", "fell", "unknown"]
"""Above the level from a place between two checkpoints on; at every one; at none; at some and not at the last; or it cannot be told at
any. All of the checkpoints at which it can be told."""


class Crossing(NamedTuple):
    """From where on a curve lies above a level, in the units of x."""

    after: float
    """The last x at which it is known not to; -inf where there is none."""
    before: float
    """The first x from which it always does; inf where there is none."""
    at: float | None
    """Between the two by a straight line; None where one of their values is only bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingPoint:
    """From how many tokens on something holds, up to the last checkpoint at which it can be told."""

    status: Status
    after_tokens: float | None
    """The last checkpoint at which it is known not to hold."""
    before_tokens: float | None
    """The first checkpoint from which on it holds."""
    at_tokens: float | None
    """Between them, on a straight line in log tokens."""
    ci95_tokens: Interval | None
    """95 % of where it begins to hold; an end that is None lies outside the checkpoints. None: there is nothing to draw again."""
    last_tokens: float | None
    """The last checkpoint at which it can be told; None where it never can."""
    undecided_tokens: tuple[float, ...]
    """Checkpoints at which it cannot."""
    num_seeds_crossing: int
    """Seeds whose own curves hold it at ``last_tokens``."""
    num_seeds: int


def crossing(x: Array, values: Bounds, level: float) -> Crossing:
    """From where on a curve lies above a level.

    Args:
        x: ``[points]``, increasing.
        values: ``[points]`` each.
    """
    low, high = values
    above, below = low > level, high <= level
    others = np.flatnonzero(~above)
    if len(others) == 0:
        return Crossing(-math.inf, float(x[0]), None)
    last = int(others[-1])
    known = np.flatnonzero(below[: last + 1])
    after = float(x[known[-1]]) if len(known) else -math.inf
    if last == len(x) - 1:
        return Crossing(after, math.inf, None)
    at = None
    if below[last] and low[last] == high[last] and low[last + 1] == high[last + 1]:
        share = (level - low[last]) / (low[last + 1] - low[last])
        at = float(x[last] + share * (x[last + 1] - x[last]))
    return Crossing(after, float(x[last + 1]), at)


def crossing_point(x: Array, seeds: Bounds, level: float, draws: Bounds | None) -> CrossingPoint:
    """`crossing` of the mean over seeds, with an interval.

    Args:
        x: log tokens of the checkpoints.
        seeds: ``[seeds, points]``.
        draws: ``[resamples, points]`` of the mean over seeds; None: the interval is Student's t over the seeds' own crossings.
    """
    mean = Bounds(seeds.low.mean(axis=0), seeds.high.mean(axis=0))
    decided = (mean.low > level) | (mean.high <= level)
    undecided = tuple(float(round(math.exp(at))) for at in x[~decided])
    if not decided.any():
        return _untold(undecided, len(seeds.low))
    num = int(np.flatnonzero(decided)[-1]) + 1  # what comes after tells nothing of the level
    x, mean, seeds, draws = x[:num], _first(mean, num), _first(seeds, num), None if draws is None else _first(draws, num)
    found = crossing(x, mean, level)
    each = [crossing(x, Bounds(low, high), level) for low, high in zip(seeds.low, seeds.high, strict=True)]
    if draws is not None:
        drawn = [crossing(x, Bounds(low, high), level) for low, high in zip(draws.low, draws.high, strict=True)]
        lows = np.array([one.after if one.at is None else one.at for one in drawn])
        highs = np.array([one.before if one.at is None else one.at for one in drawn])
        interval: Interval | None = draws_interval(Bounds(lows[:, None], highs[:, None]))[0]
    else:
        places = [one.at for one in each if one.at is not None]
        interval = _within(student_interval(places), x) if len(places) == len(each) else None
    return CrossingPoint(
        status=_status(mean, level, found),
        after_tokens=_tokens(found.after),
        before_tokens=_tokens(found.before),
        at_tokens=None if found.at is None else _tokens(found.at),
        ci95_tokens=exponential(interval),
        last_tokens=_tokens(float(x[-1])),
        undecided_tokens=undecided,
        num_seeds_crossing=sum(math.isfinite(one.before) for one in each),
        num_seeds=len(each),
    )


def _first(values: Bounds, num: int) -> Bounds:
    return Bounds(values.low[..., :num], values.high[..., :num])


def _untold(undecided: tuple[float, ...], num_seeds: int) -> CrossingPoint:
    return CrossingPoint(
        status="unknown",
        after_tokens=None,
        before_tokens=None,
        at_tokens=None,
        ci95_tokens=None,
        last_tokens=None,
        undecided_tokens=undecided,
        num_seeds_crossing=0,
        num_seeds=num_seeds,
    )


def _status(values: Bounds, level: float, found: Crossing) -> Status:
    if math.isfinite(found.before):
        return "always" if found.after == -math.inf and found.at is None and values.low[0] > level else "from"
    return "fell" if (values.low > level).any() else "never"


def draws_interval(draws: Bounds) -> list[Interval]:
    """The central 95 % of resamples ``[resamples, points]``, one interval a point: of values that are only bounded, the bound that
    makes it wider."""
    low = np.quantile(draws.low, (1 - LEVEL) / 2, axis=0, method="lower")
    high = np.quantile(draws.high, (1 + LEVEL) / 2, axis=0, method="higher")
    return [(_finite(one), _finite(other)) for one, other in zip(low, high, strict=True)]


def student_interval(values: Sequence[float]) -> Interval | None:
    """The mean of a few seeds, with Student's t: two or three seeds drawn again show far too little of their spread.

    None for fewer than two.
    """
    from scipy.special import stdtrit

    if len(values) < 2 or not np.isfinite(values).all():
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error
    return mean - reach, mean + reach


def _within(interval: Interval | None, x: Array) -> Interval | None:
    """Ends outside of the checkpoints are not known."""
    if interval is None:
        return None
    low, high = (None if end is None or not x[0] <= end <= x[-1] else end for end in interval)
    return low, high


def exponential(interval: Interval | None) -> Interval | None:
    """The interval of the exponential."""
    if interval is None:
        return None
    low, high = (None if end is None or end > 700 else math.exp(end) for end in interval)
    return low, high


def _tokens(log: float) -> float | None:
    return float(round(math.exp(log))) if math.isfinite(log) else None  # tokens are whole, their logarithms are not


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
