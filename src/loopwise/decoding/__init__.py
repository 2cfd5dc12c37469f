"""Decoding: batched generation under one rule for both twins, and multiple choice by letters."""

from .batch import Batch, plan_batches
from .chat import Chat, Thinking, read_chat
from .letters import LetterChoice, score_letters
from .loop import evaluating, generate
from .repetition import RepetitionWatch, repeats
from .static import StaticBatch, check_static
from .values import ENGINES, Completion, DecodingError, DecodingRule, Engine, Progress, StopReason

__all__ = [
    "ENGINES",
    "Batch",
    "Chat",
    "Completion",
    "DecodingError",
    "DecodingRule",
    "Engine",
    "LetterChoice",
    "Progress",
    "RepetitionWatch",
    "StaticBatch",
    "StopReason",
    "Thinking",
    "check_static",
    "evaluating",
    "generate",
    "plan_batches",
    "read_chat",
    "repeats",
    "score_letters",
]
