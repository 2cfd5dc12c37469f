"""What the trial of a set would take and could show, before anything is spent: by member, over all training seeds.

As `trial_estimate` for one model: no weights are loaded. What is new is the chance of training: the test that decides is about these
trained models, and the interval that draws the seeds again stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import stats
from ..cost import cost_of
from ..models import resolve, resolve_loops
from ..protocol import Plan, TrialError
from ..protocol.prior import Throughput, read_prior
from .learning_members import LOOPED, TWIN
from .set_judging import SET_PLAN_FILE, SetTrialPlan, TriedMember, deciding_arms
from .set_trial import check_set_settings, member_arms, model_folder, plan_members, plan_set
from .trial_estimate import (
    POWER,
    ArmEstimate,
    Known,
    Shapes,
    SmallestGain,
    arm_estimate,
    check_known,
    estimated_tasks,
    smallest_gains,
    throughput_of,
)
from .trial_settings import TrialSettings

ASSUMED_TRAINING_POINTS = (0.5, 1.0, 2.0)
"""Standard deviations of a pair's true difference from one training run to the next, in points, for which the smallest gain is told
where no earlier trial of a set is known. A guess: noise of one point an arm, which docs/two-tests.md simulates, is 1.4 points of a
difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEstimate:
    """What one member would take, all of its training seeds together."""

    name: str
    role: str
    loops: str
    layer_pass_ratio: float
    arms: tuple[ArmEstimate, ...]
    """With one seed."""
    num_seeds: int

    def total(self, field: str) -> float | None:
        """The sum of a field of `ArmEstimate` over arms and seeds; None where it is not known."""
        values = [getattr(arm, field) for arm in self.arms]
        return None if any(value is None for value in values) else float(self.num_seeds * sum(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpread:
    """How much a pair's true difference differs from one training run to the next."""

    points: float
    """Standard deviation."""
    num_seeds: int | None
    """Of the earlier trial that it was measured on; None: assumed."""
    smallest_gains_points: tuple[float | None, ...]
    """The smallest gain found with seeds resampled too, for each of the estimate's `SmallestGain`; None: none could be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetEstimate:
    """A set's plan with what it would take and could show."""

    plan: Plan
    tested: SetTrialPlan
    num_items: Mapping[str, int]
    prompt_tokens: Mapping[str, float]
    members: tuple[MemberEstimate, ...]
    throughput: Throughput | None
    num_prior_runs: int
    smallest_gains: tuple[SmallestGain, ...]
    """Of these trained models: the test that decides. An item's differences in two seeds are taken as independent."""
    one_sided_points: float | None
    """The smallest gain that could be shown if no answer got worse."""
    training: tuple[TrainingSpread, ...]
    """Of training runs like these; empty with one seed, which says nothing of others."""

    def total(self, field: str) -> float | None:
        """The sum over members; None where it is not known for one of them."""
        values = [member.total(field) for member in self.members]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None


def estimate_set(
    folder: str | Path,
    *,
    out: str | Path,
    tasks: Sequence[str] = ("ladder",),
    budgets: Sequence[int] = (),
    depths: Sequence[int] = (),
    settings: TrialSettings | None = None,
    known: Known | None = None,
) -> SetEstimate:
    """What `set_trial` with the same arguments would take. Nothing is written, and no weights are read unless a probe is asked for.

    Args:
        out: the trial's folder: runs that are there count as earlier runs where no others are named.

    Raises:
        TrialError, LoopError, TaskError, ModelError, CostError: as `set_trial`, before it loads a model.
    """
    settings, known, folder, out = settings or TrialSettings(), known or Known(), Path(folder), Path(out)
    check_known(known, settings)
    chosen = estimated_tasks(tasks, settings)
    check_set_settings(folder, settings)
    asked = [(task, task.load(settings.data, settings.limit)) for task in chosen]
    tested = plan_members(folder, depths)
    source = resolve(model_folder(tested, tested.named(LOOPED), tested.seeds[0]), weights=known.probe)
    plan = plan_set(tested, source, chosen, budgets, settings)
    earlier = known.prior or ((out,) if out.is_dir() else ())
    prior = read_prior(earlier)
    throughput = throughput_of(known, prior, plan, source, chosen[0], settings)
    shapes = Shapes(source, resolve_loops(source, tested.named(LOOPED).loops), settings)
    counts = {task.name: len(items) for task, items in asked}
    gains = smallest_gains(plan, counts, prior)
    one_sided = stats.smallest_one_sided(sum(counts.values()), alpha=plan.alpha, power=POWER)

    def member_estimate(member: TriedMember) -> MemberEstimate:
        its = shapes.with_loops(resolve_loops(source, member.loops))
        arms = tuple(arm_estimate(arm, plan, asked, its, prior, throughput) for arm in member_arms(plan, member))
        ratio = cost_of(its.plain[0], its.loops).layer_pass_ratio
        return MemberEstimate(
            name=member.name, role=member.role, loops=member.loops, layer_pass_ratio=ratio, arms=arms, num_seeds=len(plan.seeds)
        )

    return SetEstimate(
        plan=plan,
        tested=tested,
        num_items=counts,
        prompt_tokens=shapes.mean_prompts(asked),
        members=tuple(member_estimate(member) for member in tested.members),
        throughput=throughput,
        num_prior_runs=len(prior.runs),
        smallest_gains=gains,
        one_sided_points=None if one_sided is None else 100 * one_sided,
        training=_training(plan, list(counts.values()), gains, earlier),
    )


def _training(plan: Plan, num_items: list[int], gains: Sequence[SmallestGain], earlier: Sequence[Path]) -> tuple[TrainingSpread, ...]:
    """By the spread of an earlier trial of the same tasks where there is one, else for each of the assumed ones."""
    if len(plan.seeds) < 2:
        return ()
    measured = _measured_spread(plan, earlier)
    spreads = [(points, None) for points in ASSUMED_TRAINING_POINTS] if measured is None else [measured]

    def smallest(points: float, discordance: float) -> float | None:
        found = stats.smallest_gain_over_training_runs(
            num_items, discordance, points / 100, num_seeds=len(plan.seeds), alpha=plan.alpha, power=POWER
        )
        return None if found is None else 100 * found

    return tuple(
        TrainingSpread(points=points, num_seeds=seeds, smallest_gains_points=tuple(smallest(points, one.discordance) for one in gains))
        for points, seeds in spreads
    )


def _measured_spread(plan: Plan, earlier: Sequence[Path]) -> tuple[float, int] | None:
    """Of the earlier set's trial with the most seeds, in points, and how many these were; None without one of the same tasks."""
    found = []
    for file in sorted(file for folder in earlier for file in folder.rglob(SET_PLAN_FILE)):
        try:
            arms = deciding_arms(file.parent, (LOOPED, TWIN))
        except (TrialError, ValueError, OSError):
            continue  # unfinished or damaged: nothing is known from it
        if {task.name for task in plan.tasks} == set(arms[LOOPED].tasks) and len(arms[LOOPED].seeds) > 1:
            tables = [(arms[LOOPED].tables[task.name], arms[TWIN].tables[task.name]) for task in plan.tasks]
            found.append((100 * training_sd([one.accuracy() - other.accuracy() for one, other in tables]), len(arms[LOOPED].seeds)))
    return max(found, key=lambda one: one[1], default=None)


def training_sd(differences: Sequence[np.ndarray]) -> float:
    """The standard deviation of the macro difference over training runs, as a share, less what chance in the items makes of it.

    Of the variance between the seeds' macro differences the part is taken off that an item's own deviations in a seed, apart from its
    mean and the seed's, make in a mean of so many items (two-way analysis of variance without repetition). 0 where nothing is left.

    Args:
        differences: for each benchmark [seeds, items], of at least two seeds.
    """
    by_seed = np.mean([one.mean(axis=1) for one in differences], axis=0)
    chance = 0.0
    for one in differences:
        seeds, items = one.shape
        if items > 1:
            residuals = one - one.mean(axis=0) - one.mean(axis=1, keepdims=True) + one.mean()
            chance += float((residuals**2).sum()) / ((seeds - 1) * (items - 1)) / items
    return math.sqrt(max(0.0, float(by_seed.var(ddof=1)) - chance / len(differences) ** 2))
