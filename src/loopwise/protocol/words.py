"""A verdict in plain English: numbers first, no claim beyond them."""

from __future__ import annotations

from collections.abc import Sequence

from .values import Comparison, LargerModel, Measure, TestOutcome, TestResult, ThresholdEffect, VerdictWord

_MEASURE_WORDS = {"layer-passes": "its layer passes", "flops": "its FLOPs", "seconds": "its time"}


def points(value: float) -> str:
    """A difference with its sign: ``+4.1``."""
    return f"{value:+.1f}".replace("-", "−")


def interval(ci: tuple[float, float]) -> str:
    """``[+3.0, +5.2]``."""
    return f"[{points(ci[0])}, {points(ci[1])}]"


def p_text(p: float) -> str:
    """``p < 0.001``, ``p = 0.042``, ``p = 0.42``."""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"


def ratio_text(ratio: float) -> str:
    """A ratio with two decimals, or as many as tell it from 1: ``1.25``, ``1.00`` for 1, ``1.001``."""
    decimals = 2
    while abs(ratio - 1) > 1e-9 and decimals < 10 and float(f"{ratio:.{decimals}f}") == 1:
        decimals += 1
    return f"{ratio:.{decimals}f}"


def count(number: float) -> str:
    """A number of parameters: ``134.5M``, ``8.2B``."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def equal_parameters_statement(comparison: Comparison, result: TestResult) -> str:
    """The first test in one sentence."""
    seeds = ""
    if len(comparison.seeds) > 1 and comparison.seed_deltas:
        seeds = f", ahead in {comparison.seeds_favouring} of {len(comparison.seeds)} seeds"
    scores = _scores(comparison, "its twin")
    return f"At equal parameters the looped model {scores}, {p_text(comparison.p_value)}{seeds}: {_result_words(result)}."


def equal_flops_statement(
    comparison: Comparison, result: TestResult, *, p_value: float, p_loss: float, chosen: int, cost_ratio: float | None, measure: Measure
) -> str:
    """The second test in one sentence."""
    cost = "" if cost_ratio is None else f" at {ratio_text(cost_ratio)}x {_MEASURE_WORDS[measure]}"
    who = f"the most accurate of {chosen} unlooped arms that cost no more ({comparison.other}{cost})"
    if chosen == 1:
        who = f"the one unlooped arm that costs no more ({comparison.other}{cost})"
    behind = result == "loss"
    p = p_text(p_loss if behind else p_value)
    over = "" if chosen == 1 else (f" after correction for {chosen} arms" if behind else f", the largest over {chosen} arms")
    return f"At equal FLOPs it {_scores(comparison, who)}, {p}{over}: {_result_words(result)}."


def _scores(comparison: Comparison, who: str) -> str:
    return (
        f"scores {comparison.looped_percent:.1f} % against {comparison.other_percent:.1f} % for {who}: "
        f"{points(comparison.delta_points)} points, 95 % interval {interval(comparison.ci95)}"
    )


def _result_words(result: TestResult) -> str:
    return {
        "gain": "a significant gain",
        "loss": "a significant loss",
        "equivalent": "equivalent within ±2 points",
        "not shown": "no difference shown",
    }[result]


def sentence(
    word: VerdictWord,
    first: TestOutcome,
    second: TestOutcome | None,
    *,
    subject: str,
    twin: str,
    no_second: str | None,
    num_items: int,
    num_seeds: int,
    marks: str,
) -> str:
    """The verdict in one sentence.

    Args:
        subject: the loop in its model, e.g. ``The loop 10:14 x2 in SmolLM2 (134.5M parameters, 1.13x layer passes)``.
        twin: what the first test compares with, e.g. ``its identically trained twin``.
        no_second: why there is no second test.
    """
    against_twin = _against(first, twin)
    data = f"{num_items} items and {num_seeds} seed{'s' if num_seeds != 1 else ''}"
    if word == "pays":
        assert second is not None
        text = f"{subject} pays: {against_twin}, and {_against_best(second)}"
    elif word == "does not pay" and first.result != "gain":
        why = "which is within ±2 points" if first.result == "equivalent" else "which is significantly worse"
        shown = f", 90 % interval {interval(first.ci90)}" if first.result == "equivalent" else ""
        text = f"{subject} does not pay: {against_twin}{shown}, {why}"
    elif word == "does not pay":
        assert second is not None
        why = "which is within ±2 points" if second.result == "equivalent" else "which is significantly worse"
        text = f"{subject} does not pay: {against_twin}, but {_against_best(second)}, {why}"
    elif first.result != "gain":
        text = f"{subject} is not shown to pay: {against_twin}, and with {data} {_likely_to_show(first)}"
    elif second is None:
        text = f"{subject} is not shown to pay: {against_twin}, but there is no second test: {no_second}"
    else:
        text = f"{subject} is not shown to pay: {against_twin}, but {_against_best(second)}, and with {data} {_likely_to_show(second)}"
    return f"{text}.{' ' + marks if marks else ''}"


def _likely_to_show(test: TestOutcome) -> str:
    """The smallest gain that so many items and seeds would have shown; a few items can show none, however large."""
    if test.smallest_detectable_points > 100:
        return "no gain could have been shown"
    return f"only a gain of at least {test.smallest_detectable_points:.1f} points would have been likely to show (80 % power)"


def _against(test: TestOutcome, who: str) -> str:
    return (
        f"{test.looped_percent:.1f} % against {test.comparator_percent:.1f} % for {who} "
        f"({points(test.delta_points)} points, 95 % interval {interval(test.ci95)}, {p_text(test.deciding_p)})"
    )


def _against_best(test: TestOutcome) -> str:
    return (
        f"{points(test.delta_points)} points against the best unlooped use of the same compute "
        f"({test.comparator}: {test.comparator_percent:.1f} %, 95 % interval {interval(test.ci95)}, {p_text(test.deciding_p)})"
    )


def subject(loops: str, model: str | None, num_parameters: int | None, cost_ratio: float | None) -> str:
    """The loop in its model, for a sentence's beginning."""
    loop = "The loop" if loops in ("unknown", "none") else f"The loop {loops}"
    facts = [] if num_parameters is None else [f"{count(num_parameters)} parameters"]
    facts += [] if cost_ratio is None else [f"{ratio_text(cost_ratio)}x layer passes"]
    return loop + (f" in {model}" if model else "") + (f" ({', '.join(facts)})" if facts else "")


