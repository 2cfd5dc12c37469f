"""Losses of whole documents: each token once, as a plain loop finds them, whoever shares the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from loopwise.models import insert
from loopwise.scoring import (
    ScoringError,
    TokenDocument,
    WindowSettings,
    check_documents,
    encode_document,
    score_documents,
    spans_of,
)
from tiny import tiny_model, tiny_tokenizer, tokens
from tiny_nets import tiny_net

LENGTHS = (2, 5, 23, 9, 31, 1, 14)
SETTINGS = WindowSettings(context_tokens=8, stride_tokens=3, batch_size=4)


def documents(vocabulary: int = 64) -> list[TokenDocument]:
    ids = [tokens(1, length, seed=length)[0].numpy().astype(np.int32) % vocabulary for length in LENGTHS]
    return [TokenDocument(name=f"d{n}", token_ids=one, num_bytes=3 * len(one)) for n, one in enumerate(ids)]


def make(name: str) -> Any:
    if name in ("arloop-sw", "injected", "prenorm"):
        return tiny_net(name)
    family, _, loops = name.partition(" ")
    model = tiny_model(family)
    return insert(model, loops) if loops else model


@torch.no_grad()
def plain_loop(model: Any, document: TokenDocument, context: int, stride: int) -> float:
    """One forward pass a target, alone: the earliest window that reaches it says what stands before it."""
    ids, total = torch.from_numpy(document.token_ids).long(), 0.0
    for target in range(1, len(ids)):
        first = next(first for first in range(0, len(ids), stride) if first + context >= target)
        logits = model(input_ids=ids[None, first:target], use_cache=False).logits[0, -1].double()
        total -= float(torch.log_softmax(logits, dim=-1)[ids[target]])
    return total


@pytest.mark.parametrize("name", ["llama", "llama 2:4 x2", "gemma2", "qwen3_5", "arloop-sw", "injected"])
def test_losses_are_those_of_a_plain_loop_over_single_documents(name: str) -> None:
    model = make(name)
    found = {one.name: one for group in score_documents(model, documents(), SETTINGS) for one in group}
    assert found.keys() == {f"d{n}" for n, length in enumerate(LENGTHS) if length > 1}
    for document in documents():
        if document.num_targets:
            expected = plain_loop(model, document, 8, 3)
            assert found[document.name].loss_nats == pytest.approx(expected, abs=2e-5 * document.num_targets)
            assert (found[document.name].num_targets, found[document.name].num_bytes) == (document.num_targets, document.num_bytes)


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "prenorm"])
def test_a_documents_loss_does_not_depend_on_its_neighbours(name: str) -> None:
    model = make(name)
    together = {one.name: one.loss_nats for group in score_documents(model, documents(), SETTINGS) for one in group}
    for document in documents():
        for group in score_documents(model, [document], WindowSettings(context_tokens=8, stride_tokens=3)) if document.num_targets else ():
            assert together[group[0].name] == pytest.approx(group[0].loss_nats, abs=1e-5 * document.num_targets)


@pytest.mark.parametrize("context, stride", [(8, 8), (8, 1), (8, 5), (1, 1), (100, 50)])
def test_every_token_is_scored_exactly_once(context: int, stride: int) -> None:
    settings = WindowSettings(context_tokens=context, stride_tokens=stride)
    for length in range(70):
        spans = spans_of(length, settings)
        scored = [target for span in spans for target in range(span.scored, span.stop + 1)]
        assert scored == list(range(1, length))
        for span in spans:
            assert span.stop - span.first <= context
            assert span.first == 0 or span.scored - span.first >= context - stride + 1


def test_groups_that_are_done_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwise.scoring.documents.GROUP_WINDOWS", 3)
    model, seen = make("llama"), []
    whole = [one for group in score_documents(model, documents(), SETTINGS) for one in group]
    lengths = [one.num_targets for one in whole]
    assert lengths == sorted(lengths)
    done = {one.name for one in whole[:4]}
    rest = [
        one for group in score_documents(model, documents(), SETTINGS, done=done, progress=lambda *at: seen.append(at)) for one in group
    ]
    assert rest == whole[4:]
    total = sum(len(spans_of(length, SETTINGS)) for length in LENGTHS)
    assert seen[-1][0] == seen[-1][1] < total


def test_a_batch_holds_a_bounded_number_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = make("llama"), []
    monkeypatch.setattr("loopwise.scoring.documents.LOGITS_AT_ONCE", 128 * 10)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **arguments: sizes.append((r := forward(**arguments)).logits.shape) or r)
    list(score_documents(model, documents(), SETTINGS))
    assert max(rows * kept for rows, kept, _ in sizes) <= 10
    assert max(kept for _, kept, _ in sizes) <= 8


def test_a_document_begins_with_the_start_token_or_its_first_token_is_not_scored() -> None:
    tokenizer = tiny_tokenizer()
    found = encode_document(tokenizer, "d", "w5 w2 w77")
    assert found.token_ids.tolist() == [2, 5, 2, 77] and found.num_bytes == 9  # "w2" in a text is text
    tokenizer.eos_token = None
    without = encode_document(tokenizer, "d", "w5 w2 w77")
    assert without.token_ids.tolist() == [5, 2, 77] and without.num_bytes == len(" w2 w77")
    tokenizer.bos_token = "w9"
    assert encode_document(tokenizer, "d", "w5").token_ids.tolist() == [9, 5]


def test_what_a_model_cannot_read_is_refused() -> None:
    model = make("llama")
    with pytest.raises(ScoringError, match="none of 1 documents has a token to predict"):
        score_documents(model, documents()[5:6])
    with pytest.raises(ScoringError, match="two documents have one name"):
        score_documents(model, [*documents(), *documents()])
    with pytest.raises(ScoringError, match="token id 500 of document 'x', and there are 128 ids"):
        check_documents(model.config, [TokenDocument(name="x", token_ids=np.array([1, 500], dtype=np.int32), num_bytes=1)], SETTINGS)
    long = TokenDocument(name="long", token_ids=np.ones(900, dtype=np.int32), num_bytes=1)
    with pytest.raises(ScoringError, match="a context of 800 tokens: the model has 512 positions"):
        check_documents(model.config, [long], WindowSettings(context_tokens=800))
    for wrong, words in (({"context_tokens": 0}, "context_tokens is 0"), ({"stride_tokens": 2000}, "stride_tokens is 2000 with a context")):
        with pytest.raises(ScoringError, match=words):
            WindowSettings(**wrong)
    with pytest.raises(ScoringError, match="training mode"):
        score_documents(model.train(), documents())


def test_losses_that_are_not_finite_name_the_document() -> None:
    model = make("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
    with pytest.raises(ScoringError, match="the loss of document 'd0' is nan"):
        list(score_documents(model, documents(), SETTINGS))
