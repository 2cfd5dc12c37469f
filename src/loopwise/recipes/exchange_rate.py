"""The token exchange rate from runs or files: reads the curves, analyses them, writes result.json and the report. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..analysis import (
    FLOPS,
    LAYERS,
    TIME,
    AnalysisError,
    CostLine,
    ExchangeRate,
    IntervalOver,
    PairedCurves,
    Threshold,
    TrainingRun,
    compute_curves,
    cost_lines,
    exchange_rate,
    faults_of_pairs,
    line_words,
    read_training_run,
    threshold_words,
    thresholds,
)
from ..records import LossCurve, write_json
from ..records.curves import HELD_OUT_LOSS, METRICS_FILE, read_curve
from ..report.exchange_rate import render_exchange_rate
from ..stats import Bootstrap

RESULT_FILE = "result.json"
FORMAT = "loopwise-exchange-rate/1"
INTERPOLATION = (
    "losses that rise are pooled by isotonic regression, then PCHIP in the logarithm of tokens, on both curves alike; outside of a curve's "
    "points nothing is said"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRateSettings:
    """What is compared, and with which costs.

    Raises:
        AnalysisError: no curves, or names of costs that do not exist.
    """

    looped: tuple[Path, ...]
    """Runs or files of the looped model, one a seed."""
    twin: tuple[Path, ...]
    """Of its twin, seeds in the same order."""
    first_pass: tuple[Path, ...] = ()
    """Of the looped model evaluated with one pass."""
    metric: str = HELD_OUT_LOSS
    """Which of the runs' evaluations."""
    first_pass_metric: str | None = None
    """The looped runs' evaluation with one pass, in place of ``first_pass``."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Training cost of a looped token in tokens of the twin, by `LAYERS`, `FLOPS`, `TIME`; what is missing is read from runs."""
    equal_compute: str | None = None
    """Which of them the twin's tokens are multiplied by for equal training compute; None: the first that is known, layers before FLOPs
    before time, as no-free-loop's Figure 3 counts layers."""
    interval: IntervalOver | None = None
    """None: over seeds where there are two, else over documents where their losses are known."""
    bootstrap: Bootstrap = field(default_factory=lambda: Bootstrap(resamples=2000))
    """Of documents."""

    def __post_init__(self) -> None:
        if not self.looped or not self.twin:
            raise AnalysisError("give at least one run with --looped and one with --twin")
        if self.first_pass and self.first_pass_metric:
            raise AnalysisError("the loss with one pass comes from --first-pass or from --first-pass-metric; give one of the two")
        for name in (*self.ratios, *([self.equal_compute] if self.equal_compute else [])):
            if name not in (LAYERS, FLOPS, TIME):
                raise AnalysisError(f"no training cost is named {name!r}; use {LAYERS}, {FLOPS} or {TIME}")
        for name, ratio in self.ratios.items():
            CostLine(name=name, ratio=ratio, source="given")


def analyze_exchange_rate(settings: ExchangeRateSettings, out: str | Path) -> dict[str, Any]:
    """Analyse the curves and write ``result.json``, ``report.md``, ``report.html`` and ``figures/*.svg``; returns what result.json holds.

    Raises:
        CurveError, AnalysisError: as `exchange_rate_result`; nothing is written.
        OSError: the folder cannot be written.
    """
    result, out = exchange_rate_result(settings), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULT_FILE, result)
    render_exchange_rate(result, out)
    return result


def exchange_rate_result(settings: ExchangeRateSettings) -> dict[str, Any]:
    """Everything that the analysis finds, as plain JSON values.

    Raises:
        CurveError: a curve that cannot be read or used.
        AnalysisError: curves that do not belong together.
    """
    pairs = _read_pairs(settings)
    looped, twin = _runs(settings.looped), _runs(settings.twin)
    lines = _lines(settings, looped, twin)
    compute = _equal_compute(settings, lines)
    rate = exchange_rate(pairs, lines, interval=settings.interval, bootstrap=settings.bootstrap)
    found = thresholds(pairs, compute, interval=settings.interval, bootstrap=settings.bootstrap)
    result = {
        "format": FORMAT,
        "looped": [curve.source for curve in pairs.looped],
        "twin": [curve.source for curve in pairs.twin],
        "first_pass": [curve.source for curve in pairs.first_pass],
        "metric": settings.metric,
        "interval_over": rate.interval_over,
        "num_documents": _num_documents(pairs),
        "resamples": settings.bootstrap.resamples if pairs.has_documents else None,
        "interpolation": INTERPOLATION,
        "rate": _rate_json(rate),
        "thresholds": [asdict(one) | {"words": threshold_words(one, rate.interval_over)} for one in found],
        "compute": _compute_json(pairs, lines, looped, twin),
        "warnings": _warnings(pairs, rate, found, lines, looped, twin),
    }
    return dict(json.loads(json.dumps(result, allow_nan=False)))


