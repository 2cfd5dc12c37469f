"""What earlier runs say of a trial that is to come: how long answers are, how fast they came, how much two arms differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..records import Run, read_json, read_run
from .arms import Array
from .values import TrialError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriorRun:
    """One earlier run with its lengths."""

    task: str
    looped: bool
    rule: str
    budget_tokens: int
    tokens: Array
    """Generated tokens of every answer."""
    finished: Array
    """1 where the answer ended by itself."""
    correct: Mapping[tuple[str, int, int], bool]
    """By item, seed and sample."""
    layer_pass_ratio: float
    seconds: float | None
    """Wall time of all its answers, from the run's meter; None where it was not measured, or not for all of them."""
    batch_size: int | None
    device: str
    engine: str = "eager"

    def expected_tokens(self, budget_tokens: int) -> float:
        """Mean tokens of these answers under another budget: one that ended within it stays, any other one is taken to use it up."""
        ended = (self.finished > 0) & (self.tokens <= budget_tokens)
        return float(np.where(ended, self.tokens, budget_tokens).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How fast answers come."""

    tokens_per_second: float
    """Of the plain model, a batch together: generated tokens times the layer-pass ratio of what generated them."""
    source: str
    """In words."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tokens_per_second) and self.tokens_per_second > 0):
            raise TrialError(f"a throughput of {self.tokens_per_second} tokens a second; give a number above 0")


@dataclass(frozen=True, slots=True)
class Prior:
    """Earlier runs."""

    runs: tuple[PriorRun, ...]

    def expected_tokens(self, task: str, *, looped: bool, rule: str, budget_tokens: int) -> float | None:
        """Mean tokens of an answer, from the run that is most like it: of the same task, then with or without a loop, rule, and the
        nearest budget from above, else the largest. None where no run of the task is known."""
        of_task = [run for run in self.runs if run.task == task]
        if not of_task:
            return None

        def unlike(run: PriorRun) -> tuple[bool, bool, bool, int]:
            below = run.budget_tokens < budget_tokens
            return (run.looped != looped, run.rule != rule, below, -run.budget_tokens if below else run.budget_tokens)

        return min(of_task, key=unlike).expected_tokens(budget_tokens)

    def discordance(self, task: str) -> float | None:
        """The share of answers that are right in one arm of a pair only, over all pairs of a looped run and an unlooped one that share
        rule and budget; None where there is no such pair."""
        shares = []
        for looped, plain in self._pairs(task):
            both = looped.correct.keys() & plain.correct.keys()
            if both:
                shares.append(sum(looped.correct[key] != plain.correct[key] for key in both) / len(both))
        return sum(shares) / len(shares) if shares else None

    def _pairs(self, task: str) -> Iterator[tuple[PriorRun, PriorRun]]:
        of_task = [run for run in self.runs if run.task == task]
        for looped in (run for run in of_task if run.looped):
            for plain in (run for run in of_task if not run.looped):
                if (looped.rule, looped.budget_tokens) == (plain.rule, plain.budget_tokens):
                    yield looped, plain

    def throughput(self, batch_size: int, *, engine: str = "eager") -> Throughput | None:
        """From the meters of this engine's runs, of those with batches of this size where there are any."""
        metered = [run for run in self.runs if run.seconds and run.engine == engine]
        chosen = [run for run in metered if run.batch_size == batch_size] or metered
        seconds = sum(run.seconds or 0.0 for run in chosen)
        if not seconds:
            return None
        tokens = sum(run.layer_pass_ratio * float(run.tokens.sum()) for run in chosen)
        sizes = "/".join(map(str, sorted({run.batch_size or 0 for run in chosen})))
        devices = ", ".join(sorted({run.device for run in chosen}))
        runs = "1 earlier run" if len(chosen) == 1 else f"{len(chosen)} earlier runs"
        words = f"the meter of {runs} ({devices}, engine {engine}, batches of {sizes})"
        return Throughput(tokens_per_second=tokens / seconds, source=words) if tokens else None


def read_prior(folders: Sequence[Path], *, warn: Callable[[str], None] | None = None) -> Prior:
    """The runs below some folders, those that say what they were.

    Args:
        warn: called with a line for each run that is left out because it cannot be read.

    Raises:
        TrialError: a folder that is not there.
    """
    runs = []
    for folder in folders:
        if not folder.is_dir():
            raise TrialError(f"{folder}: no such folder of earlier runs; give one that evaluate or trial wrote")
        for header in sorted(folder.rglob("header.json")):
            try:
                found = _prior_run(read_run(header.parent), header.parent)
            except ValueError as error:
                if warn:
                    warn(f"left out: {error}")
                continue
            runs += [] if found is None else [found]
    return Prior(tuple(runs))


def _prior_run(run: Run, folder: Path) -> PriorRun | None:
    """None for runs of another kind, and of answers of unknown length."""
    header = run.header
    rule, budget, task = header.get("rule"), header.get("budget_tokens"), header.get("task")
    if not (isinstance(rule, str) and isinstance(budget, int) and isinstance(task, str)):
        return None
    if any(record.generated_tokens is None or record.finished is None for record in run.records):
        return None
    return PriorRun(
        task=task,
        looped=bool(header.get("looped")),
        rule="plain" if rule == "letters" else rule,
        budget_tokens=budget,
        tokens=np.array([record.generated_tokens for record in run.records], dtype=np.float64),
        finished=np.array([record.finished for record in run.records], dtype=np.float64),
        correct={(record.item, record.seed, record.sample): record.correct for record in run.records},
        layer_pass_ratio=_number(header.get("layer_pass_ratio")) or 1.0,
        seconds=_seconds(folder / "meter.json", len(run.records)),
        batch_size=header.get("batch_size") if isinstance(header.get("batch_size"), int) else None,
        device=str(header.get("device", "unknown device")),
        engine=str(header.get("engine", "eager")),
    )


def _seconds(meter: Path, num_answers: int) -> float | None:
    """The time of all answers; a meter of a resumed run knows some of them only."""
    if not meter.exists():
        return None
    values = read_json(meter)
    return _number(values.get("seconds")) if values.get("num_answers") == num_answers else None


def _number(value: Any) -> float | None:
    able = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if able else None
