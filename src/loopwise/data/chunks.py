"""Work on the rows of many sources in chunks: in parallel, killed at any moment, gone on with, and always with the same result.

A chunk is rows ``n * rows_per_chunk`` up to ``(n + 1) * rows_per_chunk`` of a part. What is made of it depends on those rows alone,
so neither the number of workers nor a kill can show in the result. A chunk's files are renamed into place when they are whole, and
then its entry, a small JSON file, says that it is done.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count, islice
from multiprocessing.connection import wait as wait_for
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

from .documents import DataError
from .folders import read_json, write_json
from .streams import Part, part_rows

ENTRIES = "chunks"
"""The folder, in the one that is worked on, with an entry for each chunk that is done."""

_POLL_SECONDS = 0.5

Rows = Iterator[tuple[int, Any]]
"""Number and text, or whatever the reader gives."""
Reader = Callable[..., Rows]
"""Takes a part, ``start`` and ``offset_bytes``, as `part_rows` does; can be sent to another process."""
ChunkWorker = Callable[[Part, str, Rows], dict[str, Any]]
"""Makes one chunk's files from its part, its name and its rows; what it gives stands in the entry."""


class Work(Protocol):
    """What is done to each chunk: a value that can be sent to another process and hashed."""

    def open(self) -> ChunkWorker:
        """Load what the work needs, once a process."""

    def __hash__(self) -> int:
        """By its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How far the work on all chunks is."""

    num_rows: int
    total_rows: int | None
    """None while a part is not counted and not at its end."""
    num_tokens: int
    """Sum of the entries' ``num_tokens``, where they have one."""
    new_rows: int
    """Of ``num_rows`` those that this run did, for the time that is left."""
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Chunks that one task makes, in order: from one that reading can begin at up to the next such, or to the part's end."""

    part: Part
    first: int
    offset_bytes: int
    stop: int | None


def chunk_name(part: Part, number: int) -> str:
    """The name that a chunk's files begin with; in the order of names a source's chunks are in the order of its text."""
    return f"{part.source}-{part.number:05d}-{number:06d}"


def read_entries(folder: Path, parts: Sequence[Part]) -> tuple[dict[str, Any], ...]:
    """The entries of all chunks, in the order of the parts.

    Raises:
        DataError: one is missing or damaged.
    """
    entries = []
    for part in parts:
        for number in count():
            entries.append(read_json(folder / ENTRIES / f"{chunk_name(part, number)}.json"))
            if entries[-1]["last"]:
                break
    return tuple(entries)


def run_chunks(
    parts: Sequence[Part],
    work: Work,
    folder: Path,
    *,
    rows_per_chunk: int,
    column: str | None = None,
    reader: Reader | None = None,
    workers: int = 1,
    progress: Callable[[Counts], None] | None = None,
) -> None:
    """Do the work on every chunk that has no entry yet.

    Args:
        column: of the text.
        reader: gives the rows; default: their texts, by `part_rows`.
        workers: processes; with 1 the work is done in this one. They end with this process, however that ends.

    Raises:
        DataError: text that cannot be read, or a worker that was killed.
        OSError: the disk is full; what is done stays.
    """
    (folder / ENTRIES).mkdir(parents=True, exist_ok=True)
    ledger = _Ledger(folder, parts)
    spans = [span for part in parts for span in _spans(part, rows_per_chunk) if not ledger.is_done(span)]
    report = _Report(ledger, progress)
    read = partial(part_rows, column=column) if reader is None else reader
    report(now=True)
    if workers == 1 or len(spans) < 2:
        worker = work.open()
        for span in spans:
            _do_span(span, worker, folder, rows_per_chunk, read, report)
    else:
        _in_processes(min(workers, len(spans)), [(span, work, folder, rows_per_chunk, read) for span in spans], report)
    report(now=True)


