"""Synthetic placement studies: 30 layers, a harmful start, a mild basin at mid-depth, flatteners that only plain perplexity likes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loopwise.loops import format_loops, parse_loops
from loopwise.records import CandidateResult, StepOfSearch, Study, StudyWriter, read_study, write_json

NUM_LAYERS = 30
NUM_POSITIONS = 512
UNLOOPED_LOSS, UNLOOPED_TEMPERATURE = 2.1, 1.12
PLAIN_EXCESS = 0.018
"""What the unlooped model loses without its temperature."""


def header(**more: Any) -> dict[str, Any]:
    """A study's header as a search writes it."""
    return {
        "format": "loopwise-study/1",
        "model": "SmolLM2-135M-Instruct",
        "model_hash": "9f2c41d07be35a18",
        "num_layers": NUM_LAYERS,
        "mixture_sha256": "5be1d3c07c94a2f1" * 4,
        "num_score_positions": NUM_POSITIONS,
        "dtype": "float32",
        **more,
    }


def windows(passes: Sequence[int] = (2, 3, 4), betas: Sequence[float] = (0.25, 0.5, 0.75)) -> list[str]:
    """Every start, widths 2 to 8."""
    spans = [(start, start + width) for width in range(2, 9) for start in range(NUM_LAYERS - width + 1)]
    return [f"{start}:{stop} x{k} damped beta={beta:g}" for start, stop in spans for k in passes for beta in betas]


def measured(text: str, *, shift: float = 0.0) -> tuple[CandidateResult, np.ndarray[Any, np.dtype[np.float32]]]:
    """A candidate's result and losses: functions of its place, width, passes and beta.

    Args:
        shift: moves the basin, as a part of depth.
    """
    loops = parse_loops(text, NUM_LAYERS)
    draw = random.Random(text)
    strength = sum((loop.stop - loop.start) * (loop.passes - 1) * (1.2 - (loop.beta or 0.5)) for loop in loops) / 6
    centre = sum((loop.start + loop.stop) / 2 for loop in loops) / max(1, len(loops)) / NUM_LAYERS
    off = centre - 0.5 - shift
    early = math.exp(-14 * centre) * 9 + 2.5 * max(0.0, off) ** 2
    difference = strength * (early + 0.16 * off**2 - 0.01) + draw.gauss(0, 0.0006) if loops else 0.0
    flat = 0.03 * strength * math.exp(-((centre - 0.72) ** 2) / 0.01) if loops else 0.0
    temperature = UNLOOPED_TEMPERATURE - 3 * flat + 0.02 * draw.random() * bool(loops)
    noise = np.random.default_rng(draw.randrange(2**32)).standard_normal(NUM_POSITIONS)
    common = np.random.default_rng(0).gamma(2.0, UNLOOPED_LOSS / 2, NUM_POSITIONS)
    change = difference + 0.05 * (noise - noise.mean()) * bool(loops)
    losses = (common - common.mean() + UNLOOPED_LOSS + change).astype(np.float32)
    loss = float(losses.mean(dtype=np.float64))
    plain = loss + PLAIN_EXCESS - 1.2 * flat
    values = {
        "temperature": temperature, "perplexity": math.exp(plain), "calibrated_perplexity": math.exp(loss), "plain_loss_nats": plain,
        "loss_nats": loss, "difference_nats": loss - UNLOOPED_LOSS, "num_fit_positions": 512.0, "num_score_positions": float(NUM_POSITIONS),
        "standard_error_nats": 0.05 / math.sqrt(NUM_POSITIONS) if loops else 0.0, "kl_nats": abs(difference) + 0.01 * strength,
    }  # fmt: skip
    ratio = 1 + sum((loop.stop - loop.start) * (loop.passes - 1) * (1 if loop.part == "layer" else 0.7) for loop in loops) / NUM_LAYERS
    name = format_loops(loops) if loops else ""
    return CandidateResult(loops=name, layer_pass_ratio=ratio, status="scored", values=values, seconds=0.4), losses


