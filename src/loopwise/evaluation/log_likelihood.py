"""An arm on a task of log-likelihoods: lm-eval's requests, the parity check, scores, records."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..cost import Meter, cost_of, read_shape
from ..decoding import DecodingRule
from ..decoding.loop import evaluating
from ..models import loops_of
from ..records import Record, Run, RunWriter, read_run, write_json
from ..tasks import Item, Task, TaskError, likelihood_notes, quiet_lm_eval
from .engines import Check, parity_json
from .header import model_facts, run_header
from .parity import NEW_TOKENS, check_parity
from .ranks import Ranks

if TYPE_CHECKING:
    from .lm_eval_model import LoopedLM, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodWay:
    """How a run of log-likelihoods goes; the fields are those of `evaluate`."""

    out: Path | None
    seed: int
    batch_size: int
    budget_tokens: int
    arm: str | None
    progress: Callable[[float], None] | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """An item and its requests in tokens."""

    item: Item
    rows: tuple[Row, ...]
    num_cut: int
    """Tokens at the front of its requests that the model has no positions for; lm-eval leaves them out."""


def refuse_decoding(task: Task, rule: DecodingRule, samples: int | None, ranks: Ranks | None) -> None:
    """Refuse settings that would do nothing: a task of log-likelihoods decodes nothing, in one process.

    Raises:
        TaskError: a rule that is not plain and greedy, several samples, or several processes.
    """
    if ranks is not None and ranks.size > 1:
        raise TaskError(f"{task.name} is answered by log-likelihoods, which run in one process; start it without torchrun")
    given = {
        "temperature": not rule.greedy,
        "budget forcing": rule.budget_forcing,
        "repetition stop": rule.repetition_stop,
        "thinking": rule.thinking,
        "samples": samples not in (None, 1),
    }
    if found := next((name for name, is_given in given.items() if is_given), None):
        raise TaskError(f"{task.name} is answered by log-likelihoods and decodes nothing: {found} has no meaning; leave it out")


def evaluate_log_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    items: Sequence[Item],
    way: LikelihoodWay,
    parity: Check | None = None,
) -> Run:
    """`evaluate` for a task of log-likelihoods, without a chat template.

    A record is on the disk as soon as the last of its item's requests is scored. After a kill, batches of items that have no
    record yet are read again as wholes, so that every number is that of an undisturbed run.

    Raises:
        As `evaluate`.
    """
    with quiet_lm_eval():
        from .lm_eval_model import LoopedLM

        lm = LoopedLM(model, tokenizer, batch_size=way.batch_size)
        asked = [_asked(lm, item) for item in items]
        check = partial(check_parity, model, _parity_prompts(lm, [one.rows[0][0] for one in asked])) if parity is None else parity
        header = _header(model, task, asked, way)
        there = () if way.out is None else RunWriter.look(way.out, header)
        if not {one.item.name for one in asked} <= {record.item for record in there}:
            header["parity"] = parity_json(check() if callable(check) else check)
        answering = _Answering(lm, task, asked, way)
        if way.out is None:
            kept: list[Record] = []
            answering.run(set(), kept.append)
            return Run(header, _in_order(kept), "memory")
        with RunWriter(way.out, header) as writer, Meter(str(model.device)) as meter:
            answering.run({record.item for record in writer.done}, lambda record: writer.append([record]))
            header = writer.header
    if num_new := len(asked) - len(writer.done):
        figures = {"seconds": meter.seconds, "peak_bytes": meter.peak_bytes, "memory": meter.memory, "num_answers": num_new}
        write_json(way.out / "meter.json", figures)
    return Run(header, _in_order(read_run(way.out).records), str(way.out))


def parity_prompts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, items: Sequence[Item]) -> list[tuple[int, ...]]:
    """Contexts of a log-likelihood task in tokens, for `check_parity`; each leaves room for the tokens that it adds."""
    with quiet_lm_eval():
        from .lm_eval_model import LoopedLM

        lm = LoopedLM(model, tokenizer)
        return _parity_prompts(lm, [lm.encoded(*item.requests[0])[0] for item in items])


def hash_requests(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, items: Sequence[Item]) -> str:
    """The ``items_hash`` of a log-likelihood task's run, without one.

    Raises:
        TaskError: as `evaluate`.
    """
    with quiet_lm_eval():
        from .lm_eval_model import LoopedLM

        lm = LoopedLM(model, tokenizer)
        return _hash_requests([_asked(lm, item) for item in items])


def _parity_prompts(lm: LoopedLM, contexts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    room = max(1, lm.max_length - NEW_TOKENS)
    return [context[-room:] for context in contexts]


def _asked(lm: LoopedLM, item: Item) -> _Asked:
    """An item in tokens.

    Raises:
        TaskError: a context without tokens, or a continuation without or with more than the model has positions for.
    """
    rows = tuple(lm.encoded(context, continuation) for context, continuation in item.requests)
    for before, after in rows:
        if not before or not 0 < len(after) <= lm.max_length:
            raise TaskError(
                f"item {item.name}: {len(before)} tokens of context and {len(after)} of continuation, in a model of {lm.max_length} "
                "positions; lm-eval needs at least 1 of each, and the continuation whole: take another tokenizer or model"
            )
    return _Asked(item, rows, sum(max(0, len(before) + len(after) - 1 - lm.max_length) for before, after in rows))


def _header(model: PreTrainedModel, task: Task, asked: Sequence[_Asked], way: LikelihoodWay) -> dict[str, Any]:
    facts = model_facts(model)
    header = run_header(
        {**facts, "chat_template": False, **task.facts, **likelihood_notes([one.item for one in asked])},
        arm=way.arm or f"{'looped' if facts['looped'] else 'unlooped'} log-likelihood",
        task=task,
        num_items=len(asked),
        items_hash=_hash_requests(asked),
        rule=DecodingRule(),
        budget_tokens=way.budget_tokens,
        samples=1,
        seed=way.seed,
        batch_size=way.batch_size,
        fixed_rows=False,
        engine="eager",
        parity=None,
    )
    versions = header["versions"] | {"lm-eval": importlib.metadata.version("lm-eval")}
    return header | {"batch_plan": "by length", "num_items_cut": sum(one.num_cut > 0 for one in asked), "versions": versions}


class _Answering:
    """Scores requests batch by batch and hands on the record of every item that has all of its scores."""

    def __init__(self, lm: LoopedLM, task: Task, asked: Sequence[_Asked], way: LikelihoodWay) -> None:
        self.lm = lm
        self.task = task
        self.asked = asked
        self.way = way
        self.flops_per_token = cost_of(read_shape(lm.model.config.to_dict()), loops_of(lm.model)).flops_per_token

    def run(self, done: set[str], write: Callable[[Record], None]) -> None:
        """Every batch with an item that lacks a record; the batches are those of the whole run, whatever is done already."""
        scores: list[dict[int, tuple[float, bool]]] = [{} for _ in self.asked]
        seconds = [0.0] * len(self.asked)
        for batch in self.batches(done):
            started = time.perf_counter()
            with evaluating(self.lm.model):
                answers = self.lm.scored([self.asked[at].rows[option] for at, option in batch])
            each = (time.perf_counter() - started) / len(batch)
            for (at, option), answer in zip(batch, answers, strict=True):
                scores[at][option] = answer
                seconds[at] += each
                if len(scores[at]) == len(self.asked[at].rows) and self.asked[at].item.name not in done:
                    write(self.record(self.asked[at], [scores[at][n] for n in range(len(scores[at]))], seconds[at]))

    def batches(self, done: set[str]) -> Iterator[list[tuple[int, int]]]:
        """Pairs of item and option, by position; the share of tokens that is read is reported after each batch."""
        from .lm_eval_model import plan_rows

        pairs = [(at, option) for at, one in enumerate(self.asked) for option in range(len(one.rows))]
        rows = [self.asked[at].rows[option] for at, option in pairs]
        planned = [[pairs[n] for n in batch] for batch in plan_rows(rows, self.way.batch_size)]
        pending = [batch for batch in planned if not all(self.asked[at].item.name in done for at, _ in batch)]
        work = [sum(len(self.asked[at].rows[option][0]) for at, option in batch) for batch in pending]
        for number, batch in enumerate(pending):
            yield batch
            if self.way.progress:
                self.way.progress(sum(work[: number + 1]) / sum(work))

    def record(self, asked: _Asked, likelihoods: list[tuple[float, bool]], seconds: float) -> Record:
        from .lm_eval_model import row_key

        item, scorer = asked.item, self.task.scorer
        assert scorer is not None  # `Task` sees to it
        grade = scorer(item, likelihoods)
        read = {row_key(row)[-self.lm.max_length :] for row in asked.rows}
        num_read = sum(map(len, read))
        extra: dict[str, Any] = {name: item.extra[name] for name in ("subtask",) if name in item.extra}
        extra |= {"log_likelihoods": [nats for nats, _ in likelihoods]}
        extra |= {"tokens_cut": asked.num_cut} if asked.num_cut else {}
        return Record(
            task=self.task.name,
            item=item.name,
            seed=self.way.seed,
            sample=0,
            correct=grade.correct,
            finished=True,
            stop_reason="log-likelihood",
            answer=grade.answer,
            gold=item.gold,
            rule=grade.rule,
            prompt_tokens=num_read,
            generated_tokens=1,  # one choice, as for letters: in layer passes, arms then differ by their loops alone
            forced_tokens=0,
            flops=self.flops_per_token * num_read,  # the head too reads every token, as in lm-eval
            seconds=seconds,
            extra=extra,
        )


def _hash_requests(asked: Sequence[_Asked]) -> str:
    """What was asked, token by token, what the options are called, and what counts as right."""
    digest = hashlib.sha256()
    for one in asked:
        digest.update(json.dumps([one.item.name, one.item.gold, one.item.choices, one.rows]).encode())
    return digest.hexdigest()[:16]


def _in_order(records: Sequence[Record]) -> tuple[Record, ...]:
    return tuple(sorted(records, key=lambda record: record.key))
