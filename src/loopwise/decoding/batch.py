"""A left-padded batch that advances one token a step, and which prompts go into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import cache_argument
from .cache import decoding_cache, keep_rows
from .values import DecodingError


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


def check_prompts(model: PreTrainedModel, prompts: Sequence[Sequence[int]], budget_tokens: int) -> None:
    """Refuse prompts that cannot be run to the end of the budget.

    Raises:
        DecodingError: no prompts, an empty one, or one that needs more positions than the model has.
    """
    if not prompts:
        raise DecodingError("there are no prompts; give at least one")
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
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
    """Prompts, cache, mask and positions on the model's device."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], budget_tokens: int, pad_id: int) -> None:
        """Pad the prompts on the left; nothing runs yet."""
        self._model = model
        self._cache = decoding_cache(model)
        inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), model)
        self._cache_argument = cache_argument(inner)  # PEFT's own forward names no cache and hands on what it gets
        self._width = max(len(prompt) for prompt in prompts)
        self._padding = [self._width - len(prompt) for prompt in prompts]
        padded = [[pad_id] * padding + list(prompt) for padding, prompt in zip(self._padding, prompts, strict=True)]
        self._prompt_ids = torch.tensor(padded, device=model.device)
        self._positions = (torch.arange(self._width)[None] - torch.tensor(self._padding)[:, None]).clamp(min=0).to(model.device)
        # The mask is laid out to its full length once; each step takes one column more of it.
        columns = torch.arange(self._width + budget_tokens)[None]
        self._mask = (columns >= torch.tensor(self._padding)[:, None]).long().to(model.device)

    def prefill(self) -> Tensor:
        """Run the prompts; the logits of each row's next token, shape (rows, vocabulary)."""
        logits = self._forward(self._prompt_ids)
        self._positions = self._positions[:, -1:]
        return logits

    def step(self, token_ids: Sequence[int]) -> Tensor:
        """Run one further token of each row; the logits of the next."""
        self._width += 1
        self._positions = self._positions + 1
        return self._forward(torch.tensor(token_ids, device=self._positions.device)[:, None])

    def keep(self, rows: Sequence[int]) -> Tensor:
        """Go on with these rows only, without the columns that only the others needed; the rows as indices on the device."""
        index = torch.tensor(rows, device=self._positions.device)
        self._padding = [self._padding[row] for row in rows]
        dropped = keep_rows(self._cache, index, min(self._padding))
        self._padding = [padding - dropped for padding in self._padding]
        self._width -= dropped
        self._mask = self._mask.index_select(0, index)[:, dropped:]
        self._positions = self._positions.index_select(0, index)
        return index

    def _forward(self, input_ids: Tensor) -> Tensor:
        output = self._model(
            input_ids=input_ids,
            attention_mask=self._mask[:, : self._width],
            position_ids=self._positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits
