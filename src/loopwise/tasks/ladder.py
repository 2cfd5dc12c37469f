"""The arithmetic ladder: questions from one-digit sums to long calculations, made from a seed, without any data file.

A model of 100 million parameters is right now and then on the lowest rungs, one of 9 billion on the highest. Choose rungs on which
the plain model scores between 20 % and 80 %: ``ladder:3`` is one rung, ``ladder:2-4`` three, ``ladder`` the lowest ones.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from .grading import grade_number
from .problems import RUNGS, problems, solution
from .values import Grade, Item, Task, TaskError

TEST_SEED = 0
"""The test items are the same everywhere; other seeds are for other studies."""

LOWER_RUNGS = (0, 1, 2)
ITEMS_PER_RUNG = 48
PROMPT = "{question}\nWork it out, then give the answer as a number."
"""The wording under which SmolLM2-135M-Instruct scores 23 to 46 % on each lower rung at 128 tokens, and less at 64 and 32."""


def load(data: Path | None, limit: int | None, split: str, *, rungs: tuple[int, ...]) -> tuple[Item, ...]:
    """The rungs' items in turn, so that any number of them is an even mixture; ``data`` is not needed and not read."""
    return items(TEST_SEED, rungs, split, limit or ITEMS_PER_RUNG * len(rungs))


def items(seed: int, rungs: tuple[int, ...], split: str, num_items: int) -> tuple[Item, ...]:
    """``num_items`` items of some rungs, evenly mixed; each is a function of (seed, rung, index, split) alone.

    Raises:
        TaskError: a small rung has no more different questions.
    """
    per_rung = -(-num_items // len(rungs))
    columns = [_rung_items(seed, rung, split, per_rung) for rung in rungs]
    return tuple(item for row in zip(*columns, strict=True) for item in row)[:num_items]


def _rung_items(seed: int, rung: int, split: str, num_items: int) -> list[Item]:
    return [
        Item(
            name=f"rung{rung}-{index:04d}",
            prompt=PROMPT.format(question=problem.question),
            gold=str(problem.answer),
            extra={"rung": rung, "solution": solution(problem)},
        )
        for index, problem in enumerate(problems(seed, rung, split, num_items))
    ]


def grade(item: Item, text: str) -> Grade:
    """The last box, else the last number."""
    return grade_number(item.gold, text)


LADDER = Task(
    name="ladder",
    version="1",
    kind="generate",
    budget_tokens=128,
    reserve_tokens=8,
    answer_opener="\nAnswer: ",
    splits=("test", "train"),
    from_templates=True,
    loader=partial(load, rungs=LOWER_RUNGS),
    grader=grade,
)


def ladder_of(rungs_text: str) -> Task:
    """The ladder with chosen rungs: ``3``, ``2-4`` (both included), ``0,2``.

    Raises:
        TaskError: no such rung, or text that names none.
    """
    rungs: list[int] = []
    for part in rungs_text.split(","):
        span = re.fullmatch(r"\s*(\d{1,3})(?:-(\d{1,3}))?\s*", part)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if not first <= last < len(RUNGS):
            known = f"they are 0 to {len(RUNGS) - 1}, as in ladder:2-4 or ladder:0,2"
            raise TaskError(f"ladder:{rungs_text}: {part.strip()!r} names no rungs; {known}")
        rungs += [rung for rung in range(first, last + 1) if rung not in rungs]
    return replace(LADDER, name=f"ladder:{rungs_text}", loader=partial(load, rungs=tuple(rungs)))
