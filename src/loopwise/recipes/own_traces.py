"""A model's own reasoning traces: its answers to a task's training problems, graded, to fine-tune it on further.

After post-training, anchored recurrent depth "runs for 50M tokens on reasoning traces from the unlooped long fine-tune" (no-free-loop,
A.3). Answers are a run of records, so a killed call goes on where it was; what is kept of them follows from the records alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..data import DataError, ItemIndex
from ..data.folders import write_bytes
from ..decoding import Chat, DecodingRule, read_chat
from ..evaluation import evaluate, task_budget_tokens, task_rule
from ..models import load
from ..records import Record, Run, write_json
from ..tasks import Item, Task, TaskError, task_named
from .evaluation_items import NONE, items_apart_from, keep_apart

TRACES_FILE, REPORT_FILE, ANSWERS_FOLDER = "traces.jsonl", "report.json", "answers"
Keep = Literal["correct", "finished"]

DROPS = {
    "unfinished": "cut off by the budget or a repetition",
    "wrong": "that the grader does not find correct",
    "empty": "without any words",
    "decontaminated": "sharing 13 words in a row with an evaluation item",
    "duplicate": "with question and answer of an earlier one",
}
"""Why an answer is left out; the first reason that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTraces:
    """What a model is asked, how it answers, and which of its answers are kept.

    Raises:
        DataError: a value that cannot be.
    """

    task: str
    keep: Keep = "correct"
    """``correct``: answers that end and that the task's grader finds right; ``finished``: all that end. Right ones only is a guess: the
    paper calls the solutions of its long fine-tune verified, and says nothing of the model's own."""
    samples: int = 1
    """Answers to a problem; above 1 the rule needs a temperature."""
    budget_tokens: int | None = None
    """Of an answer, at most; None is the task's. What needs more is left out, never cut."""
    temperature: float | None = None
    """None is the task's."""
    top_p: float = 1.0
    top_k: int = 0
    thinking: bool = False
    """Ask in the chat template's thinking mode."""
    seed: int = 0
    """Of the draws."""
    limit: int | None = None
    """Only the first training problems."""
    against: tuple[str, ...] = ()
    """Evaluation tasks that problems and answers are kept apart from, as `evaluation_items`; by default the paper's and the task's own."""
    data: Path | None = None
    """Where the items of all tasks are."""
    batch_size: int = 16

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise DataError(f"keep is {self.keep!r}; use {' or '.join(get_args(Keep))}")
        for name in ("samples", "batch_size"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} is {getattr(self, name)}; give at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTracesReport:
    """What became of a task's training problems and their answers."""

    task: str
    num_problems: int
    """Of the task's train side, as far as it was asked for."""
    num_problems_decontaminated: int
    """Left out, with an evaluation item's words."""
    num_answers: int
    num_kept: int
    num_solved: int
    """Problems with at least one trace that is kept."""
    dropped: dict[str, int]
    """Answers by the reason, one of `DROPS`."""
    generated_tokens: int
    """Of all answers."""
    kept_tokens: int
    benchmarks: tuple[str, ...]
    """That problems and answers were kept apart from."""
    facts: dict[str, Any]
    """The model and how it decoded, from the run's header."""


def make_own_traces(
    model: str | Path,
    settings: OwnTraces,
    out: str | Path,
    *,
    loops: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[float], None] | None = None,
) -> OwnTracesReport:
    """Let a model answer a task's training problems and write the traces that are kept; the same call goes on after a kill.

    ``OUT/traces.jsonl`` is what ``loopwise data traces`` reads: ``question`` as the model was asked, ``answer`` as it wrote, thinking
    included. ``OUT/answers`` is the run of all answers, ``OUT/report.json`` the counts. Another ``keep`` counts anew, without decoding.

    Args:
        model: as for `loopwise.load`; with loops of its own or in ``loops`` it answers through them.

    Raises:
        TaskError: a task without training problems or without written answers.
        DataError: no evaluation items, no problem left, or no trace that is kept (all files are written).
        DecodingError, ModelError, ParityError, RecordsError: as `evaluate`.
    """
    out = Path(out)
    task = _trainable(settings.task)
    rule, budget = _rule(task, settings)
    problems = task.load(settings.data, settings.limit, "train")
    items, missing = items_apart_from([task], settings.against, settings.data)
    for reason in missing:
        note(f"not kept apart from {reason}")
    index = ItemIndex(items)
    kept = tuple(keep_apart(problems, index, items)[0])
    if not kept:
        raise DataError(f"all {len(problems)} training problems of {task.name} overlap with evaluation items")
    loaded = load(model, loops=loops, dtype=dtype, device=device)
    run = evaluate(
        loaded.model,
        loaded.tokenizer,
        task,
        out=out / ANSWERS_FOLDER,
        items=kept,
        rule=rule,
        budget_tokens=budget,
        samples=settings.samples,
        seed=settings.seed,
        batch_size=settings.batch_size,
        arm="own traces",
        progress=progress,
    )
    chat = read_chat(loaded.model, loaded.tokenizer)
    sorted_out = SortedOut(kept, chat, rule, index, settings.keep)
    lines = [json.dumps(row, ensure_ascii=False) for row in sorted_out.rows(run.records)]
    report = _report(task, problems, kept, run, sorted_out, index)
    write_bytes(out / TRACES_FILE, "".join(line + "\n" for line in lines).encode())
    write_json(out / REPORT_FILE, asdict(report))
    if not lines:
        reason = max(DROPS, key=lambda name: report.dropped[name])
        what = f"{report.dropped[reason]} of {report.num_answers} are answers {DROPS[reason]}"
        raise DataError(f"{out}: no trace is kept: {what}; take easier problems, a larger budget or another --keep")
    return report


