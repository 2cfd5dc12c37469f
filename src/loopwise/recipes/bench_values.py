"""What a measurement of serving cost is given, and what it finds. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..cost import Rates, StepBound
from ..decoding import DecodingError, Engine

WARM_STEPS = 2
"""Steps before those that are timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What is measured.

    Raises:
        DecodingError: a count that is too small, or a context without room for the steps.
    """

    engine: Engine = "eager"
    context_tokens: int = 512
    """Tokens of each row at the last timed step. A guess at a short answer with its prompt."""
    num_steps: int = 16
    """Timed steps of one repeat."""
    repeats: int = 7
    batch_size: int | None = None
    """Rows for the throughput; None: the most that fit, found for each arm."""
    max_batch: int = 1024
    """No search beyond it. A guess: about where Table 10's batches end."""
    memory_bytes: float | None = None
    """Memory to fill; None: nine tenths of what is free. Table 10 has 80 GB."""

    def __post_init__(self) -> None:
        for name, least in (("num_steps", 1), ("repeats", 1), ("max_batch", 1)):
            if getattr(self, name) < least:
                raise DecodingError(f"{name} is {getattr(self, name)}; give at least {least}")
        if self.batch_size is not None and self.batch_size < 1:
            raise DecodingError(f"batch_size is {self.batch_size}; give at least 1 row, or leave it out for the most that fit")
        if self.memory_bytes is not None and not 0 < self.memory_bytes < float("inf"):
            raise DecodingError(f"memory_bytes is {self.memory_bytes}; give a finite number above 0")
        if self.prompt_tokens < 1:
            raise DecodingError(
                f"context_tokens is {self.context_tokens}; {self.num_steps} timed steps need a context of at least "
                f"{self.num_steps + WARM_STEPS + 1}"
            )

    @property
    def prompt_tokens(self) -> int:
        """What the cache holds before the first step."""
        return self.context_tokens - self.num_steps - WARM_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmBench:
    """One column pair of Table 10 for one arm."""

    arm: str
    """``plain`` or ``looped``."""
    loops: str
    layer_pass_ratio: float
    latency_seconds: Spread
    """Of one step at batch 1."""
    tokens_per_second: Spread
    """At ``batch_size`` rows."""
    batch_size: int
    capped: bool
    """Whether ``max_batch`` or a given batch size ended the search, and not the memory."""
    peak_bytes: int | None
    """At batch 1: parameters and buffers, and the most that prompt and steps held above what was held before them."""
    memory: str
    """How that was measured; see `loopwise.cost.Meter`."""
    kv_bytes_per_token: int
    kv_bytes: int
    """Keys, values and states of one row at the context."""
    at_batch_1: StepBound
    at_batch: StepBound


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Table 10 of one model on one device."""

    arms: tuple[ArmBench, ...]
    latency_ratio: Spread | None
    """Looped over plain, repeat by repeat; None with one arm."""
    throughput_ratio: Spread | None
    rates: Rates
    settings: BenchSettings
    device: str
    dtype: str
    threads: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)
