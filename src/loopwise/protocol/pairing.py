"""What two arms must share before they are compared; the first offender is named."""

from __future__ import annotations

from collections.abc import Sequence

from .arms import Arm, TaskTable
from .asked import check_asked
from .costs import same_size
from .values import TrialError

_JOINING = " (every unlooped file is an arm of its own: an equal `arm` field on the lines of several joins them, as one file would)"


def check_items(looped: Arm, other: Arm, *, same_seeds: bool = True) -> None:
    """Refuse arms that do not cover the same benchmarks, items and (unless told otherwise) seeds.

    Raises:
        TrialError: the first missing benchmark, seed or item, or an item with another reference answer.
    """
    for task in sorted({*looped.tasks, *other.tasks}):
        if task not in other.tables or task not in looped.tables:
            absent, present = (other, looped) if task in looped.tables else (looped, other)
            raise TrialError(
                f"different tasks: {present.name} has {task}, {absent.name} has {', '.join(absent.tasks)}; compare the same benchmarks"
                + (_JOINING if other.side == "unlooped" and not other.headers else "")
            )
        ours, theirs = looped.tables[task], other.tables[task]
        if same_seeds:
            _check_same(task, "seed", (looped, ours.seeds), (other, theirs.seeds))
        _check_same(task, "item", (looped, ours.items), (other, theirs.items))
        for item, gold, expected in zip(ours.items, theirs.golds, ours.golds, strict=True):
            if gold is not None and expected is not None and gold != expected:
                raise TrialError(
                    f"item {item!r} of {task} has the reference answer {expected!r} in {looped.name}, {gold!r} in {other.name}: other tasks"
                )
        if None not in (ours.version, theirs.version) and ours.version != theirs.version:
            raise TrialError(
                f"{task} is version {ours.version} in {looped.name}, {theirs.version} in {other.name}; evaluate both with one version"
            )


def check_twins(looped: Arm, twin: Arm) -> None:
    """Refuse a pair that is no fair test at equal parameters: budget, decoding and samples must match besides the items.

    Raises:
        TrialError: the first difference, or as `check_items`.
    """
    if not same_size(looped, twin):
        raise TrialError(
            f"{looped.name} has {looped.num_parameters} parameters, {twin.name} {twin.num_parameters}: not twins; give equal models"
        )
    if looped.rule != twin.rule and None not in (looped.rule, twin.rule):
        raise TrialError(f"decoding rules differ: {looped.name} has {looped.rule}, {twin.name} {twin.rule}; equal parameters need the same")
    for name, setting, other in decoding_differences(looped, twin):
        raise TrialError(
            f"decoding differs: {name} is {setting!r} in {looped.name}, {other!r} in {twin.name}; equal parameters need the same"
        )
    for task in (task for task in looped.tasks if task in twin.tables):
        ours, theirs = looped.tables[task], twin.tables[task]
        for name, one, two in (
            ("budget_tokens", ours.budget_tokens, theirs.budget_tokens),
            ("reserve_tokens", ours.reserve_tokens, theirs.reserve_tokens),
        ):
            if None not in (one, two) and one != two:
                raise TrialError(f"{name} of {task} is {one} in {looped.name}, {two} in {twin.name}; equal parameters need the same")
        if ours.samples != theirs.samples:
            raise TrialError(_samples_differ(task, looped, ours, twin, theirs))
    check_items(looped, twin)
    check_asked(looped, twin, "equal parameters need the same")


def decoding_differences(one: Arm, other: Arm) -> list[tuple[str, object, object]]:
    """Settings besides the rule's name in which two arms differ, as far as both say."""
    if one.decoding is None or other.decoding is None:
        return []
    ours, theirs = dict(one.decoding), dict(other.decoding)
    return [(name, ours[name], theirs[name]) for name in ours if name in theirs and ours[name] != theirs[name]]


def _samples_differ(task: str, looped: Arm, ours: TaskTable, twin: Arm, theirs: TaskTable) -> str:
    first = min(set(ours.samples) ^ set(theirs.samples))
    return (
        f"samples of {task} differ: {looped.name} has {len(ours.samples)} for an item and seed, {twin.name} {len(theirs.samples)} "
        f"(first without its counterpart: item {ours.items[0]!r}, sample {first}); use the same number"
    )


def _check_same(task: str, what: str, one: tuple[Arm, Sequence[object]], other: tuple[Arm, Sequence[object]]) -> None:
    if one[1] == other[1]:
        return
    (ours, mine), (theirs, yours) = one, other
    first = min(set(mine) ^ set(yours), key=str)
    absent, present = (theirs, ours) if first in set(mine) else (ours, theirs)
    raise TrialError(f"{what} {first!r} of {task} is missing in {absent.name} but not in {present.name}; complete the run")
