"""AIME 2024 and 2025: thirty competition problems a year, whose answers are whole numbers from 0 to 999 (no-free-loop, A.4).

So few items say little, so each is answered several times and averaged, as often in both arms.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .grading import grade_expression
from .latex import cleaned, exact_number
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

PROMPT = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."

SAMPLES = 8
"""The paper says "several sampled answers per problem"; its accuracies are multiples of 1/240, hence 8 a problem."""
TEMPERATURE = 0.6
"""A guess: the paper names none; it is what the makers of Qwen3 recommend."""
BUDGET_TOKENS = 8192
"""A guess: the paper names none; four times that of MATH-500."""
THINKING_BUDGET_TOKENS = 16384
"""A guess likewise, four times that of thinking-mode GSM8K."""

LARGEST_ANSWER = 999
GOLD_FIELDS = ("expected_answer", "answer")


def load(data: Path | None, limit: int | None, split: str, *, source: Source) -> tuple[Item, ...]:
    """Rows with ``problem`` and ``expected_answer`` or ``answer``; ``id`` names the item."""
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(source, split, data, limit))])


def _item(row: Row, position: str) -> Item:
    field = next((name for name in GOLD_FIELDS if name in row.values), GOLD_FIELDS[-1])
    gold = str(row.values.get(field, "")).strip()
    number = exact_number(cleaned(gold))
    if number is None or number.value.denominator != 1 or not 0 <= number.value <= LARGEST_ANSWER:
        what = f"is {gold!r}; give a whole number from 0 to {LARGEST_ANSWER}"
        raise row.error(field, what if field in row.values else "is missing")
    name = str(row.values.get("id", position))
    return Item(name=name, prompt=PROMPT.format(question=row.text("problem").strip()), gold=str(number.value))


def grade(item: Item, text: str) -> Grade:
    """The last box after the thinking; without a box, what an explicit "final answer" names. 073 is 73."""
    return grade_expression(item.gold, text)


def _year(name: str, source: Source) -> Task:
    return Task(
        name=name,
        version="1",
        kind="generate",
        budget_tokens=BUDGET_TOKENS,
        thinking_budget_tokens=THINKING_BUDGET_TOKENS,
        reserve_tokens=512,
        answer_opener="\n\nFinal answer: \\boxed{",
        samples=SAMPLES,
        temperature=TEMPERATURE,
        loader=partial(load, source=source),
        grader=grade,
    )


AIME24 = _year("aime24", Source(folder="aime24", hub="HuggingFaceH4/aime_2024", hub_splits={"test": "train"}))
AIME25 = _year("aime25", Source(folder="aime25", hub="math-ai/aime25"))
