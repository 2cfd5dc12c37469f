"""Choosing the next token of each row: the most likely one, or a draw from the row's own random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .values import DecodingRule


class Picker:
    """Chooses tokens under a rule, row by row independently: a row's draws depend on its key, never on its batch mates."""

    def __init__(self, rule: DecodingRule, keys: Sequence[Sequence[int]], num_steps: int, device: torch.device) -> None:
        """Make the random numbers of each row.

        Args:
            keys: whole numbers that name each row's stream, e.g. (seed, item, sample).
            num_steps: how many tokens a row can have.
        """
        self._rule = rule
        self._num_steps = num_steps
        self._device = device
        if rule.greedy:
            return
        self._draws = self._new_draws(keys)
        self._steps = torch.zeros(len(keys), dtype=torch.long, device=device)
        """How many of its draws each row has used."""

    def pick(self, logits: Tensor) -> list[int]:
        """The next token of each row, from logits of shape (rows, vocabulary)."""
        chosen: list[int] = self._choose(logits).tolist()
        return chosen

    def _choose(self, logits: Tensor) -> Tensor:
        if self._rule.greedy:
            return logits.max(dim=-1).indices  # in bf16 on a CPU four times as fast as argmax; both give the first of equals
        uniform = self._draws.gather(1, self._steps[:, None])[:, 0]
        self._steps = (self._steps + 1).clamp(max=self._num_steps - 1)  # a row that ended may be carried along for longer
        return draw(logits, uniform.to(logits.device), self._rule)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        if not self._rule.greedy:
            self._draws = self._draws.index_select(0, rows)
            self._steps = self._steps.index_select(0, rows)

    def refill(self, rows: Sequence[int], keys: Sequence[Sequence[int]]) -> None:
        """New streams, named by ``keys``, where these rows stood."""
        if not self._rule.greedy:
            index = torch.tensor(rows, device=self._device)
            self._draws[index] = self._new_draws(keys)
            self._steps[index] = 0

    def _new_draws(self, keys: Sequence[Sequence[int]]) -> Tensor:
        draws = np.stack([np.random.default_rng(list(key)).random(self._num_steps) for key in keys])
        exact = torch.float32 if self._device.type == "mps" else torch.float64  # MPS has no float64
        return torch.from_numpy(draws).to(self._device, exact)


def draw(logits: Tensor, uniform: Tensor, rule: DecodingRule) -> Tensor:
    """Draw one token a row by inverting the distribution function at ``uniform`` in [0, 1).

    Temperature, then top-k, then top-p on what top-k left, as Hugging Face's ``generate`` orders them.
    """
    logits = logits.float() / rule.temperature
    order: Tensor | None = None
    if 0 < rule.top_k < logits.shape[-1]:
        logits, order = logits.topk(rule.top_k, dim=-1)
    elif rule.top_p < 1.0:
        logits, order = logits.sort(dim=-1, descending=True)
    cumulative = torch.softmax(logits, dim=-1).cumsum(dim=-1, dtype=uniform.dtype)
    last = torch.full_like(uniform, logits.shape[-1] - 1, dtype=torch.long)
    if rule.top_p < 1.0:  # a token stays while those before it hold less than top-p
        last = (cumulative < rule.top_p).sum(dim=-1).clamp(max=logits.shape[-1] - 1)
    mass = cumulative.gather(-1, last[:, None])
    place = (cumulative <= uniform[:, None] * mass).sum(dim=-1).minimum(last)  # sums in parallel may round past the last
    return place if order is None else order.gather(-1, place[:, None])[:, 0]
