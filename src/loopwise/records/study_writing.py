"""Writing studies: every line appended whole under a lock, every header bound once. See `study` for what lies where."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .runs import read_json, write_json
from .study import (
    CandidateResult,
    Key,
    StepOfSearch,
    StudyError,
    check_search_name,
    losses_file,
    parse_result,
    parse_step,
    read_lines,
    shortened,
)


def check_study(folder: str | Path, header: Mapping[str, Any]) -> None:
    """Check, without writing anything, that a `StudyWriter` with this header could open the folder.

    Raises:
        StudyError: the folder holds a study whose header differs.
    """
    file = Path(folder) / "study.json"
    if file.exists():
        _check_same(file, read_json(file), _plain(header), StudyWriter.UNBOUND, StudyWriter.REMEDY)


class StudyWriter:
    """Opens a study's folder, or makes it, and adds results."""

    UNBOUND = ("started", "model", "sources")
    """Names; the hashes of model and text decide, so that a study goes on from another folder."""
    REMEDY = "another study; give a new --out"

    def __init__(self, folder: str | Path, header: Mapping[str, Any]) -> None:
        """Open ``folder``; ``results`` then holds what is there.

        Raises:
            StudyError: the folder holds a study whose header differs (the first field is named), or is damaged.
            OSError: the folder cannot be written.
        """
        self.folder = Path(folder)
        (self.folder / "losses").mkdir(parents=True, exist_ok=True)
        self.header: dict[str, Any] = _bind_header(self.folder / "study.json", header, self.UNBOUND, self.REMEDY)
        self.file = self.folder / "results.jsonl"
        _drop_cut_tail(self.file)
        self.results: dict[Key, CandidateResult] = {}
        for result in read_lines(self.file, parse_result):
            self.results.setdefault(result.key, result)

    def find(self, loops: str, *, measure: str = "text", share: float = 1.0) -> CandidateResult | None:
        """The result of a candidate on that part of the text, if it is there."""
        return self.results.get((measure, loops, share, ""))

    def append(self, results: Iterable[CandidateResult], losses: Mapping[str, NDArray[np.float32]] | None = None) -> None:
        """Write results and flush them to the disk; losses first, so that a result never stands without them.

        Raises:
            OSError: the disk is full; what was written before stays readable.
        """
        new = [result for result in results if result.key not in self.results]
        for result in new:
            if losses is not None and result.loops in losses:
                _write_array(losses_file(self.folder, result.loops), losses[result.loops])
        _append_lines(self.file, (_result_line(result) for result in new))
        self.results |= {result.key: result for result in new}

    def search(self, name: str, header: Mapping[str, Any]) -> TraceWriter:
        """The trace of one search, new or to be gone on with.

        Raises:
            StudyError: no name for a folder, or a search of that name has other settings, or runs in another process.
        """
        check_search_name(name)
        return TraceWriter(self.folder / "searches" / name, header)


class TraceWriter:
    """Writes one search's trace; ``steps`` holds what is there, to be replayed. One writer a search."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "trace.jsonl"
        self._lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StudyError(f"{folder}: another process is running this search; wait for it, or give another --name") from None
        try:
            self.header = _bind_header(folder / "search.json", header, ("started",), "another search; give it another --name")
            _drop_cut_tail(self.file)
            self.steps: tuple[StepOfSearch, ...] = tuple(read_lines(self.file, parse_step))
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, step: StepOfSearch) -> None:
        """Write one step and flush it to the disk."""
        _append_lines(self.file, [json.dumps(asdict(step), ensure_ascii=False)])
        self.steps += (step,)

    def close(self) -> None:
        """Let other processes go on with this search."""
        os.close(self._lock)


def _bind_header(file: Path, header: Mapping[str, Any], unbound: tuple[str, ...], remedy: str) -> dict[str, Any]:
    """Write the header, or check that the one that is there says the same; of several writers at once exactly one writes."""
    ours = _plain(header)
    if not file.exists():
        part = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            write_json(part, ours)
            os.link(part, file)  # unlike a rename it fails where another writer was first
            return ours
        except FileExistsError:
            pass
        except OSError as error:
            raise _full_disk(error, file) from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    there = read_json(file)
    _check_same(file, there, ours, unbound, remedy)
    return there


def _plain(header: Mapping[str, Any]) -> dict[str, Any]:
    """As it reads after it was written."""
    plain: dict[str, Any] = json.loads(json.dumps(header))
    return plain


def _check_same(file: Path, there: Mapping[str, Any], ours: Mapping[str, Any], unbound: tuple[str, ...], remedy: str) -> None:
    for name in sorted(there.keys() | ours.keys()):
        if name not in unbound and there.get(name) != ours.get(name):
            raise StudyError(
                f"{file.parent}: was made with another {name} ({shortened(there.get(name))}, now {shortened(ours.get(name))}): {remedy}"
            )


def _result_line(result: CandidateResult) -> str:
    return json.dumps({name: value for name, value in asdict(result).items() if value is not None}, ensure_ascii=False, allow_nan=False)


def _append_lines(file: Path, lines: Iterable[str]) -> None:
    """Lines at the end of a file, whole or not at all, while nobody else appends."""
    content = "".join(line + "\n" for line in lines).encode()
    if not content:
        return
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        whole = os.fstat(handle).st_size
        try:
            written = 0
            while written < len(content):
                written += os.write(handle, content[written:])
            os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, whole)
            raise _full_disk(error, file) from None
    finally:
        os.close(handle)


def _full_disk(error: OSError, file: Path) -> OSError:
    return OSError(
        error.errno, f"{error.strerror}; what was written before is safe, the same command goes on when there is room", str(file)
    )


def _drop_cut_tail(file: Path) -> None:
    """Remove the half line that a killed writer left, unless somebody is writing it now."""
    if not file.exists():
        return
    handle = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(handle, whole)
    finally:
        os.close(handle)


def _write_array(file: Path, array: NDArray[np.float32]) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array, dtype=np.float32), allow_pickle=False)
    try:
        part.write_bytes(buffer.getvalue())
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise _full_disk(error, file) from None
