"""What a task is made of: items, grades, and the value that ties prompt, budget and grading together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from .answers import answer_part

Message = Mapping[str, str]
"""One message of a conversation: its ``role``, user or assistant, and its ``content``."""

Kind = Literal["generate", "letters", "log-likelihood"]


class TaskError(ValueError):
    """A task that cannot be had: the message names the task or file, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a task."""

    name: str
    """Unique within the task, equal on every machine."""
    prompt: str
    """The text of the one user turn, instruction included."""
    completion: str | None = None
    """What a model without a chat template is given to go on with; None where it is given the prompt."""
    gold: str
    """The right answer: a number, LaTeX, or an option's letter."""
    choices: tuple[str, ...] | None = None
    """The option texts in the order of their letters; None for a task that generates, and for one that scores a single continuation."""
    requests: tuple[tuple[str, str], ...] = ()
    """Of a log-likelihood task: for each option the context and the continuation whose log-likelihood is its score."""
    conversation: Mapping[str, Any] | None = None
    """Of a conversation: what it goes on with after ``prompt``, in plain JSON; None for one answer."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the source says of it: level, subject, rung."""

    def asked(self, *, in_chat: bool) -> Item:
        """This item as it is asked: without a chat template its completion is the prompt, where it has one."""
        return self if in_chat or self.completion is None else replace(self, prompt=self.completion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What a grader says of one answer."""

    correct: bool
    answer: str | None
    """The answer that was found in the text; None when there is none."""
    rule: str
    """The rule that decided, one of `grading.RULES`."""


class Conversation(Protocol):
    """A conversation under way between a model and a task. Everything in it follows from the item and the answers alone, so that it
    can be held again to the same end."""

    messages: list[Message]
    """All so far, the last one the user's while it is not over."""
    over: bool

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1, for people who wait."""

    def reply(self, text: str, *, forced: bool = False) -> None:
        """Take the model's whole answer, thinking included, to the last message: one more message of the user's, or the end.
        ``forced``: budget forcing inserted the task's ``answer_opener`` in it.
        """

    def grade(self) -> Grade:
        """Who is right; also for a conversation that is broken off before it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark: where its items come from, how it asks, how long a model may answer, and who is right."""

    name: str
    version: str
    """Rises with every change to items, prompt or grading that is released: runs of two versions are not compared."""
    kind: Kind
    """``generate``: the model writes and `grade` reads. ``letters``: the highest next-token logit among the option letters.
    ``log-likelihood``: the option whose continuation is most likely, as `scorer` compares them."""
    budget_tokens: int
    """The token budget without thinking; 1 for letters and log-likelihoods."""
    reserve_tokens: int
    """How many tokens before the budget budget forcing closes the thinking or opens the answer; 0 for letters."""
    thinking_budget_tokens: int | None = None
    """The token budget in thinking mode; None where the task names none."""
    answer_opener: str
    """What budget forcing inserts to open the final answer of a model without thinking tags, or what stands before the letter."""
    forced_cut: str | None = None
    """Where budget forcing inserted ``answer_opener``, the answer begins after the last of this text; None where all is read either way."""
    splits: tuple[str, ...] = ("test",)
    samples: int = 1
    """Answers per item where nobody asks for another number, averaged per item; the same in both arms of a pair."""
    temperature: float = 0.0
    """Of the decoding where nobody asks for another one; 0 is greedy."""
    thinking: bool = False
    """Whether the task is always asked in the chat template's thinking mode."""
    private: bool = False
    """Whether nothing of its items or of what is written about them may come to the disk in plain text: records hold the answers'
    lengths and hashes."""
    from_templates: bool = False
    """Whether different items share wording by design, so that a few words in common do not make one item another."""
    executes_code: bool = False
    """Whether grading runs what a model wrote."""
    code_allowed: bool = False
    """Whether it may: `sandbox.permit` says so, for whoever asked for it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a run's header says of it beside its name: shots, metric."""
    scorer: Callable[[Item, Sequence[tuple[float, bool]]], Grade] | None = field(default=None, repr=False)
    """Of a log-likelihood task: who is right, from each request's log-likelihood in nats and whether greedy decoding would write it."""
    begin: Callable[[Item], Conversation] | None = field(default=None, repr=False)
    """Of a task whose items are conversations: begins one. Its budget is that of every answer in it."""
    loader: Callable[[Path | None, int | None, str], tuple[Item, ...]] = field(repr=False)
    """Takes the checked arguments of `load`."""
    grader: Callable[[Item, str], Grade] = field(repr=False)

    def __post_init__(self) -> None:
        if self.samples < 1 or not self.temperature >= 0 or (self.samples > 1 and not self.temperature > 0):
            raise TaskError(
                f"task {self.name}: {self.samples} samples at temperature {self.temperature:g}; "
                "give at least 1 sample, and a temperature above 0 for several"
            )
        if (self.kind == "log-likelihood") != (self.scorer is not None):
            raise TaskError(f"task {self.name}: is of the kind {self.kind}; a scorer is for log-likelihood tasks, and they need one")
        if self.begin is not None and (self.kind != "generate" or self.private or self.executes_code):
            raise TaskError(f"task {self.name}: is of the kind {self.kind}; only what is generated, in the open, can be a conversation")

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

    def grade(self, item: Item, text: str, *, forced: bool = False) -> Grade:
        """Judge a whole answer text, thinking included; ``forced``: budget forcing inserted the task's ``answer_opener`` in it.

        A chat template that opens the thinking inside the prompt leaves no opening tag in the answer: put it back in front of
        ``text``, or an unfinished thought would be read as the answer.

        Raises:
            TaskError: that would run what a model wrote, and has not been allowed.
        """
        if self.executes_code and not self.code_allowed:
            raise TaskError(self.refusal())
        if forced and self.forced_cut is not None:
            part = answer_part(text)  # an opener inside a thought that never ended opens nothing
            text = text if part is None else part.rpartition(self.forced_cut)[2]
        return self.grader(item, text)

    def refusal(self) -> str:
        """Why a task that runs what a model wrote is not run, and how it is."""
        return (
            f"task {self.name} runs the code that a model writes; give --allow-code-execution (in Python allow_code_execution=True) "
            "if it may, behind the walls of docs/code-execution.md"
        )
