"""What a table's finished runs say: losses with intervals, paired differences, and the FLOPs beside each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import stats
from ..records import read_json, write_json
from ..training import TrainingError
from .pretraining import PretrainingTable, Row
from .pretraining_runs import LOSSES_FILE

SUMMARY_FILE, REPORT_FILE = "summary.json", "report.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSummary:
    """One row at one test depth. None is "not known", never zero."""

    name: str
    label: str
    test_loops: int
    seeds: tuple[int, ...]
    """Of the runs that are done."""
    failed_seeds: tuple[int, ...]
    """Of runs whose loss became something else than a number."""
    num_parameters: int | None = None
    loss_nats: float | None = None
    """Mean over seeds, of all held-out targets."""
    loss_half_width_nats: float | None = None
    """Half the 95 % interval over seeds, Student's t: what other seeds would move on this text."""
    loss_by_seed_nats: tuple[float, ...] = ()
    """Each seed's loss in nats."""
    perplexity: float | None = None
    flops_per_token: float | None = None
    """Of inference, at this depth, in FLOPs of matrix products."""
    training_flops: float | None = None
    """Mean over seeds, what an earlier row spent on the first weights included."""
    reference: str | None = None
    """The row that it is compared with; None for a reference itself."""
    difference_nats: float | None = None
    """Loss less the reference's, paired by seed and held-out sequence; below 0 is better."""
    difference_ci95: tuple[float, float] | None = None
    """Student's t over seeds, with chance in the held-out sequences; of one seed a paired bootstrap over sequences alone."""
    p_value: float | None = None
    """Holm-adjusted over the rows of a reference."""
    published: dict[str, float] | None = None


def summarise(table: PretrainingTable, out: str | Path) -> tuple[RowSummary, ...]:
    """Summarise whatever runs of a table are done; writes ``summary.json`` and ``report.md`` beside them.

    Raises:
        TrainingError: none is done, or runs were measured on different held-out sequences.
    """
    out = Path(out)
    found = {row.name: _results(out, row) for row in table.rows}
    if not any(found.values()):
        raise TrainingError(f"{out}: no run of {table.name} is done; train some first")
    _check_same_text(out, found)
    rows = []
    for row in table.rows:
        if found[row.name]:
            reference = _reference(table, row)
            rows += _summaries(row, found[row.name], reference, found[reference.name] if reference else {})
    adjusted = _with_holm(rows)
    write_json(out / SUMMARY_FILE, {"table": table.name, "scale": table.scale, "rows": [asdict(row) for row in adjusted]})
    (out / REPORT_FILE).write_text(report(table, adjusted), encoding="utf-8")
    return adjusted


def _reference(table: PretrainingTable, row: Row) -> Row | None:
    name = table.references.get(row.group)
    return None if name is None or name == row.name else table.row(name)


def _results(out: Path, row: Row) -> dict[int, dict[str, Any]]:
    """What a row's runs left, by seed."""
    files = {int(file.parent.name.removeprefix("seed-")): file for file in (out / row.name).glob(f"seed-*/{LOSSES_FILE}")}
    return {seed: read_json(file) for seed, file in sorted(files.items())}


