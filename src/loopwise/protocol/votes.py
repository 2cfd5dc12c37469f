"""Repeated sampling with a majority vote (Table 11): the obvious other use of a loop's compute, made from a run with several samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .arms import Arm, Array, TaskTable


def vote_arms(arm: Arm) -> tuple[Arm, ...]:
    """The votes of the first 2, 4, 8, ... and of all samples of an arm; none where it has one sample or no answers.

    Each item's answer is the most frequent one (`majority`), it is as right as the first sample that gave it, and it costs what
    its samples cost together. An item is finished where a sample that gave the winning answer is.
    """
    num_samples = min(len(table.samples) for table in arm.tables.values())
    if num_samples < 2 or any(table.answers is None for table in arm.tables.values()):
        return ()
    sizes = sorted({2**n for n in range(1, num_samples.bit_length()) if 2**n <= num_samples} | {num_samples})
    return tuple(
        replace(
            arm, name=f"{arm.name}, vote of {size}", votes=size, tables={task: _voted(table, size) for task, table in arm.tables.items()}
        )
        for size in sizes
    )


def normalise_answer(answer: str) -> str:
    """The text by which two samples agree: case, white space, dollar signs, thousands commas and trailing zeros do not count."""
    text = re.sub(r"\s+", "", answer).strip("$").casefold()
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    if re.fullmatch(r"[+-]?\d*\.\d+", text):
        text = text.rstrip("0").rstrip(".")
    return text.removeprefix("+")


def majority(answers: Sequence[str | None]) -> int:
    """The first sample that gave the most frequent answer; ties go to the answer that came first.

    Samples without an answer have no vote; if none has one, the first sample counts.
    """
    keys = [None if answer is None else normalise_answer(answer) for answer in answers]
    counts = Counter(key for key in keys if key is not None)
    if not counts:
        return 0
    most = max(counts.values())
    return next(n for n, key in enumerate(keys) if key is not None and counts[key] == most)


def _voted(table: TaskTable, size: int) -> TaskTable:
    assert table.answers is not None
    chosen = np.array([[majority(cell[:size]) for cell in row] for row in table.answers])[:, :, None]

    def pick(values: Array) -> Array:
        return np.take_along_axis(values, chosen, axis=2)

    def total(values: Array | None) -> Array | None:
        return None if values is None else values[:, :, :size].sum(axis=2, keepdims=True)

    return replace(
        table,
        samples=(0,),
        correct=pick(table.correct),
        finished=None if table.finished is None else pick(table.finished),
        generated_tokens=total(table.generated_tokens),
        flops=total(table.flops),
        seconds=total(table.seconds),
        answers=None,
    )
