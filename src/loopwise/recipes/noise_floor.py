"""How many answers of an arm change when nothing but the batching does (no-free-loop, A.4: up to 1.2 points on MATH-500)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..protocol import Plan, TrialError
from ..records import Record, Run, read_json, read_run, write_json

NOISE_FOLDER = "noise-floor"
"""Holds the repeated runs, each below its arm's name, and what they showed in ``ARM.json``."""
NOISE_FILE = "noise_floor.json"
"""What the twin's deciding arm showed."""
EVERY_ARM = "all"
"""In place of arms' names."""


def arms_repeated(plan: Plan, deciding_twin: str, *, deciding: bool, others: Sequence[str]) -> tuple[str, ...]:
    """The names of the arms that are repeated, in the plan's order.

    Args:
        deciding: whether the twin's deciding arm is.
        others: arms by name, or ``all``.

    Raises:
        TrialError: no arm of the plan has that name, or it cannot run.
    """
    able = [arm.name for arm in plan.arms() if arm.applicable]
    for name in others:
        if name != EVERY_ARM and name not in able:
            reason = next((f"it is not applicable ({arm.reason})" for arm in plan.arms() if arm.name == name), "no arm is called so")
            raise TrialError(f"noise floor of {name!r}: {reason}; arms are {', '.join(able)}")
    wanted = {*others, *([deciding_twin] if deciding else [])}
    return tuple(name for name in able if name in wanted or EVERY_ARM in wanted)


def other_batch_size(batch_size: int) -> int:
    """The size of the repeated run's batches: half."""
    return max(1, batch_size // 2) if batch_size > 1 else 2


def keep_noise_floor(out: Path, arm: str, batch_size: int, *, deciding: bool) -> None:
    """Compare an arm's run with its repetition and write what changed.

    Args:
        deciding: whether it is the twin's deciding arm, which also has `NOISE_FILE`.
    """
    once = [record for run in _runs_below(out / "runs" / arm) for record in run.records]
    again = {record.key: record for run in _runs_below(out / NOISE_FOLDER / arm) for record in run.records}
    changed = [(record, again[record.key]) for record in once]
    values = {
        "arm": arm,
        "batch_sizes": [batch_size, other_batch_size(batch_size)],
        "num_answers": len(changed),
        "changed_texts": sum(_text_of(a) != _text_of(b) for a, b in changed),
        "changed_answers": sum(a.answer != b.answer for a, b in changed),
        "changed_grades": sum(a.correct != b.correct for a, b in changed),
        "accuracy_points": 100 * sum(b.correct - a.correct for a, b in changed) / len(changed),
    }
    write_json(out / NOISE_FOLDER / f"{arm}.json", values)
    if deciding:
        write_json(out / NOISE_FILE, values)


def read_noise_floors(folder: Path) -> list[dict[str, Any]]:
    """What was measured: the twin's deciding arm first."""
    first = [read_json(folder / NOISE_FILE)] if (folder / NOISE_FILE).exists() else []
    others = [read_json(file) for file in sorted((folder / NOISE_FOLDER).glob("*.json"))]
    return first + [one for one in others if one not in first]


def _text_of(record: Record) -> str | None:
    """An answer's text, or its hash where the text may not be kept."""
    return record.extra.get("text_sha256") if record.text is None else record.text


def _runs_below(folder: Path) -> list[Run]:
    return [read_run(header.parent) for header in sorted(folder.rglob("header.json"))]
