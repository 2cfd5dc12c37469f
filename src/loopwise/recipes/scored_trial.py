"""What a trial of tasks that are answered by options cannot have: they decode nothing, so budgets, votes and rules would do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol import TrialError
from ..tasks import Task

ANSWERED_BY = {"letters": "letters", "log-likelihood": "log-likelihoods"}
"""Kinds of tasks that score options."""


def only_scored(tasks: Sequence[Task]) -> bool:
    """Whether a twin that may write more tokens would be the same twin again."""
    return all(task.kind in ANSWERED_BY for task in tasks)


def check_scored(tasks: Sequence[Task], *, budgets: Sequence[int], rules: Sequence[str], votes: int, thinking: bool) -> None:
    """Refuse a trial in which settings of decoding would meet tasks that are answered by options.

    Raises:
        TrialError: such a task beside one that writes its answers, or with a setting that is for those.
    """
    scored = next((task for task in tasks if task.kind in ANSWERED_BY), None)
    if scored is None:
        return
    by = f"{scored.name} is answered by {ANSWERED_BY[scored.kind]}"
    if written := next((task.name for task in tasks if task.kind not in ANSWERED_BY), None):
        raise TrialError(
            f"{by} and {written} in words, under budgets of tokens: give them trials of their own, or run evaluate on both and judge the "
            "runs together"
        )
    given = {
        "budgets": budgets,
        "votes": votes,
        "thinking": thinking,
        "the rule repetition-stop": any("repetition-stop" in rule for rule in rules),
        "rules without plain": "plain" not in rules,
    }
    if found := next((name for name, is_given in given.items() if is_given), None):
        raise TrialError(f"{by} and decodes nothing: {found} would do nothing; leave it out")
