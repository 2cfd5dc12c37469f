"""The training problems of reinforcement learning: train splits of tasks, apart from every item that is evaluated.

no-free-loop, A.4: "We remove any training problem that shares a 13-gram of lower-cased words with GSM8K test, MATH-500, AIME 2024/2025 or
GPQA-Diamond. This does not detect paraphrases or problems shorter than 13 words." Shorter ones are refused here where they are the
same word by word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..data import ItemIndex
from ..tasks import Task, task_named
from ..training import Problem, Problems, TrainingError, boxed
from .evaluation_items import items_apart_from, keep_apart

TRAIN = "train"


def training_problems(
    names: Sequence[str],
    *,
    against: Sequence[str] = (),
    data: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Problems:
    """The train splits of some tasks, without what overlaps with an evaluation item.

    Args:
        names: tasks with a train split, e.g. gsm8k and math.
        against: as `evaluation_items`; tasks that are made from templates keep their train side apart themselves.
        data: where the tasks' items are.
        note: is told what was refused.

    Raises:
        TaskError, DataError: no such task, no data, or evaluation items that are missing.
        TrainingError: a task without a train split or without a final answer, one twice, or no problem that is apart.
    """
    tasks = problem_tasks(names)
    items, missing = items_apart_from(tasks, against, data) if any(not task.from_templates for task in tasks) else ((), ())
    for reason in missing:
        note(f"problems are not kept apart from {reason}")
    index = ItemIndex(items)
    found: list[Problem] = []
    for task in tasks:
        loaded = task.load(data, split=TRAIN)
        kept, benchmarks = (loaded, set()) if task.from_templates else keep_apart(loaded, index, items)
        if len(kept) < len(loaded):
            named = ", ".join(sorted(benchmarks))
            note(f"{len(loaded) - len(kept):,} of {len(loaded):,} problems of {task.name} refused: they overlap with {named}")
        found += boxed(task, kept)
    unique = {problem.item.prompt: problem for problem in found}
    if len(unique) < len(found):
        note(f"{len(found) - len(unique):,} problems are asked twice and taken once")
    if not unique:
        raise TrainingError(f"no problem of {', '.join(names)} is apart from the evaluation items; give other tasks as --problems")
    note(f"{len(unique):,} training problems of {', '.join(names)}")
    return Problems(problems=tuple(unique.values()))


def problem_tasks(names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of `training_problems`; reads none of their items.

    Raises:
        TaskError: no such task.
        TrainingError: one without a train split or without a final answer, or one twice.
    """
    if doubled := sorted({name for name in names if list(names).count(name) > 1}):
        raise TrainingError(f"problems of {doubled[0]} are asked for twice; name it once")
    tasks = tuple(_with_train_split(name) for name in names)
    for task in tasks:
        boxed(task, ())  # refuses a task that has no box
    return tasks


def _with_train_split(name: str) -> Task:
    task = task_named(name)
    if TRAIN not in task.splits:
        raise TrainingError(
            f"{name} has no train split (its splits are {', '.join(task.splits)}), and test items are never trained on; "
            "give tasks with one, e.g. gsm8k or math"
        )
    return task
