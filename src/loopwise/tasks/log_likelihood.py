"""Multiple choice and last words by log-likelihood, with the prompts, golds and metrics of lm-eval (ARLoop, Tables 6, 8 and 13).

A task is named ``lm-eval:TASK[@SHOTS][:METRIC]``, e.g. ``lm-eval:arc_challenge@25:acc_norm``: lm-eval's own name for it, how many
demonstrations stand before the question, and what counts as right. Only those of `LIKELIHOODS` are handled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from . import log_likelihood_rows as rows
from .rows import Row, Source
from .subjects import MMLU_SUBJECTS
from .values import Grade, Item, Task, TaskError

PREFIX = "lm-eval"
METRICS = ("acc", "acc_norm")
"""``acc``: the option with the highest log-likelihood, or for one continuation that greedy decoding writes it. ``acc_norm``: the
highest log-likelihood per character of the option."""
MOST_SHOTS = 64
"""More demonstrations than any of these benchmarks is asked with."""

Likelihoods = Sequence[tuple[float, bool]]
"""Of each request: the log-likelihood of its continuation in nats, and whether every token of it is the most likely one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """One benchmark of lm-eval, and where its rows are."""

    source: Source
    """The hub's name of it, for messages, and the local files of each split."""
    folder: str
    """Where lm-eval keeps its configuration, below ``lm_eval/tasks``."""
    splits: tuple[str, ...] = ("test",)
    """Splits that items come from: lm-eval's own, then what local data may have in its place."""
    demonstrations: tuple[str, ...] = ("train", "validation")
    """Splits that demonstrations come from, best first; none: it is asked without."""
    metrics: tuple[str, ...] = METRICS
    """Those that lm-eval reports and that are 0 or 1 for an item."""
    metric: str = "acc"
    """The one that is taken where none is named."""
    columns: Callable[[Row], dict[str, Any]] = field(repr=False)
    """A local row as the columns of the hub's."""
    subtasks: tuple[str, ...] = ()
    """Its parts, where it has some: each is a task of lm-eval's, ``<name>_<part>``."""


def _arc(folder: str, config: str) -> Likelihood:
    source = Source(folder=folder, hub="allenai/ai2_arc", config=config)
    return Likelihood(source=source, folder="arc", splits=("test", "validation"), columns=rows.science)


def _lambada(name: str, hub: str, splits: tuple[str, ...]) -> Likelihood:
    source = Source(folder="lambada", hub=hub, files={split: (f"{name}_{split}",) for split in splits})
    return Likelihood(source=source, folder="lambada", splits=splits, demonstrations=(), metrics=("acc",), columns=rows.lambada)


_MMLU = Likelihood(
    source=Source(folder="mmlu", hub="cais/mmlu"),
    folder="mmlu/default",
    demonstrations=("dev",),
    metrics=("acc",),
    columns=rows.mmlu,
    subtasks=MMLU_SUBJECTS,
)

LIKELIHOODS: dict[str, Likelihood] = {
    "arc_easy": _arc("arc_easy", "ARC-Easy"),
    "arc_challenge": _arc("arc_challenge", "ARC-Challenge"),
    "hellaswag": Likelihood(
        source=Source(folder="hellaswag", hub="Rowan/hellaswag"),
        folder="hellaswag",
        splits=("validation",),
        metric="acc_norm",
        columns=rows.hellaswag,
    ),
    "winogrande": Likelihood(
        source=Source(folder="winogrande", hub="allenai/winogrande", config="winogrande_xl"),
        folder="winogrande",
        splits=("validation",),
        metrics=("acc",),
        columns=rows.winogrande,
    ),
    "openbookqa": Likelihood(
        source=Source(folder="openbookqa", hub="allenai/openbookqa", config="main"),
        folder="openbookqa",
        splits=("test", "validation"),
        metric="acc_norm",
        columns=rows.open_book,
    ),
    "piqa": Likelihood(
        source=Source(folder="piqa", hub="baber/piqa", files={"validation": ("validation", "valid")}),
        folder="piqa",
        splits=("validation",),
        metric="acc_norm",
        columns=rows.piqa,
    ),
    "race": Likelihood(
        source=Source(folder="race", hub="EleutherAI/race", config="high"),
        folder="race",
        demonstrations=(),
        metrics=("acc",),
        columns=rows.race,
    ),
    "sciq": Likelihood(source=Source(folder="sciq", hub="allenai/sciq"), folder="sciq", splits=("test", "validation"), columns=rows.sciq),
    "lambada_openai": _lambada("openai", "EleutherAI/lambada_openai", ("test",)),
    "lambada_standard": _lambada("standard", "cimec/lambada", ("test", "validation")),
    "mmlu": _MMLU,
}
"""Every benchmark by lm-eval's name. Shots are 0 and the metric is that of ARLoop, Table 8, where none is named."""


