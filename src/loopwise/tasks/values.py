"""What a task is made of: items, grades, and the value that ties prompt, budget and grading together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["generate", "letters"]


class TaskError(ValueError):
    """A task that cannot be had: the message names the task or file, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a task."""

    name: str
    """Unique within the task, equal on every machine."""
    prompt: str
    """The text of the one user turn, instruction included."""
    gold: str
    """The right answer: a number, LaTeX, or an option's letter."""
    choices: tuple[str, ...] | None = None
    """The option texts in the order of their letters; None for a task that generates."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the source says of it: level, subject, rung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What a grader says of one answer."""

    correct: bool
    answer: str | None
    """The answer that was found in the text; None when there is none."""
    rule: str
    """The rule that decided, one of `grading.RULES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark: where its items come from, how it asks, how long a model may answer, and who is right."""

    name: str
    version: str
    """Rises with every change to items, prompt or grading: runs of two versions are not compared."""
    kind: Kind
    """``generate``: the model writes and `grade` reads. ``letters``: the highest next-token logit among the option letters."""
    budget_tokens: int
    """The token budget without thinking; 1 for letters."""
    reserve_tokens: int
    """How many tokens before the budget budget forcing closes the thinking or opens the answer; 0 for letters."""
    thinking_budget_tokens: int | None = None
    """The token budget in thinking mode; None where the task names none."""
    answer_opener: str
    """What budget forcing inserts to open the final answer of a model without thinking tags, or what stands before the letter."""
    splits: tuple[str, ...] = ("test",)
    from_templates: bool = False
    """Whether different items share wording by design, so that a few words in common do not make one item another."""
    loader: Callable[[Path | None, int | None, str], tuple[Item, ...]] = field(repr=False)
    """Takes the checked arguments of `load`."""
    grader: Callable[[Item, str], Grade] = field(repr=False)

    def load(self, data: Path | str | None = None, limit: int | None = None, split: str = "test") -> tuple[Item, ...]:
        """The first ``limit`` items of a split, all without a limit.

        ``data`` is a local JSONL file or a folder of them (see `rows.read_rows`); without one ``LOOPWISE_DATA``, then the hub.

        Raises:
            TaskError: no such split, no data, or a damaged row.
        """
        if split not in self.splits:
            raise TaskError(f"task {self.name} has no split {split!r}; its splits are {', '.join(self.splits)}")
        if limit is not None and limit < 1:
            raise TaskError(f"limit is {limit}; give at least 1 item, or none for all")
        return self.loader(None if data is None else Path(data), limit, split)

    def grade(self, item: Item, text: str) -> Grade:
        """Judge a whole answer text, thinking included.

        A chat template that opens the thinking inside the prompt leaves no opening tag in the answer: put it back in front of
        ``text``, or an unfinished thought would be read as the answer.
        """
        return self.grader(item, text)
