"""Loss curves of looped models and their twins with exchange rates that are known: L = E + A D^-alpha, the looped one's at r D tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopwise.records import LossCurve

FLOOR, FACTOR, ALPHA = 2.0, 60.0, 0.25
"""E, A, alpha: from 2.76 nats at 50M tokens to 2.21 at 10B."""
TWIN_TOKENS = tuple(round(50e6 * 2**power) for power in range(9))
"""50M to 12.8B."""
PAPER = {150_000_000: 0.90, 1_500_000_000: 1.10, 5_000_000_000: 1.18}
"""r of Qwen3.5-0.8B (no-free-loop, C.2)."""
PAPER_LINES = {"layers": 1.25, "FLOPs": 1.16, "time": 1.19}


def law(tokens: Any) -> NDArray[np.float64]:
    """The twin's loss."""
    return FLOOR + FACTOR * np.asarray(tokens, dtype=np.float64) ** -ALPHA


def twin(tokens: Sequence[int] = TWIN_TOKENS, noise: Any = 0.0) -> LossCurve:
    """The twin's curve."""
    return curve("twin", tokens, law(tokens) + noise)


def looped(rate: float | Callable[[Any], Any], tokens: Sequence[int] = TWIN_TOKENS[1:-1], noise: Any = 0.0) -> LossCurve:
    """The looped model's: after D tokens it is where the twin is after r D."""
    at = np.asarray(tokens, dtype=np.float64)
    return curve("looped", tokens, law(at * (rate(at) if callable(rate) else rate)) + noise)


def curve(source: str, tokens: Sequence[int], losses: Any, **more: Any) -> LossCurve:
    """A curve from arrays."""
    return LossCurve(source=source, tokens=tuple(map(int, tokens)), losses=tuple(map(float, losses)), **more)


def on_documents(source: str, tokens: Sequence[int], losses: Any, effects: NDArray[np.float64], noise: Any) -> LossCurve:
    """A curve whose documents are harder or easier than the mean, the same for every model, with noise of their own."""
    each = np.asarray(losses)[:, None] + effects + noise
    return curve(source, tokens, each.mean(axis=1), document_losses=each)


def paper_rate(tokens: Any) -> NDArray[np.float64]:
    """r between the paper's three points, on straight lines in log tokens."""
    return np.interp(np.log(tokens), np.log(list(PAPER)), list(PAPER.values()))


def write_jsonl(file: Path, one: LossCurve) -> Path:
    """A curve as anybody's file; losses of documents where it has them."""
    rows = []
    for place, (tokens, loss) in enumerate(zip(one.tokens, one.losses, strict=True)):
        row: dict[str, Any] = {"tokens": tokens, "loss": loss}
        if one.document_losses is not None:
            row |= {"losses": one.document_losses[place].tolist()}
        rows.append(json.dumps(row))
    file.write_text("\n".join(rows) + "\n")
    return file


def write_run(folder: Path, one: LossCurve, *, seconds: float, flops: float, first_pass: LossCurve | None = None) -> Path:
    """A curve as a run of ``loopwise train``: a step before each evaluation, state of a checkpoint, the run's header."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step, (tokens, loss) in enumerate(zip(one.tokens, one.losses, strict=True), 1):
        metrics = {"step": step, "loss": loss, "tokens": tokens, "num_loops": None, "batch_hash": f"h{step}", "seconds": 1000 * seconds}
        # The first step compiles: it is no measure of the others.
        lines.append(metrics | {"tokens_per_second": 1 / (seconds * (50 if step == 1 else 1))})
        found = {"held_out_loss": loss} | ({} if first_pass is None else {"one_pass": first_pass.losses[step - 1]})
        lines.append({"step": step, "evaluation": found})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n" + '{"step": 99, "tok')
    last = folder / "checkpoints" / f"step-{len(one.tokens):08}"
    last.mkdir(parents=True)
    (last / "state.json").write_text(json.dumps({"step": len(one.tokens), "tokens": one.tokens[-1], "flops": flops * one.tokens[-1]}))
    (folder / "run.json").write_text(json.dumps({"settings": {"schedule": "constant"}}))
    return folder