def _check_same_text(out: Path, found: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Losses on different sequences are not compared; a run that does not say which ones it was measured on is not trusted.

    Raises:
        TrainingError: two runs differ, or one does not say.
    """
    remedy = f"remove every {LOSSES_FILE} and start the command again, which measures the trained models anew"
    first: tuple[Path, str] | None = None
    for name, runs in found.items():
        for seed, run in runs.items():
            if "failed" in run:
                continue
            folder, text = out / name / f"seed-{seed}", run.get("held_out_sha256")
            if not text or "depths" not in run:
                raise TrainingError(f"{folder / LOSSES_FILE}: does not say what the run was measured on; {remedy}")
            first = first or (folder, text)
            if text != first[1]:
                raise TrainingError(f"{folder}: was measured on other held-out sequences than {first[0]}; {remedy}")


def _summaries(row: Row, runs: dict[int, dict[str, Any]], reference: Row | None, others: dict[int, dict[str, Any]]) -> list[RowSummary]:
    done = {seed: run for seed, run in runs.items() if "failed" not in run}
    failed = tuple(seed for seed in runs if seed not in done)
    if not done:
        return [RowSummary(name=row.name, label=row.label, test_loops=0, seeds=(), failed_seeds=failed, published=dict(row.published))]
    depths = list(next(iter(done.values()))["depths"])
    return [_summary(row, depth, done, failed, reference, others, shown=depth == depths[0]) for depth in depths]


def _summary(
    row: Row,
    depth: str,
    done: dict[int, dict[str, Any]],
    failed: tuple[int, ...],
    reference: Row | None,
    others: dict[int, dict[str, Any]],
    *,
    shown: bool,
) -> RowSummary:
    losses = {seed: _losses(run["depths"][depth]) for seed, run in done.items()}
    means = [float(values.mean()) for values in losses.values()]
    mean = float(np.mean(means))
    spent = [float(run["training_flops"]) for run in done.values() if run.get("training_flops") is not None]
    first = next(iter(done.values()))
    summary = RowSummary(
        name=row.name,
        label=row.label,
        test_loops=int(depth),
        seeds=tuple(done),
        failed_seeds=failed,
        num_parameters=first["num_parameters"],
        loss_nats=mean,
        loss_half_width_nats=stats.mean_half_width(means),
        loss_by_seed_nats=tuple(means),
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        flops_per_token=first["depths"][depth]["flops_per_token"],
        training_flops=float(np.mean(spent)) if len(spent) == len(done) else None,
        published=dict(row.published) if shown else None,
    )
    theirs = {seed: run for seed, run in others.items() if "failed" not in run and seed in done}
    if reference is None or not theirs:
        return summary
    paired = np.stack([losses[seed] - _losses(next(iter(run["depths"].values()))) for seed, run in theirs.items()])
    found = stats.over_training_runs(paired) if len(paired) > 1 else stats.macro_bootstrap([paired])
    return replace(summary, reference=reference.name, difference_nats=found.value, difference_ci95=found.ci95, p_value=found.p_value)


def _losses(depth: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Nats per target of each held-out sequence.

    Raises:
        TrainingError: sequences of unequal length, whose mean is not the mean over targets.
    """
    sums, targets = np.asarray(depth["loss_sums"], dtype=np.float64), np.asarray(depth["targets"], dtype=np.float64)
    if len(set(targets.tolist())) != 1:
        raise TrainingError("held-out sequences have unequally many targets; measure without document masks")
    found: np.ndarray[Any, np.dtype[np.float64]] = sums / targets
    return found


def _with_holm(rows: Sequence[RowSummary]) -> tuple[RowSummary, ...]:
    """P-values adjusted over all rows that are compared with one reference."""
    adjusted = list(rows)
    for reference in {row.reference for row in rows if row.reference}:
        family = [n for n, row in enumerate(rows) if row.reference == reference]
        values = stats.holm([rows[n].p_value or 0.0 for n in family])
        for n, value in zip(family, values, strict=True):
            adjusted[n] = replace(rows[n], p_value=value)
    return tuple(adjusted)


def report(table: PretrainingTable, rows: Sequence[RowSummary]) -> str:
    """The summary as Markdown."""
    least = min((row.training_flops for row in rows if row.training_flops), default=None)
    printed = any(row.published for row in rows)
    header = ["model", "R", "seeds", "parameters", "FLOPs a token", "training FLOPs", "loss (nats)", "PPL", "less the reference", "p"]
    header += ["paper"] if printed else []
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(_cells(row, least) + ([_published(row)] if printed else [])) + " |" for row in rows]
    references = sorted({row.reference for row in rows if row.reference})
    unit = "" if least is None else f" Training FLOPs are relative to the smallest run's, {least:.3g}."
    notes = [
        f"Loss: mean over seeds on the same held-out sequences, with the 95 % interval over seeds (t).{unit}",
        f"Differences in milli-nats to {', '.join(references)}, paired by seed and sequence, with 95 % intervals over both (t; of one "
        "seed a bootstrap over sequences); below 0 is better; p adjusted by Holm."
        if references
        else "No row is a reference here.",
    ]
    return "\n".join([f"# {table.name} at {table.scale} size", "", f"Source: {table.source}.", "", *lines, "", *notes, ""])


def _cells(row: RowSummary, least: float | None) -> list[str]:
    if row.loss_nats is None:
        return [row.label, "", _seeds(row), *[""] * 3, "not a number", "", "", ""]
    half = "" if row.loss_half_width_nats is None else f" ± {row.loss_half_width_nats:.3f}"
    difference = "–"
    if row.difference_nats is not None and row.difference_ci95 is not None:
        low, high = (1000 * end for end in row.difference_ci95)
        difference = f"{1000 * row.difference_nats:+.0f} [{low:+.0f}, {high:+.0f}]"
    return [
        row.label,
        str(row.test_loops),
        _seeds(row),
        f"{(row.num_parameters or 0) / 1e6:.2f}M",
        f"{row.flops_per_token or 0:.3g}",
        "–" if row.training_flops is None or least is None else f"{row.training_flops / least:.2f}",
        f"{row.loss_nats:.3f}{half}",
        f"{row.perplexity:.2f}",
        difference,
        "–" if row.p_value is None else f"{row.p_value:.3f}" if row.p_value >= 0.001 else "< 0.001",
    ]


def _seeds(row: RowSummary) -> str:
    failed = f", {len(row.failed_seeds)} diverged" if row.failed_seeds else ""
    return f"{len(row.seeds)}{failed}"


def _published(row: RowSummary) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in (row.published or {}).items()) or "–"
