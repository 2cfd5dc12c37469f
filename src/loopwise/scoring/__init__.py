"""Token losses, the fitted temperature, and calibrated perplexity."""

from .documents import (
    DocumentLoss,
    Span,
    TokenDocument,
    WindowSettings,
    check_documents,
    encode_document,
    score_documents,
    spans_of,
    start_token_id,
)
from .losses import Batch, Forward, losses_of, make_batches, model_forward, scored_logits, scored_positions, token_losses
from .score import Progress, TextScore, score_batches, score_text, text_score
from .temperature import PositionLogits, ScoringError, expansion, fit_temperature, losses_at

__all__ = [
    "Batch",
    "DocumentLoss",
    "Forward",
    "PositionLogits",
    "Progress",
    "ScoringError",
    "Span",
    "TextScore",
    "TokenDocument",
    "WindowSettings",
    "check_documents",
    "encode_document",
    "expansion",
    "fit_temperature",
    "losses_at",
    "losses_of",
    "make_batches",
    "model_forward",
    "score_batches",
    "score_documents",
    "score_text",
    "scored_logits",
    "scored_positions",
    "spans_of",
    "start_token_id",
    "text_score",
    "token_losses",
]
