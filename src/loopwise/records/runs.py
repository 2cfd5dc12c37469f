"""Runs: a header that says what ran, and append-only records, one graded answer a line.

A run is a folder with ``header.json`` and ``records.jsonl``. Lines are written as answers come, so a killed run resumes
where it was. Reading never repairs: a cut line is an error that names its place; only `RunWriter`, which owns the
folder, drops the cut tail of a killed write.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

REQUIRED_FIELDS = ("task", "item", "seed", "sample", "correct")
STOP_REASONS = ("end", "budget", "forced", "repetition", "context", "letter", "log-likelihood")


class RecordsError(ValueError):
    """A file of records that cannot be used: names the file, the line and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One graded answer. None is "not known", never zero."""

    task: str
    item: str
    """The item's name, unique within its task."""
    seed: int
    """The replicate: the training seed of a trained pair; sampling draws from (seed, item, sample) too."""
    sample: int
    """Which of several sampled answers to the same item, from 0."""
    correct: bool
    finished: bool | None = None
    """Whether the answer ended within the budget: an end of text, not the budget's edge."""
    stop_reason: str | None = None
    """``end``, ``budget``, ``forced`` (ended after its thinking was closed for it), ``repetition``, of a conversation ``context``
    (its next prompt was too long for the model), or where nothing was written ``letter`` or ``log-likelihood``."""
    answer: str | None = None
    """The extracted answer as the grader compared it; None when there is none."""
    gold: str | None = None
    rule: str | None = None
    """The grading rule that decided."""
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    """All tokens after the prompt, forced ones included."""
    forced_tokens: int | None = None
    flops: float | None = None
    """FLOPs of prompt and generated tokens, in the run's named convention."""
    seconds: float | None = None
    """This answer's share of its batch's wall time, by tokens."""
    text: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of foreign records that have no name here."""

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What makes a record unique within a run."""
        return (self.task, self.item, self.seed, self.sample)

    def to_json(self) -> str:
        """One line of JSON, fields that are None left out."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return json.dumps({k: v for k, v in known.items() if v is not None} | self.extra, ensure_ascii=False)


_LARGEST = 1e30
"""More tokens, FLOPs or seconds than any answer takes; sums of such numbers stay finite."""
_NAMES = frozenset(f.name for f in fields(Record)) - {"extra"}


@dataclass(frozen=True, slots=True)
class Run:
    """A header and its records. ``header`` is empty for foreign records."""

    header: dict[str, Any]
    records: tuple[Record, ...]
    source: str
    """The folder or file it was read from, for messages."""


def parse_record(line: str, where: str) -> Record:
    """Read one line of a records file.

    Raises:
        RecordsError: not JSON, a required field is missing, or a value has the wrong type; ``where`` opens the message.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordsError(
            f"{where}: not a JSON object ({line[:40]!r}...): the file is damaged or was cut; resume or repeat its run"
        ) from None
    if not isinstance(values, dict):
        raise RecordsError(f"{where}: not a JSON object but {type(values).__name__}; one record a line")
    return record_from(values, where)


def record_from(values: dict[str, Any], where: str) -> Record:
    """A record from its fields, whatever file they came from; those without a name in `Record` go into ``extra``.

    Raises:
        RecordsError: as `parse_record`.
    """
    for name in REQUIRED_FIELDS:
        if values.get(name) is None:
            fault = "is null" if name in values else "is missing"
            raise RecordsError(f"{where}: field {name!r} {fault}; a record needs {', '.join(REQUIRED_FIELDS)}")
    for name in ("task", "item"):
        if not isinstance(values[name], str | int | float):
            raise RecordsError(f"{where}: {name} is {str(values[name])[:40]}; give a text")
    for name in ("seed", "sample"):
        if not isinstance(values[name], int) or isinstance(values[name], bool):
            raise RecordsError(f"{where}: {name} is {values[name]!r}; give a whole number")
    if values["correct"] not in (0, 1):
        raise RecordsError(f"{where}: correct is {values['correct']!r}; give true or false")
    for name in ("generated_tokens", "prompt_tokens", "forced_tokens", "flops", "seconds"):
        value = values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST):
            raise RecordsError(f"{where}: {name} is {repr(value)[:40]}; give a number from 0 to {_LARGEST:g}")
    if values.get("flops") == 0:
        raise RecordsError(f"{where}: flops is 0, and no answer costs nothing; give what it cost, or leave it out where that is not known")
    if values.get("finished") not in (None, 0, 1):
        raise RecordsError(f"{where}: finished is {values['finished']!r}; give true or false")
    known = {k: v for k, v in values.items() if k in _NAMES}
    known |= {"task": str(values["task"]), "item": str(values["item"]), "correct": bool(values["correct"])}
    known |= {} if values.get("finished") is None else {"finished": bool(values["finished"])}
    return Record(**known, extra={k: v for k, v in values.items() if k not in _NAMES})


