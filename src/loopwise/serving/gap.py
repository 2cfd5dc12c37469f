"""How far vLLM is from Hugging Face on the same tokens: the parity check of an evaluation that vLLM decodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models import loop_passes, loops_of
from .engine import ServingError, VllmEngine

FP32_TOLERANCE = 1e-3
"""Of log-probabilities in fp32, in nats: that of the own engine's check."""
HALF_TOLERANCE = 0.1
"""Of their mean where one engine computes in half precision. A guess: about three times the largest that was measured of right models
(0.038, docs/engines-vllm.md); other weights are nats away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGap:
    """Log-probabilities of vLLM's greedy tokens, decoded from its cache, against full recompute by Hugging Face."""

    dtype: str
    """vLLM's."""
    model_dtype: str
    """Hugging Face's."""
    prompt_tokens: tuple[int, ...]
    new_tokens: int
    """Tokens compared, all prompts together."""
    mean_abs_nats: float
    max_abs_nats: float
    tokens_differing: int
    """Tokens that are not Hugging Face's most likely one."""
    mean_abs_nats_to_plain: float | None
    """The same mean against the model without its loops; None where it has none. Far above the other one: the loop ran."""
    seconds: float

    @property
    def in_fp32(self) -> bool:
        """Whether both engines compute in fp32, where they must agree token by token."""
        return self.dtype == self.model_dtype == "float32"

    @property
    def tolerance_nats(self) -> float:
        """Of the largest difference where both are in fp32, else of the mean. A looped model is also nearer to itself than to the plain."""
        if self.in_fp32:
            return FP32_TOLERANCE
        return HALF_TOLERANCE if self.mean_abs_nats_to_plain is None else min(HALF_TOLERANCE, self.mean_abs_nats_to_plain)

    @property
    def ok(self) -> bool:
        """Whether the difference is below the tolerance."""
        return (self.max_abs_nats if self.in_fp32 else self.mean_abs_nats) < self.tolerance_nats


@torch.no_grad()
def measure_gap(engine: VllmEngine, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, new_tokens: int = 64) -> EngineGap:
    """Let vLLM continue all prompts at once, greedily and past any end of text, and score its tokens with ``model``.

    Args:
        model: the same model with the same loops, from `loopwise.models.load`.
        prompts: token ids.

    Raises:
        ServingError: no prompts, other loops in the model than in vLLM, or prompts that are too long for the engine.
    """
    if not prompts or not all(prompts):
        raise ServingError("no prompts, or an empty one, to compare the engines on")
    if loops_of(model) != engine.loops:
        raise ServingError("the model has other loops than vLLM's; load both with the same loops")
    if max(map(len, prompts)) + new_tokens > engine.max_tokens:
        raise ServingError(f"the longest prompt and {new_tokens} new tokens do not fit into {engine.max_tokens}; raise max_tokens")
    started = time.perf_counter()
    continued = decode_greedily(engine, prompts, new_tokens)
    gaps, to_plain, differing = [], [], 0
    for prompt, (tokens, decoded) in zip(prompts, continued, strict=True):
        scored, best = score(model, prompt, tokens)
        gaps.append((scored - decoded).abs())
        differing += int((best != torch.tensor(tokens, device=best.device)).sum())
        if engine.loops:
            with loop_passes(model, 1):
                to_plain.append((score(model, prompt, tokens)[0] - decoded).abs())
    everything = torch.cat(gaps)
    return EngineGap(
        dtype=engine.dtype,
        model_dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        prompt_tokens=tuple(map(len, prompts)),
        new_tokens=len(everything),
        mean_abs_nats=everything.mean().item(),
        max_abs_nats=everything.max().nan_to_num(nan=float("inf")).item(),
        tokens_differing=differing,
        mean_abs_nats_to_plain=torch.cat(to_plain).mean().item() if to_plain else None,
        seconds=time.perf_counter() - started,
    )


def decode_greedily(engine: VllmEngine, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[tuple[list[int], Tensor]]:
    """Greedy tokens of each prompt and their log-probabilities in nats, [new_tokens] in fp32, as vLLM decodes them."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, logprobs=0)
    outputs: Any = engine.llm.generate([TokensPrompt(prompt_token_ids=list(one)) for one in prompts], params, use_tqdm=False)
    results = []
    for output in outputs:
        tokens = list(output.outputs[0].token_ids)
        kept = [at[token].logprob for at, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
        results.append((tokens, torch.tensor(kept)))
    return results


def score(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``tokens`` after ``prompt`` without a cache, in nats on the CPU, and the most likely tokens there."""
    input_ids = torch.tensor([[*prompt, *tokens[:-1]]], device=model.device)
    logits = model(input_ids=input_ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
    of_tokens = torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    return of_tokens.cpu(), logits.argmax(-1)
