"""What a task decides where nobody else does: its decoding, its budget, how often an item is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..decoding import DecodingRule
from ..tasks import Task


def task_rule(task: Task, *, temperature: float | None = None, thinking: bool = False, **settings: Any) -> DecodingRule:
    """A decoding rule with the task's own temperature where none is given, and thinking where the task always thinks.

    Args:
        settings: further fields of `DecodingRule`.

    Raises:
        DecodingError: as `DecodingRule`.
    """
    return in_task_mode(
        DecodingRule(temperature=task.temperature if temperature is None else temperature, thinking=thinking, **settings), task
    )


def in_task_mode(rule: DecodingRule, task: Task) -> DecodingRule:
    """The rule, in thinking mode where the task is never asked without."""
    return replace(rule, thinking=True) if task.thinking else rule


def task_budget_tokens(task: Task, *, thinking: bool) -> int:
    """The task's token budget, that for thinking mode where it names one."""
    return (task.thinking_budget_tokens if thinking or task.thinking else None) or task.budget_tokens


def task_samples(task: Task, rule: DecodingRule) -> int:
    """Answers per item: the task's own number, and one under greedy decoding, where all would be alike."""
    return 1 if rule.greedy else task.samples


def own_decoding(task: Task) -> dict[str, Any]:
    """The settings that follow from the task alone, as a run's header keeps them: runs of several tasks that all have their own
    settings are one arm."""
    return {"temperature": task.temperature, "thinking": task.thinking, "samples": task.samples}
