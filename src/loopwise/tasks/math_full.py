"""MATH: all 5,000 competition problems of its test set, of which MATH-500 are five hundred (no-free-loop, appendix A.4)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from . import answers
from .grading import grade_expression
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="math", hub="DigitalLearningGmbH/MATH-lighteval")
PROMPT = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
LABELS = {"type": "subject", "level": "level"}

_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+([^\s{}$]+)\$?\.?\s*$")
r"""Two training solutions end in ``\boxed 2`` without braces."""
_EMPTY_BOX = re.compile(r"\\boxed\{\s*\}")
"""Two training solutions box nothing."""


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows with ``problem`` and ``solution``, whose last box is the gold.

    The rows of some copies have no identifiers and stand in another order, so an item is named by a hash of its problem.
    """
    found = [(_item(row, split), row) for row in read_rows(SOURCE, split, data, limit)]
    return checked_items([(item, row) for item, row in found if item is not None])


def _item(row: Row, split: str) -> Item | None:
    """None where the solution's box is empty, for then nobody can be right."""
    problem, solution = row.text("problem").strip(), row.text("solution")
    bare = _BARE_BOX.search(solution)
    gold = answers.last_box(solution) or (bare[1] if bare else None)
    if gold is None and _EMPTY_BOX.search(solution):
        return None
    if gold is None:
        raise row.error("solution", f"ends in {solution[-20:]!r}; give a solution with its answer in \\boxed{{}}")
    return Item(
        name=f"{split}/{hashlib.sha256(problem.encode()).hexdigest()[:12]}",
        prompt=PROMPT.format(question=problem),
        gold=gold,
        extra={"solution": solution, **{name: row.values[field] for field, name in LABELS.items() if field in row.values}},
    )


def grade(item: Item, text: str) -> Grade:
    """The last box after the thinking against the gold expression; without a box, what an explicit "final answer" names."""
    return grade_expression(item.gold, text)


MATH = Task(
    name="math",
    version="1",
    kind="generate",
    budget_tokens=2048,
    reserve_tokens=512,
    answer_opener="\n\nFinal answer: \\boxed{",
    splits=("test", "train"),
    loader=load,
    grader=grade,
)
