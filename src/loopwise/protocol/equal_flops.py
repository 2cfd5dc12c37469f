"""The second test: the looped model against the most accurate unlooped use of at most its compute (section 3, Delta_FLOP).

The comparator is chosen on the test items, which favours the unlooped side. So the p-value of a gain is the largest over
all eligible arms (the loop must beat each of them), and the p-value of a loss is the comparator's times their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .. import stats
from .arms import Arm, other_reserve
from .contrast import Contrasts
from .costs import COST_FIELDS, cost_per_answer, cost_ratio, known_measures, unknown_cost_reason
from .decide import final_word, result_of, smallest_detectable_points
from .deciding import Pairs
from .equal_parameters import same_budget_rows
from .values import ComparatorRow, Comparison, Measure, MeasureOutcome, RowRole, TestOutcome, TestResult
from .words import equal_flops_statement, ratio_text

_ROUNDING = 1e-9
ONE_SIDED_LABEL = "unfair, diagnostic only: budget forcing for the unlooped model alone, against the plain looped one"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsTest:
    """The second test, or why there is none, and its table in either case."""

    outcome: TestOutcome | None
    reason: str | None
    rows: tuple[ComparatorRow, ...]
    measure: Measure | None
    uncosted: tuple[Arm, ...] = ()
    """Arms under the loop's rule whose cost is not known under the measure; all less accurate than the comparator, where there is one."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The most accurate eligible arm for one looped arm under one measure."""

    arm: Arm
    eligible: tuple[Arm, ...]
    p_value: float


def deciding_measure(looped: Arm, wanted: Measure | None) -> tuple[Measure | None, str | None]:
    """The measure that the second test decides under, or why there is none: measured seconds decide only when asked to."""
    known = known_measures(looped)
    if wanted is not None:
        if wanted in known:
            return wanted, None
        return None, f"the cost of {looped.name} is not known in {wanted}: {_lacks(looped, wanted)}"
    for measure in ("layer-passes", "flops"):
        if measure in known:
            return measure, None
    return None, (
        "costs are not known: records need `flops` (or --cost), or `generated_tokens` together with the loop's cost ratio (--cost-ratio)"
    )


def _lacks(looped: Arm, measure: Measure) -> str:
    if (
        measure == "layer-passes"
        and looped.layer_pass_ratio is None
        and all(t.generated_tokens is not None for t in looped.tables.values())
    ):
        return "give the loop's cost ratio (--cost-ratio)"
    return unknown_cost_reason(looped, measure).removeprefix("cost unknown: ")


def equal_flops(
    pairs: Pairs, candidates: Sequence[Arm], contrasts: Contrasts, *, first: TestResult, alpha: float, measure: Measure | None
) -> FlopsTest:
    """The test against all unlooped arms, with its table.

    Args:
        candidates: every unlooped arm over the looped arm's benchmarks: the twin's at all budgets and rules, votes, others.
        first: the first test's result, for what the verdict would be under other measures.
        measure: the measure asked for; None takes layer passes, else FLOPs.

    Raises:
        TrialError: an unlooped arm that lacks items of the looped one.
    """
    looped = pairs.looped
    measure, reason = deciding_measure(looped, measure)
    best = None if measure is None else _best(looped, candidates, contrasts, measure)
    if measure is not None and best is None:
        reason = _no_comparator(looped, candidates, measure)
    rows = _rows(pairs, candidates, contrasts, measure, alpha)
    if measure is None or best is None:
        return FlopsTest(outcome=None, reason=reason, rows=rows, measure=measure)
    found = contrasts.of(looped, best.arm, with_seeds=True)
    comparison, chosen = found.comparison, len(best.eligible)
    p_loss = min(1.0, chosen * comparison.p_value)
    result = result_of(comparison, found.draws, p_gain=best.p_value, p_loss=p_loss, chosen_among=chosen, alpha=alpha)
    outcome = TestOutcome(
        name="equal FLOPs",
        result=result,
        passed=result == "gain",
        looped=looped.name,
        comparator=best.arm.name,
        looped_percent=comparison.looped_percent,
        comparator_percent=comparison.other_percent,
        delta_points=comparison.delta_points,
        ci95=comparison.ci95,
        ci90=comparison.ci90,
        p_value=best.p_value,
        p_value_loss=p_loss,
        equivalent=comparison.equivalent,
        smallest_detectable_points=smallest_detectable_points(comparison, alpha),
        num_eligible=chosen,
        measure=measure,
        comparison=comparison,
        rows=rows,
        measures=_by_measure(looped, candidates, contrasts, first=first, word=final_word(first, result), alpha=alpha),
        statement=equal_flops_statement(
            comparison,
            result,
            p_value=best.p_value,
            p_loss=p_loss,
            chosen=chosen,
            cost_ratio=cost_ratio(best.arm, looped, measure),
            measure=measure,
        ),
    )
    return FlopsTest(outcome=outcome, reason=None, rows=rows, measure=measure, uncosted=_uncosted(looped, candidates, measure))


