"""Every guess in the learning recipes, read from the texts beside the fields themselves."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from ..training import (
    AnchoredDepth,
    AnchoredRecurrentDepth,
    ContinuedPretraining,
    Conversion,
    Grpo,
    LongFinetune,
    LoraGrpo,
    LoraSettings,
    NearTeacher,
    PassSchedule,
    ShortFinetune,
    Tuning,
)
from .learning_data import LearningData
from .learning_recipes import Rows

Guess = tuple[str, str, str, str]
"""Class or recipe, field, default, text."""

CLASSES = (Tuning, LoraSettings, PassSchedule, ShortFinetune, LongFinetune, Conversion, NearTeacher, AnchoredRecurrentDepth, AnchoredDepth)
LORA_FINETUNE_GUESSES = (
    ("lora-ft", "num_tokens", "100,000,000", "A guess: the paper gives no number; the short fine-tune's."),
    ("lora-ft", "learning_rate", "0.0001", "A guess: ten times that of full fine-tuning, as in conversion."),
)


def guesses() -> tuple[Guess, ...]:
    """Every field of a recipe, and every class as a whole, whose text says that something is a guess."""
    classes = (*CLASSES, ContinuedPretraining, LoraGrpo, Grpo, Rows, LearningData)
    return (*(guess for one in classes for guess in _guesses_of(one)), *LORA_FINETUNE_GUESSES)


def _guesses_of(one: type[Any]) -> list[Guess]:
    (node,) = ast.parse(inspect.getsource(one)).body
    assert isinstance(node, ast.ClassDef)
    sentences = re.split(r"(?<=\.)\s+", " ".join((one.__doc__ or "").split()))
    found: list[Guess] = [(one.__name__, "as a whole", "", sentence) for sentence in sentences if _is_guess(sentence)]
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            words = " ".join(str(text.value.value).split())
            if _is_guess(words):
                found.append((one.__name__, ast.unparse(field.target), _default(field.value), words))
    return found


def _is_guess(text: str) -> bool:
    return "guess" in text.lower()


def _default(value: ast.expr | None) -> str:
    """A field's default as its text shows it."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        made = value.keywords[0].value
        return ast.unparse(made.body) if isinstance(made, ast.Lambda) else f"{ast.unparse(made)}()"
    return "" if value is None else ast.unparse(value)
