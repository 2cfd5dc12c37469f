"""Calibrated perplexity: a text's perplexity at the temperature fitted on another split of it (no-free-loop, Appendix E)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .losses import Batch, Forward, batch_losses, make_batches, model_forward, position_logits
from .temperature import ScoringError, fit_temperature

Progress = Callable[[int, int], None]
"""Called with the batches done and the batches in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """How well a model predicts a text. The temperature is for scoring alone, never for decoding."""

    temperature: float
    """T that minimises the loss on the fitting split."""
    perplexity: float
    """exp of the mean loss on the scoring split at T = 1."""
    calibrated_perplexity: float
    """PPL_T: exp of the mean loss on the scoring split at the fitted T."""
    num_fit_tokens: int
    """Scored positions of the fitting split."""
    num_score_tokens: int
    """Scored positions of the scoring split."""
    losses: NDArray[np.float32] = field(repr=False, compare=False)
    """The loss in nats at the fitted T of each position of the scoring split, in the text's order."""

    @property
    def loss_nats(self) -> float:
        """The mean loss at the fitted temperature, whose exp is the calibrated perplexity."""
        return math.log(self.calibrated_perplexity)


def score_text(
    model: nn.Module,
    fit_windows: Sequence[Sequence[int]],
    score_windows: Sequence[Sequence[int]],
    *,
    stride: int = 4,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> TextScore:
    """Score a model, looped or plain, on windows of token ids, each a part of one document.

    Every ``stride``-th token is scored. The logits of the fitting split are held in the model's dtype while T is fitted:
    2 bytes a vocabulary entry and scored position in bf16 (50 MB for 512 positions of SmolLM2).

    Raises:
        ScoringError: as `make_batches`, `model_forward`, `fit_temperature`, or losses that are not finite.
    """
    device = next(model.parameters()).device
    fit, score = (make_batches(w, stride=stride, batch_size=batch_size, device=device) for w in (fit_windows, score_windows))
    return score_batches(model_forward(model), fit, score, progress=progress)


def score_batches(
    forward: Forward, fit_batches: Sequence[Batch], score_batches: Sequence[Batch], *, progress: Progress | None = None
) -> TextScore:
    """As `score_text`, for any way to compute the logits of batches made beforehand.

    Raises:
        ScoringError: as `fit_temperature`, or losses that are not finite.
    """
    total = len(fit_batches) + len(score_batches)
    parts = []
    for done, batch in enumerate(fit_batches, 1):
        parts.append(position_logits(forward, batch))
        if progress:
            progress(done, total)
    temperature = fit_temperature(parts)
    num_fit_tokens = sum(len(part.targets) for part in parts)
    del parts
    rows = []
    for done, batch in enumerate(score_batches, len(fit_batches) + 1):
        rows.append(batch_losses(forward, batch, (1.0, temperature)))
        if progress:
            progress(done, total)
    return text_score(temperature, num_fit_tokens, np.concatenate(rows, axis=1))


def text_score(temperature: float, num_fit_tokens: int, losses: NDArray[np.float32]) -> TextScore:
    """The score from the scoring split's losses at T = 1 and at the fitted ``temperature``, [2, positions].

    Raises:
        ScoringError: losses that are not finite.
    """
    if not np.isfinite(losses).all():
        raise ScoringError("the model's losses are not finite on the scoring split; it cannot be scored")
    plain, calibrated = losses
    return TextScore(
        temperature=temperature,
        perplexity=_exp_mean(plain),
        calibrated_perplexity=_exp_mean(calibrated),
        num_fit_tokens=num_fit_tokens,
        num_score_tokens=len(calibrated),
        losses=calibrated,
    )


def _exp_mean(losses: NDArray[np.float32]) -> float:
    mean = float(np.mean(losses, dtype=np.float64))
    return math.exp(mean) if mean < 700 else math.inf
