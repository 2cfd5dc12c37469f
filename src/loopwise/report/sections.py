"""The report's order: the verdict, the two tests at a glance, then what each rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..protocol import Plan, TestOutcome, Verdict
from . import benchmarks, comparisons, curves, forest, record_links, running
from .blocks import Block, Bullets, Card, Page, Section, Table, Text
from .card_interval import card_interval
from .labels import (
    OUTCOMES,
    STATES,
    Arms,
    outcome_words,
    passes_text,
)
from .numbers import UNKNOWN, count, interval, known_number, p_number, percent, points, ratio, scaled, yes_no
from .running import NoiseFloors

HEADLINES = {"pays": "The loop pays", "does not pay": "The loop does not pay", "not shown": "Not shown that the loop pays"}
QUESTIONS = (
    "Does the looped model beat the same model, trained identically, without the loop?",
    "Does it beat the best unlooped use of the same inference compute?",
)


def build_page(verdict: Verdict, *, plan: Plan | None, headers: Sequence[Mapping[str, Any]], noise_floor: NoiseFloors) -> Page:
    """Everything that a report says, figures drawn."""
    arms = Arms(verdict)
    page = Page(
        title=f"{HEADLINES[verdict.verdict]}: {verdict.model or 'looped model'}",
        state=STATES[verdict.verdict],
        verdict=HEADLINES[verdict.verdict],
        sentence=verdict.sentence,
        facts=_facts(verdict, running.num_layers_of(headers)),
        cards=(_card(verdict, arms, 0), _card(verdict, arms, 1)),
        advice=verdict.advice,
        warnings=verdict.notes,
        sections=(
            _equal_parameters(verdict, arms, running.num_layers_of(headers)),
            _equal_flops(verdict, arms),
            _benchmarks(verdict, arms),
            _decoding(verdict, arms),
            *_room(verdict),
            _running(verdict, plan, headers, noise_floor, record_links.records_table(verdict, arms)),
            _reading(verdict),
        ),
    )
    return record_links.link(page, verdict)


def _facts(verdict: Verdict, num_layers: int | None) -> tuple[tuple[str, str], ...]:
    size = "" if (parameters := known_number(verdict.num_parameters)) is None else f" ({scaled(parameters)} parameters)"
    return (
        ("Model", f"{verdict.model or 'not known'}{size}"),
        ("Loop", verdict.loops),
        ("Layer passes (cost)", passes_text(num_layers, verdict.cost_ratio)),
        ("Benchmarks", f"{', '.join(verdict.tasks)} ({count(verdict.num_items)} items)"),
        ("Seeds", ", ".join(map(str, verdict.seeds)) + (f" {verdict.marks}" if verdict.marks else "")),
        ("Decides", Arms(verdict).rule_and_budget(verdict.equal_parameters.looped)),
    )


def _card(verdict: Verdict, arms: Arms, which: int) -> Card:
    test = verdict.equal_flops if which else verdict.equal_parameters
    title = "Test 2: equal FLOPs" if which else "Test 1: equal parameters"
    name = "card-equal-flops" if which else "card-equal-parameters"
    if test is None:
        reason = (verdict.equal_flops_reason or "not known").rstrip(".")
        return Card(
            name=name,
            title=title,
            question=QUESTIONS[which],
            outcome="absent",
            outcome_text="no second test",
            delta="",
            unit="",
            facts=(),
            statement=f"There is no second test: {reason}.",
            interval=None,
        )
    unjudging = which and not verdict.equal_parameters.passed
    return Card(
        name=name,
        title=title,
        question=QUESTIONS[which],
        outcome=OUTCOMES[test.result],
        outcome_text=outcome_words(test),
        delta=points(test.delta_points),
        unit="points",
        facts=_card_facts(verdict, arms, test),
        statement="It does not decide here: the first test was not passed." if unjudging else "",
        interval=card_interval(test.delta_points, test.ci95, test.ci90, verdict.margin_points),
    )


def _card_facts(verdict: Verdict, arms: Arms, test: TestOutcome) -> tuple[tuple[str, str], ...]:
    how = "corrected for" if test.result == "loss" else "largest over"
    among = f" ({how} {test.num_eligible} eligible arms)" if test.num_eligible > 1 else ""
    facts = [
        ("Unlooped → looped", f"{percent(test.comparator_percent)} → {percent(test.looped_percent)}%{verdict.marks}"),
        ("95% interval", f"{interval(test.ci95)} points"),
        ("p", p_number(test.deciding_p) + among),
        (f"Equivalent (90% within ±{verdict.margin_points:g})", _equivalence(test)),
        ("Comparator", arms.setting_with_budget(test.comparator)),
        (
            "Gain found with 80% power",
            f"{test.smallest_detectable_points:.1f} points or more" if test.smallest_detectable_points <= 100 else "none: too few items",
        ),
    ]
    if test.comparison.seed_deltas and len(test.comparison.seed_deltas) > 1:
        facts.append(("Seeds that favour the loop", f"{test.comparison.seeds_favouring} of {len(test.comparison.seed_deltas)}"))
    return tuple(facts)


def _equivalence(test: TestOutcome) -> str:
    shown = "not enough to count" if test.equivalent and test.result == "not shown" else yes_no(test.equivalent)
    return f"{shown}, 90% interval {interval(test.ci90)}"


def _section(name: str, title: str, *blocks: Block | None) -> Section:
    return Section(name=name, title=title, blocks=tuple(block for block in blocks if block is not None))


def _equal_parameters(verdict: Verdict, arms: Arms, num_layers: int | None) -> Section:
    return _section(
        "equal-parameters",
        "Equal parameters",
        Text(verdict.equal_parameters.statement),
        comparisons.equal_parameters_table(verdict, arms, num_layers),
        forest.contrasts_figure(verdict, arms),
        comparisons.seeds_table(verdict, arms),
    )


def _equal_flops(verdict: Verdict, arms: Arms) -> Section:
    test = verdict.equal_flops
    reason = (verdict.equal_flops_reason or "not known").rstrip(".")
    figure = curves.accuracy_figure(verdict, arms)
    return _section(
        "equal-flops",
        "Equal FLOPs",
        Text(f"There is no second test: {reason}." if test is None else test.statement),
        comparisons.equal_flops_table(verdict, arms),
        figure or Text("Accuracy is not drawn against cost: the records do not say what their answers cost."),
        comparisons.measures_table(verdict, arms),
    )


def _benchmarks(verdict: Verdict, arms: Arms) -> Section:
    return _section("per-benchmark", "Per benchmark", benchmarks.benchmarks_table(verdict, arms), forest.benchmarks_figure(verdict))


def _decoding(verdict: Verdict, arms: Arms) -> Section:
    finished = benchmarks.finished_table(verdict, arms)
    known = any(arm.finished_percent is not None for arm in verdict.arms)
    silent = None if known else Text("The records do not say which answers ended within their budget.")
    return _section(
        "decoding",
        "Does it answer, or only end?",
        Text(
            "Small models often do not finish. A loop may help them to end, but so may a decoding rule that costs nothing; so both "
            "models get every rule, and accuracy is also shown on the answers that both finish."
        ),
        benchmarks.settings_table(verdict, arms),
        curves.finish_figure(verdict, arms),
        finished,
        silent if finished is None else None,
    )


def _room(verdict: Verdict) -> tuple[Section, ...]:
    """What a larger model would bring; empty where none is known."""
    larger, threshold = verdict.larger, verdict.threshold
    if larger is None:
        return ()
    gain = verdict.equal_parameters.delta_points
    rows = [
        f"{larger.name}: {scaled(larger.num_parameters)} parameters, {scaled(larger.memory_bytes, 'B')} of weights, "
        f"{percent(larger.accuracy_percent)}% accuracy (looped: {percent(verdict.equal_parameters.looped_percent)}%)."
    ]
    if threshold is not None:
        rows.append(
            f"Δ* = log {ratio(threshold.cost_ratio)} / log {ratio(threshold.parameter_ratio)} times a gap of "
            f"{points(threshold.accuracy_gap_points)} points = {threshold.points:.1f} points: what the loop's extra compute would bring as "
            f"parameters. The loop's gain of {points(gain)} points {'reaches' if threshold.reached else 'does not reach'} it."
        )
    return (_section("larger-model", "If parameters could grow", Bullets(tuple(rows)), Text(verdict.advice)),)


def _running(
    verdict: Verdict, plan: Plan | None, headers: Sequence[Mapping[str, Any]], noise_floor: NoiseFloors, records: Table | None
) -> Section:
    unknown = Text("The records came without headers: model, versions, batches and parity check are not known.")
    parity = running.parity_table(headers)
    return _section(
        "what-ran",
        "What ran",
        None if headers else unknown,
        running.loops_table(headers, verdict),
        running.shared_table(headers),
        running.runs_table(headers),
        records,
        parity or (Text("Parity check: not recorded.") if headers else None),
        running.noise_block(noise_floor),
        running.plan_table(verdict, plan),
        running.excluded_table(verdict),
    )


def _reading(verdict: Verdict) -> Section:
    marks = comparisons.marks_note(verdict)
    return _section(
        "how-to-read",
        "How to read this",
        Bullets(
            (
                "The first test asks whether the loop beats its twin: the same model, trained identically, without it. The second asks "
                "whether it beats the most accurate unlooped use of at most its inference compute. The second decides only if the first "
                "is passed.",
                "Pays: both tests are significant gains. Does not pay: a deciding test is a significant loss, or equivalent within "
                f"±{verdict.margin_points:g} points. Not shown: anything else; the smallest gain that this many items and seeds find four "
                "times in five stands beside it.",
                "A point is one percent of accuracy. Macro is the unweighted mean over benchmarks. Intervals and p-values come from paired "
                "bootstraps over items: the same draw for both arms and all seeds.",
                *marks,
                f"{UNKNOWN} means not known or not applicable, never zero.",
            )
        ),
    )
