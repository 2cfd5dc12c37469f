"""Rows of a benchmark, from local JSONL or from the hub, and readers of their fields that say where a bad one stands."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .values import Item, TaskError

DATA_VARIABLE = "LOOPWISE_DATA"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the rows of a task are."""

    folder: str
    """The task's folder inside a data folder, with one file a split: ``gsm8k/test.jsonl``."""
    hub: str
    """The data set's name on the hub."""
    config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    """What the hub calls a split, where it has another name for it."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What a split's file is called, without ending, where it is not called like the split."""
    streamed: bool = False
    """Read from the hub without a copy in its cache, for rows that must not lie on a disk in plain text."""

    def file_names(self, split: str) -> tuple[str, ...]:
        """The names that a split's file can have in a data folder or in the task's own, best first."""
        names = [f"{stem}.jsonl{packed}" for stem in self.files.get(split, (split,)) for packed in ("", ".gz")]
        return (*(f"{self.folder}/{name}" for name in names), *names)


@dataclass(frozen=True, slots=True)
class Row:
    """One row and its place, for messages."""

    values: dict[str, Any]
    where: str

    def text(self, field: str) -> str:
        """A field that must hold some text.

        Raises:
            TaskError: it does not; file, line and field are named.
        """
        value = self.values.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.error(field, "is missing" if field not in self.values else f"is {value!r}; give some text")
        return value

    def error(self, field: str, what: str) -> TaskError:
        """An error about one field of this row."""
        return TaskError(f"{self.where}: field {field!r} {what}")


def read_rows(source: Source, split: str, data: Path | None, limit: int | None) -> Iterator[Row]:
    """The rows of a split, at most ``limit``.

    From ``data``, or from the path in the environment variable ``LOOPWISE_DATA``: a JSONL file, or a folder that holds
    ``<task>/<split>.jsonl`` or ``<split>.jsonl`` (``.jsonl.gz`` too). Without either from the hub, with the ``datasets`` library.

    Raises:
        TaskError: no such file, a line that is no JSON object, or no way to the hub.
    """
    data = data_path(data)
    rows = _hub_rows(source, split) if data is None else file_rows(local_file(data, source.file_names(split)))
    return islice(rows, limit)


def data_path(data: Path | None) -> Path | None:
    """Where local data are: ``data``, else the path in ``LOOPWISE_DATA``; None where there are none."""
    return Path(os.environ[DATA_VARIABLE]) if data is None and os.environ.get(DATA_VARIABLE) else data


def local_file(data: Path, names: Sequence[str]) -> Path:
    """The first of ``names`` that is in a folder, or ``data`` itself where it is a file.

    Raises:
        TaskError: none is, or there is no such path.
    """
    kind = Path(names[0]).suffix.removeprefix(".").upper()
    if data.is_dir():
        for name in names:
            if (data / name).is_file():
                return data / name
        raise TaskError(f"{data}: holds no {names[0]}; name a folder that does, or the {kind} file itself")
    if not data.is_file():
        raise TaskError(f"{data}: no such file or folder; --data and {DATA_VARIABLE} name a {kind} file or a folder with {names[0]}")
    return data


def _kind(name: str) -> str:
    return Path(name).suffix.removeprefix(".").upper()


def hub_file(source: Source, name: str) -> Path:
    """One file of the data set on the hub, in the hub's own cache: for data sets that are files and not rows.

    Raises:
        TaskError: no way to the hub, or no such file there.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(source.hub, name, repo_type="dataset"))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TaskError(f"{source.hub}: {name} cannot be had from the hub ({reason}); {_local_way(source, name)}") from None


def file_rows(file: Path) -> Iterator[Row]:
    """The rows of a JSONL file, packed or not.

    Raises:
        TaskError: text that is none, or a line that is no JSON object.
    """
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Row(_values(line, f"{file}, line {number}"), f"{file}, line {number}")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError):
        raise TaskError(f"{file}: not UTF-8 JSON lines; give a JSONL file") from None


def _values(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON ({error.msg} at column {error.colno}); one object a line") from None
    if not isinstance(values, dict):
        raise TaskError(f"{where}: not a JSON object but {type(values).__name__}; one object a line")
    return values


def _local_way(source: Source, name: str) -> str:
    return f"name a local copy with --data or {DATA_VARIABLE} (a folder with {source.folder}/{name})"


def _hub_rows(source: Source, split: str) -> Iterator[Row]:
    local = _local_way(source, source.file_names(split)[-2])
    split = source.hub_splits.get(split, split)
    streamed = {"streaming": True} if source.streamed else {}
    try:
        import datasets
    except ImportError:
        raise TaskError(f"{source.folder} comes from the hub: pip install 'loopwise[hub]', or {local}") from None
    try:
        rows = datasets.load_dataset(source.hub, source.config, split=split, **streamed)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TaskError(f"{source.hub}, split {split}: cannot be had from the hub ({reason}); {local}") from None
    for number, values in enumerate(rows):
        yield Row(dict(values), f"{source.hub}, split {split}, row {number}")


def checked_items(items: Sequence[tuple[Item, Row]]) -> tuple[Item, ...]:
    """The items, if there are some and no two share a name.

    Raises:
        TaskError: the split is empty, or a name came before; the second row is named.
    """
    first: dict[str, str] = {}
    for item, row in items:
        if item.name in first:
            raise TaskError(f"{row.where}: item {item.name!r} was already at {first[item.name]}; items need names of their own")
        first[item.name] = row.where
    if not items:
        raise TaskError("the file holds no rows; give one JSON object a line")
    return tuple(item for item, _ in items)
