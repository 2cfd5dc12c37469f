"""What post-training did to a loop's worth: a difference of differences (no-free-loop, B.1 and Table 9).

    (looped after - looped before) - (control after - control before)

which is the loop's gap to its control after post-training less the gap before it. All four arms answer the same items, so the
difference is taken item by item before items are drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import stats
from ..stats import Bootstrap
from .arms import Arm, Array
from .asked import check_asked
from .contrast import contrast
from .costs import same_size
from .decide import ITEMS_FOR_EQUIVALENCE
from .deciding import Choice, find_pairs
from .gather import gather
from .judging import RunLike, read_runs
from .notes import change_notes
from .pairing import check_items, check_twins, decoding_differences
from .values import MARGIN_POINTS, Comparison, Resampling, SeedPoints, TestResult, TrialError
from .words import interval, p_text, points


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """One benchmark's difference of differences."""

    task: str
    num_items: int
    before_points: float
    """The loop's gap to its control before."""
    after_points: float
    delta_points: float
    """After less before."""
    ci95: tuple[float, float]
    p_value: float
    """Of this benchmark alone, at least what its differing items allow; not adjusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeAfter:
    """The difference of differences of four arms, with its uncertainty. Points are of macro accuracy."""

    before: Comparison
    """The looped model against its control before post-training."""
    after: Comparison
    looped_change_points: float
    """The looped model after less before."""
    control_change_points: float
    delta_points: float
    """``looped_change_points`` less ``control_change_points``; above 0 the loop is worth more after. No-free-loop's B.1 states before
    less after, with the other sign."""
    ci95: tuple[float, float]
    """Percentile interval of the bootstrap over items, each of the four arms keeping its pairing, of the kind named by ``resampling``."""
    ci90: tuple[float, float]
    p_value: float
    """Two-sided, at least ``p_floor``."""
    p_floor: float
    """The smallest p-value that this many resamples and this many differing items could give."""
    standard_error_points: float
    resampling: Resampling
    """``items``: conditional on the training seeds (A.5), the default. ``items and seeds``: seeds are drawn again too."""
    ci95_items_and_seeds: tuple[float, float] | None
    """Beside the other, the interval that resamples seeds too; None with one seed, or with other seeds before than after."""
    p_items_and_seeds: float | None
    resamples: int
    num_items: int
    num_differing_items: int
    """Items on which the gap changed, on average over seeds."""
    seed_deltas: tuple[SeedPoints, ...]
    """The difference of differences of each seed; empty with other seeds before than after."""
    tasks: tuple[TaskChange, ...]
    notes: tuple[str, ...]
    """In what the two times ran otherwise besides training: precision, batches, engine, machine or versions, as far as headers say."""
    result: TestResult
    """``gain``: the loop is worth significantly more after. ``equivalent`` needs 150 items, as a verdict does."""
    statement: str
    """The outcome in one sentence with its numbers."""


def judge_before_after(
    *,
    looped: Sequence[RunLike] | RunLike,
    twin: Sequence[RunLike] | RunLike,
    looped_before: Sequence[RunLike] | RunLike,
    twin_before: Sequence[RunLike] | RunLike,
    budget_tokens: int | None = None,
    rule: str | None = None,
    alpha: float = 0.05,
    bootstrap: Bootstrap | None = None,
) -> BeforeAfter:
    """The difference of differences of anybody's runs.

    Args:
        looped, twin: runs (or their paths) after post-training.
        looped_before, twin_before: runs before it; seeds may be others, items may not.
        budget_tokens, rule: which pair of several decides, as for `judge`; before and after are compared at the same.

    Raises:
        TrialError: arms that do not match; the first difference is named.
        RecordsError: a path that cannot be read.
    """
    after = find_pairs(gather(read_runs(looped), "looped"), gather(read_runs(twin), "twin"), Choice.of(None, budget_tokens, rule))
    budgets, reserves = (
        {task: number for task, number in known.items() if number is not None}
        for known in (after.looped.budgets_tokens, after.looped.reserves_tokens)
    )
    same = Choice(rule=after.looped.rule, budgets_tokens=budgets or None, reserves_tokens=reserves, by="caller")
    try:
        before = find_pairs(gather(read_runs(looped_before), "looped"), gather(read_runs(twin_before), "twin"), same)
    except TrialError as error:
        raise TrialError(f"the runs before post-training do not match those after: {error}; evaluate both times alike") from None
    return before_after((before.looped, before.twin), (after.looped, after.twin), bootstrap or Bootstrap(), alpha=alpha)


def before_after(before: tuple[Arm, Arm], after: tuple[Arm, Arm], bootstrap: Bootstrap, *, alpha: float = 0.05) -> BeforeAfter:
    """The difference of differences of a looped arm and its control, before and after.

    Within each time the two are paired by item and seed; where the seeds of the two times differ, each time is averaged over its own.

    Raises:
        TrialError: arms of other items, questions, tasks, budgets, decoding, samples or model sizes; seeds to be resampled that are not
            the same.
    """
    before, after = _told_apart(before, "before"), _told_apart(after, "after")
    for pair in (before, after):
        check_twins(*pair)
    check_times(before[0], after[0])
    gaps = _gaps(after), _gaps(before)
    paired_seeds = all(after[0].tables[task].seeds == before[0].tables[task].seeds for task in after[0].tasks)
    seeds = [table.seeds for table in after[0].tables.values()]
    can_draw_seeds = paired_seeds and len(set(seeds)) == 1 and len(seeds[0]) > 1
    if bootstrap.resampling == "items and seeds" and not can_draw_seeds:
        raise TrialError(
            f"resampling seeds needs the same two or more seeds before and after, and they have {_listed(before[0])} and "
            f"{_listed(after[0])}; use 'items'"
        )
    found = stats.difference_of_differences(*gaps, bootstrap)
    again = replace(bootstrap, resampling="items and seeds")
    seeded = stats.difference_of_differences(*gaps, again) if can_draw_seeds else None
    differing = sum(_num_differing(one, two) for one, two in zip(*gaps, strict=True))
    floor = max(2 / (bootstrap.resamples + 1), stats.sign_floor(differing))
    comparisons = [contrast(*pair, bootstrap, with_seeds=True).comparison for pair in (before, after)]
    made = BeforeAfter(
        before=comparisons[0],
        after=comparisons[1],
        looped_change_points=comparisons[1].looped_percent - comparisons[0].looped_percent,
        control_change_points=comparisons[1].other_percent - comparisons[0].other_percent,
        delta_points=100 * found.value,
        ci95=_points(found.ci95),
        ci90=_points(found.ci90),
        p_value=max(found.p_value, floor),
        p_floor=floor,
        standard_error_points=100 * found.standard_error,
        resampling=bootstrap.resampling,
        ci95_items_and_seeds=None if seeded is None else _points(seeded.ci95),
        p_items_and_seeds=None if seeded is None else max(seeded.p_value, floor),
        resamples=bootstrap.resamples,
        num_items=after[0].num_items,
        num_differing_items=differing,
        seed_deltas=_seed_deltas(seeds[0], *gaps) if paired_seeds and len(set(seeds)) == 1 else (),
        tasks=tuple(_task(task, one, two, bootstrap) for task, one, two in zip(after[0].tasks, *gaps, strict=True)),
        notes=tuple(dict.fromkeys(note for one, two in zip(before, after, strict=True) for note in change_notes(one, two))),
        result="not shown",
        statement="",
    )
    return _with_result(made, made.p_value, p_text(made.p_value), alpha)


def corrected(made: BeforeAfter, holm_p: float, number: int, alpha: float) -> BeforeAfter:
    """The same as one of several comparisons: result and statement rest on the adjusted p-value, ``p_value`` stays its own."""
    return _with_result(made, holm_p, f"{p_text(holm_p)} after Holm's correction for {number} comparisons", alpha)


def _with_result(made: BeforeAfter, p_value: float, p_words: str, alpha: float) -> BeforeAfter:
    made = replace(made, result=_result(made, p_value, alpha))
    return replace(made, statement=_statement(made, p_words))


def _told_apart(pair: tuple[Arm, Arm], when: str) -> tuple[Arm, Arm]:
    """The arms under names that say when: those of two trials share theirs."""
    looped, control = (replace(arm, name=f"{arm.name} ({when})") for arm in pair)
    return looped, control


def check_times(before: Arm, after: Arm) -> None:
    """Refuse two times of another model size, decoding, items, questions or versions, as far as both say; where pairs were checked as
    twins, one arm of each speaks for both. What else can change answers is a note (`BeforeAfter.notes`).

    Raises:
        TrialError: the first difference.
    """
    if not same_size(before, after):
        raise TrialError(
            f"{before.name} has {before.num_parameters} parameters, {after.name} {after.num_parameters}: before and after are one model"
        )
    differences = [
        ("decoding rule", before.rule, after.rule),
        *((what, one, two) for what, one, two in decoding_differences(before, after)),
    ]
    for task in (task for task in after.tasks if task in before.tables):
        one, two = before.tables[task], after.tables[task]
        differences += [(f"{what} of {task}", getattr(one, what), getattr(two, what)) for what in ("budget_tokens", "reserve_tokens")]
        differences.append((f"samples of {task}", len(one.samples), len(two.samples)))
    for what, ours, theirs in differences:
        if ours != theirs and None not in (ours, theirs):
            raise TrialError(f"{what} is {ours!r} in {before.name}, {theirs!r} in {after.name}; evaluate both times alike")
    check_items(after, before, same_seeds=False)
    check_asked(after, before, "ask both times alike")


def _gaps(pair: tuple[Arm, Arm]) -> list[Array]:
    """Of each benchmark the looped arm less its control, ``[seeds, items]``."""
    looped, control = pair
    return [looped.tables[task].accuracy() - control.tables[task].accuracy() for task in looped.tasks]


def _num_differing(after: Array, before: Array) -> int:
    return int((np.abs(after.mean(axis=0) - before.mean(axis=0)) > 1e-9).sum())


def _seed_deltas(seeds: Sequence[int], after: Sequence[Array], before: Sequence[Array]) -> tuple[SeedPoints, ...]:
    changes = [one - two for one, two in zip(after, before, strict=True)]
    return tuple(SeedPoints(seed=seed, points=100 * value) for seed, value in zip(seeds, stats.per_seed(changes), strict=True))


def _task(task: str, after: Array, before: Array, bootstrap: Bootstrap) -> TaskChange:
    found = stats.difference_of_differences([after], [before], bootstrap)
    return TaskChange(
        task=task,
        num_items=after.shape[1],
        before_points=100 * float(before.mean()),
        after_points=100 * float(after.mean()),
        delta_points=100 * found.value,
        ci95=_points(found.ci95),
        p_value=max(found.p_value, stats.sign_floor(_num_differing(after, before))),
    )


def _result(made: BeforeAfter, p_value: float, alpha: float) -> TestResult:
    if p_value < alpha and made.delta_points != 0:
        return "gain" if made.delta_points > 0 else "loss"
    if made.num_items >= ITEMS_FOR_EQUIVALENCE and stats.equivalent(made.ci90, MARGIN_POINTS):
        return "equivalent"
    return "not shown"


_RESULT_WORDS = {
    "gain": "the loop is worth more after",
    "loss": "the loop is worth less after",
    "equivalent": "its worth is the same within ±2 points",
    "not shown": "no change of its worth is shown",
}


def _statement(made: BeforeAfter, p_words: str) -> str:
    before, after = made.before, made.after
    looped = f"{before.looped_percent:.1f} to {after.looped_percent:.1f} % ({points(made.looped_change_points)})"
    control = f"{before.other_percent:.1f} to {after.other_percent:.1f} % ({points(made.control_change_points)})"
    return (
        f"The looped model goes from {looped}, its control from {control}: a difference of differences of {points(made.delta_points)} "
        f"points, 95 % interval {interval(made.ci95)}, {p_words}: {_RESULT_WORDS[made.result]}."
    )


def _listed(arm: Arm) -> str:
    return "seeds " + "/".join(map(str, arm.seeds))


def _points(bounds: tuple[float, float]) -> tuple[float, float]:
    return 100 * bounds[0], 100 * bounds[1]
