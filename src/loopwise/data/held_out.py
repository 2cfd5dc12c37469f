"""Documents that are kept out of training: so many of each source, chosen by the hash of their text, in no source trained on."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from .documents import DataError
from .folders import read_json, write_json
from .shards import HELD_OUT_FOLDER, Shard, TokenizerFacts, write_index, write_shard
from .streams import Part, part_rows
from .text_tokenizers import TextTokenizer

HELD_OUT_FILE = "held_out.json"
SAMPLED_ROWS = 10_000
"""Rows of each source that held-out documents are chosen from, those at the beginnings of its parts; more where many are wanted."""
_ROWS_EACH = 20
"""Rows to choose one of, where `SAMPLED_ROWS` are too few."""


def text_hash(text: str) -> str:
    """The sha256 of a text without the blanks around it: by this, texts are the same."""
    return hashlib.sha256(text.strip().encode()).hexdigest()


def sampled_texts(parts: Sequence[Part], source: str, num_rows: int, column: str | None) -> Iterator[str]:
    """The texts in the first rows of a source's parts, about ``num_rows`` in all."""
    own = [part for part in parts if part.source == source]
    each = -(-num_rows // len(own))
    for part in own:
        for _, text in islice(part_rows(part, column=column), each):
            if text:
                yield text


def hold_out(
    parts: Sequence[Part], num_documents: int, folder: Path, tokenizer: TextTokenizer, facts: TokenizerFacts, column: str | None
) -> None:
    """Choose the documents with the smallest hashes and write them as shards of their own, unless that was done before.

    Raises:
        DataError: a source with too few documents.
    """
    file = folder / HELD_OUT_FILE
    if file.exists() or not num_documents:
        return
    own = folder / HELD_OUT_FOLDER
    own.mkdir(exist_ok=True)
    shards: list[Shard] = []
    hashes: set[str] = set()
    for source, domain in {part.source: part.domain for part in parts}.items():
        texts = sampled_texts(parts, source, max(SAMPLED_ROWS, _ROWS_EACH * num_documents), column)
        chosen, num_different = _smallest(texts, num_documents)
        if num_different < 2 * num_documents:
            raise DataError(f"source {source!r}: has {num_different} different documents to hold {num_documents} out of; hold out fewer")
        name = f"{source}-heldout"
        counts = write_shard(own, name, tokenizer.encode([text for _, text in sorted(chosen.items())]), facts)
        shards.append(Shard(file=name, source=source, domain=domain, **counts))
        hashes.update(chosen)
    write_index(own, facts, shards, {"held_out": num_documents})
    write_json(file, {"text_sha256": sorted(hashes)})


def read_held_out(folder: Path) -> frozenset[str]:
    """The hashes of the texts that `hold_out` chose; a document of any source with one of them is not trained on."""
    file = folder / HELD_OUT_FILE
    return frozenset(read_json(file)["text_sha256"]) if file.exists() else frozenset()


def _smallest(texts: Iterable[str], number: int) -> tuple[dict[str, str], int]:
    """The texts with the ``number`` smallest hashes, by their hash, and how many different ones there were; no others are kept."""
    kept: dict[str, str] = {}
    seen: set[str] = set()
    in_order: list[str] = []
    for text in texts:
        digest = text_hash(text)
        if digest in seen:
            continue
        seen.add(digest)
        if len(kept) < number or digest < in_order[-1]:
            kept[digest] = text
            insort(in_order, digest)
            if len(kept) > number:
                del kept[in_order.pop()]
    return kept, len(seen)
