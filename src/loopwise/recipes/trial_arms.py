"""Which arms a trial has: named sets, reserves, a larger model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..cost import read_shape
from ..models import Source, trained_loops
from ..protocol import TrialError
from ..protocol.gather import SAME_SIZE
from ..protocol.plan import RULES
from ..tasks import Task

if TYPE_CHECKING:
    from .trial_settings import TrialSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSet:
    """Arms that go together."""

    rules: tuple[str, ...]
    """Decoding rules, each on both arms of a pair."""
    budget_multiples: tuple[float, ...]
    """Token budgets, as multiples of each task's own."""
    reserve_multiples: tuple[float, ...]
    """Reserves beside each task's own, as multiples of it; on both arms of a pair."""
    vote_samples: int
    """Answers of the twin that vote; 2, 4, ... of them are arms of their own."""


ARM_SETS: Mapping[str, ArmSet] = {
    "default": ArmSet(rules=("plain", "budget-forcing"), budget_multiples=(0.5, 1.0, 2.0), reserve_multiples=(), vote_samples=0),
    "paper": ArmSet(rules=RULES, budget_multiples=(0.5, 1.0, 1.5, 2.0), reserve_multiples=(2.0,), vote_samples=4),
}
"""``paper``: every rule of no-free-loop: four budgets (B.2), budget forcing, the repetition stop and both (Table 4), the reserve of 512
tokens and twice that (B.2), votes of 2 and 4 samples (Table 11). The twin at 1.25 times the budget (Table 3) is in both sets, and a larger
model runs in either where one is named."""


def in_arm_set(settings: TrialSettings) -> TrialSettings:
    """The settings with the rules and votes of their set of arms.

    Raises:
        TrialError: an unknown set, or rules beside a set that fixes them.
    """
    if settings.arms not in ARM_SETS:
        raise TrialError(f"unknown set of arms {settings.arms!r}; use {', '.join(ARM_SETS)}")
    chosen = ARM_SETS[settings.arms]
    if settings.arms != "default" and settings.rules not in (ARM_SETS["default"].rules, chosen.rules):
        raise TrialError(f"the set of arms {settings.arms!r} has the rules {', '.join(chosen.rules)}; leave out rules of your own")
    if settings.arms == "default":
        return settings
    return replace(settings, rules=chosen.rules, vote_samples=settings.vote_samples or chosen.vote_samples)


def budgets_of(own_tokens: int, settings: TrialSettings) -> tuple[int, ...]:
    """A task's budgets where none are given: multiples of its own."""
    return tuple(sorted({math.ceil(multiple * own_tokens) for multiple in ARM_SETS[settings.arms].budget_multiples}))


def reserves_of(task: Task, settings: TrialSettings) -> tuple[int, ...]:
    """A task's reserves, the one that decides first: those that were given, or its own and the set's multiples of it.

    Raises:
        TrialError: reserves that cannot be.
    """
    if settings.reserves:
        if min(settings.reserves) < 1 or len(set(settings.reserves)) < len(settings.reserves):
            raise TrialError(f"reserves are {list(settings.reserves)} tokens; give distinct numbers from 1, the one that decides first")
        return settings.reserves
    own = max(1, task.reserve_tokens)
    multiples = ARM_SETS[settings.arms].reserve_multiples if task.kind == "generate" else ()
    return (own, *(math.ceil(multiple * own) for multiple in multiples))


def check_larger(source: Source, larger: Source) -> None:
    """Refuse a model that is not larger: it would be another arm of the same size.

    Raises:
        TrialError: it has no more parameters, or loops of its own.
        CostError: a model whose size is not known.
    """
    ours, theirs = read_shape(source.folder).num_parameters, read_shape(larger.folder).num_parameters
    if theirs <= SAME_SIZE * ours:
        raise TrialError(f"{larger.name} has {theirs:,} parameters, {source.name} {ours:,}: not a larger model; give one, or leave it out")
    if trained_loops(larger):
        raise TrialError(f"{larger.name} was trained with loops of its own; a larger model is an unlooped use of compute: give one without")
