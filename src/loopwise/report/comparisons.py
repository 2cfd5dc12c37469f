"""The two tests as tables, in the form of no-free-loop's Tables 2 (equal parameters) and 3 (equal FLOPs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..protocol import ComparatorRow, Comparison, TaskComparison, Verdict
from ..protocol.decide import ITEMS_FOR_EQUIVALENCE
from ..protocol.values import RowRole
from .blocks import Cell, Row, Table, Tone, columns, row
from .labels import (
    RESULT_WORDS,
    Arms,
    arrow,
    budget_words,
    equivalent_text,
    learned_by,
    passes_text,
    result_tone,
    rule_words,
    seeds_text,
    significance,
)
from .numbers import MEASURE_NAMES, UNKNOWN, interval, p_number, points, ratio, yes_no

ROLE_HEADINGS: dict[RowRole, str] = {
    "best cheaper": "Best cheaper§: the most accurate unlooped arm with no greater cost, at each of the loop's budgets",
    "candidate": "Every unlooped arm under the loop's own decoding rule, against the deciding looped arm",
    "same budget": "The twin at the loop's own budget, which costs less than the loop",
    "other rule": "Unlooped arms under another decoding rule: listed, never deciding",
    "costlier": "The comparator spends more than the loop: shown, never deciding",
    "larger model": "A larger model: shown, never deciding",
    "one-sided budget forcing": "One-sided budget forcing: an unfair comparison, shown as a diagnostic, never deciding",
}
QUIET_ROLES = ("other rule", "costlier", "larger model", "one-sided budget forcing")
P_NOTE = (
    "p-values are two-sided, from the paired bootstrap over items, and cannot fall below what the resamples and the items "
    "on which two arms differ allow; Holm p is corrected over the token budgets of one decoding rule."
)


def equivalence_note(listed: Iterable[Comparison | TaskComparison]) -> tuple[str, ...]:
    """What a bracketed yes means, where there is one."""
    if not any(one.equivalent and one.num_items < ITEMS_FOR_EQUIVALENCE for one in listed):
        return ()
    return (f"(yes): the interval lies within the margin, but it takes {ITEMS_FOR_EQUIVALENCE} items to show equivalence.",)


def marks_note(verdict: Verdict) -> tuple[str, ...]:
    """What the marks mean that this verdict carries."""
    notes = []
    if verdict.few_seeds:
        notes.append("△ fewer than three training seeds.")
    if verdict.training_free:
        notes.append("‡ training-free: twin and looped model are the same weights.")
    return (" ".join(notes),) if notes else ()


def equal_parameters_table(verdict: Verdict, arms: Arms, num_layers: int | None) -> Table:
    """Table 2's form: every looped arm against the twin at its own budget and rule, the deciding one marked."""
    rows = []
    for one in sorted(verdict.equal_parameters.rows, key=lambda one: not one.decides):
        tone = result_tone(verdict.equal_parameters.result) if one.decides else _tone(verdict, one)
        looped, c = arms.get(one.looped), one.comparison
        rows.append(
            row(
                verdict.model or UNKNOWN,
                learned_by(verdict),
                passes_text(num_layers, verdict.cost_ratio),
                arms.rule(one.looped),
                (looped.budget_label if looped else UNKNOWN).replace("-", UNKNOWN),
                seeds_text(verdict, len(c.seeds), c.seeds_favouring, len(c.seed_deltas)),
                ", ".join(verdict.tasks),
                arrow(verdict, c.other_percent, c.looped_percent, one.p_value, tone),
                Cell(points(c.delta_points), tone),
                interval(c.ci95),
                p_number(one.holm_p),
                equivalent_text(c.equivalent, c.num_items),
                tone="key" if one.decides else "",
                arms=(one.looped, one.other),
            )
        )
    return Table(
        name="table-equal-parameters",
        title="Equal parameters",
        caption="Macro accuracy (%), twin → looped, with the paired-bootstrap p. The marked row decides; the others are the same test at "
        "the other budgets and decoding rules. The seeds column counts training seeds and, in brackets, those that favour the loop.",
        columns=columns(
            "Model",
            "Loop learned by",
            "Layer passes (cost)",
            "Decoding",
            "#Budget (tokens)",
            "#Seeds",
            "Benchmarks",
            "#Twin → looped (p)",
            "#Δ (points)",
            "#95% CI",
            "#Holm p",
            f"Equivalent (±{verdict.margin_points:g})",
        ),
        rows=tuple(rows),
        notes=(P_NOTE, *equivalence_note(one.comparison for one in verdict.equal_parameters.rows), *marks_note(verdict)),
    )