def _read_pairs(settings: ExchangeRateSettings) -> PairedCurves:
    first: tuple[LossCurve, ...] = tuple(read_curve(path, settings.metric) for path in settings.first_pass)
    if settings.first_pass_metric:
        first = tuple(read_curve(path, settings.first_pass_metric) for path in settings.looped)
    return PairedCurves(
        looped=tuple(read_curve(path, settings.metric) for path in settings.looped),
        twin=tuple(read_curve(path, settings.metric) for path in settings.twin),
        first_pass=first,
    )


def _runs(paths: Sequence[Path]) -> tuple[TrainingRun, ...]:
    """The runs of loopwise train among the paths; none unless all are, since a mean over some seeds is no pair's."""
    if all(path.is_dir() and (path / METRICS_FILE).is_file() for path in paths):
        return tuple(map(read_training_run, paths))
    return ()


def _lines(settings: ExchangeRateSettings, looped: Sequence[TrainingRun], twin: Sequence[TrainingRun]) -> tuple[CostLine, ...]:
    read = {line.name: line for line in cost_lines(looped, twin)} if looped and twin else {}
    given = {name: CostLine(name=name, ratio=ratio, source="given") for name, ratio in settings.ratios.items()}
    both = read | given
    return tuple(both[name] for name in (LAYERS, FLOPS, TIME) if name in both)


def _equal_compute(settings: ExchangeRateSettings, lines: Sequence[CostLine]) -> CostLine | None:
    if settings.equal_compute is None:
        return lines[0] if lines else None
    for line in lines:
        if line.name == settings.equal_compute:
            return line
    raise AnalysisError(f"the training cost by {settings.equal_compute} is not known from the runs; give its ratio")


def _num_documents(pairs: PairedCurves) -> int | None:
    found = pairs.looped[0].document_losses
    return found.shape[1] if pairs.has_documents and found is not None else None


def _rate_json(rate: ExchangeRate) -> dict[str, Any]:
    lines = [asdict(one) | {"words": line_words(one, rate)} for one in rate.lines]
    return asdict(rate) | {"lines": lines}


def _compute_json(
    pairs: PairedCurves, lines: Sequence[CostLine], looped: Sequence[TrainingRun], twin: Sequence[TrainingRun]
) -> dict[str, Any] | None:
    """In FLOPs where the runs counted them, else in tokens of the twin at the FLOPs' ratio; None where neither is known."""
    line = next((one for one in lines if one.name == FLOPS), None)
    if line is None:
        return None
    counted = [one.flops_per_token for one in twin if one.flops_per_token]
    if line.source != "given" and len(counted) == len(twin) > 0:
        per_token = sum(counted) / len(counted)
        unit, words = "FLOPs", "Mean over seeds; FLOPs as the runs counted them, head included."
    else:
        per_token = 1.0
        unit, words = "tokens of the twin", f"Mean over seeds; a looped token counts as {line.ratio:.3g} of the twin's, by FLOPs."
    curves = compute_curves(pairs, {"looped": per_token * line.ratio, "twin": per_token})
    return {"unit": unit, "words": words} | {name: asdict(curve) for name, curve in curves.items()}


def _warnings(
    pairs: PairedCurves,
    rate: ExchangeRate,
    found: Sequence[Threshold],
    lines: Sequence[CostLine],
    looped: Sequence[TrainingRun],
    twin: Sequence[TrainingRun],
) -> list[str]:
    warnings = list(faults_of_pairs(looped, twin))
    if rate.interval_over is None:
        warnings.append("One seed and no losses of single documents: there is no interval, and no number here can be told from noise.")
    elif rate.interval_over == "documents":
        seeds = "this one seed" if pairs.num_seeds == 1 else "these seeds"
        warnings.append(f"Intervals are over documents, for {seeds}: another training may differ by more.")
    differences = [abs(point.difference_millinats) for one in found if one.name == "twin" for point in one.points]
    correction = 1000 * rate.largest_correction_nats
    if differences and correction > max(differences) / 2:
        warnings.append(
            f"A loss was moved by {correction:.2f} milli-nats so that its curve falls, half of the largest difference between the models "
            "or more: the curves are noise at this size. Measure on more held-out text."
        )
    if missing := [name for name in (LAYERS, FLOPS, TIME) if name not in {line.name for line in lines}]:
        warnings.append(f"The training cost by {', '.join(missing)} is not known: give it, or runs of loopwise train that know it.")
    if left_out := {at for curve in pairs.looped for at in curve.tokens} - set(pairs.tokens):
        warnings.append(f"{len(left_out)} checkpoints that not every looped seed has are left out, the first at {min(left_out):,} tokens.")
    return warnings
