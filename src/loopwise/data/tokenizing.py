"""Text into token shards: in parallel, restartable, and the same bytes whatever was killed and however many worked."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .chunks import ENTRIES, ChunkWorker, Counts, Rows, read_entries, run_chunks
from .decontamination import EvaluationItem, ItemIndex, read_items, report_json
from .documents import DataError
from .folders import bind, check_unused, locked, write_json
from .held_out import SAMPLED_ROWS, hold_out, read_held_out, sampled_texts, text_hash
from .parts import bound_parts, parse_training_sources
from .shards import FORMAT, INDEX_FILE, TOKENIZER_FOLDER, Shard, TokenizerFacts, TokenShards, write_index, write_shard
from .streams import Part
from .text_tokenizers import BYTES, TokenizerChoice, check_vocabulary, save_beside, train_beside

PLAN_FILE = "plan.json"
TOKENIZER_FILE = "tokenizer_facts.json"
DECONTAMINATION_FILE = "decontamination.json"

_ENCODED_AT_ONCE = 64
_TRAINING_CHARACTERS = 50_000_000
"""Most text of each source that a tokenizer is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSettings:
    """What shards are made of; the same settings on the same text give the same bytes.

    Raises:
        DataError: a value that cannot be.
    """

    sources: tuple[str, ...]
    """Each ``[[DOMAIN/]NAME=]LOCATION``, as `parse_training_sources` reads it."""
    tokenizer: str = BYTES
    """``bytes``, a folder, or a hub id."""
    train_vocabulary: int | None = None
    """Train a byte-level BPE with so many ids on the text, in place of ``tokenizer``."""
    end_token: str | None = None
    """Ends documents; None is the tokenizer's own end-of-text token."""
    rows_per_shard: int = 4096
    """Rows of a source that make one shard; a guess: some 10 MB of web pages."""
    max_rows: int | None = None
    """Rows read of each source; None: all."""
    held_out: int = 0
    """Documents of each source that are kept out of training."""
    column: str | None = None
    """The column that holds the text, where its name is not a usual one."""
    items: tuple[str, ...] = ()
    """Evaluation items, each ``[BENCHMARK=]FILE.jsonl``; documents that share 13 words in a row with one are left out."""
    fields: tuple[str, ...] = ()
    """Fields of the items that are compared; none: the usual ones."""

    def __post_init__(self) -> None:
        for name, least in (("rows_per_shard", 1), ("max_rows", 1), ("held_out", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"{name} is {value}; give at least {least}")
        if self.train_vocabulary is not None:
            check_vocabulary(self.train_vocabulary)
            if self.tokenizer != BYTES or self.end_token is not None:
                raise DataError("a tokenizer is trained or given, not both; leave out one, and its end token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeWork:
    """What a worker process needs to make shards; small, because it is sent with every task."""

    folder: Path
    tokenizer: TokenizerChoice
    facts: TokenizerFacts
    items: tuple[str, ...]
    fields: tuple[str, ...]

    def open(self) -> ChunkWorker:
        """Load tokenizer and items."""
        tokenizer = self.tokenizer.load()
        index = ItemIndex(read_items(self.items, self.fields)) if self.items else None
        held_out = read_held_out(self.folder)

        def make(part: Part, name: str, rows: Rows) -> dict[str, Any]:
            counts: dict[str, Any] = {"num_empty": 0, "num_held_out": 0, "dropped": []}
            texts = _kept(part, rows, held_out, index, counts)
            made = write_shard(self.folder, name, _encoded(tokenizer.encode, texts), self.facts)
            return {"file": name, "source": part.source, "domain": part.domain} | counts | made

        return make


def tokenize_sources(
    settings: TokenizeSettings,
    folder: str | Path,
    *,
    workers: int = 1,
    progress: Callable[[Counts], None] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> TokenShards:
    """Make the shards of some text, or go on with them, or find them made.

    A shard is made of rows ``n * rows_per_shard`` up to ``(n + 1) * rows_per_shard`` of one part of one source, and depends on nothing
    else. What a killed call had finished is kept. Beside the shards stand the tokenizer, as transformers loads it, and
    ``heldout/``, shards of the documents that were kept out. Everything that can be checked is checked before anything is written.

    Args:
        workers: processes.
        progress: told how far the work is.
        note: told what is being done, in words.

    Raises:
        DataError: settings that do not go together, text that cannot be read, or a folder that holds something else.
        OSError: the disk is full; what is done stays.
    """
    folder = Path(folder)
    if workers < 1:
        raise DataError(f"workers is {workers}; give at least 1")
    sources = parse_training_sources(settings.sources)
    items = read_items(settings.items, settings.fields) if settings.items else ()
    check_unused(folder, PLAN_FILE)
    given = None if settings.train_vocabulary else TokenizerChoice(name=settings.tokenizer, end_token=settings.end_token)
    tokenizer = None if given is None else given.load()
    bound = _bound(settings, items)
    with locked(folder):
        note("reading the sources' sizes")
        rows = dict(rows_per_chunk=settings.rows_per_shard, max_rows=settings.max_rows)
        parts = bound_parts(folder, PLAN_FILE, bound, sources, **rows)  # type: ignore[arg-type]
        if tokenizer is None:
            if not (folder / TOKENIZER_FOLDER).is_dir():
                note(f"training a tokenizer with {settings.train_vocabulary} ids")
            train_beside(_training_texts(parts, settings.column), settings.train_vocabulary or 0, folder)
            given = TokenizerChoice(name=str(folder / TOKENIZER_FOLDER))
            tokenizer = given.load()
        facts = replace(tokenizer.facts, name=f"bpe-{settings.train_vocabulary}" if settings.train_vocabulary else settings.tokenizer)
        bind(folder, TOKENIZER_FILE, asdict(facts))
        if (folder / INDEX_FILE).exists():
            shutil.rmtree(folder / ENTRIES, ignore_errors=True)
            return TokenShards.open(folder)
        save_beside(tokenizer, folder)
        hold_out(parts, settings.held_out, folder, tokenizer, facts, settings.column)
        assert given is not None
        work = TokenizeWork(folder=folder, tokenizer=given, facts=facts, items=settings.items, fields=settings.fields)
        options = dict(rows_per_chunk=settings.rows_per_shard, column=settings.column, workers=workers, progress=progress)
        run_chunks(parts, work, folder, **options)  # type: ignore[arg-type]
        _finish(folder, parts, facts, items, bound | {"sources": [asdict(source) for source in sources]})
    return TokenShards.open(folder)


def _bound(settings: TokenizeSettings, items: Sequence[EvaluationItem]) -> dict[str, Any]:
    """The settings that a folder is bound to; of the items it is their text that counts."""
    values = asdict(settings) | {"format": FORMAT}
    del values["sources"], values["items"], values["fields"]
    texts = [[item.benchmark, item.name, item.text] for item in items]
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest() if items else None
    found: dict[str, Any] = json.loads(json.dumps(values | {"items_sha256": digest}))
    return found


def _training_texts(parts: Sequence[Part], column: str | None) -> Iterator[str]:
    for source in dict.fromkeys(part.source for part in parts):
        left = _TRAINING_CHARACTERS
        for text in sampled_texts(parts, source, SAMPLED_ROWS, column):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break


def _kept(part: Part, rows: Rows, held_out: frozenset[str], index: ItemIndex | None, counts: dict[str, Any]) -> Iterator[str]:
    for row, text in rows:
        if not text:
            counts["num_empty"] += 1
        elif held_out and text_hash(text) in held_out:
            counts["num_held_out"] += 1
        elif index is not None and (hits := index.hits(text)):
            counts["dropped"].append({"document": part.document_name(row), "hits": [asdict(hit) for hit in hits]})
        else:
            yield text


def _encoded(encode: Callable[[Sequence[str]], list[NDArray[Any]]], texts: Iterator[str]) -> Iterator[NDArray[Any]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == _ENCODED_AT_ONCE:
            yield from encode(batch)
            batch = []
    yield from encode(batch)


def _finish(folder: Path, parts: Sequence[Part], facts: TokenizerFacts, items: Sequence[EvaluationItem], made_with: dict[str, Any]) -> None:
    """Write the report and the index, then remove the entries that they were made of."""
    entries = read_entries(folder, parts)
    names = ("file", "source", "domain", "num_tokens", "num_documents", "tokens_sha256", "starts_sha256")
    shards = [Shard(**{name: entry[name] for name in names}) for entry in entries if entry["num_documents"]]
    if not shards:
        raise DataError(f"{folder}: no document is left to make shards of; give more text, or hold out fewer")
    counts = {f"num_{name}": sum(entry[f"num_{name}"] for entry in entries) for name in ("rows", "empty", "held_out")}
    dropped = [document for entry in entries for document in entry["dropped"]]
    if items:
        looked_at = sum(shard.num_documents for shard in shards) + len(dropped)
        write_json(folder / DECONTAMINATION_FILE, report_json(ItemIndex(items), dropped, looked_at))
    write_index(folder, facts, shards, made_with | counts | {"num_dropped": len(dropped)})
    shutil.rmtree(folder / ENTRIES)
