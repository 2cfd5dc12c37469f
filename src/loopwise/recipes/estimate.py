"""How many candidates a search has, and about how long they take on this machine, before anything runs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..cost import ModelShape, cost_of, read_shape
from ..loops import parent_of
from ..models import resolve_dtype
from ..placement import Candidate, Space, objective_named
from ..placement.sharing import ROWS_TOKENS
from .placement import PlaceSettings, checked_space

CHEAP = 1.25
"""The cost of the paper's unsearched loops (no-free-loop, Table 2)."""
LISTED = 20_000
"""Candidates that are looked at one by one; of a larger space `DRAWN` are drawn."""
DRAWN = 2000
OVERHEAD = 0.6
"""Of the speed of bare matrix products, what is left in layers with attention, norms and losses (measured on SmolLM2-135M)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a search would take."""

    num_candidates: int
    num_cheap: int | None
    """Those that cost at most `CHEAP` times the plain model; None where the space was too large to count."""
    num_evaluations: float
    """Of which so many will be run."""
    seconds_exhaustive: float | None
    """With every candidate read to the text's end and exact sharing; on the machine and in the dtype asked for. None where
    candidates are not scored on a text."""
    num_tokens: int | None
    """Of text, both splits; likewise."""
    objective: str
    races: bool
    """Whether candidates may be dropped before the text's end."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def words(self) -> str:
        """In two lines."""
        cheap = "" if self.num_cheap is None else f", {self.num_cheap:,} of them at no more than {CHEAP:g} times the plain model's cost"
        return f"{self.num_candidates:,} candidates{cheap}\n{self._time()}"

    def _time(self) -> str:
        evaluations = f"{self.num_evaluations:,.0f} evaluations"
        if self.seconds_exhaustive is None or self.num_tokens is None:
            how = "by the place alone" if self.objective == "depth_rule" else "by answers to training problems"
            return f"{evaluations} {how}: no candidate is scored on text, and the time is not estimated"
        time = f"{evaluations} on {self.num_tokens:,} tokens take about {_duration(self.seconds_exhaustive)} on this machine"
        return f"{time} if every candidate is read to the end; a race takes less" if self.races else time


def estimate(config: Path, settings: PlaceSettings) -> Estimate:
    """Count a space and time matrix products of the model's width; no weights are needed.

    Raises:
        PlacementError, DataError, TaskError: as `place`, as far as it can be known without a model.
        CostError: a config that is none.
    """
    shape = read_shape(config)
    space = checked_space(settings, shape)
    sample = _sample(space)
    evaluations = min(settings.evaluations or math.inf, float(len(space))) * len(settings.searches)
    reads_text = objective_named(settings.objective).measure in ("text", "text+kl")
    dtype = resolve_dtype(config, settings.dtype, settings.device)
    rate = _flops_per_second(shape, torch.float32 if dtype == "auto" else dtype, settings.device)
    # The plain model's own pass is about one evaluation more.
    seconds = (evaluations + 1) * _flops_each(sample, shape, settings) / rate if reads_text else None
    return Estimate(
        num_candidates=len(space),
        num_cheap=sum(space.cost(one) <= CHEAP + 1e-9 for one in sample) if len(sample) == len(space) else None,
        num_evaluations=evaluations,
        seconds_exhaustive=seconds,
        num_tokens=settings.text.fit_tokens + settings.text.score_tokens if reads_text else None,
        objective=settings.objective,
        races=settings.races,
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _sample(space: Space) -> list[Candidate]:
    if len(space) <= LISTED:
        return list(space)
    draws = random.Random(0)
    return [space.sample(draws) for _ in range(DRAWN)]


def _flops_each(sample: Sequence[Candidate], shape: ModelShape, settings: PlaceSettings) -> float:
    """Matrix FLOPs of one candidate on average: its further passes, shared over betas, the layers that follow, and the head."""
    tokens = settings.text.fit_tokens + settings.text.score_tokens
    betas = len(settings.space.betas) if "damped" in settings.space.operators else 1
    layers = [2.0 * layer.matrix_parameters for layer in shape.layers]
    total = 0.0
    for candidate in sample:
        first = min(loop.start for loop in candidate)
        last = max(loop.stop for loop in candidate if parent_of(loop, candidate) is None)
        plain = cost_of(shape, ()).flops_per_token
        further = cost_of(shape, candidate).flops_per_token - plain
        single = len(candidate) == 1 and candidate[0].part == "layer"
        between = 0.0 if single else sum(layers[first:last])
        total += (further / betas if single else further + between) + sum(layers[last:])
    text = settings.text
    positions = text.fit_tokens / text.fit_stride + text.score_tokens / text.stride
    return tokens * total / len(sample) + positions * 2.0 * shape.head_parameters


def _flops_per_second(shape: ModelShape, dtype: torch.dtype, device: str) -> float:
    """What this machine reaches in a model's layers, from matrix products of its width."""
    rows = torch.randn(ROWS_TOKENS, shape.hidden_size, device=device).to(dtype)
    weights = torch.randn(4 * shape.hidden_size, shape.hidden_size, device=device).to(dtype)
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(4):
            product = rows @ weights.T
        product[0, 0].item()  # waits for a GPU
        rates.append(4 * 2.0 * product.numel() * shape.hidden_size / (time.perf_counter() - began))
    return OVERHEAD * sorted(rates)[len(rates) // 2]
