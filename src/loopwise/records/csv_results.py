"""Plain CSV: a heading with the names of a record's fields, one answer a row."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from .choices import ResultsChoice, adopt
from .runs import Record, RecordsError, record_from

_WHOLE = ("seed", "sample")
_DECODING = ("budget", "budget_tokens", "reserve_tokens", "temperature", "top_p", "top_k")
_NUMBERS = frozenset(("generated_tokens", "prompt_tokens", "forced_tokens", "flops", "seconds", "num_parameters", *_DECODING))
_TRUTHS = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False, "yes": True, "no": False}
_LONGEST_CELL = 64 * 2**20


def read_csv(file: Path, choice: ResultsChoice) -> tuple[Record, ...]:
    """The records of a CSV file with at least the columns ``item`` and ``correct``; an empty cell is not known.

    ``task`` may come from ``choice``, ``seed`` and ``sample`` are 0 where there is no such column.

    Raises:
        RecordsError: no such columns, no rows, a row with other cells than the heading, or a value that cannot be.
    """
    heading, rows = read_table(file)
    missing = [name for name in ("item", "correct") if name not in heading]
    if "task" not in heading and choice.task is None:
        missing.append("task")
    if missing:
        raise RecordsError(
            f"{file}: has no column {missing[0]!r}; its columns are {', '.join(heading)[:200]}; "
            "a record needs task (or --task-name), item and correct"
        )
    if choice.metrics or choice.filters:
        raise RecordsError(f"{file}: a CSV file has one grade a row and no metrics or filters; leave --metric and --filter out")
    if "task" in heading and choice.task is not None:
        raise RecordsError(f"{file}: its rows name their tasks; leave --task-name out")
    if "seed" in heading and choice.seed is not None:
        raise RecordsError(f"{file}: its rows name their seeds; leave out @{choice.seed}")
    absent = {"task": choice.task, "seed": choice.seed or 0, "sample": 0}
    records = []
    for line, row in rows:
        where = f"{file}, line {line}"
        values = {name: _value(name, text, where) for name, text in row.items() if text.strip()}
        records.append(record_from({name: value for name, value in absent.items() if name not in heading} | values, where))
    return adopt(records, choice)


def read_table(file: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """A CSV file's column names, and its rows with their line numbers. Columns are parted by commas, or by semicolons or tabs where
    the heading has no comma.

    Raises:
        RecordsError: no such file, no text, an empty file, two columns of one name, or a row with more or fewer cells.
    """
    csv.field_size_limit(_LONGEST_CELL)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            first = lines.readline()
            lines.seek(0)
            parted = next((mark for mark in (",", ";", "\t") if mark in first), ",")
            reader = csv.reader(lines, delimiter=parted)
            heading = [name.strip() for name in next(reader, [])]
            listed = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except FileNotFoundError:
        raise RecordsError(f"{file}: no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordsError(f"{file}: not CSV text ({type(error).__name__}: {str(error)[:80]}); save it as UTF-8 CSV") from None
    if not any(heading) or not listed:
        raise RecordsError(f"{file}: holds no records; give a heading with column names and one answer a row")
    if twice := [name for name in heading if heading.count(name) > 1]:
        raise RecordsError(f"{file}: has two columns called {twice[0]!r}; give each its own name")
    for line, cells in listed:
        if len(cells) != len(heading):
            raise RecordsError(f"{file}, line {line}: has {len(cells)} cells, the heading {len(heading)}; the file is damaged or was cut")
    return heading, [(line, dict(zip(heading, cells, strict=True))) for line, cells in listed]


def number(name: str, text: str, where: str) -> float:
    """A cell as a number.

    Raises:
        RecordsError: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise RecordsError(f"{where}: {name} is {text[:40]!r}; give a number, or leave the cell empty where it is not known") from None


def _value(name: str, text: str, where: str) -> Any:
    text = text.strip()
    if name in ("correct", "finished"):
        if text.lower() not in _TRUTHS:
            raise RecordsError(f"{where}: {name} is {text[:40]!r}; give true or false, or 1 or 0")
        return _TRUTHS[text.lower()]
    if name in _WHOLE:
        value = number(name, text, where)
        if not value.is_integer():
            raise RecordsError(f"{where}: {name} is {text[:40]!r}; give a whole number")
        return int(value)
    if name == "thinking" and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if name not in _NUMBERS:
        return text
    value = number(name, text, where)
    return int(value) if value.is_integer() else value
