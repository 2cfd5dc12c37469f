"""Answers of one arm to a task's items, group by group: completions or letters, graded into records as they end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..cost import ModelShape, answer_flops, read_shape
from ..decoding import Completion, DecodingRule, generate, plan_batches, read_chat, score_letters
from ..loops import Loop
from ..models import loops_of
from ..records import Record
from ..serving import VllmEngine
from ..serving import generate as generate_with_vllm
from ..tasks import Item, Task
from .conversations import hold
from .engines import EvaluationEngine
from .spreading import Spread

Progress = Callable[[float], None]
"""Called with the share of the run that is done, 0 to 1."""
REFILL_BATCHES = 8
"""So many batches are one group, within which rows that end make place for the next. A group that was not finished when a run
was killed is decoded again as a whole, so that an answer's batch mates, and with them its last bits, are the same as without the
kill; of several processes each takes a group. A guess between that work, and the rows that stand idle at the end of a group."""


@dataclass(frozen=True, slots=True)
class Row:
    """One answer that is to be given."""

    item: Item
    prompt: tuple[int, ...]
    sample: int

    def key(self, task: Task, seed: int) -> tuple[str, str, int, int]:
        return (task.name, self.item.name, seed, self.sample)


@dataclass(frozen=True, slots=True)
class Batching:
    """How rows are decoded together."""

    batch_size: int
    fixed_rows: bool
    engine: EvaluationEngine

    @property
    def group_size(self) -> int:
        """Rows that are decoded by one call."""
        return self.batch_size if self.fixed_rows else REFILL_BATCHES * self.batch_size


class Answering:
    """Answers rows batch by batch and hands their records on."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        rule: DecodingRule,
        budget_tokens: int,
        seed: int,
        batching: Batching,
        vllm: VllmEngine | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.rule = rule
        self.budget_tokens = budget_tokens
        self.seed = seed
        self.batching = batching
        self.vllm = vllm
        self.longest_prompt_tokens = 0
        self.chat = read_chat(model, tokenizer)
        self.shape: ModelShape = read_shape(model.config.to_dict())
        self.loops: tuple[Loop, ...] = loops_of(model)

    def run(
        self,
        rows: Sequence[Row],
        done: set[tuple[str, str, int, int]],
        write: Callable[[list[Record]], None],
        progress: Progress | None,
        spread: Spread,
    ) -> None:
        """Every group that lacks a record, or this process's part of them; the groups are those of the whole run, whatever is done
        already and however many processes there are."""
        keys = [row.key(self.task, self.seed) for row in rows]
        lengths = [len(row.prompt) for row in rows]
        self.longest_prompt_tokens = max(lengths)
        plan = plan_batches(lengths, self.batching.batch_size if self.task.kind == "letters" else self.batching.group_size)
        pending = [number for number, batch in enumerate(plan) if not done.issuperset(keys[i] for i in batch)]

        def add(record: Record) -> None:
            if record.key not in done:
                write([record])

        answer = self.letters if self.task.kind == "letters" else self.completions if self.task.begin is None else partial(hold, self)
        for number in spread.batches(pending, add, progress):
            answer([rows[i] for i in plan[number]], spread.keep, spread.report)

    def completions(self, batch: Sequence[Row], add: Callable[[Record], None], report: Progress) -> None:
        """One group of completions, each graded and written as it ends."""
        self.generate(
            [row.item.prompt for row in batch],
            [self.key(row) for row in batch],
            lambda index, completion: add(self.graded(batch[index], completion)),
            report,
        )

    def key(self, row: Row) -> tuple[int, ...]:
        """What names an answer's draws."""
        return (self.seed, _stable_int(row.item.name), row.sample)

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        keys: Sequence[Sequence[int]],
        on_complete: Callable[[int, Completion], None],
        report: Progress,
    ) -> None:
        """Complete prompts under the arm's rule and budget, by the engine that was chosen."""
        asked: dict[str, Any] = {
            "keys": keys,
            "budget_tokens": self.budget_tokens,
            "rule": self.rule,
            "batch_size": self.batching.batch_size,
            "answer_opener": self.task.answer_opener,
            "on_complete": on_complete,
            "progress": lambda state: report(state.share),
        }
        if self.batching.engine == "vllm":
            assert self.vllm is not None  # it was started, an answer being missing
            generate_with_vllm(self.vllm, self.tokenizer, prompts, **asked)
            return
        generate(
            self.model,
            self.tokenizer,
            prompts,
            fixed_rows=self.batching.fixed_rows,
            engine=self.batching.engine,
            longest_prompt_tokens=self.longest_prompt_tokens,
            **asked,
        )

    def graded(self, row: Row, completion: Completion) -> Record:
        grade = self.task.grade(row.item, self.whole_text(row.item.prompt, completion), forced=self.opened(completion))
        return self.record(
            row,
            correct=grade.correct,
            answer=grade.answer,
            rule=grade.rule,
            finished=completion.finished,
            stop_reason=completion.stop_reason,
            generated_tokens=completion.generated_tokens,
            forced_tokens=completion.forced_tokens,
            seconds=completion.seconds,
            **_kept_text(self.task, completion.text),
        )

    def whole_text(self, prompt: str | Sequence[int], completion: Completion) -> str:
        """An answer as graders read it: a template that opens the thinking in the prompt leaves no opening tag in the answer."""
        thinking = self.chat.thinking
        opened = thinking is not None and self.chat.starts_in_thinking(prompt, thinking=self.rule.thinking)
        return (thinking.opening if thinking and opened else "") + completion.text

    def opened(self, completion: Completion) -> bool:
        """Whether budget forcing opened the answer, and did not close the thinking."""
        forced = [token for token, is_forced in zip(completion.token_ids, completion.forced_mask, strict=True) if is_forced]
        return bool(forced) and tuple(forced) == self.chat.continuation(self.task.answer_opener)[: len(forced)]

    def letters(self, batch: Sequence[Row], add: Callable[[Record], None], report: Progress) -> None:
        """One batch of multiple-choice items: the highest next-token logit among the option letters."""
        started = time.perf_counter()
        letters = [[chr(ord("A") + i) for i in range(len(row.item.choices or ()))] for row in batch]
        choices = score_letters(
            self.model, self.tokenizer, [row.item.prompt for row in batch], letters, answer_opener=self.task.answer_opener
        )
        seconds = (time.perf_counter() - started) / len(batch)
        for row, choice in zip(batch, choices, strict=True):
            add(
                self.record(
                    row,
                    correct=choice.letter == row.item.gold,
                    answer=choice.letter,
                    rule="letter",
                    extra={"tied_options": choice.num_tied},
                    finished=True,
                    stop_reason="letter",
                    generated_tokens=1,
                    forced_tokens=0,
                    seconds=seconds,
                    text=None,
                )
            )

    def record(self, row: Row, *, extra: dict[str, Any] | None = None, **fields: Any) -> Record:
        """A record with what all have in common; of one answer to the row's prompt unless ``fields`` say otherwise."""
        labels = {name: row.item.extra[name] for name in ("subtask",) if name in row.item.extra}
        common = {"prompt_tokens": len(row.prompt), "flops": self.flops(len(row.prompt), fields["generated_tokens"])}
        return Record(
            task=self.task.name,
            item=row.item.name,
            seed=self.seed,
            sample=row.sample,
            gold=row.item.gold,
            extra=labels | (extra or {}),
            **(common | fields),
        )

    def flops(self, prompt_tokens: int, generated_tokens: int) -> float:
        """Of one answer, its prompt included."""
        return answer_flops(self.shape, self.loops, prompt_tokens=prompt_tokens, generated_tokens=generated_tokens)


def _kept_text(task: Task, text: str) -> dict[str, Any]:
    """What a record keeps of an answer: its text, or where that may not come to the disk, what tells equal texts from others."""
    if not task.private:
        return {"text": text}
    return {"text": None, "extra": {"text_sha256": hashlib.sha256(text.encode()).hexdigest(), "text_characters": len(text)}}


def _stable_int(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
