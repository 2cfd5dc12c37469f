"""The loss of whole documents, each alone: every token is scored exactly once, whatever else is in its batch.

A document longer than the context is read in windows of ``context_tokens`` inputs that begin ``stride_tokens`` apart; a later window
scores only what the windows before it have not. Rows are padded on the right, where no causal model looks, so a row's loss does not
depend on its neighbours beyond the rounding of its dtype (1e-5 nats a document in fp32).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .losses import Batch, Forward, batch_losses, model_forward
from .temperature import ScoringError

GROUP_WINDOWS = 128
"""Windows that are read before their documents' losses are handed on. A guess: minutes on a CPU, seconds on a GPU."""
LOGITS_AT_ONCE = 1 << 26
"""Logits that a batch of several rows may have, in the model's dtype: 256 MiB in fp32. A guess. Only 32 positions are in fp32 at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How documents are cut and put together.

    Raises:
        ScoringError: a number below 1, or windows with gaps between them.
    """

    context_tokens: int = 1024
    """Inputs of a window, the start token included. A guess; what the models were trained at says most about them."""
    stride_tokens: int | None = None
    """Inputs from one window's beginning to the next: every token but a document's first has at least ``context - stride + 1`` tokens
    before it in its window. None: half of the context, a guess; the whole context takes half the time, and the first token of each
    later window is then predicted from one."""
    batch_size: int = 8
    """Windows read together."""

    def __post_init__(self) -> None:
        for name in ("context_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ScoringError(f"{name} is {getattr(self, name)}; give at least 1")
        if not 1 <= self.stride <= self.context_tokens:
            raise ScoringError(f"stride_tokens is {self.stride} with a context of {self.context_tokens}; give 1 to {self.context_tokens}")

    @property
    def stride(self) -> int:
        """The stride, half of the context where none was given."""
        return max(1, self.context_tokens // 2) if self.stride_tokens is None else self.stride_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDocument:
    """A document as a model reads it; equal only to itself."""

    name: str
    """Unique among those that are scored together."""
    token_ids: NDArray[np.int32]
    """[tokens]: the start token, where there is one, then the text's own. All but the first are targets."""
    num_bytes: int
    """UTF-8 bytes of the text that the targets stand for."""

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted."""
        return max(len(self.token_ids) - 1, 0)


class DocumentLoss(NamedTuple):
    """What a document costs a model."""

    name: str
    loss_nats: float
    """The sum over its targets."""
    num_targets: int
    num_bytes: int


class Span(NamedTuple):
    """A window of a document."""

    first: int
    """Its first input."""
    stop: int
    """Behind its last input, which is also its last target."""
    scored: int
    """The first target that no window before it has scored."""


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """What a document's first token is predicted from: the tokenizer's begin-of-text token, else its end-of-text token, else nothing."""
    found = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return None if found is None else int(found)  # type: ignore[arg-type]


def encode_document(tokenizer: PreTrainedTokenizerBase, name: str, text: str) -> TokenDocument:
    """A text as tokens; what looks like a special token in it is text.

    Without a start token the first token is not scored, and its bytes are not counted.

    Raises:
        ScoringError: there is no start token, and the tokenizer cannot say which bytes the first token stands for.
    """
    start = start_token_id(tokenizer)
    if start is None and not tokenizer.is_fast:
        raise ScoringError("the tokenizer has no begin or end token and is of the slow kind; use its fast version (tokenizer.json)")
    found = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=start is None, verbose=False)
    ids, begin = list(found["input_ids"]), 0
    if start is None:
        begin = found["offset_mapping"][0][1] if ids else 0
    else:
        ids = [start, *ids]
    return TokenDocument(name=name, token_ids=np.array(ids, dtype=np.int32), num_bytes=len(text[begin:].encode("utf-8")))


def spans_of(num_tokens: int, settings: WindowSettings) -> tuple[Span, ...]:
    """The windows of a document of ``num_tokens``; together they score each of its targets once."""
    spans, scored, last = [], 1, num_tokens - 1
    for first in range(0, max(last, 0), settings.stride):
        stop = min(first + settings.context_tokens, last)
        spans.append(Span(first, stop, scored))
        if stop == last:
            break
        scored = stop + 1
    return tuple(spans)


def check_documents(model_config: object, documents: Sequence[TokenDocument], settings: WindowSettings, *, name: str = "the model") -> None:
    """Refuse what a model cannot read, from its configuration alone.

    Args:
        model_config: transformers' configuration.
        name: what messages call the model.

    Raises:
        ScoringError: no document with a target, two of one name, a context longer than the model's positions, or a token without embedding.
    """
    if not any(document.num_targets for document in documents):
        raise ScoringError(f"none of {len(documents)} documents has a token to predict; give longer documents")
    if len({document.name for document in documents}) < len(documents):
        raise ScoringError("two documents have one name; names are unique")
    text_config = model_config.get_text_config(decoder=True)  # type: ignore[attr-defined]
    positions = getattr(text_config, "max_position_embeddings", None)
    longest = min(settings.context_tokens, max(document.num_targets for document in documents))
    if positions is not None and longest > positions:
        raise ScoringError(f"a context of {settings.context_tokens} tokens: {name} has {positions} positions; give at most that")
    largest = max((document for document in documents if document.num_targets), key=lambda document: int(document.token_ids.max()))
    if (token := int(largest.token_ids.max())) >= text_config.vocab_size:
        raise ScoringError(
            f"the tokenizer does not fit {name}: it makes token id {token} of document {largest.name!r}, and there are "
            f"{text_config.vocab_size} ids; use the tokenizer that the model was trained with"
        )


def score_documents(
    model: PreTrainedModel,
    documents: Sequence[TokenDocument],
    settings: WindowSettings | None = None,
    *,
    done: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[DocumentLoss, ...]]:
    """The losses of documents, group after group, from the shortest documents to the longest; those without a target are left out.

    Groups and batches follow from all documents, whatever is done already, so that a run that goes on finds the same numbers.

    Args:
        model: any causal language model, with loops or without.
        done: names of documents whose losses are not needed; a group of such documents only is not read.
        progress: called with the windows read and all that are to be read.

    Raises:
        ScoringError: as `check_documents` and `model_forward`, at once; a loss that is not finite, when it is met.
    """
    settings, done = settings or WindowSettings(), frozenset(done)
    check_documents(model.config, documents, settings)
    forward = model_forward(model)
    groups = [group for group in _groups(documents, settings) if not done.issuperset(document.name for document, _ in group)]
    return _scored(model, forward, groups, settings, done, progress)


_Row = tuple[TokenDocument, Span]


def _scored(
    model: PreTrainedModel,
    forward: Forward,
    groups: Sequence[Sequence[_Row]],
    settings: WindowSettings,
    done: frozenset[str],
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[DocumentLoss, ...]]:
    device = next(model.parameters()).device
    most_positions = LOGITS_AT_ONCE // model.config.get_text_config(decoder=True).vocab_size
    read, total = 0, sum(map(len, groups))
    for group in groups:
        sums = {document.name: 0.0 for document, _ in group}
        for rows in _batches(group, settings.batch_size, most_positions):
            for (document, _), nats in zip(rows, _row_losses(forward, _make_batch(rows, device)), strict=True):
                sums[document.name] += nats
            read += len(rows)
            if progress:
                progress(read, total)
        found = {document.name: document for document, _ in group if document.name not in done}
        for name in found:
            if not np.isfinite(sums[name]):
                raise ScoringError(f"the loss of document {name!r} is {sums[name]}: the model is ruined, or its dtype too small; try fp32")
        yield tuple(DocumentLoss(name, sums[name], document.num_targets, document.num_bytes) for name, document in found.items())


def _groups(documents: Sequence[TokenDocument], settings: WindowSettings) -> Iterator[list[_Row]]:
    """All windows of some documents of like length at a time."""
    rows: list[_Row] = []
    for document in sorted(documents, key=lambda document: len(document.token_ids)):
        rows += [(document, span) for span in spans_of(len(document.token_ids), settings)]
        if len(rows) >= GROUP_WINDOWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _batches(group: Sequence[_Row], batch_size: int, most_positions: int) -> Iterator[list[_Row]]:
    """A group's windows by what they keep and by length, so that little is padding; one row at least, however many its logits."""
    rows: list[_Row] = []
    for row in sorted(group, key=lambda row: (_skipped(row[1]), row[1].stop - row[1].first)):
        several = [*rows, row]
        kept = max(span.stop - span.first for _, span in several) - min(_skipped(span) for _, span in several)
        if rows and (len(several) > batch_size or len(several) * kept > most_positions):
            yield rows
            several = [row]
        rows = several
    if rows:
        yield rows


def _skipped(span: Span) -> int:
    """Inputs at a window's beginning whose predictions are not scored."""
    return span.scored - 1 - span.first


def _make_batch(rows: Sequence[_Row], device: torch.device) -> Batch:
    width = max(span.stop - span.first for _, span in rows)
    skipped = min(_skipped(span) for _, span in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    targets = torch.full((len(rows), width - skipped), -1)
    for place, (document, span) in enumerate(rows):
        length, ids = span.stop - span.first, torch.from_numpy(document.token_ids)
        input_ids[place, :length] = ids[span.first : span.stop]
        attention_mask[place, :length] = 1
        targets[place, _skipped(span) - skipped : length - skipped] = ids[span.scored : span.stop + 1]
    kept = torch.arange(skipped, width)
    return Batch(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), kept=kept.to(device), targets=targets.to(device))


def _row_losses(forward: Forward, batch: Batch) -> list[float]:
    """The summed loss of each row in nats."""
    losses = batch_losses(forward, batch, (1.0,))[0]
    ends = (batch.targets >= 0).sum(dim=1).cumsum(dim=0).cpu().numpy()
    return [float(part.sum(dtype=np.float64)) for part in np.split(losses, ends[:-1])]
