"""An arm as arrays: every item's answers, by seed and sample, with what they cost. Built once, read by all statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..records import Record
from .values import Side, TrialError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTable:
    """One arm's answers to one benchmark; arrays are ``[seeds, items, samples]``."""

    task: str
    items: tuple[str, ...]
    """Sorted, so that two arms with the same items line up."""
    seeds: tuple[int, ...]
    samples: tuple[int, ...]
    correct: Array
    finished: Array | None
    """None where a record does not say."""
    generated_tokens: Array | None
    flops: Array | None
    seconds: Array | None
    answers: npt.NDArray[np.object_] | None
    """Extracted answers, None among them where there was none; None where no record has one."""
    golds: tuple[str | None, ...]
    prompts: tuple[str | None, ...] = ()
    """Of each item what tells its prompt from others, where records say (``prompt_hash``); empty where nobody asked."""
    items_hashes: tuple[str, ...] = ()
    """What tells all that was asked from other questions, templates and tokenizers, where runs say (``items_hash``); one, unless
    runs of different items make up the table."""
    sources: tuple[str, ...] = ()
    """The files and folders that the answers were read from."""
    budget_tokens: int | None
    reserve_tokens: int | None
    version: str | None

    def accuracy(self) -> Array:
        """``[seeds, items]``: sampled answers averaged per item."""
        mean: Array = self.correct.mean(axis=2)
        return mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to spend compute, with its answers."""

    name: str
    side: Side
    loops: str
    rule: str | None
    decoding: tuple[tuple[str, Any], ...] | None
    """The settings that must match in a pair besides the rule's name; None for foreign records."""
    layer_pass_ratio: float | None
    model: str | None
    num_parameters: int | None
    headers: tuple[Mapping[str, Any], ...]
    tables: Mapping[str, TaskTable]
    votes: int | None = None
    """Samples in each majority vote; a voted arm's tables have one sample and their costs summed."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Benchmarks in order of name."""
        return tuple(sorted(self.tables))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all benchmarks."""
        return tuple(sorted({seed for table in self.tables.values() for seed in table.seeds}))

    @property
    def num_items(self) -> int:
        """Items of all benchmarks."""
        return sum(len(table.items) for table in self.tables.values())

    @property
    def budgets_tokens(self) -> dict[str, int | None]:
        """The budget of each benchmark."""
        return {task: self.tables[task].budget_tokens for task in self.tasks}

    @property
    def budget_label(self) -> str:
        """``128``, ``768/2048``, or ``-`` where unknown."""
        values = list(self.budgets_tokens.values())
        if all(value is None for value in values):
            return "-"
        return str(values[0]) if len(set(values)) == 1 else "/".join("-" if value is None else str(value) for value in values)

    @property
    def reserves_tokens(self) -> dict[str, int | None]:
        """What budget forcing kept for the answer, of each benchmark; None where nothing is forced, or nobody says."""
        return {task: self.tables[task].reserve_tokens for task in self.tasks}

    @property
    def sources(self) -> tuple[str, ...]:
        """The files and folders that its answers were read from."""
        return tuple(dict.fromkeys(source for table in self.tables.values() for source in table.sources))

    @property
    def order(self) -> tuple[str, float]:
        """By rule, then by budget."""
        return (self.rule or "", float(sum(value or 0 for value in self.budgets_tokens.values())))

    def accuracy_percent(self) -> float:
        """Macro accuracy."""
        return 100 * float(np.mean([table.correct.mean() for table in self.tables.values()]))


def other_reserve(one: Arm, other: Arm) -> bool:
    """Whether two arms kept other numbers of tokens for the answer, as far as both say."""
    ours, theirs = one.reserves_tokens, other.reserves_tokens
    return any(None not in (reserve, theirs.get(task)) and reserve != theirs[task] for task, reserve in ours.items())


def build_table(
    task: str,
    records: Iterable[Record],
    arm: str,
    *,
    budget_tokens: int | None,
    reserve_tokens: int | None,
    version: str | None,
    items_hashes: tuple[str, ...] = (),
    sources: Sequence[str] = (),
) -> TaskTable:
    """The table of one benchmark's records.

    Raises:
        TrialError: a record that is there twice or missing: every seed needs every item, every item the same samples.
    """
    by_key: dict[tuple[int, str, int], Record] = {}
    for record in records:
        key = (record.seed, record.item, record.sample)
        if key in by_key:
            raise TrialError(
                f"{arm}: item {record.item!r} of {task} (seed {record.seed}, sample {record.sample}) is there twice; keep one of the runs"
            )
        by_key[key] = record
    seeds = tuple(sorted({key[0] for key in by_key}))
    items = tuple(sorted({key[1] for key in by_key}))
    samples = tuple(sorted({key[2] for key in by_key}))
    for seed in seeds:
        for item in items:
            for sample in samples:
                if (seed, item, sample) not in by_key:
                    raise TrialError(f"{arm}: item {item!r} of {task} is missing (seed {seed}, sample {sample}); complete the run")
    grid = [[[by_key[seed, item, sample] for sample in samples] for item in items] for seed in seeds]
    return TaskTable(
        task=task,
        items=items,
        seeds=seeds,
        samples=samples,
        correct=np.array([[[r.correct for r in cell] for cell in row] for row in grid], dtype=np.float64),
        finished=_numbers(grid, "finished"),
        generated_tokens=_numbers(grid, "generated_tokens"),
        flops=_numbers(grid, "flops"),
        seconds=_numbers(grid, "seconds"),
        answers=_answers(grid),
        golds=tuple(cell[0].gold for cell in grid[0]),
        prompts=tuple(None if (found := cell[0].extra.get("prompt_hash")) is None else str(found) for cell in grid[0]),
        items_hashes=items_hashes,
        budget_tokens=budget_tokens,
        reserve_tokens=reserve_tokens,
        version=version,
        sources=tuple(dict.fromkeys(sources)),
    )


def _numbers(grid: Sequence[Sequence[Sequence[Record]]], name: str) -> Array | None:
    """One field of all records, or None where any record lacks it: missing is not zero."""
    values = [[[getattr(r, name) for r in cell] for cell in row] for row in grid]
    if any(value is None for row in values for cell in row for value in cell):
        return None
    return np.array(values, dtype=np.float64)


def _answers(grid: Sequence[Sequence[Sequence[Record]]]) -> npt.NDArray[np.object_] | None:
    values = np.empty((len(grid), len(grid[0]), len(grid[0][0])), dtype=object)
    for s, row in enumerate(grid):
        for i, cell in enumerate(row):
            values[s, i, :] = [None if r.answer is None else str(r.answer) for r in cell]
    return values if any(value is not None for value in values.ravel()) else None
