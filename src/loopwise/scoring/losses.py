"""Token losses of a model on windows of text, at a stated subset of positions.

Head and loss cost as much as 15 layers of SmolLM2-135M, and neighbouring positions say nearly the same, so every fourth
position is scored by default. Logits are computed at these positions alone and turned into fp32 in small parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .temperature import PositionLogits, ScoringError, losses_at

Forward = Callable[["Batch"], Tensor]
"""From a batch to its logits at the kept positions, [batch, kept, vocabulary]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Windows side by side, padded on the right, and where they are scored; equal only to itself."""

    input_ids: Tensor
    """[batch, tokens]"""
    attention_mask: Tensor
    """[batch, tokens]: 1 for the window's own tokens."""
    kept: Tensor
    """[kept]: the places in a row whose logits are needed, the same in all rows."""
    targets: Tensor
    """[batch, kept]: the next token at each kept place, -1 where the row has ended."""


def scored_positions(num_tokens: int, stride: int) -> range:
    """The positions of a window whose tokens are scored, each predicted from all tokens before it."""
    return range(stride, num_tokens, stride)


def make_batches(
    windows: Sequence[Sequence[int]], *, stride: int = 4, batch_size: int = 8, device: torch.device | str = "cpu"
) -> tuple[Batch, ...]:
    """The windows, in order, as batches.

    Raises:
        ScoringError: a stride or batch size below 1, or no window longer than the stride.
    """
    if stride < 1 or batch_size < 1:
        raise ScoringError(f"stride {stride} and batch size {batch_size}: both are at least 1")
    if not any(len(scored_positions(len(window), stride)) for window in windows):
        raise ScoringError(f"none of {len(windows)} windows is longer than the stride of {stride} tokens; give longer documents")
    return tuple(_make_batch(windows[start : start + batch_size], stride, device) for start in range(0, len(windows), batch_size))


def _make_batch(windows: Sequence[Sequence[int]], stride: int, device: torch.device | str) -> Batch:
    length = max(map(len, windows))
    input_ids = torch.zeros(len(windows), length, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    positions = list(scored_positions(length, stride))
    targets = torch.full((len(windows), len(positions)), -1)
    for row, window in enumerate(windows):
        input_ids[row, : len(window)] = torch.tensor(window, dtype=torch.long)
        attention_mask[row, : len(window)] = 1
        count = len(scored_positions(len(window), stride))
        targets[row, :count] = input_ids[row, positions[:count]]
    kept = torch.tensor(positions, dtype=torch.long) - 1
    return Batch(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), kept=kept.to(device), targets=targets.to(device))


def model_forward(model: nn.Module) -> Forward:
    """A model's own forward, looped or plain, as the scores use it.

    Raises:
        ScoringError: the model is in training mode.
    """
    if model.training:
        raise ScoringError(f"{type(model).__name__} is in training mode, so dropout would be scored; call model.eval() first")

    def forward(batch: Batch) -> Tensor:
        output: Any = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, logits_to_keep=batch.kept, use_cache=False)
        logits: Tensor = output.logits
        return logits

    return forward


def position_logits(forward: Forward, batch: Batch) -> PositionLogits:
    """The logits of a batch at its scored positions, row by row, in the model's own dtype."""
    with torch.inference_mode():
        return scored_logits(forward(batch), batch)


def scored_logits(logits: Tensor, batch: Batch) -> PositionLogits:
    """Of logits at the kept places, [batch, kept, vocabulary], those of a row's own positions, row by row."""
    scored = batch.targets >= 0
    if bool(scored.all()):  # views: no copy of what is the largest tensor around
        return PositionLogits(logits=logits.flatten(0, 1), targets=batch.targets.flatten())
    return PositionLogits(logits=logits[scored], targets=batch.targets[scored])


def batch_losses(forward: Forward, batch: Batch, temperatures: Sequence[float]) -> NDArray[np.float32]:
    """The losses of a batch in nats at each temperature, [temperatures, positions], from one forward pass."""
    with torch.inference_mode():
        return losses_of(position_logits(forward, batch), temperatures)


def losses_of(part: PositionLogits, temperatures: Sequence[float]) -> NDArray[np.float32]:
    """The losses of some positions in nats at each temperature, [temperatures, positions]."""
    return losses_at(part, *temperatures).cpu().numpy()


def token_losses(
    model: nn.Module,
    windows: Sequence[Sequence[int]],
    *,
    temperatures: Sequence[float] = (1.0,),
    stride: int = 4,
    batch_size: int = 8,
) -> NDArray[np.float32]:
    """The losses in nats of every ``stride``-th token of the windows, [temperatures, positions], window after window.

    Raises:
        ScoringError: as `make_batches` and `model_forward`.
    """
    forward = model_forward(model)
    batches = make_batches(windows, stride=stride, batch_size=batch_size, device=next(model.parameters()).device)
    return np.concatenate([batch_losses(forward, batch, temperatures) for batch in batches], axis=1)
