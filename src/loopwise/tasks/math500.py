"""MATH-500: five hundred competition problems of the MATH test set (no-free-loop, appendix A.4)."""

from __future__ import annotations

from pathlib import Path

from .grading import grade_expression
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="math500", hub="HuggingFaceH4/MATH-500")
PROMPT = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
LABELS = ("subject", "level")


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows with ``problem`` and ``answer``; ``unique_id`` names the item."""
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(SOURCE, split, data, limit))])


def _item(row: Row, position: str) -> Item:
    problem, answer = row.text("problem"), row.text("answer")
    name = str(row.values.get("unique_id", position))
    extra = {label: row.values[label] for label in LABELS if label in row.values}
    return Item(name=name, prompt=PROMPT.format(question=problem.strip()), gold=answer.strip(), extra=extra)


def grade(item: Item, text: str) -> Grade:
    """The last box after the thinking against the gold expression; without a box, what an explicit "final answer" names."""
    return grade_expression(item.gold, text)


MATH500 = Task(
    name="math500",
    version="1",
    kind="generate",
    budget_tokens=2048,
    reserve_tokens=512,
    answer_opener="\n\nFinal answer: \\boxed{",
    loader=load,
    grader=grade,
)
