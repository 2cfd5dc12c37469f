"""The first test: the looped model against the same model, trained identically, without the loop (section 3, Delta_param)."""

from __future__ import annotations

from dataclasses import replace

from .. import stats
from .arms import Arm
from .contrast import Contrasts
from .costs import cost_ratio
from .decide import result_of, smallest_detectable_points
from .deciding import Pairs
from .values import ComparatorRow, Measure, TestOutcome
from .words import equal_parameters_statement


def equal_parameters(pairs: Pairs, contrasts: Contrasts, *, alpha: float, measure: Measure | None) -> TestOutcome:
    """The test at the deciding budget and rule, with the same comparison at every other in its table.

    Raises:
        TrialError: as `check_items`.
    """
    found = contrasts.of(pairs.looped, pairs.twin, with_seeds=True)
    comparison = found.comparison
    p = comparison.p_value
    result = result_of(comparison, found.draws, p_gain=p, p_loss=p, chosen_among=1, alpha=alpha)
    return TestOutcome(
        name="equal parameters",
        result=result,
        passed=result == "gain",
        looped=pairs.looped.name,
        comparator=pairs.twin.name,
        looped_percent=comparison.looped_percent,
        comparator_percent=comparison.other_percent,
        delta_points=comparison.delta_points,
        ci95=comparison.ci95,
        ci90=comparison.ci90,
        p_value=p,
        p_value_loss=p,
        equivalent=comparison.equivalent,
        smallest_detectable_points=smallest_detectable_points(comparison, alpha),
        num_eligible=1,
        measure=None,
        comparison=comparison,
        rows=same_budget_rows(pairs, contrasts, measure),
        measures=(),
        statement=equal_parameters_statement(comparison, result),
    )


def same_budget_rows(pairs: Pairs, contrasts: Contrasts, measure: Measure | None) -> tuple[ComparatorRow, ...]:
    """Every looped arm against the twin at its own budget and rule, Holm-adjusted over the budgets of each rule and reserve."""
    rows = [_row(looped, twin, pairs, contrasts, measure) for looped, twin in pairs.pairs]
    rules = [(looped.rule, tuple(looped.reserves_tokens.values())) for looped, _ in pairs.pairs]
    adjusted: dict[int, float] = {}
    for rule in dict.fromkeys(rules):
        family = [n for n, one in enumerate(rules) if one == rule]
        if len(family) > 1:
            adjusted |= dict(zip(family, stats.holm([rows[n].p_value for n in family]), strict=True))
    return tuple(replace(row, holm_p=adjusted.get(n)) for n, row in enumerate(rows))


def _row(looped: Arm, twin: Arm, pairs: Pairs, contrasts: Contrasts, measure: Measure | None) -> ComparatorRow:
    decides = looped is pairs.looped
    comparison = contrasts.of(looped, twin, with_seeds=decides).comparison
    return ComparatorRow(
        role="same budget",
        label=f"twin at the same budget ({looped.budget_label}{', ' + looped.rule if looped.rule else ''})",
        looped=looped.name,
        other=twin.name,
        eligible=False,
        decides=decides,
        reason="the deciding budget and rule" if decides else "beside the deciding budget and rule",
        cost_ratio=None if measure is None else cost_ratio(twin, looped, measure),
        comparison=comparison,
        p_value=comparison.p_value,
        holm_p=None,
    )
