"""The two tests on held-out loss (no-free-loop, section 5, Figure 3 and Table 6): equal parameters, then equal FLOPs.

Statistics are those of the accuracy protocol with documents for items. The statistic is token-weighted: the sum of a pair's differences
over the sum of their targets, in milli-nats; documents are drawn again with replacement, the same draw for both arms and all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import stats
from ..stats import Bootstrap
from .arms import Array
from .decide import final_word
from .loss_arms import LossArm, LossRunLike, check_arms, gather_loss, unique_arms
from .loss_notes import loss_notes
from .loss_values import (
    LEAST_DOCUMENTS,
    MARGIN_MILLINATS,
    LossComparison,
    LossModel,
    LossRow,
    LossTest,
    LossTestName,
    LossVerdict,
)
from .loss_words import loss_advice, loss_sentence, statement
from .values import FEW_SEEDS_MARK, TRAINING_FREE_MARK, TestResult, TrialError, number_within
from .words import ratio_text, subject

INFERENCE_ROUNDING = 1e-9
TRAINING_ROUNDING = 0.01
"""By how much a model of equal training FLOPs may exceed the looped one's. A guess: budgets are rounded to whole steps."""
MILLI = 1000.0


@dataclass(frozen=True, slots=True)
class _Contrast:
    comparison: LossComparison
    draws: Array
    """Resampled differences in milli-nats."""


@dataclass(frozen=True, slots=True)
class _Judge:
    """How arms are judged, and the looped one."""

    looped: LossArm
    bootstrap: Bootstrap
    alpha: float
    margin: float


def judge_losses(
    *,
    looped: Sequence[LossRunLike] | LossRunLike,
    twin: Sequence[LossRunLike] | LossRunLike,
    unlooped: Sequence[Sequence[LossRunLike] | LossRunLike] = (),
    alpha: float = 0.05,
    margin_millinats: float = MARGIN_MILLINATS,
    bootstrap: Bootstrap | None = None,
) -> LossVerdict:
    """Does the loop pay, by held-out loss?

    Args:
        looped: runs (or their folders) of the looped model, one a training seed.
        twin: of the same model, trained identically, without the loop; its seeds are paired with the looped ones in order.
        unlooped: further unlooped models, each with as many seeds: what else the compute could buy.
        bootstrap: by default documents are drawn again, and training seeds too where there are several.

    Raises:
        TrialError: runs on other text, in other windows or of other tokenizers, a run that is not complete, unequal numbers of seeds,
            a twin of another size; the first offender is named.
        RecordsError: a path that cannot be read.
    """
    check_rules(alpha, margin_millinats)
    arms = [gather_loss(looped, "looped"), gather_loss(twin, "twin"), *(gather_loss(runs, "unlooped") for runs in unlooped)]
    return judge_loss_arms(arms, alpha=alpha, margin=margin_millinats, bootstrap=bootstrap)


def check_rules(alpha: float, margin_millinats: float) -> None:
    """Refuse a level or a margin that cannot be.

    Raises:
        TrialError: it cannot.
    """
    if not number_within(alpha, 0, 1) or alpha in (0, 1):
        raise TrialError(f"alpha is {alpha}; give a number between 0 and 1")
    if not number_within(margin_millinats, 0, 1e6) or margin_millinats == 0:
        raise TrialError(f"the margin is {margin_millinats} milli-nats; give a number above 0")


