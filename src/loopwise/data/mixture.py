"""Domain-balanced windows of text, split by documents into one part to fit on and one to score on."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from .documents import DataError, Document

Split = Literal["fit", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of one document as token ids, with the tokens that the tokenizer puts before any text."""

    document: str
    domain: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TextMixture:
    """Windows with the same number of tokens from every domain; no document is in both splits."""

    fit: tuple[Window, ...]
    """Where a temperature is fitted."""
    score: tuple[Window, ...]
    """Where a model is scored."""

    def token_ids(self, split: Split) -> tuple[tuple[int, ...], ...]:
        """The windows of a split as plain token ids."""
        return tuple(window.token_ids for window in (self.fit if split == "fit" else self.score))

    def num_tokens(self, split: Split) -> dict[str, int]:
        """The tokens of a split by domain."""
        counts: Counter[str] = Counter()
        for window in self.fit if split == "fit" else self.score:
            counts[window.domain] += len(window.token_ids)
        return dict(counts)

    @property
    def num_documents(self) -> dict[str, int]:
        """The documents of both splits by domain."""
        return dict(Counter(domain for domain, _ in sorted({(window.domain, window.document) for window in self.fit + self.score})))

    @cached_property
    def sha256(self) -> str:
        """The hash of everything a score depends on: the splits' windows, in order."""
        parts = [[[w.domain, w.document, w.token_ids] for w in split] for split in (self.fit, self.score)]
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()


def balanced_mixture(
    documents: Iterable[Document],
    tokenizer: Any,
    *,
    fit_tokens: int = 1024,
    score_tokens: int = 3072,
    window_tokens: int = 256,
    seed: int = 0,
) -> TextMixture:
    """As many tokens from each domain, in windows of single documents, in an order drawn by ``seed``.

    Documents are dealt to the splits in proportion to the tokens asked of them. Within a split and a domain every document
    gives its first window before any gives its second, and what is shorter than a window comes last. The domains take turns,
    so that the beginning of a split, of any length, is balanced to one window.

    Args:
        tokenizer: a Hugging Face tokenizer.
        fit_tokens: in all, divided equally among the domains; likewise ``score_tokens``.
        window_tokens: the most that a window may have; they are made a little shorter where that makes them equally long.

    Raises:
        DataError: no document, a document twice, a domain with fewer than two documents or too little text, or a tokenizer
            that makes no tokens.
    """
    by_domain: dict[str, list[Document]] = {}
    for document in documents:
        by_domain.setdefault(document.domain, []).append(document)
    if not by_domain:
        raise DataError("no documents to make a mixture of")
    prefix = _prefix_ids(tokenizer)
    if not len(prefix) + 1 < window_tokens <= min(fit_tokens, score_tokens) // len(by_domain):
        raise DataError(
            f"window_tokens={window_tokens} does not fit into {min(fit_tokens, score_tokens)} tokens divided among "
            f"{len(by_domain)} domains; take shorter windows or more tokens"
        )
    fit: list[list[Window]] = []
    score: list[list[Window]] = []
    for domain, texts in sorted(by_domain.items()):
        order = _shuffled(domain, texts, seed)
        cut = min(max(1, round(len(order) * fit_tokens / (fit_tokens + score_tokens))), len(order) - 1)
        for chosen, part, name, total in ((order[:cut], fit, "fit", fit_tokens), (order[cut:], score, "score", score_tokens)):
            wanted = total // len(by_domain)
            size = math.ceil(wanted / math.ceil(wanted / window_tokens))  # windows of one length, so that none is padded
            taken = list(_take(_windows(chosen, tokenizer, prefix, size), wanted))
            if (count := sum(len(window.token_ids) for window in taken)) < wanted:
                raise DataError(
                    f"domain {domain!r} has {count} tokens to {name} on, {wanted} were asked for; give more text or ask for fewer"
                )
            part.append(taken)
    return TextMixture(fit=_in_turns(fit), score=_in_turns(score))


def check_fits(mixture: TextMixture, vocabulary_size: int) -> None:
    """Check that a model of ``vocabulary_size`` token ids can read every window.

    Raises:
        DataError: a token id that the model has no embedding for; the text was cut by another model's tokenizer.
    """
    window = max(mixture.fit + mixture.score, key=lambda window: max(window.token_ids))
    if (largest := max(window.token_ids)) >= vocabulary_size:
        raise DataError(
            f"the tokenizer does not fit the model: it makes token id {largest} of document {window.document!r}, the model has "
            f"{vocabulary_size} ids; use the tokenizer that the model was trained with"
        )


def _in_turns(domains: Sequence[Sequence[Window]]) -> tuple[Window, ...]:
    """The windows of all domains, always going on with the domain that has given the fewest tokens."""
    placed: list[tuple[int, int, Window]] = []
    for number, windows in enumerate(domains):
        before = 0
        for window in windows:
            placed.append((before, number, window))
            before += len(window.token_ids)
    return tuple(window for _, _, window in sorted(placed, key=lambda one: one[:2]))


def _shuffled(domain: str, documents: Sequence[Document], seed: int) -> list[Document]:
    if len({document.name for document in documents}) < len(documents):
        raise DataError(f"domain {domain!r} has two documents of one name; names are unique")
    if len(documents) < 2:
        raise DataError(f"domain {domain!r} has one document; two are needed, to fit and to score on different ones")
    return random.Random(f"{seed}:{domain}").sample(documents, len(documents))


def _windows(documents: Sequence[Document], tokenizer: Any, prefix: tuple[int, ...], window_tokens: int) -> Iterator[Window]:
    """All windows of the documents: the first whole one of each, then the second of each, and so on; then the short ends."""
    size = window_tokens - len(prefix)
    cut: dict[str, list[Window]] = {}
    short: list[Window] = []
    for number in itertools.count():
        for document in documents:
            if document.name not in cut:  # read when its turn comes: most texts are longer than anybody will ask for
                ids = tuple(tokenizer(document.text, add_special_tokens=False, verbose=False).input_ids)
                pieces = [prefix + ids[start : start + size] for start in range(0, len(ids), size)]
                made = [Window(document=document.name, domain=document.domain, token_ids=piece) for piece in pieces]
                cut[document.name] = [window for window in made if len(window.token_ids) == window_tokens]
                short += made[len(cut[document.name]) :]
            yield from cut[document.name][number : number + 1]
        if number >= max(map(len, cut.values()), default=0):
            break
    yield from short


def _take(windows: Iterable[Window], num_tokens: int) -> Iterator[Window]:
    """Windows up to ``num_tokens`` in all, the last one cut."""
    for window in windows:
        if num_tokens <= 0:
            return
        kept = window.token_ids[:num_tokens]
        num_tokens -= len(kept)
        yield Window(document=window.document, domain=window.domain, token_ids=kept)


def _prefix_ids(tokenizer: Any) -> tuple[int, ...]:
    """What the tokenizer puts before any text (a begin-of-text token for Llama and Gemma, nothing for SmolLM2 and Qwen)."""
    marked, plain = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    if not plain or plain[0] not in marked:
        raise DataError(f"the tokenizer makes {plain} of 'a' and {marked} with its own marks; use the tokenizer that the model came with")
    return tuple(marked[: marked.index(plain[0])])
