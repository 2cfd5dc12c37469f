"""ARC-Challenge: science questions, zero-shot, by the highest next-token logit over option letters (no-free-loop, appendix A.4)."""

from __future__ import annotations

from pathlib import Path

from .grading import grade_letter
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="arc_challenge", hub="allenai/ai2_arc", config="ARC-Challenge")
PROMPT = "{question}\n{options}\nAnswer with the letter of the right option."
LETTERS = "ABCDEFGHIJ"


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows as on the hub (``question``, ``choices`` with text and label, ``answerKey``) or with a list of choices and the gold's position.

    Options are lettered by position, whatever they were labelled: some rows call theirs 1 to 4.
    """
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(SOURCE, split, data, limit))])


def _item(row: Row, position: str) -> Item:
    question = row.text("question").strip()
    choices, gold = _choices(row)
    options = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    name = str(row.values.get("id", position))
    return Item(name=name, prompt=PROMPT.format(question=question, options=options), gold=LETTERS[gold], choices=choices)


def _choices(row: Row) -> tuple[tuple[str, ...], int]:
    """The option texts and the gold one's position."""
    choices = row.values.get("choices")
    gold: object
    if isinstance(choices, dict):
        texts, labels, key = choices.get("text"), choices.get("label"), row.text("answerKey")
        if not isinstance(labels, list) or key not in labels:
            raise row.error("answerKey", f"is {key!r}, which is none of the labels {labels!r}")
        gold = labels.index(key)
    else:
        texts, gold = choices, row.values.get("gold", -1)
    if not isinstance(texts, list) or not 2 <= len(texts) <= len(LETTERS) or not all(isinstance(t, str) and t.strip() for t in texts):
        raise row.error("choices", f"is {str(choices)[:40]!r}; give 2 to {len(LETTERS)} option texts" if choices else "is missing")
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(texts):
        what = f"is {gold!r}; give the position of one of the {len(texts)} choices"
        raise row.error("gold", what if "gold" in row.values else "is missing")
    return tuple(text.strip() for text in texts), gold


def grade(item: Item, text: str) -> Grade:
    """A written answer's letter; the arms of an evaluation choose by logits and need no text."""
    return grade_letter(item.gold, text, LETTERS[: len(item.choices or LETTERS)])


ARC_CHALLENGE = Task(
    name="arc_challenge",
    version="1",
    kind="letters",
    budget_tokens=1,
    reserve_tokens=0,
    answer_opener="Answer:",
    splits=("test", "validation", "train"),
    loader=load,
    grader=grade,
)
