"""A loaded model, with its loops, as lm-eval takes one. Imported only where lm-eval is installed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""A context and its continuation, in tokens."""


class LoopedLM(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's own Hugging Face class around a model that is loaded already, so that its loops run.

    ``lm_eval.simple_evaluate(model=LoopedLM(model, tokenizer), tasks=[...])`` works for tasks of log-likelihoods; answers in words
    are refused, because this project decodes them by its own loop. Nothing is changed in the model or the tokenizer.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 16) -> None:
        """Wrap a model on the device and in the dtype that it has.

        Raises:
            ValueError: a tokenizer with neither a beginning nor an end token, which lm-eval asks for.
        """
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise ValueError("lm-eval needs a tokenizer with a token that begins or ends a text; this one has neither: set eos_token")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give at least 1")
        training = [module for module in model.modules() if module.training]
        super().__init__(pretrained=model, tokenizer=copy.deepcopy(tokenizer), backend="causal", batch_size=batch_size)
        for module in training:
            module.training = True

    def encoded(self, context: str, continuation: str) -> Row:
        """A request in tokens: the boundary falls as lm-eval places it, blanks at the context's end go to the continuation."""
        before, after = self._encode_pair(context, continuation)
        return tuple(before), tuple(after)

    def scored(self, rows: Sequence[Row]) -> list[tuple[float, bool]]:
        """The log-likelihood of every continuation in nats, and whether greedy decoding would write it.

        The rows of one batch of `plan_rows` are read in one forward pass.
        """
        answers: list[tuple[float, bool]] = self._loglikelihood_tokens(
            [(None, list(before), list(after)) for before, after in rows], disable_tqdm=True
        )
        return answers

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        # lm-eval leaves the model to build a cache that nothing reads; a looped one is larger still.
        with torch.no_grad():
            logits: Tensor = self.model(input_ids=inps, use_cache=False).logits
        return logits

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Refused.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "answers in words are decoded by loopwise itself: loopwise evaluate --task gsm8k, or another of docs/benchmarks.md"
        )


def row_key(row: Row) -> tuple[int, ...]:
    """What the model reads for a row: rows that differ in their last token alone share one forward pass."""
    before, after = row
    return (*before, *after[:-1])


def plan_rows(rows: Sequence[Row], batch_size: int) -> list[list[int]]:
    """The positions of rows, in lm-eval's batches: the longest first, ``batch_size`` different readings in each.

    The same rows give the same batches, so that twins see them alike and log-likelihoods equal lm-eval's to the last bit.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, row in enumerate(rows):
        groups.setdefault(row_key(row), []).append(position)

    def by_length(members: list[int]) -> tuple[int, tuple[int, ...]]:
        before, after = max((rows[position] for position in members), key=lambda row: len(row[1]))
        return -len(before) - len(after), (*before, *after)

    ordered = sorted(groups.values(), key=by_length)
    return [[one for members in ordered[at : at + batch_size] for one in members] for at in range(0, len(ordered), batch_size)]
