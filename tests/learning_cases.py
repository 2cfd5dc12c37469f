"""What tests of learned loops share: tiny models on the disk, batches with targets on answers only, and every recipe at its smallest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from loopwise.training import (
    AnchoredRecurrentDepth,
    ContinuedPretraining,
    Conversion,
    Execution,
    LongFinetune,
    LoraSettings,
    ShortFinetune,
    TrainResult,
    Tuning,
    train_anchored,
    train_continued,
    train_conversion,
    train_long_finetune,
    train_short_finetune,
)
from tiny import tiny_model, tiny_tokenizer
from training_cases import Walks

LOOPS = "2:4 x2 damped beta=0.5"
STEPS = 6
STEP_TOKENS = 4 * 12
CPU = Execution(device="cpu", checkpoint_every_steps=2)
TRACES = Walks(num_sequences=4)
"""Rows with different numbers of targets, as traces have."""
TUNING = Tuning(num_tokens=STEPS * STEP_TOKENS, learning_rate=3e-3, warmup_share=0.0, dtype="fp32", seed=3)
LORA = LoraSettings(rank=4, alpha=8.0)


def tiny_folder(folder: Path, family: str = "llama", *, pad_token: str | None = "w0", **changes: Any) -> Path:
    """A tiny model of a family with its tokenizer, as transformers saves them."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = pad_token
    tiny_model(family, **changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipes(steps_file: Path) -> dict[str, Callable[..., TrainResult]]:
    """Each recipe as a function of model, loops and folder, and of the engine's ``execution`` and ``reporter``."""
    lora = dict(tuning=TUNING, lora=LORA)
    settings: dict[str, tuple[Callable[..., TrainResult], Any, dict[str, Any]]] = {
        "short": (train_short_finetune, ShortFinetune(tuning=TUNING), {}),
        "short-lora": (train_short_finetune, ShortFinetune(**lora), {}),
        "long": (train_long_finetune, LongFinetune(tuning=TUNING, budget_seconds=1e6, measured_steps=1), {"steps_file": steps_file}),
        "conversion": (train_conversion, Conversion(**lora), {}),
        "anchored": (train_anchored, AnchoredRecurrentDepth(**lora), {}),
        "continued": (train_continued, ContinuedPretraining(tuning=replace(TUNING, schedule="constant")), {}),
    }
    return {name: partial(_run, recipe, value, more) for name, (recipe, value, more) in settings.items()}


def _run(
    recipe: Callable[..., TrainResult], settings: Any, more: dict[str, Any], model: Path, loops: Any, out: Path, **how: Any
) -> TrainResult:
    return recipe(model, loops, how.pop("source", TRACES), settings, out, **{"execution": CPU, **more, **how})