def advice(
    word: VerdictWord, first: TestOutcome, *, cost_ratio: float | None, larger: LargerModel | None, num_parameters: int | None
) -> str:
    """The rule of section 4.5: a loop that pays is worth it only where parameters cannot grow."""
    price = "more" if cost_ratio is None else f"{ratio_text(cost_ratio)}x as much"
    rule = {
        "pays": f"Worth it only where parameters cannot grow (memory, disk or training budget is fixed): a generated token costs {price}.",
        "does not pay": f"Leave the loop out: a generated token would cost {price} and buy nothing that the model without it cannot do.",
        "not shown": f"No reason yet to pay for the loop (a generated token costs {price}); {_what_could_show(first)}.",
    }[word]
    if larger is None:
        return rule
    growth = "" if not num_parameters else f", {larger.num_parameters / num_parameters:.1f} times as many"
    size = f"{count(larger.num_parameters)} parameters{growth}; {larger.memory_bytes / 1e9:.2f} GB of weights"
    return (
        f"{rule} Where they can grow, {larger.name} ({size}) scores {larger.accuracy_percent:.1f} % "
        f"against {first.looped_percent:.1f} % for the looped model."
    )


def _what_could_show(first: TestOutcome) -> str:
    return "the second test is still open" if first.passed else "more items or seeds could show one"


def threshold_note(threshold: ThresholdEffect, gain_points: float) -> str:
    """Delta* beside the gain at equal parameters."""
    reach = "reaches" if threshold.reached else "does not reach"
    return (
        f"Growing the model by the loop's extra compute would be expected to bring Δ* = {threshold.points:.1f} points; the gain of "
        f"{points(gain_points)} points at equal parameters {reach} it."
    )


def listing(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