def write_study(folder: Path, candidates: Sequence[str], *, race: bool = True, shift: float = 0.0, **more: Any) -> StudyWriter:
    """A study of these candidates and the unlooped model, without searches.

    Args:
        race: drop those that a quarter of the text rules out, and call ruined those that are worse by 3 nats.
    """
    writer = StudyWriter(folder, header(**more))
    writer.append(*_pair(measured("none")))
    results, kept = [], {}
    for text in candidates:
        result, losses = measured(text, shift=shift)
        difference = result.values["difference_nats"]
        if race and difference > 3:
            result = replace(result, status="ruined", values={}, reason="losses are not finite")
        elif race and difference > 0.05:
            result = replace(result, status="dropped", share=0.25 if difference > 0.3 else 0.5, reason="worse than the leader")
        else:
            kept[result.loops] = losses
        results.append(result)
    writer.append(results, kept)
    return writer


def search(writer: StudyWriter, name: str, proposed: Sequence[str], *, batch: int = 16, **header: Any) -> None:
    """A search that proposed these candidates in this order, scored by what the study holds; its objective is the calibrated loss."""
    trace = writer.search(
        name,
        {"algorithm": name, "seed": 0, "objective": "ppl_t", "evaluations": len(proposed)}
        | {"space": {"num_candidates": len(proposed)}}
        | header,
    )
    best, lowest, spent = None, None, 0.0
    for number, at in enumerate(range(0, len(proposed), batch)):
        loops = tuple(proposed[at : at + batch])
        results = [next(one for one in writer.results.values() if one.loops == text) for text in loops]
        scores = tuple(None if one.status == "ruined" else one.values["loss_nats"] for one in results)
        for result, score in zip(results, scores, strict=True):
            spent += result.share
            if result.status == "scored" and score is not None and (lowest is None or score < lowest):
                best, lowest = result.loops, score
        trace.append(StepOfSearch(number=number, loops=loops, share=1.0, scores=scores, evaluations=spent, best=best, best_score=lowest))
    trace.close()


def full_study(folder: Path, *, candidates: Sequence[str] | None = None, seeds: Sequence[int] = (0, 1), **more: Any) -> Study:
    """A raced study with a whole grid, random and local searches, and its validation."""
    grid = list(candidates or windows(passes=(2, 3), betas=(0.25, 0.5)))
    writer = write_study(folder, grid, **more)
    search(writer, "grid", grid, batch=64)
    for seed in seeds:
        shuffled = random.Random(seed).sample(grid, len(grid))
        search(writer, f"random-{seed}", shuffled[:120], batch=8, algorithm="random", seed=seed)
        search(
            writer,
            f"local-{seed}",
            [*shuffled[:40], *sorted(grid, key=_loss(writer))[seed : seed + 20]],
            batch=4,
            algorithm="local",
            seed=seed,
        )
    write_json(folder / "validation.json", validation())
    return read_study(folder)


def validation() -> dict[str, Any]:
    """Seven-layer windows along depth on a task."""
    placements = []
    for start in range(0, 23, 2):
        result, _ = measured(f"{start}:{start + 7} x2 damped beta=0.25")
        difference = result.values["difference_nats"]
        placements.append(
            {
                "loops": result.loops, "score_nats": result.values["loss_nats"], "difference_nats": difference,
                "accuracy": 0.42 * math.exp(-max(0.0, difference)) + 0.01 * math.sin(start), "standard_error_points": 2.1,
            }
        )  # fmt: skip
    return {
        "task": "ladder", "placements": placements, "rho": 0.88, "rho_ci95": [0.61, 0.97], "rho_non_destructive": 0.71,
        "rho_non_destructive_ci95": [0.2, 0.92], "unlooped_accuracy": 0.415,
    }  # fmt: skip


def _loss(writer: StudyWriter) -> Any:
    losses: dict[str, float] = {one.loops: one.values.get("difference_nats", math.inf) for one in writer.results.values()}
    return lambda text: losses[text]


def _pair(pair: tuple[CandidateResult, Any]) -> Iterator[Any]:
    result, losses = pair
    yield [result]
    yield {result.loops: losses}
