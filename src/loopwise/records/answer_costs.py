"""What answers cost, where the file of results does not say: one number for all, or a CSV beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .csv_results import number, read_table
from .runs import Record, RecordsError, Run, record_from

COST_COLUMNS = ("generated_tokens", "flops", "seconds", "prompt_tokens")
_KEYS = ("task", "item", "seed", "sample")


def with_cost(run: Run, flops: float, where: str) -> Run:
    """The run with the same FLOPs for every answer: the mean that its user knows, in FLOPs or in any number in proportion to them.

    Args:
        where: what messages call it.

    Raises:
        RecordsError: a number that cannot be, or records that hold their own FLOPs.
    """
    if not (math.isfinite(flops) and 0 < flops <= 1e30):
        raise RecordsError(f"{where}: a cost of {flops}; give a number above 0: FLOPs of one answer, or what is in proportion to them")
    _check_lacks(run, ["flops"], where)
    return replace(run, records=tuple(replace(record, flops=float(flops)) for record in run.records))


def with_sidecar(run: Run, file: Path) -> Run:
    """The run with the costs of a CSV file beside it, where there is one."""
    return with_costs(run, file) if file.is_file() else run


def with_costs(run: Run, file: Path) -> Run:
    """The run with the costs of a CSV file: columns ``item`` (and ``task``, ``seed``, ``sample`` where there are several), and one or
    more of ``generated_tokens``, ``flops``, ``seconds``, ``prompt_tokens``.

    Raises:
        RecordsError: no such file or columns, an item that is there twice, missing, or not in the run, or a value that cannot be.
    """
    heading, rows = read_table(file)
    costs, keys = [name for name in COST_COLUMNS if name in heading], [name for name in _KEYS if name in heading]
    if "item" not in keys or not costs:
        raise RecordsError(f"{file}: needs a column item and one of {', '.join(COST_COLUMNS)}; its columns are {', '.join(heading)[:200]}")
    _check_lacks(run, costs, str(file))
    table: dict[tuple[str, ...], tuple[int, dict[str, float]]] = {}
    for line, row in rows:
        key = tuple(row[name].strip() for name in keys)
        if key in table:
            raise RecordsError(f"{file}, line {line}: {_words(keys, key)} is there twice; keep one of the rows")
        if empty := next((name for name in costs if not row[name].strip()), None):
            raise RecordsError(f"{file}, line {line}: {empty} is ''; give a number for every answer, or leave the column out")
        table[key] = (line, {name: number(name, row[name], f"{file}, line {line}") for name in costs})
    used: set[tuple[str, ...]] = set()
    records = []
    for record in run.records:
        key = tuple(str(getattr(record, name)) for name in keys)
        if key not in table:
            raise RecordsError(f"{file}: {_words(keys, key)} of {run.source} is missing; give the cost of every answer")
        used.add(key)
        line, values = table[key]
        records.append(_with(record, values, f"{file}, line {line}"))
    if unknown := next((key for key in table if key not in used), None):
        raise RecordsError(f"{file}: {_words(keys, unknown)} is not in {run.source}; are these its costs?")
    return replace(run, records=tuple(records))


def _check_lacks(run: Run, names: list[str], where: str) -> None:
    for name in names:
        if any(getattr(record, name) is not None for record in run.records):
            raise RecordsError(f"{where}: {run.source} holds {name} of its own; leave the column or --cost out")


def _with(record: Record, values: Mapping[str, float], where: str) -> Record:
    """The record with its costs, checked as in any file."""
    required: dict[str, Any] = {name: getattr(record, name) for name in (*_KEYS, "correct")}
    checked = record_from(required | dict(values), where)
    return replace(record, **{name: getattr(checked, name) for name in values})


def _words(keys: list[str], key: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in zip(keys, key, strict=True))
