"""Loss runs as arrays, checked against each other: what differs between two that should be compared is refused by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..records import LossRun, LossTotals, read_loss_run
from .arms import Array
from .comparisons import number_within
from .gather import SAME_SIZE
from .loss_values import LossSide
from .naming import models_name
from .values import TrialError

LossRunLike = LossRun | str | Path

_SAME_TEXT = {
    "text_hash": "evaluate all models on the same text",
    "context_tokens": "evaluate all models with one context",
    "stride_tokens": "evaluate all models with one stride",
    "tokens_hash": "their tokenizers differ, and losses per token cannot be compared: compare the bits per byte of their runs instead",
    "start_token": "evaluate all models with one start token",
}
"""Fields of a header that all runs share, in the order in which they are compared, with the remedy."""
_NUMBERS = ("num_parameters", "flops_per_token", "layer_pass_ratio", "num_documents", "context_tokens", "stride_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class LossArm:
    """One model's runs, a training seed each; equal only to itself."""

    name: str
    side: LossSide
    runs: tuple[LossRun, ...]
    loss: Array
    """[seeds, documents], nats; documents in the order of their names."""
    targets: Array
    """[documents]"""
    num_bytes: int

    @property
    def headers(self) -> tuple[dict[str, Any], ...]:
        """What ran, by seed."""
        return tuple(run.header for run in self.runs)

    @property
    def flops_per_token(self) -> float:
        """Of one token in a forward pass; the mean over seeds, which share it."""
        return float(np.mean([header["flops_per_token"] for header in self.headers]))

    @property
    def training_flops(self) -> float | None:
        """The mean over seeds; None where a run does not say."""
        found = [header.get("training_flops") for header in self.headers]
        return None if any(one is None for one in found) else float(np.mean(found))  # type: ignore[arg-type]

    @property
    def nats_per_token(self) -> float:
        """Over all seeds and documents."""
        return self.totals.nats_per_token

    @property
    def totals(self) -> LossTotals:
        """The sums of a mean training seed."""
        mean = float(self.loss.sum(axis=1).mean())
        return LossTotals(loss_nats=mean, num_targets=int(self.targets.sum()), num_bytes=self.num_bytes)


def gather_loss(runs: Sequence[LossRunLike] | LossRunLike, side: LossSide) -> LossArm:
    """The runs of one model, in the order of its training seeds.

    Raises:
        TrialError: no run, one that is not complete, has loops where it must not or none where it must, or two that differ in more
            than their weights.
        RecordsError: a path that cannot be read.
    """
    listed = [runs] if isinstance(runs, LossRun | str | Path) else list(runs)
    if not listed:
        raise TrialError(f"no run of the {side} model; give at least one")
    read = [run if isinstance(run, LossRun) else read_loss_run(run) for run in listed]
    for run in read:
        _check_run(run, side)
        check_same_text(read[0], run)
        for field in ("loops", "flops_per_token"):
            if run.header.get(field) != read[0].header.get(field):
                raise TrialError(
                    f"{run.source} has {field} {run.header.get(field)}, {read[0].source} has {read[0].header.get(field)}: training seeds "
                    "of one model share them; give other models by themselves"
                )
    first = read[0]
    return LossArm(
        name=models_name([str(run.header["model"]) for run in read]),
        side=side,
        runs=tuple(read),
        loss=np.array([[record.loss_nats for record in _ordered(run)] for run in read]),
        targets=np.array([record.num_targets for record in _ordered(first)], dtype=np.float64),
        num_bytes=first.totals.num_bytes,
    )


def unique_arms(arms: Sequence[LossArm]) -> list[LossArm]:
    """Arms with names of their own: a training-free loop's twin is called by the same model."""
    named: list[LossArm] = []
    taken: set[str] = set()
    for arm in arms:
        name = arm.name if arm.name not in taken else f"{arm.name}, {'no loop' if arm.side == 'twin' else arm.side}"
        number = 2
        while name in taken:
            name, number = f"{arm.name} #{number}", number + 1
        taken.add(name)
        named.append(replace(arm, name=name))
    return named


def check_arms(looped: LossArm, others: Sequence[LossArm]) -> None:
    """Refuse arms that cannot be set beside the looped one: other text, other seeds; the first of them is the twin, of one size.

    Raises:
        TrialError: the first difference.
    """
    for arm in others:
        check_same_text(looped.runs[0], arm.runs[0])
    twin = others[0]
    ours, theirs = (int(arm.headers[0]["num_parameters"]) for arm in (looped, twin))
    if not 1 / SAME_SIZE <= ours / theirs <= SAME_SIZE:
        raise TrialError(f"{looped.name} has {ours} parameters, {twin.name} {theirs}: not twins; give equal models")
    for arm in others:
        if len(arm.loss) != len(looped.loss):
            raise TrialError(
                f"{looped.name} has {len(looped.loss)} training seeds, {arm.name} {len(arm.loss)}: seeds are paired in order; give as many"
            )


def check_same_text(one: LossRun, other: LossRun) -> None:
    """Refuse two runs that did not read the same text in the same windows.

    Raises:
        TrialError: the first field or document that differs.
    """
    for field, remedy in _SAME_TEXT.items():
        ours, theirs = one.header.get(field), other.header.get(field)
        if ours != theirs:
            raise TrialError(f"{field} is {ours!r} in {one.source}, {theirs!r} in {other.source}: {remedy}")
    mine, yours = ({record.document: record for record in run.records} for run in (one, other))
    if missing := sorted(mine.keys() ^ yours.keys()):
        absent, present = (other, one) if missing[0] in mine else (one, other)
        raise TrialError(f"document {missing[0]!r} is missing in {absent.source} but not in {present.source}; evaluate both on one text")
    for name, record in mine.items():
        for field in ("num_targets", "num_bytes"):
            first, second = getattr(record, field), getattr(yours[name], field)
            if first != second:
                raise TrialError(
                    f"document {name!r} has {field} {first} in {one.source}, {second} in {other.source}: another text or tokenizer; "
                    "evaluate both on one text"
                )


def _check_run(run: LossRun, side: LossSide) -> None:
    header = run.header
    for field in _NUMBERS:
        if not number_within(header.get(field), 1, 1e30):
            raise TrialError(f"{run.source}: its header's {field} is {str(header.get(field))[:40]}; repeat its run")
    training = header.get("training_flops")
    if training is not None and not (number_within(training, 1, 1e40) and math.isfinite(training)):
        raise TrialError(f"{run.source}: its header's training_flops is {str(training)[:40]}; give a number from 1, or none")
    if len(run.records) != header["num_documents"] or len({record.document for record in run.records}) < len(run.records):
        raise TrialError(f"{run.source} has {len(run.records)} of {header['num_documents']} documents; finish the run before it is judged")
    looped = header.get("looped")
    if looped is not (side == "looped"):
        has = f"the loops {header.get('loops')}" if looped else "no loops"
        raise TrialError(f"{run.source} has {has} and was given as the {side} model; give it where it belongs")


def _ordered(run: LossRun) -> list[Any]:
    return sorted(run.records, key=lambda record: record.document)
