"""A folder of encoded traces: flat files of token ids with what of them is trained on, and one table of where each trace lies.

``NAME.tokens`` holds ids as little-endian uint16 (uint32 where the vocabulary needs it), ``NAME.trained`` a byte for each of them,
1 where it is a target. ``traces.bin`` has four little-endian uint64 for each trace: its shard's number, its first token there, its
tokens, and how many of them are trained on. numpy alone reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .documents import DataError
from .folders import read_json, write_bytes, write_json
from .shards import INDEX_FILE, TOKENIZER_FOLDER, TokenizerFacts
from .trace_encoding import EncodedTrace

KIND = "traces"
TRACE_FORMAT = 1
TRACES_FILE = "traces.bin"
_OPEN_SHARDS = 64
"""Shards whose files are mapped at once: each takes two of the process's file descriptors."""
_REMEDY = "remove the folder and make it again"
_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShard:
    """What the index says of one shard."""

    file: str
    """The name of its two files, without their endings."""
    source: str
    num_tokens: int
    tokens_sha256: str
    trained_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What decides the ids of traces, and how long they may be."""

    tokenizer: TokenizerFacts
    template_sha256: str | None
    """Of the chat template; None for raw encoding."""
    end_of_turn_id: int
    """Ends an answer, and is trained on."""
    pad_token_id: int
    """Fills rows; never trained on."""
    sequence_tokens: int
    """The inputs of a row that the longest trace fits into: no trace has more than one token above it."""


def write_trace_shard(folder: Path, name: str, traces: Iterable[EncodedTrace], tokenizer: TokenizerFacts) -> dict[str, Any]:
    """Write a shard's two files and give what an entry says of it; no files for no traces.

    Raises:
        DataError: an id that the tokenizer's vocabulary does not have.
        OSError: the disk is full.
    """
    tokens, trained, lengths, answers, hashes = [], [], [], [], []
    for trace in traces:
        if not 0 <= int(trace.ids.min()) <= int(trace.ids.max()) < tokenizer.vocab_size:
            raise DataError(f"tokenizer {tokenizer.name}: makes id {trace.ids.max()} with a vocabulary of {tokenizer.vocab_size}")
        tokens.append(trace.ids.astype(tokenizer.dtype).tobytes())
        trained.append(trace.trained.astype(np.uint8).tobytes())
        lengths.append(len(trace.ids))
        answers.append(int(np.count_nonzero(trace.trained)))
        hashes.append(hashlib.sha256(tokens[-1] + trained[-1]).hexdigest()[:32])
    files = {"tokens": b"".join(tokens), "trained": b"".join(trained)}
    for ending, content in files.items():
        if lengths:
            write_bytes(folder / f"{name}.{ending}", content)
    digests = {f"{ending}_sha256": hashlib.sha256(content).hexdigest() for ending, content in files.items()}
    return {"num_tokens": sum(lengths), "lengths": lengths, "answers": answers, "hashes": "".join(hashes), **digests}


def first_of_each(entries: Sequence[dict[str, Any]]) -> tuple[NDArray[np.int64], int]:
    """The traces of entries, in their order, and how many were left out because an earlier one has the same tokens.

    Shards are numbered over the entries that have some; a row of the array is what ``traces.bin`` holds.
    """
    seen: set[str] = set()
    rows: list[tuple[int, int, int, int]] = []
    num_all = shard = 0
    for entry in entries:
        start = 0
        for number, (length, answer) in enumerate(zip(entry["lengths"], entry["answers"], strict=True)):
            digest = entry["hashes"][32 * number : 32 * (number + 1)]
            if digest not in seen:
                seen.add(digest)
                rows.append((shard, start, length, answer))
            start += length
            num_all += 1
        shard += bool(entry["lengths"])
    return np.array(rows, dtype=np.int64).reshape(-1, _WIDTH), num_all - len(rows)


def write_trace_index(
    folder: Path,
    facts: TraceFacts,
    shards: Sequence[TraceShard],
    table: NDArray[np.int64],
    settings: dict[str, Any],
    report: dict[str, Any],
) -> None:
    """Write the table of traces and then the index, which makes the folder a set.

    Raises:
        OSError: they cannot be written.
    """
    content = table.astype("<u8").tobytes()
    write_bytes(folder / TRACES_FILE, content)
    values = {"kind": KIND, "format": TRACE_FORMAT, "num_traces": len(table), "traces_sha256": hashlib.sha256(content).hexdigest()}
    values |= {"facts": asdict(facts), "settings": settings, "report": report}
    write_json(folder / INDEX_FILE, values | {"shards": [asdict(shard) for shard in shards]})


@dataclass(frozen=True, kw_only=True)
class TraceSet:
    """A folder of traces, opened; no tokens are read before they are asked for."""

    folder: Path
    facts: TraceFacts
    shards: tuple[TraceShard, ...]
    table: NDArray[np.int64]
    """[traces, 4]: shard, first token, tokens, trained tokens."""
    traces_sha256: str
    settings: dict[str, Any]
    report: dict[str, Any]
    """What was read, kept and left out, as `loopwise.data.encode_traces` counts it."""

    @classmethod
    def open(cls, folder: str | Path) -> TraceSet:
        """Read index and table and check that every file has its size.

        Raises:
            DataError: no index, of another kind or format, damaged, or a file that is missing or cut.
        """
        traces = _read_index(Path(folder))
        for number, shard in enumerate(traces.shards):
            for ending, width in (("tokens", traces.facts.tokenizer.dtype.itemsize), ("trained", 1)):
                file = traces.folder / f"{shard.file}.{ending}"
                found = file.stat().st_size if file.is_file() else None
                if found != width * shard.num_tokens:
                    what = "is missing" if found is None else f"has {found} bytes"
                    raise DataError(f"{file}: {what}, its index says {width * shard.num_tokens}; {_REMEDY}")
            own = traces.table[traces.table[:, 0] == number]
            if len(own) and int((own[:, 1] + own[:, 2]).max()) > shard.num_tokens:
                raise DataError(f"{traces.folder / TRACES_FILE}: has a trace beyond shard {shard.file}; {_REMEDY}")
        return traces

    def __len__(self) -> int:
        return len(self.table)

    @property
    def num_tokens(self) -> int:
        """Of all traces."""
        return int(self.table[:, 2].sum())

    @property
    def num_answer_tokens(self) -> int:
        """Of all traces, those that are trained on."""
        return int(self.table[:, 3].sum())

    @cached_property
    def sha256(self) -> str:
        """The hash of every trace and of what decided its ids; not of where the folder lies."""
        facts = asdict(self.facts)
        facts["tokenizer"]["name"] = ""
        shards = [[s.tokens_sha256, s.trained_sha256] for s in self.shards]
        return hashlib.sha256(json.dumps([TRACE_FORMAT, facts, shards, self.traces_sha256], sort_keys=True).encode()).hexdigest()

    @property
    def tokenizer_folder(self) -> Path | None:
        """A folder with the tokenizer and its template, as transformers saves it; None where there is none."""
        found = self.folder / TOKENIZER_FOLDER
        return found if found.is_dir() else None

    def read(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of a trace, and for each 1 where it is a target: views of the mapped files.

        Raises:
            DataError: no such trace.
        """
        if not 0 <= number < len(self.table):
            raise DataError(f"trace {number} of {len(self.table)}; ask for 0 to {len(self.table) - 1}")
        shard, start, length, _ = (int(value) for value in self.table[number])
        tokens, trained = self._mapped(shard)
        return tokens[start : start + length], trained[start : start + length]

    def verify(self) -> Iterator[TraceShard]:
        """Read everything and give each shard once it is found to be what the index says.

        Raises:
            DataError: a file's hash differs.
        """
        for shard in self.shards:
            for ending, wanted in (("tokens", shard.tokens_sha256), ("trained", shard.trained_sha256)):
                with (self.folder / f"{shard.file}.{ending}").open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                        raise DataError(f"{shard.file}.{ending}: is not what the index's hash says; {_REMEDY}")
            yield shard

    @cached_property
    def _mapped(self) -> Any:
        return lru_cache(maxsize=_OPEN_SHARDS)(self._map)

    def _map(self, shard: int) -> tuple[NDArray[Any], NDArray[Any]]:
        stem = self.folder / self.shards[shard].file
        tokens = np.memmap(f"{stem}.tokens", dtype=self.facts.tokenizer.dtype, mode="r")
        return tokens, np.memmap(f"{stem}.trained", dtype=np.uint8, mode="r")


