"""The texts of evaluation tasks, for training text to be kept apart from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..data import DataError, EvaluationItem, read_items, without_wording
from ..tasks import TaskError, task_named

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
        if spec.endswith((".jsonl", ".jsonl.gz")):
            items += read_items([spec])
            continue
        try:
            items += _task_items(spec, data)
        except TaskError as error:
            missing.append(f"{spec}: {error}")
    if missing and (specs or not items):
        raise DataError(f"traces are kept apart from evaluation items, and some are missing: {missing[0]}; or choose others as --against")
    return tuple(items), tuple(missing)


def _task_items(name: str, data: Path | None) -> list[EvaluationItem]:
    task = task_named(name)
    if task.from_templates:
        raise DataError(
            f"{name}: its items are made from templates, and 13 words of one are in many; its own train side is apart, so leave it out"
        )
    found = task.load(data)
    texts = without_wording([item.prompt for item in found])
    return [EvaluationItem(benchmark=name, name=item.name, text=text) for item, text in zip(found, texts, strict=True)]
