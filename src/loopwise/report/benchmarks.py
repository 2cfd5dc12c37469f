"""Per-benchmark results (Table 8's form), accuracy on what both arms finish, and the decoding rules (Table 4's form)."""

from __future__ import annotations

from dataclasses import replace

from ..protocol import ArmSummary, FinishedComparison, TaskComparison, TestOutcome, Verdict
from ..protocol.values import Measure
from .blocks import Cell, Row, Table, Tone, columns, row
from .comparisons import equivalence_note, marks_note
from .labels import Arms, budget_order, budget_words, equivalent_text, result_tone, significance
from .numbers import MEASURE_NAMES, UNKNOWN, amount, cost, count, interval, p_number, percent, points, ratio, whole_percent

_FORCED_NOTE = "Under budget forcing an answer counts as finished when it ends within the budget after its thinking was closed."


def tests_of(verdict: Verdict) -> list[tuple[str, TestOutcome]]:
    """The tests that took place, each with its name for headings."""
    tests = [("Equal parameters", verdict.equal_parameters)]
    return tests if verdict.equal_flops is None else [*tests, ("Equal FLOPs", verdict.equal_flops)]


def benchmarks_table(verdict: Verdict, arms: Arms) -> Table:
    """Table 8's form: each benchmark of both tests, and their macro mean."""
    rows: list[Row] = []
    exact = any(one.mcnemar_p is not None for _, test in tests_of(verdict) for one in test.comparison.tasks)
    for title, test in tests_of(verdict):
        rows.append(row(f"{title}: {arms.setting_with_budget(test.comparator)} → looped", tone="heading"))
        several = len(test.comparison.tasks) > 1
        for one in test.comparison.tasks:
            tone = significance(one.delta_points, one.holm_p, verdict.alpha) if several else result_tone(test.result)
            rows.append(
                row(
                    one.task,
                    count(one.num_items),
                    Cell(f"{percent(one.other_percent)} → {percent(one.looped_percent)}", tone, bool(tone)),
                    Cell(points(one.delta_points), tone),
                    interval(one.ci95),
                    p_number(one.p_value if several else test.deciding_p),
                    p_number(one.holm_p if several else test.deciding_p),
                    *([_mcnemar(one)] if exact else []),
                    equivalent_text(one.equivalent, one.num_items),
                    tone="" if several else "key",
                    arms=(test.looped, test.comparator),
                )
            )
        if several:
            rows.append(_macro_row(test, exact))
    return Table(
        name="table-benchmarks",
        title="Per benchmark",
        caption="Accuracy (%), comparator → looped, with the 95% paired-bootstrap interval and Holm p over the benchmarks. A comparison "
        f"counts as equivalent when its 90% interval lies within ±{verdict.margin_points:g} points."
        + (" Macro rows give the unweighted mean." if len(verdict.tasks) > 1 else ""),
        columns=columns(
            "Benchmark",
            "#Items",
            "#Comparator → looped",
            "#Δ (points)",
            "#95% CI",
            "#p",
            "#Holm p",
            *(["#Right in one arm only: looped / other (McNemar p)"] if exact else []),
            "Equivalent",
        ),
        rows=tuple(rows),
        notes=(*equivalence_note(one for _, test in tests_of(verdict) for one in test.comparison.tasks), *marks_note(verdict)),
    )


def _mcnemar(one: TaskComparison) -> str:
    return UNKNOWN if one.discordant is None else f"{one.discordant[0]} / {one.discordant[1]} ({p_number(one.mcnemar_p)})"


def _macro_row(test: TestOutcome, exact: bool) -> Row:
    c, tone = test.comparison, result_tone(test.result)
    return row(
        Cell("macro", "", True),
        count(c.num_items),
        Cell(f"{percent(c.other_percent)} → {percent(c.looped_percent)}", tone, True),
        Cell(points(c.delta_points), tone, True),
        Cell(interval(c.ci95), "", True),
        Cell(p_number(test.deciding_p), "", True),
        UNKNOWN,
        *([UNKNOWN] if exact else []),
        Cell(equivalent_text(c.equivalent, c.num_items), "", True),
        tone="key",
        arms=(test.looped, test.comparator),
    )


