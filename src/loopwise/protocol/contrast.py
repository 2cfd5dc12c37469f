"""One looped arm against one other arm: the paired comparison with all of its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .. import stats
from .arms import Arm, Array, TaskTable
from .pairing import check_items
from .values import MARGIN_POINTS, Comparison, FinishedComparison, SeedPoints, TaskComparison, TrialError


@dataclass(frozen=True, slots=True)
class Contrast:
    """A comparison with the resamples behind it."""

    comparison: Comparison
    draws: Array
    """Resampled macro differences in points."""


class Contrasts:
    """Comparisons under one way of resampling, each pair computed once."""

    def __init__(self, bootstrap: stats.Bootstrap) -> None:
        self.bootstrap = bootstrap
        self._made: dict[tuple[int, int, bool], Contrast] = {}
        self._kept: list[Arm] = []
        """The arms behind the keys: an id is one arm's only while that arm lives."""

    def of(self, looped: Arm, other: Arm, *, with_seeds: bool = False) -> Contrast:
        """The contrast of two arms, after the check that they cover the same items (a larger model may have other seeds)."""
        key = (id(looped), id(other), with_seeds)  # not by name: two arms may share one
        if not with_seeds and (*key[:2], True) in self._made:
            return self._made[*key[:2], True]
        if key not in self._made:
            check_items(looped, other, same_seeds=other.side != "larger")
            self._kept += [looped, other]
            self._made[key] = contrast(looped, other, self.bootstrap, with_seeds=with_seeds)
        return self._made[key]


def contrast(looped: Arm, other: Arm, bootstrap: stats.Bootstrap, *, with_seeds: bool = False) -> Contrast:
    """Compare two arms that cover the same items.

    Where their seeds differ, each arm is averaged over its own.

    Args:
        with_seeds: also the interval that resamples seeds, where there are at least two.

    Raises:
        TrialError: seeds to be resampled, but only one or other ones.
    """
    tasks = looped.tasks
    paired_seeds = all(looped.tables[task].seeds == other.tables[task].seeds for task in tasks)
    differences = [_differences(looped.tables[task], other.tables[task], paired_seeds) for task in tasks]
    can_draw_seeds = paired_seeds and _one_set_of_seeds(looped) and len(looped.seeds) > 1
    if bootstrap.resampling == "items and seeds" and not can_draw_seeds:
        raise TrialError(f"{looped.name} against {other.name}: {_why_no_seeds(looped, other, paired_seeds)}; use 'items'")
    draws = stats.resample_means(differences, bootstrap)
    macro = draws.mean(axis=0)
    estimate = stats.estimate(stats.macro_mean(differences), macro)
    differing = sum(int((np.abs(d.mean(axis=0)) > 1e-9).sum()) for d in differences)
    floor = max(2 / (bootstrap.resamples + 1), stats.sign_floor(differing))
    seeded = stats.macro_bootstrap(differences, replace(bootstrap, resampling="items and seeds")) if with_seeds and can_draw_seeds else None
    seed_deltas = _seed_deltas(looped, differences) if paired_seeds else ()
    return Contrast(
        Comparison(
            looped=looped.name,
            other=other.name,
            looped_percent=looped.accuracy_percent(),
            other_percent=other.accuracy_percent(),
            delta_points=100 * estimate.value,
            ci95=_points(estimate.ci95),
            ci90=_points(estimate.ci90),
            p_value=max(estimate.p_value, floor),
            p_floor=floor,
            standard_error_points=100 * estimate.standard_error,
            equivalent=stats.equivalent(_points(estimate.ci90), MARGIN_POINTS),
            resampling=bootstrap.resampling,
            ci95_items_and_seeds=None if seeded is None else _points(seeded.ci95),
            p_items_and_seeds=None if seeded is None else max(seeded.p_value, floor),
            resamples=bootstrap.resamples,
            num_items=looped.num_items,
            num_differing_items=differing,
            seeds=looped.seeds,
            seed_deltas=seed_deltas,
            seeds_favouring=sum(one.points > 0 for one in seed_deltas),
            tasks=_task_comparisons(looped, other, differences, draws, bootstrap),
            both_finished=_both_finished(looped, other, tasks, bootstrap),
        ),
        100 * macro,
    )


def _one_set_of_seeds(arm: Arm) -> bool:
    """Whether all benchmarks have the same seeds."""
    return len({table.seeds for table in arm.tables.values()}) == 1


def _why_no_seeds(looped: Arm, other: Arm, paired_seeds: bool) -> str:
    needs = "resampling seeds needs the same two or more seeds in both"
    if paired_seeds and not _one_set_of_seeds(looped):
        seeds = ", ".join(f"{task} has {'/'.join(map(str, looped.tables[task].seeds))}" for task in looped.tasks)
        return f"{needs} and in every benchmark, but seeds differ between benchmarks ({seeds})"
    if paired_seeds:
        return f"{needs}, but there is only seed {looped.seeds[0]}"
    return f"{needs}, but they have {'/'.join(map(str, looped.seeds))} and {'/'.join(map(str, other.seeds))}"


