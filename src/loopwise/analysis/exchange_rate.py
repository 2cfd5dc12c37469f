"""The token exchange rate: how many tokens the twin needs for one of the looped model's (no-free-loop, C.2 and Figure 5).

r(D) = T^-1(L(D)) / D, with L(D) the looped model's held-out loss after D tokens and T the twin's curve. Above 1 the loop beats its twin;
above its training cost it pays for the compute that it was trained with. r is asked at the looped model's checkpoints, so that only the
twin's curve is interpolated, between its own points (`interpolation`). Where the looped model's loss lies outside of what the twin was
measured at, there is no r, only a bound: nothing is extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..stats import Bootstrap
from .crossings import CrossingPoint, Interval, crossing_point, draws_interval, exponential, student_interval
from .interpolation import Array, Bounds, nonincreasing, places_of
from .paired_curves import AnalysisError, CurveLosses, IntervalOver, PairedCurves, columns, log_tokens, observed, resampled

Position = Literal["above", "below", "within"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """What a token of the looped model's training costs, in tokens of its twin's.

    Raises:
        AnalysisError: a ratio that is not a number above 0.
    """

    name: str
    """``twin`` (1, what equal parameters ask), ``layers``, ``FLOPs``, ``time``."""
    ratio: float
    source: str
    """Where it comes from: given, or what was read."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.ratio) and 0 < self.ratio <= 1000):
            raise AnalysisError(f"the training cost by {self.name} is {self.ratio}; give a ratio such as 1.25")


