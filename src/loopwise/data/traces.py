"""Reasoning traces and chats into a set to fine-tune on: in parallel, restartable, and the same bytes whatever was killed.

No trace is ever cut: one that is longer than a row is left out and counted (no-free-loop, A.3: "never truncated"), as is everything else
that is not kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .chat_tokenizers import ChatTokenizer, template_hash
from .chunks import ENTRIES, ChunkWorker, Counts, Rows, read_entries, run_chunks
from .conversations import read_conversation
from .decontamination import EvaluationItem, Hit, ItemIndex, report_json
from .documents import DataError
from .folders import check_unused, locked, write_bytes, write_json
from .parts import bound_parts, parse_training_sources
from .shards import INDEX_FILE, TokenizerFacts
from .streams import Part, part_values
from .text_tokenizers import save_beside
from .tokenizing import DECONTAMINATION_FILE
from .trace_encoding import DROPS, Dropped, EncodedTrace, TraceEncoder
from .trace_store import TRACE_FORMAT, TraceFacts, TraceSet, TraceShard, first_of_each, write_trace_index, write_trace_shard

PLAN_FILE = "traces_plan.json"
ITEMS_FILE = "evaluation_items.jsonl"
"""The items that a set was decontaminated against, a copy for the workers and for the record."""


class LoadsChatTokenizer(Protocol):
    """A tokenizer that each process loads for itself: a value that can be sent there and hashed, as `ChatTokenizerChoice` is."""

    def load(self) -> ChatTokenizer:
        """The tokenizer."""

    def __hash__(self) -> int:
        """By its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """What a set of traces is made of; the same settings on the same rows give the same bytes.

    Raises:
        DataError: a value that cannot be.
    """

    sources: tuple[str, ...]
    """Each ``[[DOMAIN/]NAME=]LOCATION``, as `parse_training_sources` reads it."""
    sequence_tokens: int
    """Inputs of a row: what does not fit into one is left out, whole."""
    raw: bool = False
    """Without a chat template: a question, its answer right behind it, and the end token."""
    question: str | None = None
    """The column that asks, where it is not known by its name; with ``answer``."""
    answer: str | None = None
    """The column that answers."""
    max_rows: int | None = None
    """Rows read of each source; None: all."""
    rows_per_shard: int = 1024
    """Rows of a source that make one shard; a guess: some 10 to 20 MB of long traces."""

    def __post_init__(self) -> None:
        for name, least in (("sequence_tokens", 2), ("max_rows", 1), ("rows_per_shard", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"{name} is {value}; give at least {least}")
        if (self.question is None) != (self.answer is None):
            raise DataError("question and answer name two columns of a row; give both, or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWork:
    """What a worker process needs to encode traces."""

    folder: Path
    tokenizer: LoadsChatTokenizer
    facts: TokenizerFacts
    settings: TraceSettings

    def open(self) -> ChunkWorker:
        """Load tokenizer and items."""
        encoder = TraceEncoder(self.tokenizer.load(), raw=self.settings.raw)
        items = _read_items(self.folder)
        index = ItemIndex(items) if items else None

        def make(part: Part, name: str, rows: Rows) -> dict[str, Any]:
            kept = _Kept(self.settings, encoder, index)
            made = write_trace_shard(self.folder, name, kept.traces(part, rows), self.facts)
            return {"file": name, "source": part.source, **kept.entry(), **made}

        return make


class _Kept:
    """The traces of one chunk, and counts of what is left out of it."""

    def __init__(self, settings: TraceSettings, encoder: TraceEncoder, index: ItemIndex | None) -> None:
        self._settings, self._encoder, self._index = settings, encoder, index
        names = (settings.question, settings.answer)
        self._columns = None if names[0] is None or names[1] is None else (names[0], names[1])
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._contaminated: list[dict[str, Any]] = []
        self._shortest_too_long: int | None = None
        self._untrained = 0

    def traces(self, part: Part, rows: Rows) -> Iterator[EncodedTrace]:
        """What of the rows is kept."""
        for row, values in rows:
            where = part.document_name(row)
            made = self._made(values, where)
            if isinstance(made, Dropped):
                self._counts[made.reason] += 1
                if made.what:
                    self._examples.setdefault(made.reason, f"{where}: {made.what}")
            else:
                self._untrained += made.num_turns_untrained
                yield made

    def entry(self) -> dict[str, Any]:
        """The counts, for the chunk's entry."""
        counts = {f"num_{reason}": self._counts[reason] for reason in DROPS if reason != "duplicate"}
        found = {"examples": self._examples, "contaminated": self._contaminated, "num_turns_untrained": self._untrained}
        return counts | found | {"shortest_too_long": self._shortest_too_long}

    def _made(self, values: Mapping[str, Any] | None, where: str) -> EncodedTrace | Dropped:
        conversation = None if values is None else read_conversation(values, where, self._columns)
        if conversation is None:
            return Dropped(reason="without_answer")
        if self._index is not None:
            hits: dict[Hit, None] = dict.fromkeys(hit for text in conversation.texts for hit in self._index.hits(text))
            if hits:
                self._contaminated.append({"document": where, "hits": [asdict(hit) for hit in hits]})
                return Dropped(reason="decontaminated")
        made = self._encoder.encode(conversation, where)
        if isinstance(made, EncodedTrace) and (length := len(made.ids)) > self._settings.sequence_tokens + 1:
            self._shortest_too_long = min(length, self._shortest_too_long or length)
            return Dropped(reason="too_long")
        return made


def encode_traces(
    settings: TraceSettings,
    tokenizer: LoadsChatTokenizer,
    folder: str | Path,
    *,
    items: Sequence[EvaluationItem] = (),
    workers: int = 1,
    progress: Callable[[Counts], None] | None = None,
) -> TraceSet:
    """Make a set of traces, or go on with it, or find it made.

    A shard is made of rows ``n * rows_per_shard`` up to ``(n + 1) * rows_per_shard`` of one part of one source, and depends on nothing
    else; of traces with the same tokens the first is kept. Beside the shards stand the tokenizer with its template and, where there were
    items, the report of decontamination. Everything that can be checked is checked before a row is read.

    Args:
        items: evaluation items; a conversation that shares 13 words in a row with one, in any of its turns, is left out.
        workers: processes.
        progress: told how far the work is.

    Raises:
        DataError: a tokenizer that cannot be used, rows of no known shape, no trace that is kept, or a folder that holds something else.
        OSError: the disk is full; what is done stays.
    """
    folder = Path(folder)
    if workers < 1:
        raise DataError(f"workers is {workers}; give at least 1")
    sources = parse_training_sources(settings.sources)
    check_unused(folder, PLAN_FILE)
    loaded = tokenizer.load()
    _check_context(settings, loaded)
    facts = TraceFacts(
        tokenizer=loaded.facts,
        template_sha256=None if settings.raw else template_hash(loaded),
        end_of_turn_id=TraceEncoder(loaded, raw=settings.raw).end_of_turn_id,
        pad_token_id=loaded.pad_token_id,
        sequence_tokens=settings.sequence_tokens,
    )
    bound = _bound(settings, facts, items)
    with locked(folder):
        rows: dict[str, Any] = dict(rows_per_chunk=settings.rows_per_shard)
        parts = bound_parts(folder, PLAN_FILE, bound, sources, max_rows=settings.max_rows, **rows)
        if (folder / INDEX_FILE).exists():
            shutil.rmtree(folder / ENTRIES, ignore_errors=True)
            return TraceSet.open(folder)
        save_beside(loaded, folder)
        if items:
            write_bytes(folder / ITEMS_FILE, "".join(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items).encode())
        work = TraceWork(folder=folder, tokenizer=tokenizer, facts=facts.tokenizer, settings=settings)
        run_chunks(parts, work, folder, reader=part_values, workers=workers, progress=progress, **rows)
        _finish(folder, parts, facts, items, bound | {"sources": [asdict(source) for source in sources]})
    return TraceSet.open(folder)


def _check_context(settings: TraceSettings, tokenizer: ChatTokenizer) -> None:
    longest = tokenizer.context_tokens
    if longest is not None and settings.sequence_tokens > longest:
        raise DataError(f"sequence_tokens is {settings.sequence_tokens}, {tokenizer.facts.name} reads {longest} at most; give no more")


def _bound(settings: TraceSettings, facts: TraceFacts, items: Sequence[EvaluationItem]) -> dict[str, Any]:
    """What a folder is bound to, beside its sources; of the items it is their text that counts."""
    values = asdict(settings)
    del values["sources"]
    texts = [[item.benchmark, item.name, item.text] for item in items]
    values["items_sha256"] = hashlib.sha256(json.dumps(texts).encode()).hexdigest() if items else None
    values["benchmarks"] = sorted({item.benchmark for item in items})
    tokens = {"tokenizer_sha256": facts.tokenizer.sha256, "template_sha256": facts.template_sha256, "pad_token_id": facts.pad_token_id}
    found: dict[str, Any] = json.loads(json.dumps(values | tokens | {"format": TRACE_FORMAT}))
    return found


def _read_items(folder: Path) -> tuple[EvaluationItem, ...]:
    file = folder / ITEMS_FILE
    if not file.exists():
        return ()
    lines = file.read_text(encoding="utf-8").split("\n")
    return tuple(EvaluationItem(**json.loads(line)) for line in lines if line)


def _finish(folder: Path, parts: Sequence[Part], facts: TraceFacts, items: Sequence[EvaluationItem], made_with: dict[str, Any]) -> None:
    """Write the reports and the index, then remove the entries that they were made of."""
    entries = read_entries(folder, parts)
    table, num_duplicates = first_of_each(entries)
    report = _report(entries, num_duplicates)
    if not len(table):
        raise DataError(f"{folder}: no trace is kept; {_why_none(report, facts)}")
    report |= {
        "num_kept": len(table),
        "num_tokens": int(table[:, 2].sum()),
        "num_answer_tokens": int(table[:, 3].sum()),
        "median_tokens": int(np.median(table[:, 2])),
        "longest_tokens": int(table[:, 2].max()),
    }
    if items:
        contaminated = [one for entry in entries for one in entry["contaminated"]]
        write_json(folder / DECONTAMINATION_FILE, report_json(ItemIndex(items), contaminated, report["num_rows"]))
    names = ("file", "source", "num_tokens", "tokens_sha256", "trained_sha256")
    shards = [TraceShard(**{name: entry[name] for name in names}) for entry in entries if entry["lengths"]]
    write_trace_index(folder, facts, shards, table, made_with, report)
    shutil.rmtree(folder / ENTRIES)


def _report(entries: Sequence[Mapping[str, Any]], num_duplicates: int) -> dict[str, Any]:
    names = ["num_rows", "num_turns_untrained", *(f"num_{reason}" for reason in DROPS if reason != "duplicate")]
    found: dict[str, Any] = {name: sum(entry[name] for entry in entries) for name in names}
    too_long = [entry["shortest_too_long"] for entry in entries if entry["shortest_too_long"] is not None]
    examples: dict[str, str] = {}
    for entry in entries:
        examples = {**entry["examples"], **examples}
    return found | {"num_duplicate": num_duplicates, "shortest_too_long": min(too_long, default=None), "examples": examples}


def _why_none(report: Mapping[str, Any], facts: TraceFacts) -> str:
    """The commonest reason, in words."""
    reason = max(DROPS, key=lambda one: int(report[f"num_{one}"]))
    what = f"{report[f'num_{reason}']} of {report['num_rows']} rows are left out as {DROPS[reason]}"
    if reason == "too_long":
        return f"{what} of {facts.sequence_tokens} tokens, the shortest has {report['shortest_too_long']}: give longer rows and a new --out"
    return what + (f" ({report['examples'][reason]})" if reason in report["examples"] else "")
