"""What a trial of log-likelihood tasks cannot have: they decode nothing, so budgets, votes and rules would do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol import TrialError
from ..tasks import Task


def only_likelihoods(tasks: Sequence[Task]) -> bool:
    """Whether a twin that may write more tokens would be the same twin again."""
    return all(task.kind == "log-likelihood" for task in tasks)


def check_likelihoods(tasks: Sequence[Task], *, budgets: Sequence[int], rules: Sequence[str], votes: int, thinking: bool) -> None:
    """Refuse a trial in which settings of decoding would meet tasks of log-likelihoods.

    Raises:
        TrialError: such a task beside one that writes its answers, or with a setting that is for those.
    """
    scored = next((task.name for task in tasks if task.kind == "log-likelihood"), None)
    if scored is None:
        return
    if written := next((task.name for task in tasks if task.kind == "generate"), None):
        raise TrialError(
            f"{scored} is answered by log-likelihoods and {written} in words, under budgets of tokens: give them trials of their own"
        )
    given = {
        "budgets": budgets,
        "votes": votes,
        "thinking": thinking,
        "the rule repetition-stop": any("repetition-stop" in rule for rule in rules),
        "rules without plain": "plain" not in rules,
    }
    if found := next((name for name, is_given in given.items() if is_given), None):
        raise TrialError(f"{scored} is answered by log-likelihoods and decodes nothing: {found} would do nothing; leave it out")
