"""Conversations between a model and a task: a group advances together, one answer a round for each that is not over.

Every round asks each conversation from its beginning, so its tokens and FLOPs are those of all prompts and answers. The own engine keeps
no cache from one round to the next; vLLM does, in its prefix cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..decoding import Completion
from ..decoding.batch import num_positions
from ..records import Record
from ..tasks import Conversation, Task, TaskError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .answering import Answering, Row

BROKEN_OFF = "context"
"""The stop reason of a conversation whose next prompt and budget need more positions than the model has."""


@dataclass(slots=True, eq=False)
class Held:
    """A conversation with an arm, and what it has taken so far."""

    row: Row
    conversation: Conversation
    prompt: tuple[int, ...]
    """The tokens that are asked next."""
    answers: list[Completion] = field(default_factory=list)
    flops: float = 0.0
    too_long: bool = False

    @property
    def ended(self) -> bool:
        return self.conversation.over or self.too_long


def check_conversations(task: Task, engine: str) -> None:
    """Refuse an engine that cannot hold conversations, before anything runs.

    Raises:
        TaskError: an engine of fixed shapes.
    """
    if task.begin is not None and engine not in ("eager", "vllm"):
        raise TaskError(f"engine {engine!r} is set up for prompts known beforehand, and those of {task.name} grow; use eager or vllm")


def longest_tokens(task: Task, model: PreTrainedModel, prompts: Sequence[Sequence[int]], budget_tokens: int) -> int:
    """Tokens of the longest sequence, prompt and answer, that a task may ask for; of conversations all that the model has positions for.

    Raises:
        TaskError: conversations with a model that names no number of positions.
    """
    if task.begin is None:
        return max(map(len, prompts)) + budget_tokens
    if (positions := num_positions(model)) is None:
        raise TaskError(
            f"{task.name}: its conversations grow, and {type(model).__name__} names no number of positions to start vLLM for; use eager"
        )
    return positions


def hold(answering: Answering, batch: Sequence[Row], add: Callable[[Record], None], report: Callable[[float], None]) -> None:
    """Hold one group's conversations to their ends; each is handed on as a record when it is over.

    The draws of an answer are named by (seed, item, sample, round), so that none depends on which conversations share its batch.
    """
    begin = answering.task.begin
    assert begin is not None
    held = [Held(row, begin(row.item), row.prompt) for row in batch]
    positions = num_positions(answering.model)

    def take(asked: Sequence[Held], index: int, completion: Completion) -> None:
        one = asked[index]
        one.answers.append(completion)
        one.flops += answering.flops(completion.prompt_tokens, completion.generated_tokens)
        one.conversation.reply(answering.whole_text(one.prompt, completion), forced=answering.opened(completion))
        if not one.conversation.over:
            one.prompt = answering.chat.encode_messages(one.conversation.messages, thinking=answering.rule.thinking)
            one.too_long = positions is not None and len(one.prompt) + answering.budget_tokens > positions
        if one.ended:
            add(_record(answering, one))

    while running := [one for one in held if not one.ended]:
        answering.generate(
            [one.prompt for one in running],
            [(*answering.key(one.row), len(one.answers)) for one in running],
            partial(take, running),
            lambda share: report(sum(1.0 if one.ended else one.conversation.share for one in held) / len(held)),
        )


def _record(answering: Answering, one: Held) -> Record:
    """One line for a whole conversation; its text is the messages after the first as JSON."""
    grade = one.conversation.grade()
    unfinished = next((answer for answer in one.answers if not answer.finished), None)
    forced = any(answer.stop_reason == "forced" for answer in one.answers)
    stop = BROKEN_OFF if one.too_long else unfinished.stop_reason if unfinished else "forced" if forced else "end"
    rounds: list[dict[str, Any]] = [
        {"prompt_tokens": answer.prompt_tokens, "generated_tokens": answer.generated_tokens, "stop_reason": answer.stop_reason}
        for answer in one.answers
    ]
    return answering.record(
        one.row,
        correct=grade.correct,
        answer=grade.answer,
        rule=grade.rule,
        finished=unfinished is None and one.conversation.over,
        stop_reason=stop,
        prompt_tokens=sum(answer.prompt_tokens for answer in one.answers),
        generated_tokens=sum(answer.generated_tokens for answer in one.answers),
        forced_tokens=sum(answer.forced_tokens for answer in one.answers),
        flops=one.flops,
        seconds=sum(answer.seconds for answer in one.answers),
        text=json.dumps(one.conversation.messages[1:], ensure_ascii=False),
        extra={"rounds": rounds},
    )
