"""An arm on a task: prompts, parity check, completions, grades, records."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..cost import Meter, ModelShape, answer_flops, read_shape
from ..decoding import Completion, DecodingRule, Engine, check_static, generate, plan_batches, read_chat, score_letters
from ..decoding.batch import check_prompts
from ..decoding.rows import write_script
from ..loops import Loop
from ..models import loops_of
from ..records import Record, Run, RunWriter, read_run, write_json
from ..tasks import Item, Task, permit, task_named, wall_facts
from .defaults import in_task_mode, task_budget_tokens, task_rule, task_samples
from .header import model_facts, run_header
from .parity import Parity, check_parity
from .ranks import Ranks
from .spreading import Spread

Progress = Callable[[float], None]
"""Called with the share of the run that is done, 0 to 1."""
REFILL_BATCHES = 8
"""So many batches are one group, within which rows that end make place for the next. A group that was not finished when a run
was killed is decoded again as a whole, so that an answer's batch mates, and with them its last bits, are the same as without the
kill; of several processes each takes a group. A guess between that work, and the rows that stand idle at the end of a group."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One answer that is to be given."""

    item: Item
    prompt: tuple[int, ...]
    sample: int

    def key(self, task: Task, seed: int) -> tuple[str, str, int, int]:
        return (task.name, self.item.name, seed, self.sample)


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | str,
    *,
    out: str | Path | None = None,
    rule: DecodingRule | None = None,
    budget_tokens: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    data: str | Path | None = None,
    items: Sequence[Item] | None = None,
    batch_size: int = 16,
    fixed_rows: bool = False,
    engine: Engine = "eager",
    arm: str | None = None,
    parity: Parity | None = None,
    allow_code_execution: bool = False,
    ranks: Ranks | None = None,
    progress: Progress | None = None,
) -> Run:
    """Evaluate one arm on one task.

    Which prompts share a group of batches follows from the task, the tokenizer and ``batch_size`` alone, so that twins see the same
    groups; within one, the next prompt takes the place of a row that ended (not with ``fixed_rows``). With ``out`` each answer is on
    the disk as soon as it ends, and the same call goes on after a kill: an unfinished group is decoded again as a whole, and only
    the records that are missing are added.

    Args:
        rule: default plain, at the task's own temperature, mostly greedy; the reserve of budget forcing is the rule's own (see
            `Task.reserve_tokens`). A task that is always asked in thinking mode turns that on.
        budget_tokens: default the task's, that for thinking mode where the rule thinks.
        samples: answers per item, default the task's own number, 1 under greedy decoding; above 1 the rule needs a temperature.
        engine: how steps run; not eager ones keep their shape, see `loopwise.decoding.Engine`. Letters and log-likelihoods run eagerly.
        items: in place of the test items that ``data`` and ``limit`` name, e.g. training problems.
        seed: the replicate: the training seed of a trained pair, and the first part of every sampling key.
        parity: a check of this very model on this task's prompts that was made before; None makes it now.
        allow_code_execution: let a task that grades by it run the code that the model writes; the header says behind which walls.
        ranks: the processes that share the batches out, from `join_ranks`; each calls this alike and checks parity on its own model,
            the first one writes ``out`` and reports progress, and all return the whole run. Without them this process is alone.

    Raises:
        ParityError: cached decoding is not the model that was meant.
        RanksError: processes with different models, settings, versions or devices, or one that failed.
        RecordsError: ``out`` holds another run.
        TaskError, DecodingError: bad input, before anything runs.
    """
    task = permit(task_named(task) if isinstance(task, str) else task, allow_code_execution)
    rule = task_rule(task) if rule is None else in_task_mode(rule, task)
    budget = task_budget_tokens(task, thinking=rule.thinking) if budget_tokens is None else budget_tokens
    rule.check_budget(budget)
    samples = task_samples(task, rule) if samples is None else samples
    if samples < 1 or (samples > 1 and rule.greedy):
        raise ValueError(
            f"samples={samples} at temperature {rule.temperature:g}: greedy samples are all the same; give a temperature, or 1"
        )
    items = task.load(None if data is None else Path(data), limit) if items is None else tuple(items)
    if not items:
        raise ValueError(f"no items of {task.name} to evaluate on; give at least one")
    if task.kind == "log-likelihood":
        from .log_likelihood import LikelihoodWay, evaluate_log_likelihood, refuse_decoding  # which imports this module

        refuse_decoding(task, rule, samples, ranks)
        where = None if out is None else Path(out)
        way = LikelihoodWay(out=where, seed=seed, batch_size=batch_size, budget_tokens=budget, arm=arm, progress=progress)
        return evaluate_log_likelihood(model, tokenizer, task, items, way, parity)
    chat = read_chat(model, tokenizer)
    if task.thinking and (chat.template is None or chat.thinking is None):
        raise ValueError(
            f"{task.name} is asked in thinking mode, and this model's chat template has none; take a task without, or another model"
        )
    items = [item.asked(in_chat=chat.template is not None) for item in items]
    prompts = [chat.encode(item.prompt, thinking=rule.thinking) for item in items]
    plan_batches([len(prompt) for prompt in prompts], batch_size)
    if task.kind != "letters":  # what `generate` refuses is refused here, before there is a run in the folder
        write_script(rule, chat, budget, task.answer_opener)
        check_prompts(model, prompts, budget)
        if engine != "eager":
            check_static(model)
    parity = parity or check_parity(model, prompts)
    walls = {"code_execution": wall_facts()} if task.executes_code else {}
    header = run_header(
        model_facts(model) | {"chat_template": chat.template is not None} | walls,
        arm=arm or f"{'looped' if loops_of(model) else 'unlooped'} {rule.name} {budget}",
        task=task,
        num_items=len(items),
        items_hash=_hash_items(items, prompts),
        rule=rule,
        budget_tokens=budget,
        samples=samples,
        seed=seed,
        batch_size=batch_size,
        fixed_rows=fixed_rows,
        engine=engine,
        parity=parity_json(parity),
    )
    rows = [_Row(item, prompt, sample) for item, prompt in zip(items, prompts, strict=True) for sample in range(samples)]
    answering = _Answering(model, tokenizer, task, rule, budget, seed, _Batching(batch_size, fixed_rows, engine))
    spread = Spread(ranks or Ranks())
    spread.agree(header)
    if not spread.first:
        answering.run(rows, set(), lambda records: None, None, spread)
        return spread.whole_run()
    if out is None:
        kept: list[Record] = []
        answering.run(rows, set(), kept.extend, progress, spread)
        return spread.hand_out(Run(header, _in_order(kept), "memory"))
    with RunWriter(out, header) as writer, Meter(str(model.device)) as meter:
        answering.run(rows, {record.key for record in writer.done}, writer.append, progress, spread)
        header = writer.header
    _keep_meter(Path(out), meter, len(rows) - len(writer.done), spread.ranks.size)
    return spread.hand_out(Run(header, _in_order(read_run(out).records), str(out)))


