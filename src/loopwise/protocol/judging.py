"""Compare and judge: from runs to a verdict by the two tests, in their fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..records import Run, read_results
from ..stats import Bootstrap
from .arms import Arm
from .contrast import Contrasts
from .decide import final_word, threshold_effect_points
from .deciding import Choice, Pairs, check_complete, find_pairs
from .equal_flops import deciding_measure, equal_flops
from .equal_parameters import equal_parameters
from .gather import gather, mark_larger, unique_names
from .notes import notes_of
from .plan import Plan
from .summaries import summarise_arm
from .values import (
    FEW_SEEDS_MARK,
    MARGIN_POINTS,
    MEASURES,
    TRAINING_FREE_MARK,
    Comparison,
    ExcludedArm,
    LargerModel,
    Measure,
    ThresholdEffect,
    TrialError,
    Verdict,
    number_within,
)
from .votes import vote_arms
from .words import advice, sentence, subject

RunLike = Run | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How arms are judged."""

    choice: Choice
    alpha: float
    measure: Measure | None
    bootstrap: Bootstrap
    larger: LargerModel | None


def compare(
    looped: Sequence[RunLike] | RunLike,
    twin: Sequence[RunLike] | RunLike,
    *,
    budget_tokens: int | None = None,
    rule: str | None = None,
    bootstrap: Bootstrap | None = None,
) -> Comparison:
    """The looped runs against their twin's at equal parameters, paired by item and seed.

    Args:
        budget_tokens, rule: which pair of several; by default as `judge` chooses.

    Raises:
        TrialError: items that are missing or there twice, or tasks, budgets, decoding or samples that differ; the first one is named.
        RecordsError: a path that cannot be read.
    """
    ours, theirs = gather(read_runs(looped), "looped"), gather(read_runs(twin), "twin")
    named = unique_names([*ours, *theirs])
    pairs = find_pairs(named[: len(ours)], named[len(ours) :], Choice.of(None, budget_tokens, rule))
    return Contrasts(bootstrap or Bootstrap()).of(pairs.looped, pairs.twin, with_seeds=True).comparison


def judge(
    *,
    looped: Sequence[RunLike] | RunLike,
    twin: Sequence[RunLike] | RunLike,
    unlooped: Sequence[RunLike] | RunLike = (),
    plan: Plan | None = None,
    alpha: float | None = None,
    cost_ratio: float | None = None,
    deciding_budget_tokens: int | None = None,
    deciding_rule: str | None = None,
    larger: LargerModel | None = None,
    measure: Measure | None = None,
    bootstrap: Bootstrap | None = None,
) -> Verdict:
    """Does the loop pay? Equal parameters first, then equal FLOPs; both tables are always there.

    Args:
        looped: runs (or their paths) of the looped model, at any budgets and rules.
        twin: runs of the same model, trained identically, without the loop; all of them are unlooped arms of the second test too.
        unlooped: further unlooped uses of the model, and runs of larger models (shown, never deciding).
        plan: what was fixed before the runs; it fixes alpha, measure, resampling, and the deciding budget and rule.
        alpha: 0.05 without a plan.
        cost_ratio: (N+m)/N of the loop, for records without a header.
        deciding_budget_tokens, deciding_rule: without a plan; by default budget forcing where both sides have it, else plain,
            at the largest budget that both have.
        larger: a larger model's size and accuracy, for Delta* and section 4.5; taken from its runs where there are any.
        measure: the cost that decides; by default layer passes, else FLOPs.

    Raises:
        TrialError: as `compare`; an unlooped arm without the looped one's items; a planned arm without a run.
        RecordsError: a path that cannot be read.
    """
    if cost_ratio is not None and not number_within(cost_ratio, 1, 1e30):
        raise TrialError(
            f"the cost ratio is {str(cost_ratio)[:40]}; give a finite number from 1 (the loop's layer passes over the plain model's)"
        )
    if alpha is not None and not 0 < alpha < 1:
        raise TrialError(f"alpha is {alpha}; give a number between 0 and 1")
    if measure is not None and measure not in MEASURES:
        raise TrialError(f"unknown measure of cost {measure!r}; use {', '.join(MEASURES)}")
    if plan is not None and (alpha not in (None, plan.alpha) or measure not in (None, plan.measure)):
        raise TrialError(f"the plan fixed alpha {plan.alpha} and measure {plan.measure} before the runs; leave them out")
    if plan is not None:
        alpha, measure = plan.alpha, plan.measure
        bootstrap = Bootstrap(resamples=plan.resamples, seed=plan.resampling_seed, resampling=plan.resampling)
    sides = [gather(read_runs(looped), "looped", cost_ratio), gather(read_runs(twin), "twin"), gather(read_runs(unlooped), "unlooped")]
    rules = Rules(
        choice=Choice.of(plan, deciding_budget_tokens, deciding_rule),
        alpha=0.05 if alpha is None else alpha,
        measure=measure,
        bootstrap=bootstrap or Bootstrap(),
        larger=larger,
    )
    excluded = () if plan is None else check_complete(plan, sides[0], [*sides[1], *sides[2]])
    return judge_arms(sides[0], sides[1], sides[2], rules, excluded)


