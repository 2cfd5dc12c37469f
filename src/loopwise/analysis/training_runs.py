"""What a token cost in runs of ``loopwise train``, looped against twin, and whether the two were trained identically. No torch."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from ..cost import CostError, cost_of, read_shape
from ..loops import parse_loops
from ..records.curves import METRICS_FILE, CurveError
from .exchange_rate import CostLine

LAYERS, FLOPS, TIME = "layers", "FLOPs", "time"
"""The three ways to count training compute (no-free-loop, C.2: 1.25, 1.16 and 1.19)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What one run says of itself; None is not known."""

    folder: Path
    layer_passes: float | None
    """N + m of its model; None where the depth was drawn anew for each step."""
    flops_per_token: float | None
    """Of training: matrix products, head included, no attention scores; the mean over its steps."""
    seconds_per_token: float | None
    """Of training steps alone: for each depth the median over its steps, weighed by how many there are."""
    schedule: str | None
    """Of the learning rate."""
    batch_hashes: dict[int, str]
    """By step."""


def read_training_run(folder: str | Path) -> TrainingRun:
    """Read a run's cost and what binds it; a folder without such things gives a run of which little is known.

    Raises:
        CurveError: a damaged file.
    """
    folder = Path(folder)
    steps = [row for row in _rows(folder / METRICS_FILE) if "evaluation" not in row]
    depths = {row.get("num_loops") for row in steps} | {f"{row['passes']} passes" for row in steps if row.get("passes") is not None}
    settings = _json(folder / "run.json").get("settings")
    return TrainingRun(
        folder=folder,
        layer_passes=_layer_passes(folder / "model", depths),
        flops_per_token=_flops_per_token(folder),
        seconds_per_token=_seconds_per_token(steps),
        schedule=str(settings["schedule"]) if isinstance(settings, dict) and "schedule" in settings else None,
        batch_hashes={row["step"]: str(row["batch_hash"]) for row in steps if "step" in row and "batch_hash" in row},
    )


def cost_lines(looped: Sequence[TrainingRun], twin: Sequence[TrainingRun]) -> tuple[CostLine, ...]:
    """The training-cost lines that runs give: geometric means over seeds of looped over twin.

    Raises:
        AnalysisError: a ratio that cannot be.
    """
    lines = []
    for name, field, source in (
        (LAYERS, "layer_passes", "layer passes of the trained models"),
        (FLOPS, "flops_per_token", "FLOPs that the runs counted, head included"),
        (TIME, "seconds_per_token", "seconds of the runs' own steps"),
    ):
        pairs = [(getattr(one, field), getattr(other, field)) for one, other in zip(looped, twin, strict=True)]
        if pairs and all(one and other for one, other in pairs):
            lines.append(CostLine(name=name, ratio=geometric_mean(one / other for one, other in pairs), source=source))
    return tuple(lines)


def faults_of_pairs(looped: Sequence[TrainingRun], twin: Sequence[TrainingRun]) -> tuple[str, ...]:
    """What keeps runs from being twins on one trajectory each, in sentences; empty where nothing is found."""
    found = []
    for one, other in zip(looped, twin, strict=True):
        shared = sorted(one.batch_hashes.keys() & other.batch_hashes.keys())
        unlike = [step for step in shared if one.batch_hashes[step] != other.batch_hashes[step]]
        if unlike:
            found.append(
                f"{one.folder} and {other.folder} did not train on the same batches: of {len(shared):,} steps that both have, "
                f"{len(unlike):,} differ, the first is step {unlike[0]:,}. They are no twins."
            )
    for run in (*looped, *twin):
        if run.schedule not in (None, "constant"):
            found.append(
                f"{run.folder} was trained with a {run.schedule} schedule: its checkpoints before the end are not what a shorter training "
                "would have given. A constant learning rate after warm-up puts all checkpoints on one trajectory (no-free-loop, A.3)."
            )
    return tuple(found)


def _layer_passes(model: Path, depths: Iterable[Any]) -> float | None:
    if not (model / "config.json").is_file():
        return None
    config = _json(model / "config.json")
    loops = _json(model / "loop.json").get("loops", "")
    drawn = {depth for depth in depths if depth is not None}
    if drawn and drawn != {config.get("num_loops", 1)}:
        return None
    try:
        return cost_of(read_shape(config), parse_loops(loops)).layer_passes
    except CostError:  # a family whose cost is not known
        return None


def _flops_per_token(folder: Path) -> float | None:
    """By the newest checkpoint's own count."""
    for state in sorted((folder / "checkpoints").glob("step-*/state.json"), reverse=True):
        found = _json(state)
        flops, tokens = found.get("flops"), found.get("tokens")
        if isinstance(flops, int | float) and isinstance(tokens, int) and math.isfinite(flops) and flops > 0 and tokens > 0:
            return float(flops) / tokens
    return None


def _seconds_per_token(steps: Sequence[dict[str, Any]]) -> float | None:
    """A median, because first steps compile and a busy machine stalls; one for each depth, because drawn depths differ in cost."""
    by_depth: defaultdict[Any, list[float]] = defaultdict(list)
    for row in steps:
        seconds, speed = row.get("seconds"), row.get("tokens_per_second")
        if isinstance(seconds, int | float) and isinstance(speed, int | float) and seconds > 0 and speed > 0:
            by_depth[row.get("num_loops"), row.get("passes")].append(1 / speed)
    count = sum(map(len, by_depth.values()))
    return sum(len(one) * median(one) for one in by_depth.values()) / count if count else None


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        return
    text = file.read_text(encoding="utf-8")
    for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n"), 1):  # a killed writer may have left half a line
        if line.strip():
            yield _parsed(line, f"{file}, line {number}")


def _json(file: Path) -> dict[str, Any]:
    return _parsed(file.read_text(encoding="utf-8"), str(file)) if file.is_file() else {}


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CurveError(f"{where}: not a JSON object; the run's folder is damaged")
    return value