@dataclass(frozen=True, slots=True)
class _Batching:
    """How rows are decoded together."""

    batch_size: int
    fixed_rows: bool
    engine: Engine

    @property
    def group_size(self) -> int:
        """Rows that are decoded by one call."""
        return self.batch_size if self.fixed_rows else REFILL_BATCHES * self.batch_size


class _Answering:
    """Answers rows batch by batch and hands their records on."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: Task,
        rule: DecodingRule,
        budget_tokens: int,
        seed: int,
        batching: _Batching,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.rule = rule
        self.budget_tokens = budget_tokens
        self.seed = seed
        self.batching = batching
        self.longest_prompt_tokens = 0
        self.chat = read_chat(model, tokenizer)
        self.shape: ModelShape = read_shape(model.config.to_dict())
        self.loops: tuple[Loop, ...] = loops_of(model)

    def run(
        self,
        rows: Sequence[_Row],
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

        answer = self.letters if self.task.kind == "letters" else self.completions
        for number in spread.batches(pending, add, progress):
            answer([rows[i] for i in plan[number]], spread.keep, spread.report)

    def completions(self, batch: Sequence[_Row], add: Callable[[Record], None], report: Progress) -> None:
        """One group of completions, each graded and written as it ends."""
        generate(
            self.model,
            self.tokenizer,
            [row.item.prompt for row in batch],
            keys=[(self.seed, _stable_int(row.item.name), row.sample) for row in batch],
            budget_tokens=self.budget_tokens,
            rule=self.rule,
            batch_size=self.batching.batch_size,
            answer_opener=self.task.answer_opener,
            fixed_rows=self.batching.fixed_rows,
            engine=self.batching.engine,
            longest_prompt_tokens=self.longest_prompt_tokens,
            on_complete=lambda index, completion: add(self.graded(batch[index], completion)),
            progress=lambda state: report(state.share),
        )

    def graded(self, row: _Row, completion: Completion) -> Record:
        # A template that opens the thinking in the prompt leaves no opening tag in the answer.
        opened = (
            self.chat.thinking.opening
            if self.chat.thinking and self.chat.starts_in_thinking(row.item.prompt, thinking=self.rule.thinking)
            else ""
        )
        grade = self.task.grade(row.item, opened + completion.text)
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

    def letters(self, batch: Sequence[_Row], add: Callable[[Record], None], report: Progress) -> None:
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

    def record(self, row: _Row, *, extra: dict[str, Any] | None = None, **fields: Any) -> Record:
        labels = {name: row.item.extra[name] for name in ("subtask",) if name in row.item.extra}
        flops = answer_flops(self.shape, self.loops, prompt_tokens=len(row.prompt), generated_tokens=fields["generated_tokens"])
        return Record(
            task=self.task.name,
            item=row.item.name,
            seed=self.seed,
            sample=row.sample,
            gold=row.item.gold,
            prompt_tokens=len(row.prompt),
            flops=flops,
            extra=labels | (extra or {}),
            **fields,
        )


def _kept_text(task: Task, text: str) -> dict[str, Any]:
    """What a record keeps of an answer: its text, or where that may not come to the disk, what tells equal texts from others."""
    if not task.private:
        return {"text": text}
    return {"text": None, "extra": {"text_sha256": hashlib.sha256(text.encode()).hexdigest(), "text_characters": len(text)}}


def _keep_meter(out: Path, meter: Meter, num_answers: int, num_ranks: int) -> None:
    """What this process took, beside the run; a run that was killed keeps the figures of the process that finished it.

    Of several processes these are the first one's, and ``num_answers`` are those of all.
    """
    if num_answers:
        figures = {"seconds": meter.seconds, "peak_bytes": meter.peak_bytes, "memory": meter.memory, "num_answers": num_answers}
        figures |= {"ranks": num_ranks} if num_ranks > 1 else {}
        write_json(out / "meter.json", figures)


def parity_json(parity: Parity) -> dict[str, Any]:
    """The check as a run's header keeps it."""
    compared = "cached greedy decoding against full recompute, left-padded batch"
    return {"compared": compared, **asdict(parity), "prompt_tokens": list(parity.prompt_tokens), "ok": parity.ok}


def _hash_items(items: Sequence[Item], prompts: Sequence[Sequence[int]]) -> str:
    """What was asked, token by token, and what counts as right."""
    asked = [[item.name, item.gold, list(prompt)] for item, prompt in zip(items, prompts, strict=True)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def _stable_int(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _in_order(records: Sequence[Record]) -> tuple[Record, ...]:
    return tuple(sorted(records, key=lambda record: record.key))
