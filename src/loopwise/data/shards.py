"""Token shards: documents as flat files of token ids, with an index of what made them. numpy alone reads them.

A folder of shards holds ``index.json`` and for each shard ``NAME.tokens``, its ids one after the other as little-endian uint16 (uint32
where the vocabulary needs it), and ``NAME.starts``, where each document begins in it, as little-endian uint64. Every document ends
with the tokenizer's end token, and none lies in two shards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .documents import DataError
from .folders import write_bytes, write_json

INDEX_FILE = "index.json"
FORMAT = 1
TOKENIZER_FOLDER = "tokenizer"
HELD_OUT_FOLDER = "heldout"
ALL = "all"
"""Names every source of a folder together."""

_OPEN_SHARDS = 128
"""Shards whose files are mapped at once: each takes two of the process's file descriptors."""
_REMEDY = "remove the folder and tokenize again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What decides the ids in shards."""

    name: str
    """As it was given."""
    sha256: str
    """Of what decides its ids: normaliser, splitting, vocabulary, merges, added tokens and the end token."""
    vocab_size: int
    end_token_id: int
    """Ends every document."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id."""
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What the index says of one shard."""

    file: str
    """The name of its two files, without their endings."""
    source: str
    domain: str
    num_tokens: int
    num_documents: int
    tokens_sha256: str
    starts_sha256: str


def write_shard(folder: Path, name: str, documents: Iterable[NDArray[Any]], tokenizer: TokenizerFacts) -> dict[str, Any]:
    """Write a shard's two files and give its counts and hashes; no files for no documents.

    Args:
        documents: the ids of each, without the end token.

    Raises:
        DataError: an id that the tokenizer's vocabulary does not have.
        OSError: the disk is full.
    """
    pieces, starts, position = [], [], 0
    end = np.array([tokenizer.end_token_id], dtype=tokenizer.dtype)
    for ids in documents:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
            raise DataError(
                f"tokenizer {tokenizer.name}: makes id {ids.max()} with a vocabulary of {tokenizer.vocab_size}; give its own files"
            )
        starts.append(position)
        position += len(ids) + 1
        pieces += [ids.astype(tokenizer.dtype), end]
    tokens = b"".join(piece.tobytes() for piece in pieces)
    boundaries = np.array(starts, dtype="<u8").tobytes()
    if starts:
        write_bytes(folder / f"{name}.starts", boundaries)
        write_bytes(folder / f"{name}.tokens", tokens)
    hashes = {"tokens_sha256": hashlib.sha256(tokens).hexdigest(), "starts_sha256": hashlib.sha256(boundaries).hexdigest()}
    return {"num_tokens": position, "num_documents": len(starts), **hashes}


def write_index(folder: Path, tokenizer: TokenizerFacts, shards: Sequence[Shard], settings: dict[str, Any]) -> None:
    """Write the index, which makes the folder one of shards.

    Raises:
        OSError: it cannot be written.
    """
    values = {"format": FORMAT, "dtype": tokenizer.dtype.name, "tokenizer": asdict(tokenizer), "settings": settings}
    write_json(folder / INDEX_FILE, values | {"shards": [asdict(shard) for shard in shards]})


@dataclass(frozen=True, kw_only=True)
class TokenShards:
    """A folder of shards, opened; nothing of the tokens is read before they are asked for."""

    folder: Path
    tokenizer: TokenizerFacts
    shards: tuple[Shard, ...]
    settings: dict[str, Any]
    """What they were made with, as `loopwise.data.tokenize_sources` records it."""

    @classmethod
    def open(cls, folder: str | Path) -> TokenShards:
        """Read the index and check that every file has its size.

        Raises:
            DataError: no index, of another format, damaged, or a file that is missing or cut.
        """
        shards = read_index(folder)
        for shard in shards.shards:
            width = shards.tokenizer.dtype.itemsize
            for ending, size in ((".tokens", width * shard.num_tokens), (".starts", 8 * shard.num_documents)):
                file = shards.folder / f"{shard.file}{ending}"
                found = file.stat().st_size if file.is_file() else None
                if found != size:
                    what = "is missing" if found is None else f"has {found} bytes"
                    raise DataError(f"{file}: {what}, its index says {size}; {_REMEDY}")
        return shards

    def verify(self) -> Iterator[Shard]:
        """Read everything and give each shard once it is found to be what the index says.

        Raises:
            DataError: a file's hash differs.
        """
        for shard in self.shards:
            for ending, wanted in ((".tokens", shard.tokens_sha256), (".starts", shard.starts_sha256)):
                with (self.folder / f"{shard.file}{ending}").open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                        raise DataError(f"{shard.file}{ending}: is not what the index's hash says; {_REMEDY}")
            yield shard

    @property
    def sources(self) -> dict[str, str]:
        """The domain of every source, by its name."""
        return {shard.source: shard.domain for shard in self.shards}

    @property
    def num_tokens(self) -> int:
        """Of all shards, end tokens included."""
        return sum(shard.num_tokens for shard in self.shards)

    @cached_property
    def sha256(self) -> str:
        """The hash of every token, its document and its source; not of where the folder lies."""
        facts = asdict(self.tokenizer) | {"name": ""}
        shards = [[s.source, s.domain, s.num_tokens, s.tokens_sha256, s.starts_sha256] for s in self.shards]
        return hashlib.sha256(json.dumps([FORMAT, facts, shards], sort_keys=True).encode()).hexdigest()

    @property
    def tokenizer_folder(self) -> Path | None:
        """A folder with the tokenizer as transformers saves it, beside the shards; None where there is none."""
        found = next((one for one in (self.folder, self.folder.parent) if (one / TOKENIZER_FOLDER).is_dir()), None)
        return None if found is None else found / TOKENIZER_FOLDER

    def select(self, name: str) -> TokenStream:
        """The tokens of a source, of a domain's sources, or of `ALL`, in the order of the index.

        Raises:
            DataError: no source or domain of that name.
        """
        chosen = tuple(shard for shard in self.shards if name in (ALL, shard.source, shard.domain))
        if not chosen:
            known = sorted({*self.sources, *self.sources.values()})
            raise DataError(f"{self.folder}: has no source or domain {name!r}; it has {', '.join(known)}")
        return TokenStream([(self.folder, shard) for shard in chosen], self.tokenizer.dtype)


class TokenStream:
    """The tokens of some shards, one after the other, as one array that is read where it is asked for."""

    def __init__(self, shards: Sequence[tuple[Path, Shard]], dtype: np.dtype[Any]) -> None:
        self._shards, self._dtype = tuple(shards), dtype
        self._firsts = np.array([0, *accumulate(shard.num_tokens for _, shard in shards)], dtype=np.int64)
        self._mapped = lru_cache(maxsize=_OPEN_SHARDS)(self._map)

    @classmethod
    def joined(cls, streams: Sequence[TokenStream]) -> TokenStream:
        """The tokens of several streams of one tokenizer, one after the other."""
        return cls([shard for stream in streams for shard in stream._shards], streams[0]._dtype)

    @property
    def num_tokens(self) -> int:
        """Of all the shards."""
        return int(self._firsts[-1])

    @property
    def sources(self) -> frozenset[str]:
        """The names of the sources that the tokens come from."""
        return frozenset(shard.source for _, shard in self._shards)

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Token ids ``start .. stop-1``: a view of the mapped file where they lie in one shard, else a copy.

        Raises:
            DataError: a range that is not within the stream.
        """
        pieces = [self._mapped(number)[0][first:last] for number, first, last in self._ranges(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty(0, dtype=self._dtype)])

    def document_starts(self, start: int, stop: int) -> NDArray[np.int64]:
        """Which of the places ``start .. stop-1`` are the first of a document.

        Raises:
            DataError: a range that is not within the stream.
        """
        found = [np.empty(0, dtype=np.int64)]
        for number, first, last in self._ranges(start, stop):
            starts = self._mapped(number)[1]
            low, high = np.searchsorted(starts, np.array([first, last], dtype=np.uint64))
            found.append(starts[low:high].astype(np.int64) + self._firsts[number])
        return np.concatenate(found)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The shards that a range lies in, by number, and the part of each."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise DataError(f"tokens {start} to {stop} are asked of {self.num_tokens}; ask within them")
        number = int(np.searchsorted(self._firsts, start, side="right")) - 1
        while start < stop:
            first, end = int(self._firsts[number]), int(self._firsts[number + 1])
            if start < end:
                yield number, start - first, min(stop, end) - first
                start = min(stop, end)
            number += 1

    def _map(self, number: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        folder, shard = self._shards[number]
        stem = folder / shard.file
        tokens = np.memmap(f"{stem}.tokens", dtype=self._dtype, mode="r")
        return tokens, np.memmap(f"{stem}.starts", dtype="<u8", mode="r")


def read_index(folder: str | Path) -> TokenShards:
    """The index alone; the shards themselves need not be there, which is enough to plan with.

    Raises:
        DataError: no index, of another format, or damaged.
    """
    file = Path(folder) / INDEX_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise DataError(f"{file}: is of format {values['format']!r}, this version reads {FORMAT}; {_REMEDY}")
        tokenizer = TokenizerFacts(**values["tokenizer"])
        shards = tuple(Shard(**shard) for shard in values["shards"])
        settings = dict(values["settings"])
        if values["dtype"] != tokenizer.dtype.name or not all(_is_whole(shard) for shard in shards):
            raise ValueError("a dtype, count or file name that cannot be")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: has no {INDEX_FILE}; give a folder that loopwise data tokenize finished") from None
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{file}: damaged ({type(error).__name__}: {str(error)[:60]}); {_REMEDY}") from None
    if not shards:
        raise DataError(f"{file}: names no shard; {_REMEDY}")
    return TokenShards(folder=Path(folder), tokenizer=tokenizer, shards=shards, settings=settings)


def _is_whole(shard: Shard) -> bool:
    counts = all(isinstance(count, int) and count > 0 for count in (shard.num_tokens, shard.num_documents))
    return counts and "/" not in shard.file and shard.file.isprintable()