def judge_loss_arms(arms: Sequence[LossArm], *, alpha: float, margin: float, bootstrap: Bootstrap | None = None) -> LossVerdict:
    """`judge_losses` on arrays: the looped arm, its twin, the others.

    Raises:
        TrialError: as `judge_losses`.
    """
    ours, twin, *others = unique_arms(arms)
    check_arms(ours, [twin, *others])
    seeds = len(ours.loss)
    bootstrap = bootstrap or Bootstrap(resampling="items and seeds" if seeds > 1 else "items")
    if bootstrap.resampling == "items and seeds" and seeds < 2:
        raise TrialError("resampling training seeds needs at least two of each model; give more, or resample 'items'")
    judge = _Judge(ours, bootstrap, alpha, margin)
    contrasts = {arm.name: _contrast(ours, arm, bootstrap) for arm in (twin, *others)}
    first = _test(judge, "equal parameters", [twin], [twin], contrasts, lambda arm: None, reached=True)
    second, no_second = _equal_cost(judge, "equal FLOPs", twin, others, contrasts, reached=first.passed)
    beside, no_beside = _equal_cost(judge, "equal training FLOPs", twin, others, contrasts, reached=False)
    word = final_word(first.result, None if second is None else second.result)
    free = [header["model_hash"] for header in ours.headers] == [header["model_hash"] for header in twin.headers]
    marks = (FEW_SEEDS_MARK if seeds < 3 else "") + (TRAINING_FREE_MARK if free else "")
    header, cost_ratio = ours.headers[0], float(ours.headers[0]["layer_pass_ratio"])
    models = tuple(_model(arm, ours) for arm in (ours, twin, *others))
    return LossVerdict(
        verdict=word,
        sentence=loss_sentence(
            word,
            first,
            second,
            looped=ours,
            twin=twin,
            subject=subject(header["loops"], ours.name, header["num_parameters"], cost_ratio),
            twin_words="the same model without it" if free else "its identically trained twin",
            no_second=no_second,
            margin=margin,
            marks=marks,
        ),
        model=ours.name,
        num_parameters=int(header["num_parameters"]),
        loops=str(header["loops"]),
        cost_ratio=cost_ratio,
        num_documents=len(ours.targets),
        num_targets=int(ours.targets.sum()),
        num_bytes=ours.num_bytes,
        text_hash=str(header["text_hash"]),
        context_tokens=int(header["context_tokens"]),
        stride_tokens=int(header["stride_tokens"]),
        start_token=header.get("start_token"),
        num_seeds=seeds,
        few_seeds=seeds < 3,
        training_free=free,
        marks=marks,
        alpha=alpha,
        margin_millinats=margin,
        equal_parameters=first,
        equal_flops=second,
        equal_flops_reason=no_second,
        equal_training=beside,
        equal_training_reason=no_beside,
        advice=loss_advice(word, first, cost_ratio=cost_ratio),
        notes=loss_notes([ours, twin, *others], first, second, beside, word=word, training_free=free, alpha=alpha),
        models=models,
        resampling=bootstrap.resampling,
        resamples=bootstrap.resamples,
        resampling_seed=bootstrap.seed,
    )


def _contrast(looped: LossArm, other: LossArm, bootstrap: Bootstrap) -> _Contrast:
    difference = MILLI * (other.loss - looped.loss)
    total = float(looped.targets.sum())
    by_seed = difference.sum(axis=1) / total
    items = stats.resample_ratios([difference.mean(axis=0)], [looped.targets], bootstrap)[0]
    draws = items
    if bootstrap.resampling == "items and seeds":
        # One item a seed: its draws are the seeds' deviations about their mean and nothing else.
        draws = items + stats.resample_means([by_seed[:, None]], bootstrap)[0] - by_seed.mean()
    estimate = stats.estimate(float(by_seed.mean()), draws)
    differing = int((np.abs(difference.mean(axis=0)) > 1e-9 * MILLI * looped.targets).sum())
    floor = max(2 / (bootstrap.resamples + 1), stats.sign_floor(differing))
    return _Contrast(
        LossComparison(
            looped=looped.name,
            other=other.name,
            delta_millinats=estimate.value,
            ci95=estimate.ci95,
            ci90=estimate.ci90,
            p_value=max(estimate.p_value, floor),
            p_floor=floor,
            standard_error_millinats=estimate.standard_error,
            resampling=bootstrap.resampling,
            ci95_items=stats.percentile_interval(items, 0.95),
            num_documents=len(looped.targets),
            num_differing=differing,
            seed_deltas=tuple(map(float, by_seed)),
            seeds_favouring=int((by_seed > 0).sum()),
        ),
        draws,
    )


