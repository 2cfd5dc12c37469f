"""What bounds a decode step: starting kernels, moving bytes, or arithmetic. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loopwise.loops import Loop

from .account import cost_of
from .config import CostError
from .shape import ModelShape

Regime = Literal["launch", "bandwidth", "compute"]
LAUNCH_FACTOR = 2.0
"""A step that takes longer than so many times what its bytes and its arithmetic need is bound by neither, unless a single row's step is
that much shorter. A guess: well-written kernels reach more than half of what a large copy or a large product reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a device reaches in a large copy and a large matrix product.

    Raises:
        CostError: a rate that is not above 0.
    """

    bytes_per_second: float
    flops_per_second: float

    def __post_init__(self) -> None:
        for name in ("bytes_per_second", "flops_per_second"):
            if not 0 < getattr(self, name) < float("inf"):
                raise CostError(f"{name} is {getattr(self, name)}; measure it again: a rate is finite and above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """A measured step beside what it needs at least."""

    regime: Regime
    seconds: float
    bandwidth_seconds: float
    """Its bytes, at the device's rate."""
    compute_seconds: float
    """Its FLOPs, at the device's rate."""


def step_bytes(shape: ModelShape, loops: Iterable[Loop], *, batch_size: int, context_tokens: int, dtype_bytes: int) -> float:
    """Bytes that one decode step reads: the matrices of every call site and the head once, keys, values and states of every row.

    A looped span's weights count at each pass, as they do where they do not stay in a cache between passes. Of experts those that
    one token meets are counted, fewer than a large batch reads.
    """
    cost = cost_of(shape, loops, context_tokens=context_tokens, kv_dtype_bytes=dtype_bytes)
    weights = cost_of(shape, loops).flops_per_token / 2 * dtype_bytes
    assert cost.kv_bytes is not None  # a context was given
    return weights + batch_size * (cost.kv_bytes + 2 * cost.state_bytes)  # states are read and written


def step_flops(shape: ModelShape, loops: Iterable[Loop], *, batch_size: int, context_tokens: int) -> float:
    """FLOPs of one decode step, attention scores included."""
    return batch_size * cost_of(shape, loops, context_tokens=context_tokens).flops_per_token


def bound_of(seconds: float, num_bytes: float, flops: float, rates: Rates, *, single_row_seconds: float | None = None) -> StepBound:
    """What bounds a step of ``seconds`` that moves ``num_bytes`` and computes ``flops``.

    Args:
        single_row_seconds: of a step with one row. It starts as many kernels as one with more rows, so starting them takes no longer than
            that: a step of many rows that takes far longer is not launch-bound, however slow its kernels are.

    Raises:
        CostError: a step without time.
    """
    if not seconds > 0:
        raise CostError(f"a step of {seconds} seconds; measure it again")
    bandwidth, compute = num_bytes / rates.bytes_per_second, flops / rates.flops_per_second
    regime: Regime = "bandwidth" if bandwidth >= compute else "compute"
    may_be_launch = single_row_seconds is None or seconds <= LAUNCH_FACTOR * single_row_seconds
    if may_be_launch and seconds > LAUNCH_FACTOR * max(bandwidth, compute):
        regime = "launch"
    return StepBound(regime=regime, seconds=seconds, bandwidth_seconds=bandwidth, compute_seconds=compute)
