"""Token losses, the fitted temperature, and calibrated perplexity."""

from .losses import Batch, Forward, losses_of, make_batches, model_forward, scored_logits, scored_positions, token_losses
from .score import Progress, TextScore, score_batches, score_text, text_score
from .temperature import PositionLogits, ScoringError, expansion, fit_temperature, losses_at

__all__ = [
    "Batch",
    "Forward",
    "PositionLogits",
    "Progress",
    "ScoringError",
    "TextScore",
    "expansion",
    "fit_temperature",
    "losses_at",
    "losses_of",
    "make_batches",
    "model_forward",
    "score_batches",
    "score_text",
    "scored_logits",
    "scored_positions",
    "text_score",
    "token_losses",
]
