"""Whether text that a placement was chosen on and items that it is judged on share anything.

The rule is that of no-free-loop, appendix A.4: an item is refused that shares 13 words in a row, lower-cased, with the text.
It says nothing of paraphrases. Shorter items, of which the paper's rule says nothing either, are refused where each of their
5-grams is in the text, which is to say where they stand in it as whole sentences ("What is 3 + 8?" is not in "What is 3 + 8 *
2?"); what has fewer than 5 words is no evidence.

A study keeps hashes, not text: `write_text_hashes` writes them into its folder, `overlapping` reads items against them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from .documents import DataError, Document
from .mixture import TextMixture

TEXT_HASHES_FILE = "text_hashes.json"
NGRAM = 13
SHORT_NGRAM = 5
"""For texts of fewer than `NGRAM` words."""

_HEX_DIGITS = 16
_WRITTEN_AGAIN = "remove it, and the same loopwise place command writes it again"
_SENTENCE_END = "."
# Runs of letters and digits, each Chinese or Japanese character, and the signs of a calculation, which are all that tells
# "3 + 4 * 5" from "3 * 4 + 5"; then the ends of sentences. Other punctuation, _ included, is no part of
# the wording.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+|[-+*/^%=(](?=[\s(]*\d)|(?P<end>(?:[?!\u3002]|\.(?![^\W_]))+)"
)


# Marks inside words that nobody sees: soft hyphens, joiners, byte order and writing direction.
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200c\u200d\u200e\u200f\u2060\ufeff"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHashes:
    """What a study read, as far as it has to be known to find items in it."""

    documents: Mapping[str, str]
    """The domain of every document, by its name."""
    hashes: frozenset[str]
    """Of every 13-gram of their words, and of every 5-gram of their words and ends of sentences; none where no text was read."""

    def joined(self, other: TextHashes) -> TextHashes:
        """Both texts together."""
        return TextHashes(documents={**self.documents, **other.documents}, hashes=self.hashes | other.hashes)


def shingle_hashes(text: str) -> frozenset[str]:
    """The hashes of every 13-gram of a text's words, and of every 5-gram of its words and ends of sentences."""
    marked = _marked_words(text)
    return frozenset(_ngram_hashes(_words(marked), NGRAM)) | frozenset(_ngram_hashes(marked, SHORT_NGRAM))


def hash_documents(documents: Iterable[Document]) -> TextHashes:
    """The hashes of whole documents."""
    documents = tuple(documents)
    hashes = frozenset().union(*(shingle_hashes(document.text) for document in documents))
    return TextHashes(documents={document.name: document.domain for document in documents}, hashes=hashes)


def used_documents(mixture: TextMixture, documents: Iterable[Document]) -> tuple[Document, ...]:
    """The documents that gave a window to either split of a mixture."""
    used = {(window.domain, window.document) for window in mixture.fit + mixture.score}
    return tuple(document for document in documents if (document.domain, document.name) in used)


def overlapping(items: Iterable[tuple[str, str]], hashes: frozenset[str], *, whole: bool = False, short: bool = True) -> tuple[str, ...]:
    """The names of the items, each with a text of it, that are in the hashed text.

    A text of at least 13 words is in it if one of its 13-grams is; a shorter one, of at least 5 words, if all its 5-grams are.

    Args:
        whole: count a longer text, too, only if all of it is there: for items made from templates, where different ones have
            most of their words in common.
        short: count texts of fewer than 13 words; a short answer, unlike a short question, is a phrase that anybody writes.
    """
    names: dict[str, None] = {}
    for name, text in items:
        marked = _marked_words(text)
        found = _words(marked)
        if len(found) >= NGRAM:
            shared = [one in hashes for one in _ngram_hashes(found, NGRAM)]
            is_in = all(shared) if whole else any(shared)
        else:
            is_in = short and len(found) >= SHORT_NGRAM and all(one in hashes for one in _ngram_hashes(marked, SHORT_NGRAM))
        if is_in:
            names[name] = None
    return tuple(names)


