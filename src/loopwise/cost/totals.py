"""What whole things cost: an answer, a training run, a model being served; and the account of one model with its loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from loopwise.loops import CallSite, Loop, call_sites, format_loops

from .account import Convention, Cost, cost_of
from .config import CostError
from .shape import ModelShape

TRAINING_FACTOR = 3
"""A backward pass takes twice the FLOPs of a forward pass."""


def answer_flops(
    shape: ModelShape,
    loops: Iterable[Loop],
    *,
    prompt_tokens: int,
    generated_tokens: int,
    convention: Convention = "matrix",
    scores: bool = False,
) -> float:
    """Forward FLOPs of one answer decoded from a cache, head included.

    The prompt and every generated token but the last pass through the layers once. The head runs once for each generated
    token, and once for an answer that is read off the prompt's last position (``generated_tokens=0``, option letters).
    In the 6nd convention every token that passes through costs the same, head included.

    Args:
        scores: add the attention scores and state updates, token by token, each at its own context (matrix only).

    Raises:
        CostError: a prompt without tokens, or a negative count.
        LoopError: loops that the model cannot have.
    """
    if prompt_tokens < 1 or generated_tokens < 0:
        raise CostError(f"an answer of {prompt_tokens} prompt and {generated_tokens} generated tokens: give at least 1 and 0")
    if scores and convention != "matrix":
        raise CostError(f"the {convention} convention has no attention-score term; leave scores out or use matrix")
    cost = _cost(shape, tuple(loops), convention)
    fed = prompt_tokens + max(generated_tokens - 1, 0)
    if cost.breakdown is None:
        return cost.flops_per_token * fed
    head = cost.breakdown.head
    flops = (cost.flops_per_token - head) * fed + head * max(generated_tokens, 1)
    if scores:
        flops += sum(
            shape.layers[site.layer].score_flops_up_to(fed)
            for site in _sites(shape.loops_run(loops), shape.num_layers)
            if site.part == "layer"
        )
    return flops


def training_flops(shape: ModelShape, loops: Iterable[Loop], tokens: float, *, convention: Convention = "matrix") -> float:
    """FLOPs of training on ``tokens`` tokens: three forward passes. In the 6nd convention this is 6 N D R."""
    return TRAINING_FACTOR * _cost(shape, tuple(loops), convention).flops_per_token * tokens


def training_flops_6nd(parameters: float, tokens: float, recurrences: float = 1) -> float:
    """6 N D R: training FLOPs from a nominal parameter count (ARLoop, Table 3)."""
    if parameters <= 0 or tokens < 0 or recurrences <= 0:
        raise CostError(f"6NDR with N={parameters}, D={tokens}, R={recurrences}: N and R are above 0, D at least 0")
    return 6.0 * parameters * tokens * recurrences


def memory_bytes(shape: ModelShape, loops: Iterable[Loop], *, context_tokens: int, batch_size: int = 1, dtype_bytes: int = 2) -> int:
    """Bytes of weights, KV cache and recurrent states of ``batch_size`` sequences; activations and the runtime come on top."""
    cost = cost_of(shape, loops, context_tokens=context_tokens, kv_dtype_bytes=dtype_bytes)
    assert cost.kv_bytes is not None  # a context was given
    return cost.parameters * dtype_bytes + batch_size * (cost.kv_bytes + cost.state_bytes)


def describe(shape: ModelShape, loops: Iterable[Loop], *, context_tokens: int | None = None, kv_dtype_bytes: int = 2) -> dict[str, Any]:
    """The account of a model with loops as plain JSON values: ``Cost`` in the matrix convention, and what it is the cost of."""
    loops = shape.loops_run(loops)
    cost = cost_of(shape, loops, context_tokens=context_tokens, kv_dtype_bytes=kv_dtype_bytes)
    nominal = cost_of(shape, loops, convention="6nd")
    kinds = [layer.mixer for layer in shape.layers]
    return asdict(cost) | {
        "family": shape.family,
        "loops": format_loops(loops),
        "passes_text": cost.passes_text,
        "flops_per_token_6nd": nominal.flops_per_token,
        "flops_ratio_6nd": nominal.flops_ratio,
        "kv_dtype_bytes": kv_dtype_bytes,
        "num_attention_layers": kinds.count("attention"),
        "num_linear_attention_layers": kinds.count("linear_attention"),
        "num_sliding_window_layers": sum(layer.window_tokens is not None for layer in shape.layers),
    }


@lru_cache(maxsize=256)
def _cost(shape: ModelShape, loops: tuple[Loop, ...], convention: Convention) -> Cost:
    # Asked once for every record of a run.
    return cost_of(shape, loops, convention=convention)


@lru_cache(maxsize=256)
def _sites(loops: tuple[Loop, ...], num_layers: int) -> tuple[CallSite, ...]:
    return call_sites(loops, num_layers)
