"""Token losses, the fitted temperature, and calibrated perplexity."""

from .losses import Batch, Forward, make_batches, model_forward, scored_positions, token_losses
from .score import Progress, TextScore, score_batches, score_text
from .temperature import PositionLogits, ScoringError, fit_temperature, losses_at

__all__ = [
    "Batch",
    "Forward",
    "PositionLogits",
    "Progress",
    "ScoringError",
    "TextScore",
    "fit_temperature",
    "losses_at",
    "make_batches",
    "model_forward",
    "score_batches",
    "score_text",
    "scored_positions",
    "token_losses",
]
