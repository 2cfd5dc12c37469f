"""Which training documents share 13 words in a row with an evaluation item.

The rule is no-free-loop's, A.4: a document is removed that shares a 13-gram of lower-cased words with an item. Words are what
stands between blanks, with their punctuation. The rule "does not detect paraphrases or problems shorter than 13 words"; such items
are listed. Windows of words are looked up by 64-bit hashes, and each that is found is compared word by word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .documents import DataError
from .overlap import NGRAM
from .streams import read_lines

ITEM_FIELDS = ("question", "problem", "prompt", "text", "ctx", "passage", "goal", "sentence", "input")
"""Fields of an item that are checked where none are named; each that it has, on its own."""

_FAULT = {False: "there is no such file", True: "this is another kind"}
_UNKNOWN = 0
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationItem:
    """One text of an item of a benchmark."""

    benchmark: str
    name: str
    """Its line and field."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A 13-gram that a document shares with an item."""

    ngram: str
    benchmark: str
    item: str


def item_words(text: str) -> list[str]:
    """The words by the paper's rule: lower-cased, split on blanks."""
    return text.lower().split()


def read_items(specs: Sequence[str], fields: Sequence[str] = ()) -> tuple[EvaluationItem, ...]:
    """Items from ``[BENCHMARK=]FILE.jsonl`` (or ``.jsonl.gz``); without a name a benchmark is called after its folder and file.

    Args:
        fields: the names of those to check; default `ITEM_FIELDS`. What of them is a string is checked, each on its own.

    Raises:
        DataError: no file, a damaged line, or a line with none of the fields.
    """
    items: list[EvaluationItem] = []
    for spec in specs:
        name, _, path = ("", "", spec) if Path(spec).exists() else spec.rpartition("=")
        file = Path(path)
        if not file.name.endswith((".jsonl", ".jsonl.gz")) or not file.is_file():
            raise DataError(f"{path}: evaluation items are read from .jsonl and .jsonl.gz files; {_FAULT[file.is_file()]}")
        benchmark = name or f"{file.resolve().parent.name}/{file.name.partition('.jsonl')[0]}"
        if any(item.benchmark == benchmark for item in items):
            raise DataError(f"{spec}: benchmark {benchmark!r} is given twice; name them, NAME=FILE")
        items += _file_items(file, benchmark, tuple(fields) or ITEM_FIELDS)
    return tuple(items)


class ItemIndex:
    """Every 13-gram of evaluation items, to find in documents."""

    def __init__(self, items: Iterable[EvaluationItem]) -> None:
        self.items = tuple(items)
        self._owners: dict[str, dict[str, str]] = {}  # of a 13-gram: its first item in each benchmark
        self._ids: dict[str, int] = {}
        grams: dict[str, list[int]] = {}
        self.short = tuple(item for item in self.items if len(item_words(item.text)) < NGRAM)
        for item in self.items:
            words = item_words(item.text)
            for start in range(len(words) - NGRAM + 1):
                window = words[start : start + NGRAM]
                ngram = " ".join(window)
                if ngram not in grams:
                    grams[ngram] = [self._ids.setdefault(word, len(self._ids) + 1) for word in window]
                self._owners.setdefault(ngram, {}).setdefault(item.benchmark, item.name)
        ids = np.array(list(grams.values()), dtype=np.uint64).reshape(-1, NGRAM)
        self._hashes = np.unique(_window_hashes(ids.reshape(-1))[::NGRAM]) if len(ids) else np.empty(0, dtype=np.uint64)

    @property
    def num_ngrams(self) -> int:
        """Different 13-grams of all items."""
        return len(self._owners)

    def hits(self, text: str) -> tuple[Hit, ...]:
        """The different 13-grams that a document shares with items, each with the first item of every benchmark that has it."""
        words = item_words(text)
        if len(words) < NGRAM or not len(self._hashes):
            return ()
        # A word that is in no 13-gram of an item cannot be in a shared one.
        ids = np.fromiter((self._ids.get(word, _UNKNOWN) for word in words), dtype=np.uint64, count=len(words))
        unknown = np.concatenate(([0], np.cumsum(ids == _UNKNOWN)))
        possible = np.flatnonzero(unknown[NGRAM:] == unknown[:-NGRAM])
        if not len(possible):
            return ()
        hashes = _window_hashes(ids)[possible]
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        candidates = (" ".join(words[int(start) : int(start) + NGRAM]) for start in possible[self._hashes[at] == hashes])
        shared = dict.fromkeys(ngram for ngram in candidates if ngram in self._owners)  # hashes can collide; words cannot
        return tuple(Hit(ngram=ngram, benchmark=name, item=item) for ngram in shared for name, item in self._owners[ngram].items())


def report_json(index: ItemIndex, dropped: Sequence[Mapping[str, Any]], num_documents: int) -> dict[str, Any]:
    """The report: counts in all and for each benchmark, every n-gram found with its documents, and the items too short to check.

    Args:
        dropped: of each document its name and its hits as JSON, as chunks record them.
        num_documents: that were looked at.
    """
    items, short = (Counter(item.benchmark for item in some) for some in (index.items, index.short))
    documents: Counter[str] = Counter()
    found: dict[str, set[str]] = {name: set() for name in items}
    ngrams: dict[str, dict[str, Any]] = {}
    for document in dropped:
        documents.update({hit["benchmark"] for hit in document["hits"]})
        for hit in document["hits"]:
            found[hit["benchmark"]].add(hit["item"])
            entry = ngrams.setdefault(hit["ngram"], {"items": {}, "documents": {}})
            entry["items"][hit["benchmark"]] = hit["item"]
            entry["documents"][document["document"]] = None
    return {
        "rule": f"{NGRAM} lower-cased words in a row, split on blanks; paraphrases and shorter items are not detected",
        "num_documents": num_documents,
        "num_dropped": len(dropped),
        "benchmarks": {
            name: {
                "num_texts": items[name],
                "num_too_short": short[name],
                "num_texts_found": len(found[name]),
                "num_documents_dropped": documents[name],
            }
            for name in items
        },
        "ngrams": {ngram: {"items": one["items"], "documents": list(one["documents"])} for ngram, one in ngrams.items()},
        "too_short": [{"benchmark": item.benchmark, "item": item.name, "text": item.text} for item in index.short],
    }


def _window_hashes(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A polynomial hash modulo 2^64 of every `NGRAM` ids in a row."""
    size = len(ids) - NGRAM + 1
    hashes = np.zeros(size, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for place in range(NGRAM):
            hashes = hashes * _MULTIPLIER + ids[place : place + size]
    return hashes


def _file_items(file: Path, benchmark: str, fields: tuple[str, ...]) -> list[EvaluationItem]:
    items = []
    for number, line in enumerate(read_lines(str(file)), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{file}, line {number}: not a JSON object ({line[:40].decode('utf-8', 'replace')!r}...)") from None
        texts = {field: values[field] for field in fields if isinstance(values, dict) and isinstance(values.get(field), str)}
        if not texts:
            has = ", ".join(values) if isinstance(values, dict) else "no object"
            raise DataError(f"{file}, line {number}: has none of {', '.join(fields)} as a string; it has {has}: name them with --field")
        items += [EvaluationItem(benchmark=benchmark, name=f"line {number}, {field}", text=text) for field, text in texts.items()]
    if not items:
        raise DataError(f"{file}: holds no item")
    return items