def equal_flops_table(verdict: Verdict, arms: Arms) -> Table | None:
    """Table 3's form: the loop against every unlooped use of compute, grouped by why it is listed."""
    listed = verdict.equal_flops.rows if verdict.equal_flops else verdict.unjudged_rows
    rows: list[Row] = []
    for role, heading in ROLE_HEADINGS.items():
        of_role = sorted((one for one in listed if one.role == role), key=lambda one: (not one.decides, not one.eligible))
        if of_role:
            rows += [row(heading, tone="heading"), *(_flops_row(verdict, arms, one) for one in of_role)]
    if not rows:
        return None
    measure = "" if verdict.deciding_measure is None else f" Cost is {MEASURE_NAMES[verdict.deciding_measure]}, over the loop's own."
    return Table(
        name="table-equal-flops",
        title="Equal FLOPs",
        caption=f"Macro accuracy (%), unlooped comparator → looped, with the paired-bootstrap p.{measure} Only unlooped arms under the "
        "loop's own decoding rule that cost at most as much as the loop are eligible; the marked row decides.",
        columns=columns(
            "Looped arm (budget in tokens)",
            "Unlooped comparator (budget in tokens)",
            "#Cost (× loop)",
            "Eligible, and why",
            "#Seeds",
            "Benchmarks",
            "#Unlooped → looped (p)",
            "#Δ (points)",
            "#95% CI",
            "#Holm p",
        ),
        rows=tuple(rows),
        notes=(
            "§ Chosen on the test items, which favours the unlooped side; its p is therefore the largest over all eligible arms. " + P_NOTE,
            *marks_note(verdict),
        ),
    )


def _flops_row(verdict: Verdict, arms: Arms, one: ComparatorRow) -> Row:
    c = one.comparison
    tone: Tone = "" if one.role in QUIET_ROLES else _tone(verdict, one)
    if one.decides and verdict.equal_flops:
        tone = result_tone(verdict.equal_flops.result)
    return row(
        arms.rule_and_budget(one.looped, unit=""),
        arms.setting_with_budget(one.other, unit="") + ("§" if one.role == "best cheaper" else ""),
        ratio(one.cost_ratio),
        one.reason if one.role == "same budget" else f"{yes_no(one.eligible)}: {one.reason}",
        seeds_text(verdict, len(c.seeds), c.seeds_favouring, len(c.seed_deltas)),
        ", ".join(verdict.tasks),
        arrow(verdict, c.other_percent, c.looped_percent, one.p_value, tone),
        Cell(points(c.delta_points), tone),
        interval(c.ci95),
        p_number(one.holm_p),
        tone="key" if one.decides else "quiet" if one.role in QUIET_ROLES else "",
        arms=(one.looped, one.other),
    )


def _tone(verdict: Verdict, one: ComparatorRow) -> Tone:
    return significance(one.comparison.delta_points, one.p_value if one.holm_p is None else one.holm_p, verdict.alpha)


