"""The three thresholds that a loop passes while it is trained (no-free-loop, C.1 and Figure 3), and loss against training FLOPs.

Each is a difference of held-out losses, the other model's minus the looped model's, so that above zero the loop is ahead: the looped
model with one pass, its twin after the same tokens, and its twin after c times the tokens, which had the same training compute.
Differences are paired by seed and by document. The twin is interpolated by PCHIP in log tokens through its points as measured, exactly
those at its own checkpoints, and never beyond its ends: where it was not trained c times as long the third difference stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..records import LossCurve
from ..stats import Bootstrap
from .crossings import CrossingPoint, Interval, crossing_point, draws_interval, student_interval
from .exchange_rate import CostLine
from .interpolation import Array, Bounds, interpolate
from .paired_curves import AnalysisError, CurveLosses, IntervalOver, PairedCurves, columns, log_tokens, observed, resampled

ThresholdName = Literal["own first pass", "twin", "equal training compute"]
MILLI = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencePoint:
    """How far the looped model is ahead at one checkpoint, in milli-nats per token."""

    tokens: int
    difference_millinats: float
    """Mean over seeds; above 0 the looped model has the lower loss."""
    per_seed: tuple[float, ...]
    ci95_seeds: Interval | None
    """Student's t over seeds."""
    ci95_documents: Interval | None
    """Over documents drawn again, for these seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One comparison along training."""

    name: ThresholdName
    ratio: float
    """The other model's tokens over the looped model's."""
    points: tuple[DifferencePoint, ...]
    """Checkpoints at which both are measured; the later ones are missing where the twin was not trained on."""
    crossing: CrossingPoint | None
    """From where on the looped model is ahead, as far as the points go; None without points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCurve:
    """Held-out loss against training compute."""

    compute: tuple[float, ...]
    losses: tuple[float, ...]


def thresholds(
    pairs: PairedCurves, compute: CostLine | None, *, interval: IntervalOver | None = None, bootstrap: Bootstrap | None = None
) -> tuple[Threshold, ...]:
    """The comparisons that the curves allow, in the order of C.1.

    Args:
        compute: what a looped token costs; None leaves the third out.

    Raises:
        AnalysisError: first-pass curves that share fewer than two checkpoints with the looped models.
    """
    over = pairs.interval_over(interval)
    now = observed(pairs)
    drawn = resampled(pairs, bootstrap or Bootstrap(resamples=2000)) if pairs.has_documents else None
    found = []
    if pairs.first_pass:
        tokens = _first_pass_tokens(pairs)
        found.append(_threshold("own first pass", 1.0, pairs, tokens, now, drawn, over))
    found.append(_threshold("twin", 1.0, pairs, pairs.tokens, now, drawn, over))
    if compute is not None:
        found.append(_threshold("equal training compute", compute.ratio, pairs, pairs.tokens, now, drawn, over))
    return tuple(found)


def _threshold(
    name: ThresholdName,
    ratio: float,
    pairs: PairedCurves,
    tokens: tuple[int, ...],
    now: CurveLosses,
    drawn: CurveLosses | None,
    over: IntervalOver | None,
) -> Threshold:
    seeds = _differences(name, ratio, pairs, tokens, now)[:, 0]
    there = np.flatnonzero(np.isfinite(seeds).all(axis=0))
    if len(there) == 0:
        return Threshold(name=name, ratio=ratio, points=(), crossing=None)
    seeds, x = seeds[:, there], log_tokens([tokens[place] for place in there])
    draws = None if drawn is None else _differences(name, ratio, pairs, tokens, drawn)[:, :, there].mean(axis=0)
    by_documents = [None] * len(there) if draws is None else draws_interval(Bounds(draws, draws))
    points = tuple(
        DifferencePoint(
            tokens=tokens[place],
            difference_millinats=float(seeds[:, number].mean()),
            per_seed=tuple(map(float, seeds[:, number])),
            ci95_seeds=student_interval(list(seeds[:, number])),
            ci95_documents=by_documents[number],
        )
        for number, place in enumerate(there)
    )
    resamples = Bounds(draws, draws) if draws is not None and over == "documents" else None
    return Threshold(name=name, ratio=ratio, points=points, crossing=crossing_point(x, Bounds(seeds, seeds), 0.0, resamples))


def _differences(name: ThresholdName, ratio: float, pairs: PairedCurves, tokens: tuple[int, ...], losses: CurveLosses) -> Array:
    """Milli-nats, ``[seeds, resamples, checkpoints]``; nan where the other model is not measured."""
    found = []
    for seed, looped in enumerate(pairs.looped):
        ours = losses.looped[seed][:, columns(looped, tokens)]
        if name == "own first pass":
            theirs = losses.first_pass[seed][:, columns(pairs.first_pass[seed], tokens)]
        else:
            theirs = interpolate(log_tokens(pairs.twin[seed].tokens), losses.twin[seed], _places(pairs.twin[seed], tokens, ratio))
        found.append(MILLI * (theirs - ours))
    return np.stack(found)


def _places(twin: LossCurve, tokens: tuple[int, ...], ratio: float) -> Array:
    """Where the twin is looked at. At one of its own checkpoints to a token, so that it is not missed by rounding."""
    own = np.array(twin.tokens, dtype=np.float64)
    wanted = np.array(tokens, dtype=np.float64) * ratio
    nearest = own[np.abs(own[:, None] - wanted).argmin(axis=0)]
    return log_tokens(np.where(np.abs(nearest - wanted) <= 1.0, nearest, wanted).tolist())


def _first_pass_tokens(pairs: PairedCurves) -> tuple[int, ...]:
    common = set(pairs.tokens).intersection(*(curve.tokens for curve in pairs.first_pass))
    if len(common) < 2:
        raise AnalysisError(
            f"{pairs.first_pass[0].source} and {pairs.looped[0].source} have {len(common)} checkpoints in common; evaluate one pass at "
            "the same steps"
        )
    return tuple(sorted(common))


def compute_curves(pairs: PairedCurves, per_token: Mapping[str, float]) -> dict[str, ComputeCurve]:
    """Mean loss over seeds against training compute, of the looped model and of its twin.

    Args:
        per_token: the training compute of one token of ``looped`` and of ``twin``, in one unit.
    """
    curves = {}
    for name, members in (("looped", pairs.looped), ("twin", pairs.twin)):
        tokens = sorted(set(members[0].tokens).intersection(*(curve.tokens for curve in members[1:])))
        losses = np.mean([[curve.losses[place] for place in columns(curve, tokens)] for curve in members], axis=0) if tokens else []
        curves[name] = ComputeCurve(compute=tuple(per_token[name] * at for at in tokens), losses=tuple(map(float, losses)))
    return curves
