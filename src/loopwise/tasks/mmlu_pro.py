"""MMLU-Pro: a fixed 2,000 of its questions, zero-shot, by the highest next-token logit over up to ten letters (no-free-loop, A.4).

The paper does not say which 2,000 it took. Here they are those whose identifiers hash lowest under `SEED`: the same for every
order of the file. They come in the order of their hashes, so that the first of them are a mixture of all subjects.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .grading import grade_letter
from .options import LETTERS, PROMPT, lettered, option_texts
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="mmlu_pro", hub="TIGER-Lab/MMLU-Pro")
SEED = 0
NUM_ITEMS = 2000
NO_OPTION = "N/A"
"""What fills up the options of some copies of the data."""


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows with ``question``, ``options`` and the gold letter ``answer``; ``question_id`` names the item.

    A file of at most 2,000 rows is taken whole, as somebody's own choice.
    """
    rows = [(_name(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(SOURCE, split, data, None))]
    chosen = sorted(rows, key=lambda pair: _hash(pair[0]))[: NUM_ITEMS if limit is None else min(limit, NUM_ITEMS)]
    return checked_items([(_item(row, name), row) for name, row in chosen])


def _name(row: Row, position: str) -> str:
    return str(row.values.get("question_id", position))


def _hash(name: str) -> str:
    return hashlib.sha256(f"{SEED}/{name}".encode()).hexdigest()


def _item(row: Row, name: str) -> Item:
    """The gold letter is taken before what only fills up the options goes."""
    whole = option_texts(row, "options", row.values.get("options"))
    letter = row.text("answer").strip()
    if letter not in LETTERS[: len(whole)] or len(letter) != 1 or whole[LETTERS.index(letter)] == NO_OPTION:
        raise row.error("answer", f"is {letter!r}; give the letter of one of the {len(whole)} options")
    kept = [position for position, option in enumerate(whole) if option != NO_OPTION]
    choices = tuple(whole[position] for position in kept)
    return Item(
        name=name,
        prompt=PROMPT.format(question=row.text("question").strip(), options=lettered(choices)),
        gold=LETTERS[kept.index(LETTERS.index(letter))],
        choices=choices,
        extra={"category": row.values["category"]} if "category" in row.values else {},
    )


def grade(item: Item, text: str) -> Grade:
    """A written answer's letter; the arms of an evaluation choose by logits and need no text."""
    return grade_letter(item.gold, text, LETTERS[: len(item.choices or LETTERS)])


MMLU_PRO = Task(
    name="mmlu_pro",
    version="1",
    kind="letters",
    budget_tokens=1,
    reserve_tokens=0,
    answer_opener="Answer:",
    loader=load,
    grader=grade,
)
