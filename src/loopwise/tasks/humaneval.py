"""HumanEval: 164 functions to write from their docstrings, graded by tests (Chen et al. 2021; ARLoop, Table 3)."""

from __future__ import annotations

from pathlib import Path

from .code_answers import cut_completion, find_code, grade_program, parsed
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="humaneval", hub="openai/openai_humaneval", files={"test": ("test", "HumanEval")})
PROMPT = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n```python\n{prompt}\n```"
)
"""The wording of EvalPlus for chat models."""
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```")
"""Where a completion is over: the five texts of Chen et al. 2021, section 3.2, and a fence."""


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows with ``prompt``, ``entry_point``, ``test`` and ``canonical_solution``; ``task_id`` names the item."""
    return checked_items([(_item(row), row) for row in read_rows(SOURCE, split, data, limit)])


def _item(row: Row) -> Item:
    prompt, entry_point = row.text("prompt").rstrip(), row.text("entry_point")
    tests = f"{row.text('test')}\n\ncheck({entry_point})\n"
    for field, source in (("prompt", prompt), ("test", tests)):
        parsed(row, field, source)
    return Item(
        name=row.text("task_id"),
        prompt=PROMPT.format(prompt=prompt),
        completion=prompt,
        gold=tests,
        extra={"entry_point": entry_point, "solution": row.text("canonical_solution")},
    )


def grade(item: Item, text: str) -> Grade:
    """Run the tests on the function in a chat answer, or on the prompt with the completion behind it.

    The prompt runs first, with its docstring for a body: it brings imports and helpers that an answer may have left out.
    """
    entry_point, start = item.extra["entry_point"], item.completion or ""
    code = start + cut_completion(text, STOPS) if item.prompt == start else find_code(text, entry_point)
    return grade_program(code, before=(start,), far=(entry_point,), tests=(item.gold,))


HUMANEVAL = Task(
    name="humaneval",
    version="1",
    kind="generate",
    budget_tokens=1024,
    reserve_tokens=512,
    answer_opener="\n\n```python\n",
    executes_code=True,
    loader=load,
    grader=grade,
)
"""Budget and reserve are guesses: no paper here names any. Twice the longest solution fits the reserve."""