def without_wording(prompts: Sequence[str]) -> tuple[str, ...]:
    """Prompts without the lines that all of them begin with and all of them end in: a task's wording, not an item's.

    A text that was written to the same instruction would share it with every item.
    """
    lines = [prompt.strip().split("\n") for prompt in prompts]
    if len({*prompts}) < 2:
        return tuple(prompts)
    shortest = min(map(len, lines))
    head = next((n for n in range(shortest) if len({one[n] for one in lines}) > 1), shortest - 1)
    tail = next((n for n in range(shortest - head) if len({one[-1 - n] for one in lines}) > 1), shortest - head - 1)
    return tuple("\n".join(one[head : len(one) - tail]) for one in lines)


def write_text_hashes(folder: str | Path, hashes: TextHashes) -> Path:
    """Add hashes to a study's ``text_hashes.json``; several searches of one study may do so at once.

    Raises:
        DataError: the file that is there is damaged.
        OSError: the folder cannot be written; the file that was there stays.
    """
    file = Path(folder) / TEXT_HASHES_FILE
    lock = os.open(file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            there = read_text_hashes(folder)
            if hashes.hashes <= there.hashes and hashes.documents.items() <= there.documents.items():
                return file
            hashes = there.joined(hashes)
        values = {"ngram": NGRAM, "short_ngram": SHORT_NGRAM, "documents": dict(sorted(hashes.documents.items()))}
        _write_whole(file, json.dumps(values | {"hashes": sorted(hashes.hashes)}, ensure_ascii=False) + "\n")
    finally:
        os.close(lock)
    return file


def _write_whole(file: Path, content: str) -> None:
    part = file.with_suffix(".part")
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(
            error.errno, f"{error.strerror}; the hashes that were there stay, the same command goes on when there is room", str(file)
        ) from None


def read_text_hashes(folder: str | Path) -> TextHashes:
    """The hashes that `write_text_hashes` wrote.

    Raises:
        DataError: there are none, they are damaged, or of other n-grams.
    """
    file = Path(folder) / TEXT_HASHES_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        ngrams, documents, hashes = (values["ngram"], values["short_ngram"]), dict(values["documents"]), frozenset(values["hashes"])
    except FileNotFoundError:
        raise DataError(
            f"{folder}: has no {TEXT_HASHES_FILE}, so nobody can say what text it was made on; give a folder that loopwise place wrote"
        ) from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{file}: damaged ({type(error).__name__}); {_WRITTEN_AGAIN}") from None
    if ngrams != (NGRAM, SHORT_NGRAM):
        raise DataError(f"{file}: has hashes of {ngrams} words, not of {NGRAM} and {SHORT_NGRAM}; make the study again with this version")
    if not all(isinstance(one, str) and len(one) == _HEX_DIGITS for one in hashes):
        raise DataError(f"{file}: holds something else than hashes of text; {_WRITTEN_AGAIN}")
    return TextHashes(documents=documents, hashes=hashes)


def _marked_words(text: str) -> list[str]:
    """The lower-cased words of a text and the ends of its sentences, without its spacing and other punctuation."""
    found = _WORD.finditer(unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).lower())
    return [_SENTENCE_END if match["end"] else match[0] for match in found]


def _words(marked: Iterable[str]) -> list[str]:
    return [word for word in marked if word != _SENTENCE_END]


def _ngram_hashes(found: Sequence[str], size: int) -> Iterator[str]:
    encoded = [word.encode() for word in found]
    joined = b" ".join(encoded)
    starts = [0, *accumulate(len(word) + 1 for word in encoded)]
    for first in range(len(found) - size + 1):
        yield hashlib.sha256(joined[starts[first] : starts[first + size] - 1]).hexdigest()[:_HEX_DIGITS]