def finished_table(verdict: Verdict, arms: Arms) -> Table | None:
    """Accuracy on the answers that both arms finish: whether the loop helps to answer, or only to end."""
    rows: list[Row] = []
    for title, test in tests_of(verdict):
        if test.comparison.both_finished is None:
            continue
        rows.append(row(f"{title}: {arms.setting_with_budget(test.comparator)} → looped", tone="heading"))
        several, behind = len(test.comparison.tasks) > 1, (test.looped, test.comparator)
        for one in test.comparison.tasks if several else ():
            if one.both_finished is not None:
                shares = (one.other_finished_percent, one.looped_finished_percent)
                rows.append(replace(_finished_row(Cell(one.task), one.both_finished, *shares, verdict.alpha), arms=behind))
        name = Cell("macro" if several else test.comparison.tasks[0].task, "", True)
        finish = [arm.finished_percent if (arm := arms.get(side)) else None for side in (test.comparator, test.looped)]
        whole = _finished_row(name, test.comparison.both_finished, finish[0], finish[1], verdict.alpha, macro=True)
        rows.append(replace(whole, arms=behind))
    if not rows:
        return None
    return Table(
        name="table-both-finished",
        title="Answers that both finish",
        caption="Accuracy (%) on the pairs of answers that both arms end within the budget, comparator → looped. A gain that is only in "
        "ending answers disappears here.",
        columns=columns(
            "Benchmark",
            "#Finished (%)",
            "#Pairs both finish",
            "#Share (%)",
            "#Accuracy there",
            "#Δ (points)",
            "#95% CI",
            "#p",
        ),
        rows=tuple(rows),
        notes=(_FORCED_NOTE,) if any("forcing" in (arm.rule or "") for arm in verdict.arms) else (),
    )


def _finished_row(
    name: Cell, one: FinishedComparison, other: float | None, looped: float | None, alpha: float, *, macro: bool = False
) -> Row:
    tone: Tone = significance(one.delta_points, one.p_value, alpha)
    return row(
        name,
        f"{whole_percent(other)} → {whole_percent(looped)}",
        count(one.num_answers),
        whole_percent(one.share_percent),
        Cell(f"{percent(one.other_percent)} → {percent(one.looped_percent)}", tone, bool(tone)),
        Cell(points(one.delta_points), tone),
        interval(one.ci95),
        p_number(one.p_value),
        tone="key" if macro else "",
    )


def settings_table(verdict: Verdict, arms: Arms) -> Table:
    """Table 4's form: every arm by budget, finish rates beside accuracies, and what it cost."""
    measure = verdict.deciding_measure
    budgets = sorted({(budget_order(arm), arm.budget_label) for arm in verdict.arms})
    rows: list[Row] = []
    for _, label in budgets:
        rows.append(row(f"Budget {budget_words(label)}" if label != "-" else "Budget not known", tone="heading"))
        of_budget = [arm for arm in verdict.arms if arm.budget_label == label]
        rows += [_setting_row(verdict, arms, arm, measure) for arm in sorted(of_budget, key=_setting_order)]
    order = f" ({', '.join(verdict.tasks)}, in that order)" if len(verdict.tasks) > 1 else ""
    in_measure = "" if measure is None else f", in {MEASURE_NAMES[measure]}"
    return Table(
        name="table-settings",
        title="Decoding rules, finish rates and cost",
        caption=f"Accuracy (%) of every arm. The finished column gives the answers completed within the budget{order}. "
        f"Cost is relative to the twin under the deciding rule and budget{in_measure}. Marked: the pair that decides.",
        columns=columns(
            "Setting",
            *(f"#{task}" for task in verdict.tasks),
            *(["#Macro"] if len(verdict.tasks) > 1 else []),
            "#Finished (%)",
            "#Tokens per answer",
            "#Cost per answer",
            "#Cost (× twin)",
        ),
        rows=tuple(rows),
        notes=("A majority vote pays for all of its samples.",) if any(arm.votes for arm in verdict.arms) else (),
    )


def _setting_order(arm: ArmSummary) -> tuple[int, int, str, int]:
    sides = ("twin", "looped", "unlooped", "larger")
    return (int(arm.votes is not None or arm.samples > 1), 0 if arm.rule == "plain" else 1, arm.rule or "", sides.index(arm.side))


def _setting_row(verdict: Verdict, arms: Arms, arm: ArmSummary, measure: Measure | None) -> Row:
    spent = next((one for one in arm.costs if one.measure == measure), None)
    by_task = {score.task: score for score in arm.tasks}
    accuracies = [by_task[task].accuracy_percent if task in by_task else None for task in verdict.tasks]
    finished = [by_task[task].finished_percent if task in by_task else None for task in verdict.tasks]
    tokens = [score.mean_generated_tokens for score in arm.tasks]
    key = arm.name in (verdict.equal_parameters.looped, verdict.equal_parameters.comparator)
    return row(
        arms.setting(arm.name),
        *(percent(value) for value in accuracies),
        *([Cell(percent(arm.accuracy_percent), "", key)] if len(accuracies) > 1 else []),
        UNKNOWN if all(value is None for value in finished) else " / ".join(map(whole_percent, finished)),
        " / ".join(amount(value) for value in tokens) if any(value is not None for value in tokens) else UNKNOWN,
        UNKNOWN if spent is None else cost(spent.per_answer, spent.measure),
        ratio(None if spent is None else spent.ratio_to_twin),
        tone="key" if key else "",
        arms=(arm.name,),
    )