def _read_index(folder: Path) -> TraceSet:
    file = folder / INDEX_FILE
    if not file.is_file():
        raise DataError(f"{folder}: has no {INDEX_FILE}; give a folder that loopwise data traces finished")
    values = read_json(file)
    if values.get("kind") != KIND:
        raise DataError(f"{file}: is no set of traces; give a folder that loopwise data traces finished")
    if values.get("format") != TRACE_FORMAT:
        raise DataError(f"{file}: is of format {values.get('format')!r}, this version reads {TRACE_FORMAT}; {_REMEDY}")
    try:
        own = dict(values["facts"])
        facts = TraceFacts(**own | {"tokenizer": TokenizerFacts(**own["tokenizer"])})
        shards = tuple(TraceShard(**shard) for shard in values["shards"])
        content = (folder / TRACES_FILE).read_bytes()
        table = np.frombuffer(content, dtype="<u8").astype(np.int64).reshape(-1, _WIDTH)
        found = hashlib.sha256(content).hexdigest()
        if found != values["traces_sha256"] or not len(table) or int(table[:, 0].max()) >= len(shards):
            raise ValueError(f"{TRACES_FILE} is not what the index says")
        if not all("/" not in shard.file and shard.num_tokens > 0 for shard in shards):
            raise ValueError("a file name or count that cannot be")
        settings, report = dict(values["settings"]), dict(values["report"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: damaged ({type(error).__name__}: {str(error)[:80]}); {_REMEDY}") from None
    return TraceSet(folder=folder, facts=facts, shards=shards, table=table, traces_sha256=found, settings=settings, report=report)