def _uncosted(looped: Arm, candidates: Sequence[Arm], measure: Measure) -> tuple[Arm, ...]:
    """Unlooped arms under the loop's rule that nobody can show to be too dear: their records lack the measure."""
    return tuple(
        arm for arm in candidates if arm.side != "larger" and not _other_rule(looped, arm) and cost_per_answer(arm, measure) is None
    )


def _other_rule(looped: Arm, arm: Arm) -> bool:
    return (arm.rule != looped.rule and None not in (arm.rule, looped.rule)) or other_reserve(looped, arm)


def _reserve_words(arm: Arm) -> str:
    return f"{'/'.join(map(str, dict.fromkeys(arm.reserves_tokens.values())))} tokens"


def _no_comparator(looped: Arm, candidates: Sequence[Arm], measure: Measure) -> str:
    uncosted = _uncosted(looped, candidates, measure)
    if uncosted:
        arm = max(uncosted, key=lambda arm: arm.accuracy_percent())
        cheap = any(eligibility(looped, one, measure)[0] for one in candidates)
        rank = "is at least as accurate as every unlooped arm known to cost no more" if cheap else "may cost no more than the loop"
        return (
            f"{arm.name} ({arm.accuracy_percent():.1f} %) {rank}, but its own cost is not known ({measure}): "
            f"give `{COST_FIELDS[measure]}` on all of its lines"
        )
    if all(cost_ratio(arm, looped, measure) is None for arm in candidates):
        return f"no unlooped arm's cost can be set beside the loop's in {measure}: {unknown_cost_reason(candidates[0], measure)}"
    return f"no unlooped arm under the loop's decoding rule costs at most as much as {looped.name} ({measure})"


def eligibility(looped: Arm, arm: Arm, measure: Measure | None) -> tuple[bool, RowRole, str]:
    """Whether an arm may be the comparator of a looped arm, the row it belongs in, and why."""
    ratio = None if measure is None else cost_ratio(arm, looped, measure)
    if arm.side == "larger":
        return (
            False,
            "larger model",
            "a larger model: shown, never deciding" + ("" if ratio is None else f" (costs {ratio_text(ratio)}x the loop)"),
        )
    if _other_rule(looped, arm):
        what = "reserve" if arm.rule == looped.rule else "decoding rule"
        return (
            False,
            "other rule",
            f"another {what} than the loop's {_reserve_words(looped) if what == 'reserve' else looped.rule}: " + ("listed, never deciding"),
        )
    if measure is None:
        return False, "candidate", "costs are not known"
    if ratio is None:
        return False, "candidate", unknown_cost_reason(arm, measure)
    if ratio > 1 + _ROUNDING:
        return False, "costlier", f"costs {ratio_text(ratio)}x the loop: shown, never deciding"
    return True, "candidate", f"costs {ratio_text(ratio)}x the loop"


def _best(looped: Arm, candidates: Sequence[Arm], contrasts: Contrasts, measure: Measure) -> _Best | None:
    """None where no arm is eligible, or where one of unknown cost is as accurate: which arm is the best cheaper one is not known then."""
    eligible = tuple(arm for arm in candidates if eligibility(looped, arm, measure)[0])
    if not eligible:
        return None
    most = max(arm.accuracy_percent() for arm in eligible)
    if any(arm.accuracy_percent() >= most - _ROUNDING for arm in _uncosted(looped, candidates, measure)):
        return None
    p_value = max(contrasts.of(looped, arm).comparison.p_value for arm in eligible)
    return _Best(max(eligible, key=lambda arm: arm.accuracy_percent()), eligible, p_value)


def _by_measure(
    looped: Arm, candidates: Sequence[Arm], contrasts: Contrasts, *, first: TestResult, word: str, alpha: float
) -> tuple[MeasureOutcome, ...]:
    outcomes = []
    for measure in known_measures(looped):
        best = _best(looped, candidates, contrasts, measure)
        found = None if best is None else contrasts.of(looped, best.arm)
        result: TestResult | None = None
        p_loss = 1.0
        if best is not None and found is not None:
            chosen = len(best.eligible)
            p_loss = min(1.0, chosen * found.comparison.p_value)
            result = result_of(found.comparison, found.draws, p_gain=best.p_value, p_loss=p_loss, chosen_among=chosen, alpha=alpha)
        verdict = final_word(first, result)
        outcomes.append(
            MeasureOutcome(
                measure=measure,
                comparator=None if best is None else best.arm.name,
                num_eligible=0 if best is None else len(best.eligible),
                delta_points=None if found is None else found.comparison.delta_points,
                ci95=None if found is None else found.comparison.ci95,
                p_value=None if best is None else p_loss if result == "loss" else best.p_value,
                result=result,
                verdict=verdict,
                flips=verdict != word,
            )
        )
    return tuple(outcomes)


