"""ARC-Challenge: science questions, zero-shot, by the highest next-token logit over option letters (no-free-loop, appendix A.4)."""

from __future__ import annotations

from pathlib import Path

from .grading import grade_letter
from .options import LETTERS, PROMPT, labelled_options, lettered, option_texts
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="arc_challenge", hub="allenai/ai2_arc", config="ARC-Challenge")


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows as on the hub (``question``, ``choices`` with text and label, ``answerKey``) or with a list of choices and the gold's position.

    Options are lettered by position, whatever they were labelled: some rows call theirs 1 to 4.
    """
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(SOURCE, split, data, limit))])


def _item(row: Row, position: str) -> Item:
    question = row.text("question").strip()
    choices, gold = _choices(row)
    name = str(row.values.get("id", position))
    return Item(name=name, prompt=PROMPT.format(question=question, options=lettered(choices)), gold=LETTERS[gold], choices=choices)


def _choices(row: Row) -> tuple[tuple[str, ...], int]:
    """The option texts and the gold one's position."""
    choices = row.values.get("choices")
    if isinstance(choices, dict):
        return labelled_options(row, "choices", choices)
    texts, gold = option_texts(row, "choices", choices), row.values.get("gold", -1)
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(texts):
        what = f"is {gold!r}; give the position of one of the {len(texts)} choices"
        raise row.error("gold", what if "gold" in row.values else "is missing")
    return texts, gold


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
