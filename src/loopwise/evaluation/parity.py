"""The check that precedes every evaluation: what is decoded from the cache is the model that was meant.

Some of the evaluation's own prompts are continued greedily from the cache, left-padded in one batch, and the logits of
every new token are compared with a full recompute without a cache (no-free-loop, A.4 "Decoding checks").
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import free_memory_bytes
from ..models.parity import greedy_tokens, recomputed_logits

NUM_PROMPTS = 4
NEW_TOKENS = 64
FP32_TOLERANCE = 1e-3


class ParityError(ValueError):
    """Cached decoding is not the model that was meant; an evaluation would be of something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """What was compared, and how far apart it was."""

    dtype: str
    """``float32`` (a copy of the model), or the model's own where a copy does not fit."""
    prompt_tokens: tuple[int, ...]
    """Lengths of the prompts, which share a left-padded batch."""
    new_tokens: int
    max_abs_logit_difference: float
    tolerance: float
    tolerance_from: str
    """``fixed``, or ``recompute against itself``: four times what batch and length alone change in this dtype."""
    tokens_differing: int
    """New tokens whose recomputed argmax is another one."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the logits agree within the tolerance."""
        return self.max_abs_logit_difference <= self.tolerance


def check_parity(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, new_tokens: int = NEW_TOKENS) -> Parity:
    """Compare cached greedy decoding with full recompute on at least four prompts of unequal length.

    In fp32 the tolerance is fixed. A model too large for an fp32 copy is compared in its own dtype, where even full
    recompute depends on the shapes it runs in: the tolerance is then four times the difference between recomputing the
    batch, recomputing each row alone, and recomputing shorter prefixes. A slot shared by two passes is off by far more.

    Args:
        prompts: token ids, from which four are chosen over the range of their lengths.

    Raises:
        ParityError: the two differ by more than the tolerance.
    """
    started = time.perf_counter()
    device = next(model.parameters()).device
    chosen = choose_prompts(prompts)
    in_fp32 = next(model.parameters()).dtype == torch.float32
    checked = model if in_fp32 or not _fits_fp32(model) else copy.deepcopy(model).float()
    dtype = next(checked.parameters()).dtype
    input_ids, mask = _left_padded(chosen, device)
    tokens, cached = greedy_tokens(checked, input_ids, mask, new_tokens)
    longer = torch.cat([mask, mask.new_ones(len(chosen), new_tokens)], dim=1)[:, :-1]
    recomputed = recomputed_logits(checked, tokens[:, :-1], longer, input_ids.shape[1])
    fixed = dtype == torch.float32
    parity = Parity(
        dtype=str(dtype).removeprefix("torch."),
        prompt_tokens=tuple(map(len, chosen)),
        new_tokens=new_tokens,
        max_abs_logit_difference=_difference(cached, recomputed),
        tolerance=FP32_TOLERANCE if fixed else 4 * _recompute_noise(checked, tokens[:, :-1], longer, recomputed),
        tolerance_from="fixed" if fixed else "recompute against itself",
        tokens_differing=int((recomputed.argmax(-1) != tokens[:, input_ids.shape[1] :]).sum()),
        seconds=time.perf_counter() - started,
    )
    if not parity.ok:
        raise ParityError(
            f"cached decoding differs from full recompute by {parity.max_abs_logit_difference:.3g} in logits "
            f"(at most {parity.tolerance:.3g} in {parity.dtype}, {NUM_PROMPTS} prompts, {new_tokens} new tokens): "
            "this model is not decoded exactly here; report its family and the loop"
        )
    return parity


def choose_prompts(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Four prompts from the shortest to the longest, all of different length (equal ones lose tokens at the front).

    Raises:
        ParityError: no prompt has any tokens.
    """
    ordered = sorted((list(prompt) for prompt in prompts if len(prompt) > 0), key=len)
    if not ordered:
        raise ParityError("no prompts to check decoding on")
    picks = [ordered[round(i * (len(ordered) - 1) / (NUM_PROMPTS - 1))] for i in range(NUM_PROMPTS)]
    lengths: set[int] = set()
    chosen = []
    for prompt in reversed(picks):  # the longest keeps its length
        while len(prompt) in lengths and len(prompt) > 1:
            prompt = prompt[1:]
        lengths.add(len(prompt))
        chosen.append(prompt)
    return chosen[::-1]


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[prompt[0]] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


def _recompute_noise(model: PreTrainedModel, tokens: Tensor, mask: Tensor, recomputed: Tensor) -> float:
    """The largest difference between ways to recompute the same logits: in the batch, row by row, over shorter prefixes."""
    num_new = recomputed.shape[1]
    prompt_tokens = tokens.shape[1] - num_new + 1
    worst = 0.0
    for row in range(tokens.shape[0]):
        kept = mask[row].bool()
        alone = recomputed_logits(model, tokens[row : row + 1, kept], mask[row : row + 1, kept], int(kept.sum()) - num_new + 1)
        worst = max(worst, _difference(alone[0], recomputed[row]))
    for part in range(1, 8):
        stop = prompt_tokens + part * num_new // 8
        shorter = recomputed_logits(model, tokens[:, :stop], mask[:, :stop], prompt_tokens)
        worst = max(worst, _difference(shorter, recomputed[:, : shorter.shape[1]]))
    return worst


def _difference(one: Tensor, other: Tensor) -> float:
    value = (one - other).abs().max().item()
    return value if value == value else float("inf")  # NaN logits agree with nothing


def _fits_fp32(model: PreTrainedModel) -> bool:
    """Whether an fp32 copy takes at most half of the memory that is free where the model lies."""
    needed = 4 * sum(parameter.numel() for parameter in model.parameters())
    free = free_memory_bytes(next(model.parameters()).device)
    return free is None or needed <= free / 2
