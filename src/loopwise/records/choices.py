"""What a reader of foreign results is told beside the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .runs import Record, RecordsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsChoice:
    """What of a file of results counts, where it does not say. Empty values are open."""

    task: str | None = None
    """The benchmark's name, where neither file nor name holds one."""
    metrics: tuple[str, ...] = ()
    """Metrics that say right or wrong; the first one that a task has counts."""
    filters: tuple[str, ...] = ()
    """Of lm-eval: how answers were taken from the texts, e.g. ``strict-match``; the first one that a task has counts."""
    seed: int | None = None
    """The replicate, of files that name none; 0 where it is open."""
    arm: str | None = None
    """The arm that the answers belong to."""

    def __post_init__(self) -> None:
        if self.seed is not None and self.seed < 0:
            raise RecordsError(f"seed {self.seed} of a file of results; give a number from 0")


def adopt(records: Iterable[Record], choice: ResultsChoice) -> tuple[Record, ...]:
    """The records with the arm that was named."""
    if choice.arm is None:
        return tuple(records)
    return tuple(replace(record, extra=record.extra | {"arm": choice.arm}) for record in records)


def is_right_or_wrong(value: Any) -> bool:
    """Whether a metric's value is one answer's grade: 0 or 1, true or false."""
    return isinstance(value, bool | int | float) and not (isinstance(value, float) and math.isnan(value)) and value in (0, 1)


def choose_metric(found: Sequence[dict[str, Any]], items: Sequence[str], choice: ResultsChoice, where: str) -> str:
    """The metric that grades the answers.

    Args:
        found: each answer's metrics by name.
        items: each answer's item, for messages.

    Raises:
        RecordsError: a metric that is not there or is no grade, none that is one, or several with nothing chosen.
    """
    names = list(dict.fromkeys(name for one in found for name in one))
    if choice.metrics:
        name = next((name for name in choice.metrics if name in names), None)
        if name is None:
            raise RecordsError(f"{where}: has no metric {' or '.join(choice.metrics)}; its metrics are {', '.join(names) or 'none'}")
        _check_grades(name, found, items, where)
        return name
    able = [name for name in names if all(is_right_or_wrong(one.get(name)) for one in found)]
    if len(able) == 1:
        return able[0]
    if able:
        raise RecordsError(f"{where}: {' and '.join(able)} all say right or wrong; choose one with --metric, e.g. --metric {able[0]}")
    if not names:
        raise RecordsError(f"{where}: holds no metric; give the per-item file of a task that is graded")
    _check_grades(names[0], found, items, where)
    raise RecordsError(f"{where}: no metric says right or wrong for every item ({', '.join(names)}); judge needs one that does")


def _check_grades(name: str, found: Sequence[dict[str, Any]], items: Sequence[str], where: str) -> None:
    for one, item in zip(found, items, strict=True):
        if not is_right_or_wrong(one.get(name)):
            value = "missing" if name not in one else repr(one[name])[:40]
            others = ", ".join(other for other in one if other != name) or "none"
            raise RecordsError(
                f"{where}: {name} of item {item!r} is {value}, not right or wrong; choose another metric with --metric (others: {others})"
            )