def lm_eval_of(text: str) -> Task:
    """The task that ``TASK[@SHOTS][:METRIC]`` names; ``mmlu_anatomy`` is one subject of MMLU.

    Raises:
        TaskError: no such benchmark, shots that cannot be, or a metric that lm-eval does not report for it.
    """
    name, colon, metric = text.partition(":")
    name, at, count = name.partition("@")
    benchmark, parts = _benchmark(text, name)
    if at and not (count.isdecimal() and int(count) <= MOST_SHOTS):
        raise TaskError(f"{PREFIX}:{text}: {count!r} shots; give a whole number from 0 to {MOST_SHOTS}, as in {name}@5")
    shots = int(count) if at else 0
    if shots and not benchmark.demonstrations:
        raise TaskError(f"{PREFIX}:{text}: lm-eval has no demonstrations for {name} apart from its items; leave out @{shots}")
    metric = metric if colon else benchmark.metric
    if metric not in benchmark.metrics:
        raise TaskError(f"{PREFIX}:{text}: metric {metric!r}; {name} has {' and '.join(benchmark.metrics)}")
    shown = f"@{shots}" if shots else ""
    return Task(
        name=f"{PREFIX}:{name}{shown}{'' if metric == benchmark.metric else f':{metric}'}",
        version="1",
        kind="log-likelihood",
        budget_tokens=1,
        reserve_tokens=0,
        answer_opener="",
        facts={"shots": shots, "metric": metric},
        loader=partial(_load, name=name, benchmark=benchmark, parts=parts, shots=shots),
        scorer=partial(grade_likelihoods, metric=metric),
        grader=_no_text,
    )


def _benchmark(text: str, name: str) -> tuple[Likelihood, tuple[str, ...]]:
    """A benchmark, and those of lm-eval's tasks that it consists of."""
    if name in LIKELIHOODS:
        benchmark = LIKELIHOODS[name]
        return benchmark, tuple(f"{name}_{part}" for part in benchmark.subtasks) or (name,)
    whole, _, part = name.partition("_")
    if whole in LIKELIHOODS and part in LIKELIHOODS[whole].subtasks:
        return LIKELIHOODS[whole], (name,)
    raise TaskError(f"{PREFIX}:{text}: {name!r} is not among the benchmarks {', '.join(LIKELIHOODS)} and the subjects of mmlu")


def _load(
    data: Path | None, limit: int | None, split: str, *, name: str, benchmark: Likelihood, parts: tuple[str, ...], shots: int
) -> tuple[Item, ...]:
    from .lm_eval_items import likelihood_items

    return likelihood_items(name, benchmark, parts, shots=shots, data=data, limit=limit)


def grade_likelihoods(item: Item, likelihoods: Likelihoods, *, metric: str) -> Grade:
    """Who is right, by lm-eval's rules; the first of several best options counts.

    Raises:
        TaskError: a log-likelihood that is no number.
    """
    if any(nats != nats for nats, _ in likelihoods):
        raise TaskError(f"item {item.name}: a log-likelihood is not a number; the model overflows in its dtype, load it in another one")
    if not item.choices:
        ((_, greedy),) = likelihoods
        return Grade(correct=greedy, answer=item.gold if greedy else None, rule="acc")
    scores = [nats for nats, _ in likelihoods]
    if metric == "acc_norm":
        scores = [nats / len(choice) if choice else float("-inf") for nats, choice in zip(scores, item.choices, strict=True)]
    answer = option_name(scores.index(max(scores)))
    return Grade(correct=answer == item.gold, answer=answer, rule=metric)


def option_name(position: int) -> str:
    """The letter of an option, as records hold it."""
    return chr(ord("A") + position)


def _no_text(item: Item, text: str) -> Grade:
    raise TaskError(f"item {item.name}: is answered by log-likelihood, and no text is graded; evaluate the task")


def likelihood_notes(items: Sequence[Item]) -> Mapping[str, Any]:
    """The splits that items and demonstrations came from, for a run's header."""
    return {name: items[0].extra.get(name) for name in ("items_from", "demonstrations_from")}
