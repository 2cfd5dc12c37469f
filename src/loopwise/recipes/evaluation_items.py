"""The texts of evaluation tasks, for training text to be kept apart from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..data import DataError, EvaluationItem, ItemIndex, read_items, without_wording
from ..data.decontamination import item_words
from ..tasks import Item, Task, TaskError, task_named

NONE = "none"
"""In place of tasks: compare with nothing."""


PAPER_BENCHMARKS = ("gsm8k", "math500", "aime24", "aime25", "gpqa_diamond")
"""What no-free-loop keeps its training problems apart from (A.4)."""


def evaluation_items(specs: Sequence[str] = (), *, data: Path | None = None) -> tuple[tuple[EvaluationItem, ...], tuple[str, ...]]:
    """What the test items of some benchmarks ask, each without its task's own wording, which training prompts may share.

    Args:
        specs: tasks by name, or ``[BENCHMARK=]FILE.jsonl`` as `read_items` reads it; none: those of `PAPER_BENCHMARKS` whose items are
            there; ``none``: no items.
        data: where the tasks' items are, as for `Task.load`.

    Returns:
        The items, and for each of `PAPER_BENCHMARKS` without items a line that says why.

    Raises:
        DataError: a task made from templates, one that is named and whose items are missing, no items of any, or a damaged file.
    """
    if tuple(specs) == (NONE,):
        return (), ()
    items: list[EvaluationItem] = []
    missing: list[str] = []
    for spec in specs or PAPER_BENCHMARKS:
        if is_file(spec):
            items += read_items([spec])
            continue
        try:
            items += _task_items(spec, data)
        except TaskError as error:
            missing.append(f"{spec}: {error}")
    if missing and (specs or not items):
        raise DataError(f"traces are kept apart from evaluation items, and some are missing: {missing[0]}; or choose others as --against")
    return tuple(items), tuple(missing)


def check_specs(specs: Sequence[str]) -> None:
    """Check what `evaluation_items` is given; reads no task's items, so that nothing is fetched.

    Raises:
        DataError: a task that does not exist or is made from templates, or a file that is not there or damaged.
    """
    for spec in () if tuple(specs) == (NONE,) else specs:
        if is_file(spec):
            read_items([spec])
            continue
        try:
            _apart_task(spec)
        except TaskError as error:
            raise DataError(f"--against {spec}: {error}") from None


def is_file(spec: str) -> bool:
    """Whether items are those of a file, and not a task's."""
    return spec.endswith((".jsonl", ".jsonl.gz"))


def items_apart_from(
    tasks: Sequence[Task], against: Sequence[str], data: Path | None
) -> tuple[tuple[EvaluationItem, ...], tuple[str, ...]]:
    """What training problems of some tasks are kept apart from: as `evaluation_items`, and but for ``none`` the tasks' own test items.

    A task made from templates has a train side that is apart by the way it is made.
    """
    items, missing = evaluation_items(against, data=data)
    if tuple(against) != (NONE,):
        own = {task.name.partition(":")[0]: None for task in tasks if not task.from_templates}
        for name in own.keys() - {item.benchmark for item in items}:
            items += evaluation_items((name,), data=data)[0]
    return items, missing


def keep_apart(problems: Sequence[Item], index: ItemIndex, items: Sequence[EvaluationItem]) -> tuple[list[Item], set[str]]:
    """The problems that share no 13 words in a row with an evaluation item and are none of them word for word; and whose the others are."""
    asked = {tuple(item_words(item.text)): item.benchmark for item in items}
    kept, benchmarks = [], set[str]()
    for problem, text in zip(problems, without_wording([problem.prompt for problem in problems]), strict=True):
        same = asked.get(tuple(item_words(text)))
        found = {hit.benchmark for hit in index.hits(text)} | ({same} if same else set())
        if found:
            benchmarks |= found
        else:
            kept.append(problem)
    return kept, benchmarks


def _apart_task(name: str) -> Task:
    task = task_named(name)
    if task.from_templates:
        raise DataError(
            f"{name}: its items are made from templates, and 13 words of one are in many; its own train side is apart, so leave it out"
        )
    return task


def _task_items(name: str, data: Path | None) -> list[EvaluationItem]:
    found = _apart_task(name).load(data)
    texts = without_wording([item.prompt for item in found])
    return [EvaluationItem(benchmark=name, name=item.name, text=text) for item, text in zip(found, texts, strict=True)]
