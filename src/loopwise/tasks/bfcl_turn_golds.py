"""Conversations of BFCL v3 whose golds are known to be wrong. They are asked and graded as version 3 has them, so that scores compare."""

from __future__ import annotations

_ALL = ("base", "miss_func", "miss_param", "long_context")
_BUT_BASE = ("miss_func", "miss_param", "long_context")
_BUT_LONG = ("base", "miss_func", "miss_param")

_CORRECTED = {
    8: (_BUT_LONG, "the tweet is to hold the results of the diff, the gold's are those of other files"),
    10: (_ALL, "the question's file is notes.md, the gold's note.md"),
    18: (_ALL, "who is mentioned is written without the @ that other golds have"),
    21: (_BUT_BASE, "the gold's tweet lacks the full stop of the question's"),
    34: (_BUT_BASE, "the name of the gold's file ends in a full stop"),
    35: (_BUT_LONG, "the gold stores another text than the difference that its own call gives"),
    78: (_ALL, "a hashtag is asked for, the gold has it among the mentions"),
    166: (_BUT_BASE, "the gold's message says concern, the question's concerns"),
    176: (_ALL, "the gold cancels a turn before it is to"),
    178: (_ALL, "the gold buys the insurance a turn after it is asked for"),
}
"""By number, the categories and what is wrong."""

WRONG_TURN_GOLDS = {
    f"multi_turn_{category}_{number}": reason for number, (categories, reason) in _CORRECTED.items() for category in categories
}
"""Items whose gold the leaderboard itself corrected later (bfcl-eval 2026.3.23 beside the version-3 files), where its systems did not
change with it. There it also moved every date by two years, dropped the turns that ask for the market's status, and reworded
questions without another gold: those are not counted."""

UNANSWERABLE_TURNS = {"multi_turn_base_154": "the gold has six turns, the question five; the leaderboard counts turns first"}
"""Items that no answers are right on, here as on the leaderboard."""