def _rows(
    pairs: Pairs, candidates: Sequence[Arm], contrasts: Contrasts, measure: Measure | None, alpha: float
) -> tuple[ComparatorRow, ...]:
    of_rule = replace(pairs, pairs=tuple(pair for pair in pairs.pairs if not _other_rule(pairs.looped, pair[0])))
    same_budget = tuple(
        replace(row, decides=False, reason=_same_budget_reason(row)) for row in same_budget_rows(of_rule, contrasts, measure)
    )
    listed = [_candidate_row(pairs.looped, arm, contrasts, measure) for arm in sorted(candidates, key=lambda arm: -arm.accuracy_percent())]
    return (
        *(() if measure is None else _best_cheaper_rows(of_rule, candidates, contrasts, measure, alpha)),
        *same_budget,
        *sorted(listed, key=lambda row: not row.eligible),
        *_one_sided_rows(pairs, contrasts, measure),
    )


def _same_budget_reason(row: ComparatorRow) -> str:
    return "the twin as it is" if row.cost_ratio is None else f"the twin as it is, at {ratio_text(row.cost_ratio)}x the loop's cost"


def _best_cheaper_rows(
    pairs: Pairs, candidates: Sequence[Arm], contrasts: Contrasts, measure: Measure, alpha: float
) -> tuple[ComparatorRow, ...]:
    rows = []
    for looped, _ in pairs.pairs:
        best = _best(looped, candidates, contrasts, measure)
        if best is None:
            continue
        decides = looped is pairs.looped
        comparison = contrasts.of(looped, best.arm, with_seeds=decides).comparison
        p_loss = min(1.0, len(best.eligible) * comparison.p_value)
        rows.append(
            ComparatorRow(
                role="best cheaper",
                label=f"best of {len(best.eligible)} at most as costly as the loop at {looped.budget_label}: {best.arm.name}",
                looped=looped.name,
                other=best.arm.name,
                eligible=True,
                decides=decides,
                reason="decides; chosen on the test items, which favours the unlooped side" if decides else "beside the deciding budget",
                cost_ratio=cost_ratio(best.arm, looped, measure),
                comparison=comparison,
                p_value=p_loss if comparison.delta_points < 0 and p_loss < alpha else best.p_value,
                holm_p=None,
            )
        )
    if len(rows) < 2:
        return tuple(rows)
    adjusted = stats.holm([row.p_value for row in rows])
    return tuple(replace(row, holm_p=p) for row, p in zip(rows, adjusted, strict=True))


def _candidate_row(looped: Arm, arm: Arm, contrasts: Contrasts, measure: Measure | None) -> ComparatorRow:
    eligible, role, reason = eligibility(looped, arm, measure)
    return _plain_row(
        looped, arm, contrasts.of(looped, arm).comparison, measure, role=role, label=arm.name, eligible=eligible, reason=reason
    )


def _one_sided_rows(pairs: Pairs, contrasts: Contrasts, measure: Measure | None) -> tuple[ComparatorRow, ...]:
    """Unlooped with budget forcing against plain looped, at each budget that has both (Table 4, B.2)."""
    rows = []
    for looped, _ in pairs.pairs:
        for _, twin in pairs.pairs:
            if looped.rule == "plain" and twin.rule == "budget-forcing" and looped.budgets_tokens == twin.budgets_tokens:
                comparison = contrasts.of(looped, twin).comparison
                reason = "one side has a free fix that the other could use too; never deciding"
                label = f"{ONE_SIDED_LABEL} ({looped.budget_label})"
                rows.append(
                    _plain_row(
                        looped, twin, comparison, measure, role="one-sided budget forcing", label=label, eligible=False, reason=reason
                    )
                )
    return tuple(rows)


def _plain_row(
    looped: Arm, arm: Arm, comparison: Comparison, measure: Measure | None, *, role: RowRole, label: str, eligible: bool, reason: str
) -> ComparatorRow:
    return ComparatorRow(
        role=role,
        label=label,
        looped=looped.name,
        other=arm.name,
        eligible=eligible,
        decides=False,
        reason=reason,
        cost_ratio=None if measure is None else cost_ratio(arm, looped, measure),
        comparison=comparison,
        p_value=comparison.p_value,
        holm_p=None,
    )