def _in_processes(workers: int, tasks: Sequence[tuple[Any, ...]], report: _Report) -> None:
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    pool = ProcessPoolExecutor(workers, spawn, initializer=_begin_worker, initargs=(stop,))
    try:
        waiting = {pool.submit(_do_task, *task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            report()
    except BrokenProcessPool:
        raise DataError("a worker was killed, perhaps for its memory; the same command goes on, with fewer --workers") from None
    finally:
        stop.set()  # after a fault the other workers end with the chunk that they are at
        pool.shutdown(cancel_futures=True)


_stop: Event | None = None
"""In a worker: set when it is to end."""


def _begin_worker(stop: Event) -> None:
    """In a worker: leave when the process that started it is gone; a pool's workers would wait for it for ever."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it too, and says when to end
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _spans(part: Part, rows_per_chunk: int) -> Iterator[_Span]:
    end = None if part.num_rows is None else -(-part.num_rows // rows_per_chunk)
    sent = replace(part, seeks=((0, 0),))  # a worker needs its own place only, and they are many
    stops = [first for first, _ in part.seeks[1:]] + [end]
    for (first, offset_bytes), stop in zip(part.seeks, stops, strict=True):
        if stop is None or first < stop:
            yield _Span(part=sent, first=first, offset_bytes=offset_bytes, stop=stop)


@lru_cache(maxsize=1)
def _opened(work: Work) -> ChunkWorker:
    return work.open()


def _do_task(span: _Span, work: Work, folder: Path, rows_per_chunk: int, read: Reader) -> None:
    """In a worker: a span, with what the work needs loaded once for all of them."""
    _do_span(span, _opened(work), folder, rows_per_chunk, read, lambda: None)


def _do_span(span: _Span, worker: ChunkWorker, folder: Path, rows_per_chunk: int, read: Reader, report: Callable[[], None]) -> None:
    """Every chunk of a span that has no entry; one that has is read over."""
    rows = read(span.part, start=span.first * rows_per_chunk, offset_bytes=span.offset_bytes)
    for number in count(span.first):
        if number == span.stop or (_stop is not None and _stop.is_set()):
            return
        name = chunk_name(span.part, number)
        entry_file = folder / ENTRIES / f"{name}.json"
        chunk = _Counted(islice(rows, rows_per_chunk))
        entry = None if entry_file.exists() else worker(span.part, name, chunk)
        chunk.drain()
        following = next(rows, None)
        if entry is not None:
            write_json(entry_file, entry | {"num_rows": chunk.num_rows, "last": following is None})
            report()
        if following is None:
            return
        rows = chain((following,), rows)  # one row ahead: only so is the last chunk known to be the last


class _Report:
    """Tells how far the work is, twice a second at most."""

    def __init__(self, ledger: _Ledger, progress: Callable[[Counts], None] | None) -> None:
        self._ledger, self._progress, self._last = ledger, progress, 0.0

    def __call__(self, *, now: bool = False) -> None:
        if self._progress is not None and (now or time.monotonic() - self._last >= _POLL_SECONDS):
            self._progress(self._ledger.counts())
            self._last = time.monotonic()


class _Counted:
    """Rows, counted as they go by."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.num_rows = 0

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> tuple[int, Any]:
        row = next(self._rows)
        self.num_rows += 1
        return row

    def drain(self) -> None:
        """Read what is left."""
        for _ in self:
            pass


class _Ledger:
    """What is done, as the entries on the disk say; the workers need tell nobody."""

    def __init__(self, folder: Path, parts: Sequence[Part]) -> None:
        self._folder, self._parts = folder / ENTRIES, parts
        self._entries: dict[str, dict[str, Any]] = {}
        self._update()
        self._before = self._sums()

    def is_done(self, span: _Span) -> bool:
        """Whether every chunk of a span has an entry."""
        for number in count(span.first):
            entry = self._entries.get(chunk_name(span.part, number))
            if entry is None:
                return False
            if entry["last"] or number + 1 == span.stop:
                return True
        raise AssertionError("not reached")

    def counts(self) -> Counts:
        """The sums now; a part that nobody counted beforehand is known once its last chunk is done."""
        self._update()
        num_rows, num_tokens = self._sums()
        rows_of: Counter[str] = Counter()
        for name, entry in self._entries.items():
            rows_of[name.rpartition("-")[0]] += entry["num_rows"]
        ended = {name.rpartition("-")[0] for name, entry in self._entries.items() if entry["last"]}
        totals = [part.num_rows for part in self._parts]
        for number, part in enumerate(self._parts):
            if totals[number] is None and (name := chunk_name(part, 0).rpartition("-")[0]) in ended:
                totals[number] = rows_of[name]
        return Counts(
            num_rows=num_rows,
            total_rows=None if None in totals else sum(filter(None, totals)),
            num_tokens=num_tokens,
            new_rows=num_rows - self._before[0],
            new_tokens=num_tokens - self._before[1],
        )

    def _sums(self) -> tuple[int, int]:
        entries = self._entries.values()
        return sum(entry["num_rows"] for entry in entries), sum(entry.get("num_tokens", 0) for entry in entries)

    def _update(self) -> None:
        for file in os.listdir(self._folder):
            name = file.removesuffix(".json")
            if name != file and name not in self._entries:
                self._entries[name] = read_json(self._folder / file)
