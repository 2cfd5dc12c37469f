"""What a set reads beside model and traces, checked before it trains: evaluation items to keep apart from, and training problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..tasks.rows import data_path
from ..training import LoraGrpo, Problems, TrainingError
from ..training.grpo import check_before, check_stage
from .evaluation_items import NONE, check_specs, evaluation_items, is_file
from .learning_data import LearningData
from .learning_problems import problem_tasks, training_problems
from .learning_set import SetPlan


def check_inputs(plan: SetPlan, note: Callable[[str], None] = lambda text: None) -> Problems | None:
    """Check all that a set will read, before its folder is made.

    Returns:
        the training problems of a recipe with reinforcement learning; None of any other.

    Raises:
        TrainingError, TaskError, DataError: as `check_estimate`, `training_problems` and `check_before`.
    """
    check_estimate(plan)
    chosen = plan.chosen
    if not isinstance(chosen.settings, LoraGrpo):
        return None
    found = training_problems(chosen.settings.grpo.problems, against=chosen.data.against, data=chosen.data.items, note=note)
    check_before(plan.source.folder, found, chosen.settings, chosen.execution)
    return found


def check_estimate(plan: SetPlan) -> None:
    """Check what can be checked without the hub and without this machine's devices, so that no estimate is of a set that cannot run.

    Raises:
        TrainingError: items that nothing reads; as `problem_tasks` and `check_stage`.
        TaskError, DataError: no such task, or items that are not there.
    """
    data, settings = plan.chosen.data, plan.chosen.settings
    tasks = problem_tasks(settings.grpo.problems) if isinstance(settings, LoraGrpo) else ()
    asks_items = any(not task.from_templates for task in tasks)
    if data.kind == "sources" or asks_items:
        _check_items(data)
    if data.items is not None and not asks_items and not _reads_items(data):
        raise TrainingError(f"--items {data.items} is where tasks' items are, and nothing here reads any; leave it out")
    if isinstance(settings, LoraGrpo):
        check_stage(plan.source.folder, settings, plan.chosen.execution)


def _check_items(data: LearningData) -> None:
    place: Path | None = data_path(data.items)
    if data.items is not None and not data.items.exists():
        raise TrainingError(f"--items {data.items}: no such file or folder; give where the tasks' items are, or leave it out for the hub")
    check_specs(data.against)
    if place is not None:
        evaluation_items(data.against, data=data.items)


def _reads_items(data: LearningData) -> bool:
    """Whether traces are kept apart from a task's items."""
    return data.kind == "sources" and data.against != (NONE,) and (not data.against or not all(map(is_file, data.against)))
