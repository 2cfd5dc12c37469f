"""What tests of learning sets share: a tiny model with a chat template, chats to learn from, and a small set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from loopwise.recipes.learning_data import LearningData
from loopwise.recipes.learning_recipes import RECIPES, Rows, tuned
from loopwise.recipes.learning_set import LearningSet
from loopwise.training import Execution
from tiny import tiny_model
from trace_sets import chat_folder, write_chats

LOOPS = "2:4 x2 damped beta=0.5"
ROWS = Rows(num_sequences=2, sequence_tokens=48)
TOKENS = 3 * ROWS.step_tokens
CPU = Execution(device="cpu", checkpoint_every_steps=2)


def chat_model(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A tiny model of bytes with a chat template, as transformers saves it."""
    tiny_model(family, vocab_size=320, **changes).save_pretrained(folder)
    chat_folder(folder)
    return folder


def chats(file: Path, count: int = 24) -> Path:
    """Sums and their answers."""
    rows = [{"question": f"{n}+{n % 7}?", "answer": str(n + n % 7)} for n in range(count)]
    return write_chats(file, [*rows, {"question": "long?", "answer": "9" * 200}])


def tiny_set(model: Path | None, data: Path | tuple[Path, ...], out: Path, recipe: str = "short-ft", **more: Any) -> LearningSet:
    """A set of some steps."""
    given = tuple(map(str, data if isinstance(data, tuple) else (data,)))
    settings = tuned(RECIPES[recipe].settings["nano"](), num_tokens=more.pop("tokens", TOKENS), warmup_share=0.0)
    return LearningSet(
        recipe=recipe,
        data=LearningData(given=given, rows=ROWS, **{"against": ("none",), **more.pop("data_options", {})}),
        out=out,
        settings=replace(settings, **more.pop("settings", {})),
        scale="nano",
        model=None if model is None else str(model),
        execution=CPU,
        **{"loops": LOOPS, **more},
    )
