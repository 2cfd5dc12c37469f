"""A left-padded batch that advances one token a step, and which prompts go into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import cache_argument
from .cache import can_refill, decoding_cache, drop_columns, keep_rows, put_rows
from .values import DecodingError

DROP_SHARE = 1 / 8
"""Padding that no row needs any more is dropped once it is this share of the columns. Dropping copies the cache once. A guess: at
128 columns and above, an eighth less to read at each step repays that before the next eighth is due."""


def plan_batches(prompt_lengths: Sequence[int], batch_size: int) -> tuple[tuple[int, ...], ...]:
    """Which prompts share a batch: neighbours by length, so that little is padded; prompts of one length stay in order.

    The plan depends on the lengths and the size alone, so twins, who get the same prompts, get the same batches.

    Raises:
        DecodingError: a batch size below 1.
    """
    if batch_size < 1:
        raise DecodingError(f"batch_size is {batch_size}; give at least 1 row")
    order = sorted(range(len(prompt_lengths)), key=lambda index: prompt_lengths[index])
    return tuple(tuple(order[first : first + batch_size]) for first in range(0, len(order), batch_size))


def num_positions(model: PreTrainedModel) -> int | None:
    """How many tokens a model's positions hold; None where it names no number."""
    positions: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return positions


def check_prompts(model: PreTrainedModel, prompts: Sequence[Sequence[int]], budget_tokens: int) -> None:
    """Refuse prompts that cannot be run to the end of the budget.

    Raises:
        DecodingError: no prompts, an empty one, or one that needs more positions than the model has.
    """
    if not prompts:
        raise DecodingError("there are no prompts; give at least one")
    positions = num_positions(model)
    for index, prompt in enumerate(prompts):
        needed = len(prompt) + budget_tokens
        if not prompt:
            raise DecodingError(f"prompt {index} is empty; give it some text")
        if positions is not None and needed > positions:
            raise DecodingError(
                f"prompt {index} has {len(prompt)} tokens and with the budget of {budget_tokens} needs {needed} positions; "
                f"the model has {positions}: shorten the prompt or lower the budget"
            )


class Batch:
    """Prompts, cache, mask and positions on the model's device; rows leave it and join it."""

    can_leave = True
    """Whether `keep` works."""

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], budget_tokens: int, pad_id: int, *, bucket_tokens: int = 1
    ) -> None:
        """Pad the prompts on the left, to a multiple of ``bucket_tokens``; nothing runs yet."""
        self.cache = decoding_cache(model)
        self.width = -(-max(len(prompt) for prompt in prompts) // bucket_tokens) * bucket_tokens
        """Columns so far."""
        self.padding = [self.width - len(prompt) for prompt in prompts]
        """How many of them, from the left, are none of the row's own."""
        self._model = model
        inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), model)
        self.cache_argument = cache_argument(inner)  # PEFT's own forward names no cache and hands on what it gets
        self._budget_tokens = budget_tokens
        self._pad_id = pad_id
        padded = [[pad_id] * padding + list(prompt) for padding, prompt in zip(self.padding, prompts, strict=True)]
        self._prompt_ids = torch.tensor(padded, device=model.device)
        self._positions = (torch.arange(self.width)[None] - torch.tensor(self.padding)[:, None]).clamp(min=0).to(model.device)
        self._mask = self._lay_out_mask()

    @property
    def can_refill(self) -> bool:
        """Whether `refill` works: not for every kind of cache slot."""
        return can_refill(self.cache)

    def prefill(self) -> Tensor:
        """Run the prompts; the logits of each row's next token, shape (rows, vocabulary)."""
        logits = self._forward(self._prompt_ids)
        self._positions = self._positions[:, -1:]
        return logits

    def step(self, token_ids: Sequence[int]) -> Tensor:
        """Run one further token of each row; the logits of the next."""
        self.width += 1
        self._positions = self._positions + 1
        return self._forward(torch.tensor(token_ids, device=self._positions.device)[:, None])

    def keep(self, rows: Sequence[int]) -> Tensor:
        """Go on with these rows only, without the columns that only the others needed; the rows as indices on the device."""
        index = torch.tensor(rows, device=self._positions.device)
        self.padding = [self.padding[row] for row in rows]
        dropped = keep_rows(self.cache, index, min(self.padding))
        self.padding = [padding - dropped for padding in self.padding]
        self.width -= dropped
        self._mask = self._mask.index_select(0, index)[:, dropped:]
        self._positions = self._positions.index_select(0, index)
        return index

    def refill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
        """Put new prompts where these rows stood; the logits of their next tokens.

        The prompts run by themselves and end in the batch's newest column, so that all rows go on together.
        """
        new = Batch(self._model, prompts, 0, self._pad_id)
        logits = new.prefill()
        index = torch.tensor(rows, device=self._positions.device)
        put_rows(self.cache, index, new.cache)
        width = max(self.width, new.width)
        self.padding = [padding + width - self.width for padding in self.padding]
        for row, padding in zip(rows, new.padding, strict=True):
            self.padding[row] = padding + width - new.width
        self.width = width
        self._positions = self._positions.index_copy(0, index, new._positions)
        self._drop_padding()
        self._mask = self._lay_out_mask()
        return logits

    def _drop_padding(self) -> None:
        common = min(self.padding)
        if common >= DROP_SHARE * self.width:
            drop_columns(self.cache, common)
            self.padding = [padding - common for padding in self.padding]
            self.width -= common

    def _lay_out_mask(self) -> Tensor:
        """The mask as far as any row can get from here; each step takes one column more of it."""
        columns = torch.arange(self.width + self._budget_tokens)[None]
        return (columns >= torch.tensor(self.padding)[:, None]).long().to(self._prompt_ids.device)

    def _forward(self, input_ids: Tensor) -> Tensor:
        output = self._model(
            input_ids=input_ids,
            attention_mask=self._mask[:, : self.width],
            position_ids=self._positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits
