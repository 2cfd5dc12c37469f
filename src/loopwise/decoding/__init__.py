"""Decoding: batched generation under one rule for both twins, and multiple choice by letters."""

from .batch import plan_batches
from .chat import Chat, Thinking, read_chat
from .letters import LetterChoice, score_letters
from .loop import generate
from .repetition import RepetitionWatch, repeats
from .values import Completion, DecodingError, DecodingRule, Progress, StopReason

__all__ = [
    "Chat",
    "Completion",
    "DecodingError",
    "DecodingRule",
    "LetterChoice",
    "Progress",
    "RepetitionWatch",
    "StopReason",
    "Thinking",
    "generate",
    "plan_batches",
    "read_chat",
    "repeats",
    "score_letters",
]
