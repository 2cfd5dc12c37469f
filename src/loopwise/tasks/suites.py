"""Suites: the benchmarks of a table of a paper under one name, in its shots and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteTask:
    """One benchmark of a suite."""

    task: str
    """As `task_named` takes it."""
    guessed: str = ""
    """What of it the paper does not say; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Benchmarks that a paper reports together."""

    source: str
    """The paper and its tables."""
    tasks: tuple[SuiteTask, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Its tasks."""
        return tuple(one.task for one in self.tasks)


def _tasks(*names: str, guessed: str = "") -> tuple[SuiteTask, ...]:
    return tuple(SuiteTask(task=name, guessed=guessed) for name in names)


_CUT = "shots: 0, because Table 13 is cut before them; its caption speaks of chain-of-thought demonstrations"
_METRIC = "the metric, that of ARLoop, Table 8, and which LAMBADA"

SUITES: dict[str, Suite] = {
    "arloop-controlled": Suite(
        source="ARLoop, Tables 6 and 8",
        tasks=_tasks(
            "lm-eval:arc_challenge",
            "lm-eval:arc_easy",
            "lm-eval:hellaswag",
            "lm-eval:lambada_openai",
            "lm-eval:lambada_standard",
            "lm-eval:openbookqa",
            "lm-eval:piqa",
            "lm-eval:race",
            "lm-eval:sciq",
            "lm-eval:winogrande",
        ),
    ),
    "arloop-large": Suite(
        source="ARLoop, Tables 3 and 13",
        tasks=(
            *_tasks("lm-eval:arc_challenge@25:acc_norm", "lm-eval:hellaswag@10", "lm-eval:winogrande@5", "lm-eval:openbookqa"),
            *_tasks("gsm8k", "math", "mbpp", "humaneval", guessed=_CUT),
        ),
    ),
    "free-loop": Suite(
        source="no-free-loop, Table 2, appendices A.4 and D",
        tasks=_tasks(
            "gsm8k",
            "math500",
            "aime24",
            "aime25",
            "gpqa_diamond",
            "mmlu_pro",
            "arc_challenge",
            "commonsense_qa",
            "bbh",
            "bfcl_v3",
        ),
    ),
    "free-loop-scratch": Suite(
        source="no-free-loop, Table 6 and appendix C.4",
        tasks=_tasks("lm-eval:hellaswag", "lm-eval:arc_easy", "lm-eval:arc_challenge", "lm-eval:lambada_openai", guessed=_METRIC),
    ),
}
"""Every suite by its name."""


def spread(names: Sequence[str]) -> tuple[str, ...]:
    """Names of tasks, with each suite's in its place."""
    return tuple(one for name in names for one in (SUITES[name].names if name in SUITES else (name,)))
