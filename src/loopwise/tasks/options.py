"""Multiple choice: options lettered by position, as the prompt shows them."""

from __future__ import annotations

from collections.abc import Sequence

from .rows import Row

LETTERS = "ABCDEFGHIJ"
"""As many options as an item can have."""

PROMPT = "{question}\n{options}\nAnswer with the letter of the right option."
"""Zero-shot, for a choice by the next token's logit. The paper does not print its wording: a guess."""


def lettered(options: Sequence[str]) -> str:
    """One line an option: ``A. ...``."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))


def option_texts(row: Row, field: str, texts: object) -> tuple[str, ...]:
    """The option texts that a row's field holds.

    Raises:
        TaskError: they are no list of 2 to 10 texts.
    """
    whole = isinstance(texts, list) and 2 <= len(texts) <= len(LETTERS)
    if not whole or not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        shown = str(row.values.get(field))[:40]
        raise row.error(field, f"is {shown!r}; give 2 to {len(LETTERS)} option texts" if row.values.get(field) else "is missing")
    return tuple(text.strip() for text in texts)


def labelled_options(row: Row, field: str, choices: object) -> tuple[tuple[str, ...], int]:
    """The option texts and the gold one's position, of options that have labels and a row whose ``answerKey`` names one.

    Options come as ``{"label": [...], "text": [...]}`` or as a list of ``{"label": ..., "text": ...}``.

    Raises:
        TaskError: no such options, or an ``answerKey`` that is none of the labels.
    """
    key = row.text("answerKey")
    if isinstance(choices, list):
        choices = {name: [one.get(name) if isinstance(one, dict) else None for one in choices] for name in ("label", "text")}
    labels = choices.get("label") if isinstance(choices, dict) else None
    if not isinstance(choices, dict) or not isinstance(labels, list) or key not in labels:
        raise row.error("answerKey", f"is {key!r}, which is none of the labels {labels!r}")
    texts = option_texts(row, field, choices.get("text"))
    position = labels.index(key)
    if position >= len(texts):
        raise row.error(field, f"has {len(labels)} labels for {len(texts)} texts; give as many")
    return texts, position