def _differences(ours: TaskTable, theirs: TaskTable, paired_seeds: bool) -> Array:
    one, two = ours.accuracy(), theirs.accuracy()
    return one - two if paired_seeds else one.mean(axis=0, keepdims=True) - two.mean(axis=0, keepdims=True)


def _seed_deltas(looped: Arm, differences: list[Array]) -> tuple[SeedPoints, ...]:
    if not _one_set_of_seeds(looped):
        return ()
    return tuple(SeedPoints(seed=seed, points=100 * x) for seed, x in zip(looped.seeds, stats.per_seed(differences), strict=True))


def _task_comparisons(
    looped: Arm, other: Arm, differences: list[Array], draws: Array, bootstrap: stats.Bootstrap
) -> tuple[TaskComparison, ...]:
    rows = []
    for n, task in enumerate(looped.tasks):
        ours, theirs = looped.tables[task], other.tables[task]
        estimate = stats.estimate(float(differences[n].mean()), draws[n])
        floor = stats.sign_floor(int((np.abs(differences[n].mean(axis=0)) > 1e-9).sum()))
        discordant = _discordant(ours, theirs)
        rows.append(
            TaskComparison(
                task=task,
                num_items=len(ours.items),
                looped_percent=100 * float(ours.correct.mean()),
                other_percent=100 * float(theirs.correct.mean()),
                delta_points=100 * estimate.value,
                ci95=_points(estimate.ci95),
                ci90=_points(estimate.ci90),
                p_value=max(estimate.p_value, floor),
                holm_p=1.0,
                equivalent=stats.equivalent(_points(estimate.ci90), MARGIN_POINTS),
                discordant=discordant,
                mcnemar_p=None if discordant is None else stats.mcnemar_exact(*discordant),
                looped_finished_percent=finished_percent(ours),
                other_finished_percent=finished_percent(theirs),
                both_finished=_both_finished(looped, other, (task,), bootstrap),
            )
        )
    adjusted = stats.holm([row.p_value for row in rows])
    return tuple(replace(row, holm_p=p) for row, p in zip(rows, adjusted, strict=True))


def finished_percent(table: TaskTable) -> float | None:
    """Answers that ended within the budget, or None where the records do not say."""
    return None if table.finished is None else 100 * float(table.finished.mean())


def _discordant(ours: TaskTable, theirs: TaskTable) -> tuple[int, int] | None:
    """For McNemar: one seed and one answer an item in both arms."""
    if ours.correct[:, 0].size != 1 or theirs.correct[:, 0].size != 1:
        return None
    difference = ours.correct - theirs.correct
    return int((difference > 0).sum()), int((difference < 0).sum())


def _both_finished(looped: Arm, other: Arm, tasks: tuple[str, ...], bootstrap: stats.Bootstrap) -> FinishedComparison | None:
    """Accuracy on the answers that both arms finish, macro over ``tasks``; None where unknown or where there are none."""
    sums = [_both_finished_sums(looped.tables[task], other.tables[task]) for task in tasks]
    known = [one for one in sums if one is not None]
    some = [one for one in known if one[0].sum() > 0]
    if len(known) < len(sums) or not some:
        return None
    draws = 100 * stats.resample_ratios([right - wrong for _, right, wrong in some], [both for both, _, _ in some], bootstrap).mean(axis=0)
    looped_percent, other_percent = (100 * float(np.mean([one[k].sum() / one[0].sum() for one in some])) for k in (1, 2))
    differing = sum(int((np.abs(right - wrong) > 1e-9).sum()) for _, right, wrong in some)
    return FinishedComparison(
        num_answers=int(sum(one[0].sum() for one in some)),
        share_percent=100
        * float(np.mean([one[0].sum() / looped.tables[task].correct.size for one, task in zip(known, tasks, strict=True)])),
        looped_percent=looped_percent,
        other_percent=other_percent,
        delta_points=looped_percent - other_percent,
        ci95=stats.percentile_interval(draws, 0.95),
        p_value=max(stats.two_sided_p(draws), stats.sign_floor(differing)),
    )


def _both_finished_sums(ours: TaskTable, theirs: TaskTable) -> tuple[Array, Array, Array] | None:
    """Per item, over seeds and samples that both finish: how many, right in the first arm, right in the second."""
    if ours.finished is None or theirs.finished is None or ours.correct.shape != theirs.correct.shape or ours.seeds != theirs.seeds:
        return None
    both = ours.finished * theirs.finished
    return both.sum(axis=(0, 2)), (both * ours.correct).sum(axis=(0, 2)), (both * theirs.correct).sum(axis=(0, 2))


def _points(interval: tuple[float, float]) -> tuple[float, float]:
    return 100 * interval[0], 100 * interval[1]