def read_records(path: Path) -> tuple[Record, ...]:
    """All records of a JSONL file.

    Raises:
        RecordsError: no such file, an empty file, or the first damaged line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors put a byte-order mark in front
    except FileNotFoundError:
        raise RecordsError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise RecordsError(f"{path}: not UTF-8 text; records are JSON lines") from None
    lines = text.split("\n")  # not splitlines: JSON leaves U+2028 and the like as they are
    records = tuple(parse_record(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip())
    if not records:
        raise RecordsError(f"{path}: holds no records")
    return records


def read_run(path: str | Path) -> Run:
    """A run's folder, its ``records.jsonl``, or anybody's JSONL file.

    Raises:
        RecordsError: as `read_records`, or a damaged header.
    """
    path = Path(path)
    file = path / "records.jsonl" if path.is_dir() else path
    header_file = file.parent / "header.json"
    header = read_json(header_file) if file.name == "records.jsonl" and header_file.exists() else {}
    return Run(header, read_records(file), str(path))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that this project wrote.

    Raises:
        RecordsError: the file is damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RecordsError(f"{path} is damaged: put back a copy, or repeat what wrote it into a new folder")
    return value


class RunWriter:
    """Writes a run into its folder, or goes on with one that was killed.

    A header that differs in any field but those of ``UNBOUND`` is refused: one run, one way of running.
    """

    UNBOUND = ("started", "parity")

    def __init__(self, folder: str | Path, header: dict[str, Any], *, read: Callable[[Path], tuple[Any, ...]] = read_records) -> None:
        """Open ``folder``; ``done`` then holds the records already there.

        Args:
            read: reads the file of records; those have a ``key`` and ``to_json()``, as `Record` has.

        Raises:
            RecordsError: the folder holds another run (the first differing field is named), or damaged records.
            OSError: the folder cannot be written.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        header = json.loads(json.dumps(header))
        header_file = self.folder / "header.json"
        if header_file.exists():
            header = self._check_same(self.folder, header)  # what the folder says: it began then, and was checked so
        else:
            write_json(header_file, header)
        self.header = header
        self._read = read
        self.file = self.folder / "records.jsonl"
        self._handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._lock(self._handle, self.folder, fcntl.LOCK_EX)
            self.done = self._repair()
            self._keys = _unique_keys(self.file, self.done)
        except RecordsError:
            os.close(self._handle)
            raise

    @classmethod
    def look(cls, folder: str | Path, header: dict[str, Any]) -> tuple[Record, ...]:
        """The records that a folder holds of the run with this header, before anything is made ready for the others; none where its
        last write was cut. Nothing is written.

        Raises:
            RecordsError: as for a new writer.
        """
        folder = Path(folder)
        if not (folder / "header.json").exists():
            return ()
        cls._check_same(folder, header)
        file = folder / "records.jsonl"
        if not file.exists():
            return ()
        with file.open("rb") as handle:
            cls._lock(handle.fileno(), folder, fcntl.LOCK_SH)
            whole = handle.read().endswith(b"\n")
        found = read_records(file) if whole else ()
        _unique_keys(file, found)
        return found

    @staticmethod
    def _lock(handle: int, folder: Path, kind: int) -> None:
        """One writer a run; the lock goes with the process, however that ends."""
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordsError(f"{folder}: another process is writing this run; wait for it, or give another --out") from None

    @classmethod
    def _check_same(cls, folder: Path, header: dict[str, Any]) -> dict[str, Any]:
        """The header that is there, which is that of the same run."""
        there, ours = read_json(folder / "header.json"), json.loads(json.dumps(header))
        for name in sorted(there.keys() | ours.keys()):
            if name not in cls.UNBOUND and there.get(name) != ours.get(name):
                raise RecordsError(
                    f"{folder}: holds a run with another {name} ({there.get(name)!r}, now {ours.get(name)!r}); "
                    "give a new --out or repeat the old settings"
                )
        return there

    def _repair(self) -> tuple[Any, ...]:
        """The records there; the cut last line of a killed write is dropped from the file."""
        if not self.file.exists() or self.file.stat().st_size == 0:
            return ()
        content = self.file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.file, len(whole))
        return self._read(self.file) if whole.strip() else ()

    def append(self, records: Iterable[Any]) -> None:
        """Write records and flush them to the disk.

        Raises:
            RecordsError: a record that is already there.
            OSError: the disk is full; what was written before stays readable.
        """
        lines = []
        for record in records:
            if record.key in self._keys:
                raise RecordsError(f"{self.file}: record {record.key} would be written twice")
            self._keys.add(record.key)
            lines.append(record.to_json() + "\n")
        whole = os.fstat(self._handle).st_size
        try:
            _write_all(self._handle, "".join(lines).encode())
            os.fsync(self._handle)
        except OSError as error:
            with contextlib.suppress(OSError):  # no half line stays behind; a device cannot be cut
                os.ftruncate(self._handle, whole)
            raise OSError(
                error.errno, f"{error.strerror}; {len(self._keys) - len(lines)} records are safe, resume when there is room", str(self.file)
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)


def _unique_keys(file: Path, records: Iterable[Any]) -> set[tuple[Any, ...]]:
    keys: set[tuple[Any, ...]] = set()
    for record in records:
        if record.key in keys:
            raise RecordsError(f"{file}: record {record.key} is there twice; keep one of the lines, or repeat the run")
        keys.add(record.key)
    return keys


def _write_all(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all (a rename over the old file)."""
    part = path.with_name(path.name + f".{os.getpid()}.part")
    try:
        part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError:  # a full disk
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
