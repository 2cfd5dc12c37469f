"""Tiny models that are sure of themselves, text drawn from them, and the generic looped forward's scores of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from loopwise.cost import ModelShape, read_shape
from loopwise.data import TextMixture, Window
from loopwise.loops import Loop, parse_loops
from loopwise.models import insert, remove
from loopwise.scoring import Batch, PositionLogits, TextScore, fit_temperature, losses_of, model_forward, scored_logits, text_score
from tiny import tiny_config, tiny_model

NUM_LAYERS = 6


def sure_model(family: str = "llama") -> Any:
    """A tiny model whose logits are so large that text drawn from it has a temperature to fit."""
    model = tiny_model(family)
    with torch.no_grad():
        factor = 2.0 / model(input_ids=torch.arange(3, 100)[None]).logits.std()
    model.lm_head.register_forward_hook(lambda module, args, logits: factor * logits)
    return model


def drawn_text(model: Any, num: int = 9, length: int = 25, fit: int = 4, last: int | None = None) -> TextMixture:
    """Windows drawn from the model itself, the last one shorter, so that its batch is padded.

    Args:
        fit: how many of the windows temperatures are fitted on.
        last: tokens of the last window.
    """
    torch.manual_seed(1)
    drawn = model.generate(torch.tensor([[5]] * num), do_sample=True, max_new_tokens=length - 1, min_new_tokens=length - 1).tolist()
    drawn[-1] = drawn[-1][: length // 2 if last is None else last]
    windows = [Window(document=str(number), domain="drawn", token_ids=tuple(ids)) for number, ids in enumerate(drawn)]
    return TextMixture(fit=tuple(windows[:fit]), score=tuple(windows[fit:]))


def shape_of(family: str = "llama") -> ModelShape:
    """The shape of the tiny model."""
    return read_shape(tiny_config(family).to_dict())


def loops_from(*texts: str) -> tuple[tuple[Loop, ...], ...]:
    """Candidates in the loop notation."""
    return tuple(parse_loops(text, NUM_LAYERS) for text in texts)


@torch.inference_mode()
def generic_logits(model: Any, loops: Sequence[Loop], batches: Sequence[Batch]) -> list[PositionLogits]:
    """What the looped model's own forward gives on batches."""
    insert(model, loops)
    try:
        return [scored_logits(model_forward(model)(batch), batch) for batch in batches]
    finally:
        remove(model)


def generic_score(model: Any, loops: Sequence[Loop], fit: Sequence[Batch], score: Sequence[Batch], start: float = 1.0) -> TextScore:
    """The score of the looped model's own forward, its temperature fitted from ``start``."""
    parts = generic_logits(model, loops, fit)
    temperature = fit_temperature(parts, start=start)
    rows = [losses_of(part, (1.0, temperature)) for part in generic_logits(model, loops, score)]
    return text_score(temperature, sum(len(part.targets) for part in parts), np.concatenate(rows, axis=1))