def measures_table(verdict: Verdict, arms: Arms) -> Table | None:
    """The second test under every measure of cost, and whether the verdict would be another one."""
    test = verdict.equal_flops
    if test is None or not test.measures:
        return None
    rows = [
        row(
            MEASURE_NAMES[one.measure] + (" (decides)" if one.measure == verdict.deciding_measure else ""),
            UNKNOWN if one.comparator is None else arms.setting_with_budget(one.comparator),
            str(one.num_eligible),
            points(one.delta_points),
            interval(one.ci95),
            p_number(one.p_value),
            UNKNOWN if one.result is None else RESULT_WORDS[one.result],
            Cell(one.verdict, "", one.flips),
            Cell("yes, the verdict flips" if one.flips else "no", "loss" if one.flips else "", one.flips),
            tone="key" if one.measure == verdict.deciding_measure else "",
            arms=(test.looped, *([] if one.comparator is None else [one.comparator])),
        )
        for one in test.measures
    ]
    return Table(
        name="table-measures",
        title="The verdict under each measure of cost",
        caption="The most accurate eligible unlooped arm when the loop's cost is counted another way.",
        columns=columns(
            "Measure of cost", "Comparator", "#Eligible arms", "#Δ (points)", "#95% CI", "#p", "Second test", "Verdict", "Another verdict?"
        ),
        rows=tuple(rows),
    )


def seeds_table(verdict: Verdict, arms: Arms) -> Table | None:
    """Each training seed's difference in both tests, with the intervals that resample seeds too."""
    tests = [test for test in (verdict.equal_parameters, verdict.equal_flops) if test is not None and test.comparison.seed_deltas]
    seeds = sorted({one.seed for test in tests for one in test.comparison.seed_deltas})
    if len(seeds) < 2:
        return None
    rows = []
    for test in tests:
        by_seed = {one.seed: one.points for one in test.comparison.seed_deltas}
        rows.append(
            row(
                f"{test.name.capitalize().replace('flops', 'FLOPs')}, against {arms.setting_with_budget(test.comparator)}",
                *(points(by_seed.get(seed)) for seed in seeds),
                points(test.delta_points),
                interval(test.comparison.ci95),
                interval(test.comparison.ci95_items_and_seeds),
                arms=(test.looped, test.comparator),
            )
        )
    return Table(
        name="table-seeds",
        title="Per-seed differences",
        caption="Looped minus comparator in points, by training seed. The first interval ignores variation between training runs, the "
        "second resamples seeds too.",
        columns=columns("Test", *(f"#Seed {seed}" for seed in seeds), "#Mean", "#95% CI over items", "#95% CI over items and seeds"),
        rows=tuple(rows),
    )


def tests_table(verdict: Verdict, arms: Arms) -> Table:
    """Both tests at a glance, for the Markdown report and for whoever copies numbers."""
    first, second = verdict.equal_parameters, verdict.equal_flops
    rows = [row("Equal parameters", *_test_cells(verdict, arms, 0), tone="key", arms=(first.looped, first.comparator))]
    behind = () if second is None else (second.looped, second.comparator)
    rows.append(row("Equal FLOPs", *_test_cells(verdict, arms, 1), tone="key" if second else "quiet", arms=behind))
    return Table(
        name="table-tests",
        title="The two tests",
        caption=f"At the deciding budget ({budget_words(verdict.deciding_budget_label)}) and decoding rule "
        f"({rule_words(verdict.deciding_rule)}).",
        columns=columns(
            "Test",
            "Comparator",
            "#Unlooped → looped (%)",
            "#Δ (points)",
            "#95% CI",
            "#p",
            f"Equivalent (±{verdict.margin_points:g})",
            "Result",
            "#Smallest gain found with 80% power (points)",
        ),
        rows=tuple(rows),
    )


def _test_cells(verdict: Verdict, arms: Arms, which: int) -> Sequence[str | Cell]:
    test = verdict.equal_flops if which else verdict.equal_parameters
    if test is None:
        return [verdict.equal_flops_reason or UNKNOWN, *[UNKNOWN] * 5, "no second test", UNKNOWN]
    tone = result_tone(test.result)
    return [
        arms.setting_with_budget(test.comparator),
        f"{test.comparator_percent:.1f} → {test.looped_percent:.1f}",
        Cell(points(test.delta_points), tone, bool(tone)),
        interval(test.ci95),
        p_number(test.deciding_p),
        equivalent_text(test.equivalent, test.comparison.num_items),
        Cell(("passed: " if test.passed else "not passed: ") + RESULT_WORDS[test.result], tone),
        f"{test.smallest_detectable_points:.1f}" if test.smallest_detectable_points <= 100 else UNKNOWN,
    ]