def _trainable(name: str) -> Task:
    task = task_named(name)
    if "train" not in task.splits:
        raise TaskError(f"{task.name} has no training problems, and nobody trains on test items; take gsm8k, math or ladder")
    if task.kind != "generate" or task.private or task.begin:
        raise TaskError(f"{task.name} has no answers of words that could be trained on; take gsm8k, math or ladder")
    return task


def _rule(task: Task, settings: OwnTraces) -> tuple[DecodingRule, int]:
    rule = task_rule(
        task, temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k, thinking=settings.thinking
    )  # nothing is forced: a forced word is not the model's own
    if settings.samples > 1 and rule.greedy:
        raise DataError(f"{settings.samples} samples at temperature 0 are all the same; give a temperature, or 1 sample")
    budget = task_budget_tokens(task, thinking=rule.thinking) if settings.budget_tokens is None else settings.budget_tokens
    rule.check_budget(budget)
    return rule, budget


class SortedOut:
    """Answers sorted out, with the counts."""

    def __init__(self, problems: Sequence[Item], chat: Chat, rule: DecodingRule, index: ItemIndex, keep: Keep) -> None:
        self.problems = {item.name: item.asked(in_chat=chat.template is not None) for item in problems}
        self.chat, self.rule, self.index, self.keep = chat, rule, index, keep
        self.dropped = dict.fromkeys(DROPS, 0)
        self.solved: set[str] = set()
        self.kept_tokens = 0
        self._seen: set[tuple[str, str]] = set()

    def rows(self, records: Sequence[Record]) -> Iterator[dict[str, Any]]:
        """The traces that are kept, problems in their order."""
        order = {name: place for place, name in enumerate(self.problems)}
        for record in sorted(records, key=lambda one: (order[one.item], one.sample)):
            question = self.problems[record.item].prompt
            answer = self._opened(question) + (record.text or "")
            if reason := self._why_not(record, question, answer):
                self.dropped[reason] += 1
                continue
            self._seen.add((question, answer))
            self.solved.add(record.item)
            self.kept_tokens += record.generated_tokens or 0
            yield {"question": question, "answer": answer, "task": record.task, "item": record.item, "sample": record.sample} | {
                "correct": record.correct,
                "generated_tokens": record.generated_tokens,
            }

    def _why_not(self, record: Record, question: str, answer: str) -> str | None:
        if not record.finished:
            return "unfinished"
        if self.keep == "correct" and not record.correct:
            return "wrong"
        if not (record.text or "").strip():
            return "empty"
        if self.index.hits(answer):
            return "decontaminated"
        return "duplicate" if (question, answer) in self._seen else None

    def _opened(self, question: str) -> str:
        """The thinking tag that the template writes for the model, and what follows it there: in a trace both are the answer's own."""
        thinking = self.chat.thinking
        if thinking is None or not self.chat.starts_in_thinking(question, thinking=self.rule.thinking):
            return ""
        rendered = self.chat.render(question, thinking=self.rule.thinking)
        return rendered[rendered.rindex(thinking.opening) :]


def _report(task: Task, problems: Sequence[Item], kept: Sequence[Item], run: Run, found: SortedOut, index: ItemIndex) -> OwnTracesReport:
    names = ("model", "model_hash", "loops", "rule", "decoding", "budget_tokens", "samples", "seeds", "task_version", "versions")
    return OwnTracesReport(
        task=task.name,
        num_problems=len(problems),
        num_problems_decontaminated=len(problems) - len(kept),
        num_answers=len(run.records),
        num_kept=len(run.records) - sum(found.dropped.values()),
        num_solved=len(found.solved),
        dropped=found.dropped,
        generated_tokens=sum(record.generated_tokens or 0 for record in run.records),
        kept_tokens=found.kept_tokens,
        benchmarks=tuple(sorted({item.benchmark for item in index.items})) or (NONE,),
        facts={name: run.header[name] for name in names},
    )
