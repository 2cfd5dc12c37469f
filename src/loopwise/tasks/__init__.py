"""Benchmarks: items, prompts, budgets and grading. No torch; math-verify lives in a child process.

A task is added by writing its file and one line in `TASKS`.
"""

from .arc_challenge import ARC_CHALLENGE
from .grading import RULES
from .gsm8k import GSM8K
from .ladder import LADDER, ladder_of
from .math500 import MATH500
from .problems import worked_text
from .values import Grade, Item, Kind, Task, TaskError

TASKS: dict[str, Task] = {
    "ladder": LADDER,
    "gsm8k": GSM8K,
    "math500": MATH500,
    "arc_challenge": ARC_CHALLENGE,
}
"""Every task by its name."""


def task_named(name: str) -> Task:
    """A task of `TASKS`, or the ladder with chosen rungs, as in ``ladder:2-4``.

    Raises:
        TaskError: no task has that name.
    """
    if name in TASKS:
        return TASKS[name]
    base, colon, rungs = name.partition(":")
    if base == "ladder" and colon:
        return ladder_of(rungs)
    raise TaskError(f"no task is named {name!r}; tasks are {', '.join(TASKS)}, and ladder:RUNGS such as ladder:2-4")


__all__ = ["RULES", "TASKS", "Grade", "Item", "Kind", "Task", "TaskError", "task_named", "worked_text"]