def judge_arms(
    looped: Sequence[Arm], twins: Sequence[Arm], unlooped: Sequence[Arm], rules: Rules, excluded: Sequence[ExcludedArm] = ()
) -> Verdict:
    """`judge` on arms that are arrays already.

    Raises:
        TrialError: as `judge`.
    """
    named = unique_names([*looped, *twins, *unlooped])
    looped, twins, unlooped = (named[: len(looped)], named[len(looped) : len(looped) + len(twins)], named[len(looped) + len(twins) :])
    pairs = find_pairs(looped, twins, rules.choice)
    contrasts = Contrasts(rules.bootstrap)
    measure, _ = deciding_measure(pairs.looped, rules.measure)
    first = equal_parameters(pairs, contrasts, alpha=rules.alpha, measure=measure)
    others = mark_larger([*twins, *unlooped], pairs.looped.num_parameters)
    candidates, partial = _candidates(pairs, others, taken={arm.name for arm in named})
    second = equal_flops(pairs, candidates, contrasts, first=first.result, alpha=rules.alpha, measure=rules.measure)
    word = final_word(first.result, None if second.outcome is None else second.outcome.result)
    larger = rules.larger or _larger_model(pairs, candidates)
    ratio = pairs.looped.layer_pass_ratio
    threshold = _threshold(pairs, first.comparison, larger, ratio)
    free = _training_free(pairs)
    few = len(pairs.looped.seeds) < 3
    marks = (FEW_SEEDS_MARK if few else "") + (TRAINING_FREE_MARK if free else "")
    model = pairs.looped.model
    return Verdict(
        verdict=word,
        sentence=sentence(
            word,
            first,
            second.outcome,
            subject=subject(pairs.looped.loops, model, pairs.looped.num_parameters, ratio),
            twin="the same model without it" if free else "its identically trained twin",
            no_second=second.reason,
            num_items=pairs.looped.num_items,
            num_seeds=len(pairs.looped.seeds),
            marks=marks,
        ),
        model=model,
        num_parameters=pairs.looped.num_parameters,
        loops=pairs.looped.loops,
        cost_ratio=ratio,
        tasks=pairs.looped.tasks,
        num_items=pairs.looped.num_items,
        seeds=pairs.looped.seeds,
        few_seeds=few,
        training_free=free,
        marks=marks,
        alpha=rules.alpha,
        margin_points=MARGIN_POINTS,
        deciding_rule=pairs.looped.rule,
        deciding_budget_label=pairs.looped.budget_label,
        deciding_by=pairs.by,
        deciding_measure=second.measure,
        equal_parameters=first,
        equal_flops=second.outcome,
        equal_flops_reason=second.reason,
        unjudged_rows=() if second.outcome is not None else second.rows,
        threshold=threshold,
        larger=larger,
        advice=advice(word, first, cost_ratio=ratio, larger=larger, num_parameters=pairs.looped.num_parameters),
        notes=notes_of(
            pairs,
            first,
            second.outcome,
            word=word,
            training_free=free,
            threshold=threshold,
            unlooped=[*twins, *unlooped],
            uncosted=second.uncosted,
            alpha=rules.alpha,
        ),
        arms=tuple(summarise_arm(arm, pairs.looped, pairs.twin) for arm in (*looped, *candidates)),
        excluded=(*excluded, *pairs.excluded, *partial),
        resampling=rules.bootstrap.resampling,
        resamples=rules.bootstrap.resamples,
        resampling_seed=rules.bootstrap.seed,
    )


def read_runs(runs: Sequence[RunLike] | RunLike) -> list[Run]:
    """Runs, read where they are paths.

    Raises:
        RecordsError: a path that cannot be read.
    """
    listed = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    return [run if isinstance(run, Run) else read_results(run) for run in listed]


def _candidates(pairs: Pairs, others: Sequence[Arm], taken: set[str]) -> tuple[list[Arm], list[ExcludedArm]]:
    """Every unlooped arm with its votes; a twin's arm that ran on some benchmarks only is left out, an unlooped file's is refused later."""
    candidates: list[Arm] = []
    partial: list[ExcludedArm] = []
    for arm in others:
        if arm.side == "twin" and arm.tasks != pairs.looped.tasks:
            partial.append(ExcludedArm(name=arm.name, reason=f"covers only {', '.join(arm.tasks)}"))
        else:
            votes = unique_names(vote_arms(arm), taken)
            taken = taken | {vote.name for vote in votes}
            candidates += [arm, *votes]
    return candidates, partial


def _larger_model(pairs: Pairs, candidates: Sequence[Arm]) -> LargerModel | None:
    """The larger model's run at the deciding budget and rule, else its most accurate one."""
    arms = [arm for arm in candidates if arm.side == "larger"]
    same = [
        arm for arm in arms if arm.rule == pairs.looped.rule and arm.budgets_tokens == pairs.looped.budgets_tokens and arm.votes is None
    ]
    chosen = max(same or arms, key=lambda arm: arm.accuracy_percent(), default=None)
    if chosen is None or chosen.num_parameters is None:
        return None
    return LargerModel(name=chosen.model or chosen.name, num_parameters=chosen.num_parameters, accuracy_percent=chosen.accuracy_percent())


def _threshold(pairs: Pairs, comparison: Comparison, larger: LargerModel | None, cost_ratio: float | None) -> ThresholdEffect | None:
    size = pairs.looped.num_parameters
    if larger is None or not size or cost_ratio is None or larger.num_parameters <= size:
        return None
    gap = larger.accuracy_percent - comparison.other_percent
    growth = larger.num_parameters / size
    points = threshold_effect_points(cost_ratio, growth, gap)
    reached = comparison.delta_points >= points
    return ThresholdEffect(cost_ratio=cost_ratio, parameter_ratio=growth, accuracy_gap_points=gap, points=points, reached=reached)


def _training_free(pairs: Pairs) -> bool:
    """Looped arm and twin are the same weights."""
    hashes = [{header.get("model_hash") for header in arm.headers} for arm in (pairs.looped, pairs.twin)]
    return len(hashes[0]) == 1 and hashes[0] == hashes[1] and None not in hashes[0]
