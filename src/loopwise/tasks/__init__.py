"""Benchmarks: items, prompts, budgets and grading. No torch; math-verify lives in a child process.

A task is added by writing its file and one line in `TASKS`.
"""

from collections.abc import Sequence

from .aime import AIME24, AIME25
from .arc_challenge import ARC_CHALLENGE
from .bbh import BBH, SUBTASKS, bbh_of
from .bfcl import BFCL, bfcl_of
from .bfcl_turns import TURN_RULES
from .code_answers import CODE_RULES
from .commonsense_qa import COMMONSENSE_QA
from .gpqa import GPQA_DIAMOND
from .grading import RULES
from .gsm8k import GSM8K, GSM8K_THINKING
from .humaneval import HUMANEVAL
from .ladder import LADDER, ladder_of
from .lm_eval_items import quiet_lm_eval
from .log_likelihood import LIKELIHOODS, likelihood_notes, lm_eval_of
from .math500 import MATH500
from .math_full import MATH
from .mbpp import MBPP
from .mmlu_pro import MMLU_PRO
from .problems import worked_text
from .sandbox import SandboxError, permit, wall_facts
from .suites import SUITES, Suite, SuiteTask, spread
from .values import Conversation, Grade, Item, Kind, Message, Task, TaskError

TASKS: dict[str, Task] = {
    "ladder": LADDER,
    "gsm8k": GSM8K,
    "gsm8k_thinking": GSM8K_THINKING,
    "math500": MATH500,
    "math": MATH,
    "aime24": AIME24,
    "aime25": AIME25,
    "gpqa_diamond": GPQA_DIAMOND,
    "bbh": BBH,
    "bfcl_v3": BFCL,
    "humaneval": HUMANEVAL,
    "mbpp": MBPP,
    "arc_challenge": ARC_CHALLENGE,
    "commonsense_qa": COMMONSENSE_QA,
    "mmlu_pro": MMLU_PRO,
}
"""Every task by its name."""

PARTS = {"ladder": ladder_of, "bbh": bbh_of, "bfcl_v3": bfcl_of, "lm-eval": lm_eval_of}
"""Tasks of which parts can be chosen behind a colon; behind ``lm-eval:`` stands one of lm-eval's own, with shots and metric."""


def task_named(name: str) -> Task:
    """A task of `TASKS`, or chosen parts of one, as in ``ladder:2-4``, ``bbh:snarks`` or ``bfcl_v3:simple,parallel``; or one of
    lm-eval's, as in ``lm-eval:arc_challenge@25:acc_norm``.

    Raises:
        TaskError: no task has that name.
    """
    if name in TASKS:
        return TASKS[name]
    base, colon, parts = name.partition(":")
    if base in PARTS and colon:
        return PARTS[base](parts)
    if name in SUITES:
        raise TaskError(f"{name} is a suite of {len(SUITES[name].tasks)} tasks; here one is wanted: {', '.join(SUITES[name].names)}")
    parted = "parts are chosen as in ladder:2-4, bbh:snarks, bfcl_v3:simple,parallel or lm-eval:arc_easy"
    raise TaskError(f"no task is named {name!r}; tasks are {', '.join(TASKS)}; {parted}")


def tasks_named(names: Sequence[str]) -> tuple[Task, ...]:
    """Several tasks, a suite's among them; ``bbh:each`` is every subtask as a task of its own, whose mean is the macro mean over them.

    Raises:
        TaskError: as `task_named`.
    """
    each = {"bbh:each": tuple(f"bbh:{subtask}" for subtask in SUBTASKS)}
    return tuple(task_named(one) for name in spread(names) for one in each.get(name, (name,)))


__all__ = [
    "CODE_RULES",
    "LIKELIHOODS",
    "RULES",
    "SUITES",
    "TASKS",
    "TURN_RULES",
    "Conversation",
    "Grade",
    "Item",
    "Kind",
    "Message",
    "SandboxError",
    "Suite",
    "SuiteTask",
    "Task",
    "TaskError",
    "likelihood_notes",
    "permit",
    "quiet_lm_eval",
    "spread",
    "task_named",
    "tasks_named",
    "wall_facts",
    "worked_text",
]