TWIN_LINE = CostLine(name="twin", ratio=1.0, source="equal tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """The exchange rate at one checkpoint of the looped model."""

    tokens: int
    looped_loss: float
    """Nats per token, mean over seeds, as measured."""
    rate: float | None
    """Geometric mean over seeds; None where one of them is beyond its twin's curve."""
    at_least: float | None
    """What is known of a rate that is None."""
    at_most: float | None
    per_seed: tuple[float | None, ...]
    ci95_seeds: Interval | None
    """Student's t over seeds, of log r; None for one seed, or where one has no rate."""
    ci95_documents: Interval | None
    """Over documents drawn again, for these seeds; an end that is None lies beyond the twin's curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """Where the exchange rate passes one line."""

    line: CostLine
    crossing: CrossingPoint
    position: Position
    """Of the interval at the last checkpoint where r is known, against the line; ``within``: it holds the line. Without an interval, of r
    itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRate:
    """r(D) and its lines."""

    points: tuple[RatePoint, ...]
    lines: tuple[LineResult, ...]
    interval_over: IntervalOver | None
    """What the crossings' intervals, and positions, are over."""
    num_seeds: int
    twin_range_tokens: tuple[int, int]
    """The tokens between which every twin was measured."""
    largest_correction_nats: float
    """The most that a loss was moved so that no curve rises; not small beside what is compared means that the curves are noise."""


def exchange_rate(
    pairs: PairedCurves, lines: Sequence[CostLine] = (), *, interval: IntervalOver | None = None, bootstrap: Bootstrap | None = None
) -> ExchangeRate:
    """r(D) at every checkpoint that the looped models have in common, and where it passes 1 and each of the lines.

    Raises:
        AnalysisError: no checkpoint's loss lies within the twin's measured losses, or an interval that there is nothing for.
    """
    over = pairs.interval_over(interval)
    tokens = pairs.tokens
    x = log_tokens(tokens)
    seeds = _log_rates(pairs, observed(pairs))
    each = Bounds(seeds.low[:, 0], seeds.high[:, 0])
    _check_overlap(pairs, each)
    draws = _over_seeds(_log_rates(pairs, resampled(pairs, bootstrap or Bootstrap(resamples=2000)))) if pairs.has_documents else None
    by_documents = [None] * len(tokens) if draws is None else draws_interval(draws)
    points = tuple(
        _point(pairs, place, at, Bounds(each.low[:, place], each.high[:, place]), by_documents[place]) for place, at in enumerate(tokens)
    )
    drawn = draws if over == "documents" else None
    results = []
    for line in (TWIN_LINE, *lines):
        found = crossing_point(x, each, math.log(line.ratio), drawn)
        results.append(LineResult(line=line, crossing=found, position=_position(last_known(points), over, line.ratio)))
    return ExchangeRate(
        points=points,
        lines=tuple(results),
        interval_over=over,
        num_seeds=pairs.num_seeds,
        twin_range_tokens=(max(curve.tokens[0] for curve in pairs.twin), min(curve.tokens[-1] for curve in pairs.twin)),
        largest_correction_nats=_correction(observed(pairs)),
    )


def _log_rates(pairs: PairedCurves, losses: CurveLosses) -> Bounds:
    """log r, ``[seeds, resamples, checkpoints]``."""
    x = log_tokens(pairs.tokens)
    lows, highs = [], []
    for seed in range(pairs.num_seeds):
        # Both curves are corrected alike, so that a model compared with itself has r = 1 exactly.
        targets = nonincreasing(losses.looped[seed])[:, columns(pairs.looped[seed], pairs.tokens)]
        low, high = places_of(log_tokens(pairs.twin[seed].tokens), nonincreasing(losses.twin[seed]), targets, x)
        lows.append(low - x)
        highs.append(high - x)
    return Bounds(np.stack(lows), np.stack(highs))


def _over_seeds(rates: Bounds) -> Bounds:
    return Bounds(rates.low.mean(axis=0), rates.high.mean(axis=0))


def _point(pairs: PairedCurves, place: int, tokens: int, each: Bounds, by_documents: Interval | None) -> RatePoint:
    low, high = float(each.low.mean()), float(each.high.mean())
    known = low == high
    losses = [curve.losses[columns(curve, [tokens])[0]] for curve in pairs.looped]
    return RatePoint(
        tokens=tokens,
        looped_loss=float(np.mean(losses)),
        rate=math.exp(low) if known else None,
        at_least=None if known or math.isinf(low) else math.exp(low),
        at_most=None if known or math.isinf(high) else math.exp(high),
        per_seed=tuple(math.exp(one) if one == other else None for one, other in zip(each.low, each.high, strict=True)),
        ci95_seeds=exponential(student_interval(list(each.low))) if known else None,
        ci95_documents=exponential(by_documents),
    )


def last_known(points: Sequence[RatePoint]) -> RatePoint:
    """The last checkpoint whose rate is known; there is one wherever there is an `ExchangeRate`."""
    return next(point for point in reversed(points) if point.rate is not None)


def interval_of(point: RatePoint, over: IntervalOver | None) -> Interval | None:
    """The interval of the chosen kind."""
    return {"seeds": point.ci95_seeds, "documents": point.ci95_documents, None: None}[over]


def _position(point: RatePoint, over: IntervalOver | None, ratio: float) -> Position:
    low, high = interval_of(point, over) or (point.rate, point.rate)
    if low is not None and low > ratio:
        return "above"
    return "below" if high is not None and high <= ratio else "within"


def _check_overlap(pairs: PairedCurves, each: Bounds) -> None:
    for seed, (low, high) in enumerate(zip(each.low, each.high, strict=True)):
        if not (low == high).any():
            looped, twin = pairs.looped[seed], pairs.twin[seed]
            longer = min(looped.losses) < min(twin.losses)
            raise AnalysisError(
                f"the curves do not overlap: {looped.source} has losses from {max(looped.losses):.4f} to {min(looped.losses):.4f}, its "
                f"twin {twin.source} from {max(twin.losses):.4f} to {min(twin.losses):.4f}; "
                + ("train the twin longer" if longer else "evaluate the twin earlier, or the looped model later")
            )
    if not (each.low == each.high).all(axis=0).any():
        raise AnalysisError("at no checkpoint do the curves of all seeds overlap; train the twins longer, or give fewer seeds")


def _correction(losses: CurveLosses) -> float:
    moved: list[Array] = [np.abs(nonincreasing(one) - one) for one in (*losses.looped, *losses.twin)]
    return max(float(one.max()) for one in moved)
