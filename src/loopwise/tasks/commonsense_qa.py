"""CommonsenseQA: five options, zero-shot, by the highest next-token logit over option letters (no-free-loop, appendix A.4).

Its own test split has no answers, so that the validation split is what is scored, here as everywhere.
"""

from __future__ import annotations

from pathlib import Path

from .grading import grade_letter
from .options import LETTERS, PROMPT, labelled_options, lettered
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(
    folder="commonsense_qa",
    hub="tau/commonsense_qa",
    hub_splits={"test": "validation"},
    files={"test": ("dev_rand_split", "validation", "test"), "train": ("train_rand_split", "train")},
)


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows as published (``question`` with ``stem`` and ``choices``) or as on the hub (``question``, ``choices``), with ``answerKey``."""
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(SOURCE, split, data, limit))])


def _item(row: Row, position: str) -> Item:
    inner = row.values.get("question")
    published = isinstance(inner, dict)
    fields = Row(inner, row.where) if isinstance(inner, dict) else row
    question = fields.text("stem" if published else "question").strip()
    choices, gold = labelled_options(row, "choices", fields.values.get("choices"))
    name = str(row.values.get("id", position))
    return Item(name=name, prompt=PROMPT.format(question=question, options=lettered(choices)), gold=LETTERS[gold], choices=choices)


def grade(item: Item, text: str) -> Grade:
    """A written answer's letter; the arms of an evaluation choose by logits and need no text."""
    return grade_letter(item.gold, text, LETTERS[: len(item.choices or LETTERS)])


COMMONSENSE_QA = Task(
    name="commonsense_qa",
    version="1",
    kind="letters",
    budget_tokens=1,
    reserve_tokens=0,
    answer_opener="Answer:",
    splits=("test", "train"),
    loader=load,
    grader=grade,
)
