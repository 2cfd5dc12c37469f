"""Answers that reinforcement learning draws, through the same decoding that evaluates a model: one cache slot per call site, looped.

The draws of an answer depend on its key alone, so a step's answers are a function of (weights, seed, step) on the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding import Completion, DecodingRule, generate, plan_batches

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How answers are drawn. Every token has its chance: top-p and top-k would draw from another distribution than is trained."""

    temperature: float
    budget_tokens: int
    batch_size: int
    dtype: str = "fp32"
    """``fp32``, or ``bf16`` for autocast, as the training step computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Prompts, what was drawn behind them, and the log-probabilities with which it was drawn."""

    prompt_ids: tuple[Ids, ...]
    completion_ids: tuple[Ids, ...]
    log_probabilities: tuple[tuple[float, ...], ...]
    """Of each drawn token, at the temperature, in nats."""

    @property
    def num_tokens(self) -> int:
        """Drawn tokens, all answers together."""
        return sum(map(len, self.completion_ids))


def draw_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Ids],
    keys: Sequence[Sequence[int]],
    how: Drawing,
    **more: Any,
) -> list[Completion]:
    """One answer for each prompt, in order.

    Args:
        model: the causal language model itself, adapter and loops in it, without PEFT's wrapper.
        prompts: token ids.
        keys: whole numbers that name each answer's draws.
        more: as `generate`.

    Raises:
        DecodingError: prompts, budget or keys that cannot be.
    """
    rule = DecodingRule(temperature=how.temperature)
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=how.dtype == "bf16"):
        return generate(
            model,
            tokenizer,
            prompts,
            keys=keys,
            rule=rule,
            budget_tokens=how.budget_tokens,
            **{"batch_size": how.batch_size, **more},
        )


def draw_recorded(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Ids], keys: Sequence[Sequence[int]], how: Drawing
) -> Rollout:
    """`draw_answers` in one batch, with the log-probabilities that the cached forward passes gave the drawn tokens.

    They are read from the very passes that drew, by a hook, so they say what was computed and not what should have been. All logits
    are held: for a few short answers.

    Raises:
        DecodingError: as `draw_answers`.
    """
    steps: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, arguments, output: steps.append(output.logits[:, -1].float().cpu()))
    try:
        found = draw_answers(model, tokenizer, prompts, keys, how, batch_size=len(prompts), fixed_rows=True)
    finally:
        handle.remove()
    (order,) = plan_batches([len(prompt) for prompt in prompts], len(prompts))
    rows = {index: row for row, index in enumerate(order)}
    logs = [torch.log_softmax(logits / how.temperature, dim=-1) for logits in steps]
    return Rollout(
        prompt_ids=tuple(map(tuple, prompts)),
        completion_ids=tuple(completion.token_ids for completion in found),
        log_probabilities=tuple(
            tuple(float(logs[step][rows[index], token]) for step, token in enumerate(completion.token_ids))
            for index, completion in enumerate(found)
        ),
    )


@torch.no_grad()
def recomputed_log_probabilities(model: Any, drawn: Rollout, *, temperature: float, dtype: str = "fp32") -> list[Tensor]:
    """The log-probabilities of drawn tokens by full recompute: each row alone, without cache, padding or fused head.

    Slow and plain: what faster ways are compared with.

    Returns:
        One tensor [drawn tokens] for each row, in nats, in fp32 on the CPU.
    """
    device = next(model.parameters()).device
    found = []
    for prompt, completion in zip(drawn.prompt_ids, drawn.completion_ids, strict=True):
        ids = torch.tensor([[*prompt, *completion]], device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        logs = torch.log_softmax(logits / temperature, dim=-1)
        found.append(logs.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu())
    return found