def _equal_cost(
    judge: _Judge, name: LossTestName, twin: LossArm, others: Sequence[LossArm], contrasts: dict[str, _Contrast], *, reached: bool
) -> tuple[LossTest | None, str | None]:
    """A test against the best unlooped model that spends no more, or why there is none."""
    training = name == "equal training FLOPs"

    def cost(arm: LossArm) -> float | None:
        return arm.training_flops if training else arm.flops_per_token

    what, ours = ("training FLOPs" if training else "inference FLOPs"), cost(judge.looped)
    if ours is None:
        return None, f"the {what} of {judge.looped.name} are not known: its run's header has no training_flops"
    if not others:
        return None, f"no unlooped model besides the twin is given: give one that puts the loop's {what} to another use"

    def ratio(arm: LossArm) -> float | None:
        own = cost(arm)
        return None if own is None else own / ours

    most = 1 + (TRAINING_ROUNDING if training else INFERENCE_ROUNDING)
    unknown = [arm for arm in (twin, *others) if ratio(arm) is None]
    eligible = [arm for arm in (twin, *others) if (own := ratio(arm)) is not None and own <= most]
    if not any(arm is not twin for arm in eligible):
        return None, f"no unlooped model besides the twin is known to spend at most the {what} of {judge.looped.name}"
    best = min(arm.nats_per_token for arm in eligible)
    for arm in unknown:
        if arm.nats_per_token <= best:
            return None, f"{arm.name} ({arm.nats_per_token:.4f} nats) is as good as any that spends no more, and its {what} are not known"
    return _test(judge, name, [twin, *others], eligible, contrasts, ratio, reached=reached), None


def _test(
    judge: _Judge,
    name: LossTestName,
    listed: Sequence[LossArm],
    eligible: Sequence[LossArm],
    contrasts: dict[str, _Contrast],
    cost_ratio: Callable[[LossArm], float | None],
    *,
    reached: bool,
) -> LossTest:
    best = min(eligible, key=lambda arm: arm.nats_per_token)
    found, chosen = contrasts[best.name], len(eligible)
    p_gain = max(contrasts[arm.name].comparison.p_value for arm in eligible)
    p_loss = min(1.0, chosen * found.comparison.p_value)
    result = _result(judge, found, p_gain=p_gain, p_loss=p_loss, chosen=chosen)
    rows = [_row(arm, best, eligible, contrasts, cost_ratio(arm)) for arm in sorted(listed, key=lambda arm: arm.nats_per_token)]
    test = LossTest(
        name=name,
        result=result,
        passed=result == "gain",
        reached=reached,
        comparison=found.comparison,
        p_value=p_gain,
        p_value_loss=p_loss,
        smallest_detectable_millinats=stats.detectable_effect(found.comparison.standard_error_millinats, judge.alpha),
        num_eligible=chosen,
        rows=tuple(sorted(rows, key=lambda row: (not row.decides, not row.eligible))),
        statement="",
    )
    return replace(test, statement=statement(test, judge.looped, best, judge.margin))


def _result(judge: _Judge, found: _Contrast, *, p_gain: float, p_loss: float, chosen: int) -> TestResult:
    """As `decide.result_of`: a gain comes first; equivalence is asked at the level that the choice calls for."""
    delta = found.comparison.delta_millinats
    if delta > 0 and p_gain < judge.alpha:
        return "gain"
    if delta < 0 and p_loss < judge.alpha:
        return "loss"
    interval = stats.percentile_interval(found.draws, 1 - 0.10 / chosen)
    enough = found.comparison.num_documents >= LEAST_DOCUMENTS
    return "equivalent" if enough and stats.equivalent(interval, judge.margin) else "not shown"


def _row(arm: LossArm, best: LossArm, eligible: Sequence[LossArm], contrasts: dict[str, _Contrast], ratio: float | None) -> LossRow:
    decides, allowed = arm is best, any(arm is one for one in eligible)
    if ratio is None:
        reason = "the twin" if allowed else "what it spent is not known"
    else:
        reason = f"spends {ratio_text(ratio)}x the looped model's" + ("" if allowed else ": shown, never deciding")
    return LossRow(comparison=contrasts[arm.name].comparison, eligible=allowed, decides=decides, reason=reason, cost_ratio=ratio)


def _model(arm: LossArm, looped: LossArm) -> LossModel:
    spent, ours, header, totals = arm.training_flops, looped.training_flops, arm.headers[0], arm.totals
    return LossModel(
        name=arm.name,
        side=arm.side,
        models=tuple(str(one["model"]) for one in arm.headers),
        loops=str(header["loops"]),
        num_parameters=int(header["num_parameters"]),
        layer_pass_ratio=float(header["layer_pass_ratio"]),
        flops_per_token=arm.flops_per_token,
        flops_ratio=arm.flops_per_token / looped.flops_per_token,
        training_flops=spent,
        training_flops_ratio=None if spent is None or ours is None else spent / ours,
        loss_nats=totals.nats_per_token,
        loss_by_seed=tuple(float(loss) for loss in arm.loss.sum(axis=1) / arm.targets.sum()),
        bits_per_byte=totals.bits_per_byte,
        perplexity=totals.perplexity,
    )
