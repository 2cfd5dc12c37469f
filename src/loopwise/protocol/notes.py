"""What a reader must know before quoting a verdict's numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .. import stats
from .arms import Arm
from .costs import COST_FIELDS
from .decide import ITEMS_FOR_EQUIVALENCE
from .deciding import Pairs
from .values import Comparison, TestOutcome, ThresholdEffect, VerdictWord
from .words import interval, listing, p_text, threshold_note

_SAME_IN_BOTH = ("batch_size", "batch_plan", "engine", "dtype", "device", "weights", "threads", "versions")


def notes_of(
    pairs: Pairs,
    first: TestOutcome,
    second: TestOutcome | None,
    *,
    word: VerdictWord,
    training_free: bool,
    threshold: ThresholdEffect | None,
    unlooped: Sequence[Arm],
    uncosted: Sequence[Arm],
    alpha: float,
) -> tuple[str, ...]:
    """One sentence each, the weightiest first."""
    return (
        *_measures(second, word),
        *_seeds(first.comparison, training_free),
        *([] if training_free else _luck(first, second, alpha)),
        *_choice(pairs, second),
        *_few_items(first, second, alpha),
        *([] if threshold is None else [threshold_note(threshold, first.delta_points)]),
        *_headers(pairs.looped, pairs.twin),
        *_uncosted(second, uncosted),
        *_votes(unlooped),
    )


def _measures(second: TestOutcome | None, word: VerdictWord) -> Iterator[str]:
    for one in () if second is None else second.measures:
        if one.flips:
            yield f"The verdict flips: with cost measured in {one.measure} it would be '{one.verdict}', not '{word}'."


def _seeds(comparison: Comparison, training_free: bool) -> Iterator[str]:
    if comparison.resampling == "items and seeds":
        yield "Intervals resample items and seeds: they include variation between training runs, as far as this few seeds show it."
    elif training_free:
        yield "The loop is training-free (‡): both arms are the same weights, and seeds only repeat the decoding."
    else:
        yield "Intervals are conditional on the training seeds: they ignore variation between training runs; see the per-seed differences."
    if comparison.ci95_items_and_seeds is not None and comparison.resampling == "items":
        yield f"Resampling seeds too, the 95 % interval at equal parameters is {interval(comparison.ci95_items_and_seeds)} points."
    if len(comparison.seeds) < 3 and not training_free:
        yield "Fewer than three seeds (△): another training run could come out differently."


def _luck(first: TestOutcome, second: TestOutcome | None, alpha: float) -> Iterator[str]:
    """A gain that could be the training runs' luck."""
    for test in (first, second):
        p = None if test is None else test.comparison.p_items_and_seeds
        if test is not None and p is not None and test.result == "gain" and p >= alpha:
            yield f"The gain at {test.name} is not significant with seeds resampled too ({p_text(p)}): perhaps luck of these training runs."


def _choice(pairs: Pairs, second: TestOutcome | None) -> Iterator[str]:
    if pairs.by == "default":
        yield "The deciding budget and rule were taken by default, not from a plan written before the runs."
    if second is not None and second.num_eligible > 1:
        yield (
            f"The comparator at equal FLOPs was chosen among {second.num_eligible} arms on the test items, which favours the unlooped "
            "side: its interval covers the truth less often than it says, always against the loop."
        )


def _uncosted(second: TestOutcome | None, arms: Sequence[Arm]) -> Iterator[str]:
    if second is not None and second.measure is not None and arms:
        yield (
            f"No cost is known ({second.measure}: `{COST_FIELDS[second.measure]}`) for {listing([arm.name for arm in arms])}: "
            "less accurate than the comparator at equal FLOPs, and not among the arms that it was chosen from."
        )


def _few_items(first: TestOutcome, second: TestOutcome | None, alpha: float) -> Iterator[str]:
    for test in (first, second):
        if test is None:
            continue
        comparison = test.comparison
        if stats.sign_floor(comparison.num_differing_items) >= alpha:
            yield f"At {test.name} the arms differ on {comparison.num_differing_items} items only: no test could call that significant."
        if test.equivalent and test.result == "not shown":
            within = f"At {test.name} the 90 % interval lies within ±2 points, but"
            if comparison.num_items < ITEMS_FOR_EQUIVALENCE:
                yield f"{within} {comparison.num_items} items cannot show equivalence: it takes {ITEMS_FOR_EQUIVALENCE}."
            else:
                yield f"{within} not at the level that choosing among {test.num_eligible} arms calls for."


def _headers(looped: Arm, twin: Arm) -> Iterator[str]:
    if not looped.headers or not twin.headers:
        return
    if differ := [name for name, _, _ in run_differences(looped, twin)]:
        yield f"Looped arm and twin ran with different {listing(differ)}: bf16 answers can flip with the batch or the machine alone."


def run_differences(one: Arm, other: Arm) -> list[tuple[str, list[Any], list[Any]]]:
    """In what arms ran otherwise that changes answers without being a setting: its name, and each arm's values over all of its runs."""
    differences = []
    for name in _SAME_IN_BOTH:
        ours, theirs = _values(one, name), _values(other, name)
        if ours != theirs:
            differences.append((name, ours, theirs))
    return differences


def _values(arm: Arm, name: str) -> list[Any]:
    return [json.loads(value) for value in sorted({json.dumps(header.get(name), sort_keys=True) for header in arm.headers})]


def change_notes(before: Arm, after: Arm) -> tuple[str, ...]:
    """In what two times ran otherwise besides training, as far as their headers say."""
    if not before.headers or not after.headers:
        return ()
    known = [one for one in run_differences(before, after) if None not in (*one[1], *one[2])]
    if not known:
        return ()
    differ = listing([_changed(*one) for one in known])
    return (f"before and after ran with different {differ}: answers can flip with these alone, so training need not be all of the change.",)


def _changed(name: str, before: Sequence[Any], after: Sequence[Any]) -> str:
    """``dtype (float32, then bfloat16)``; versions by their name alone."""
    if any(isinstance(one, dict) for one in (*before, *after)):
        return name
    return f"{name} ({'/'.join(map(str, before))}, then {'/'.join(map(str, after))})"


def _votes(unlooped: Sequence[Arm]) -> Iterator[str]:
    for arm in unlooped:
        sampled = max(len(table.samples) for table in arm.tables.values()) > 1
        if sampled and any(table.answers is None for table in arm.tables.values()):
            yield f"{arm.name} has several samples, but its records have no `answer`: no majority vote can be made from them."
