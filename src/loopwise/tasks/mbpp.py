"""MBPP: the 500 test problems, short functions with three tests each (Austin et al. 2021; ARLoop, Table 3)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from .code_answers import cut_completion, find_code, grade_program, parsed
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="mbpp", hub="google-research-datasets/mbpp", config="full", files={"test": ("test", "mbpp")})
TEST_IDS = range(11, 511)
"""The published test split; local copies hold all 974 problems in one file."""
PROMPT = (
    "You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:\n\n{tests}\n\n"
    "Answer with the code in one ```python block."
)
"""The wording of Austin et al. 2021, section 3, asked zero-shot, and where the code goes."""
COMPLETION = '"""\n{text}\n{tests}\n"""\n'
"""A docstring with the tests, as the bigcode evaluation harness asks base models, zero-shot."""
STOPS = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n<|/", "\n```")
"""Where a completion is over, by the same harness."""


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows with ``text``, ``code``, ``test_list`` and, where needed, ``test_setup_code``; ``task_id`` names the item."""
    return checked_items([(_item(row), row) for row in islice(_test_rows(data, split), limit)])


def _test_rows(data: Path | None, split: str) -> Iterator[Row]:
    for row in read_rows(SOURCE, split, data, None):
        number = row.values.get("task_id")
        if not isinstance(number, int) or isinstance(number, bool):
            raise row.error("task_id", "is missing" if number is None else f"is {number!r}; give the problem's number")
        if number in TEST_IDS:
            yield row


def _item(row: Row) -> Item:
    text, code, tests = row.text("text").strip(), row.text("code"), row.values.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) and test.strip() for test in tests):
        raise row.error("test_list", "is missing" if tests is None else f"is {str(tests)[:40]!r}; give a list of assert statements")
    setup = str(row.values.get("test_setup_code") or "")
    gold = "\n".join([setup, *tests]).replace("\r\n", "\n").strip()
    called = _called(row, code, gold)
    shown = "\n".join(test.strip() for test in tests)
    return Item(
        name=f"mbpp/{row.values['task_id']}",
        prompt=PROMPT.format(text=text, tests=shown),
        completion=COMPLETION.format(text=text, tests=shown),
        gold=gold,
        extra={"called": called, "solution": code},
    )


def _called(row: Row, code: str, tests: str) -> tuple[str, ...]:
    """The names that the tests use and the solution defines, the function that the first ``assert`` calls in front."""
    solution, statements = parsed(row, "code", code).body, parsed(row, "test_list", tests).body
    defined = {node.name for node in solution if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    asserts = [node for node in statements if isinstance(node, ast.Assert)]
    used = [node.id for part in (*asserts, *statements) for node in ast.walk(part) if isinstance(node, ast.Name)]
    called = tuple(dict.fromkeys(name for name in used if name in defined))
    if not asserts or not called:
        raise row.error("test_list", "asserts nothing of what field 'code' defines; give the data set's own tests")
    return called


def grade(item: Item, text: str) -> Grade:
    """Run the tests on the program in a chat answer, or on the completion of the docstring."""
    called = item.extra["called"]
    code = cut_completion(text, STOPS) if item.prompt == item.completion else find_code(text, called[0])
    return grade_program(code, far=called, tests=(item.gold,))


MBPP = Task(
    name="mbpp",
    version="1",
    kind="generate",
    budget_tokens=1024,
    reserve_tokens=512,
    answer_opener="\n\n```python\n",
    executes_code=True,
    loader=load,
    grader=grade,
)
"""Budget and reserve are guesses, those of `humaneval`."""
