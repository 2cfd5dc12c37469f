"""A loss verdict in plain English, in the words of the accuracy verdict: numbers first, no claim beyond them."""

from __future__ import annotations

from .loss_arms import LossArm
from .loss_values import LossComparison, LossTest
from .values import TestResult, VerdictWord
from .words import interval, p_text, points, ratio_text

_SPENT = {"equal FLOPs": "inference FLOPs", "equal training FLOPs": "training FLOPs"}
_USES = {"equal FLOPs": "inference compute", "equal training FLOPs": "training compute"}


def statement(test: LossTest, looped: LossArm, comparator: LossArm, margin: float) -> str:
    """One test in one sentence, and a second one where it cannot decide."""
    comparison, chosen, behind = test.comparison, test.num_eligible, test.result == "loss"
    if test.name == "equal parameters":
        opening, who = "At equal parameters the looped model has", "its twin"
        seeds = len(comparison.seed_deltas)
        over = f", ahead in {comparison.seeds_favouring} of {seeds} seeds" if seeds > 1 else ""
    else:
        ratio = next(row.cost_ratio for row in test.rows if row.decides)
        cost = "" if ratio is None else f" at {ratio_text(ratio)}x its {_SPENT[test.name]}"
        best = "the one unlooped model that spends" if chosen == 1 else f"the best of {chosen} unlooped models that spend"
        opening, who = f"At {test.name} it has", f"{best} no more {_USES[test.name]} ({comparison.other}{cost})"
        over = "" if chosen == 1 else (f" after correction for {chosen} models" if behind else f", the largest over {chosen} models")
    losses = f"{looped.nats_per_token:.4f} nats per token against {comparator.nats_per_token:.4f} for {who}"
    outcome = f"{p_text(test.deciding_p)}{over}: {result_words(test.result, margin)}"
    return f"{opening} {losses}: {delta_text(comparison)}, {outcome}.{_standing(test)}"


def _standing(test: LossTest) -> str:
    if test.reached:
        return ""
    if test.name == "equal training FLOPs":
        return " It stands beside the two tests and does not decide."
    return " It is not reached: the first test was not passed, so it does not decide."


def delta_text(comparison: LossComparison) -> str:
    """``+19.0 milli-nats, 95 % interval [+15.0, +23.0]``."""
    return f"{points(comparison.delta_millinats)} milli-nats, 95 % interval {interval(comparison.ci95)}"


def result_words(result: TestResult, margin: float) -> str:
    """A test's result in a few words."""
    return {
        "gain": "a significant gain",
        "loss": "a significant loss",
        "equivalent": f"equivalent within ±{margin:g} milli-nats",
        "not shown": "no difference shown",
    }[result]


def loss_sentence(
    word: VerdictWord,
    first: LossTest,
    second: LossTest | None,
    *,
    looped: LossArm,
    twin: LossArm,
    subject: str,
    twin_words: str,
    no_second: str | None,
    margin: float,
    marks: str,
) -> str:
    """The verdict in one sentence.

    Args:
        subject: the loop in its model.
        twin_words: what the first test compares with.
        no_second: why there is no second test.
    """
    c = first.comparison
    against = (
        f"{looped.nats_per_token:.4f} against {twin.nats_per_token:.4f} nats per token for {twin_words} "
        f"({delta_text(c)}, {p_text(first.p_value)})"
    )
    data = f"{c.num_documents} documents and {len(c.seed_deltas)} seed{'s' if len(c.seed_deltas) != 1 else ''}"
    if word == "pays":
        assert second is not None
        text = f"{subject} pays by held-out loss: {against}, and {_best(second)}"
    elif word == "does not pay":
        deciding = second if first.passed else first
        assert deciding is not None
        why = "significantly worse"
        if deciding.result == "equivalent":
            why = f"within ±{margin:g} milli-nats (90 % interval {interval(deciding.comparison.ci90)})"
        but = f", but {_best(second)}" if first.passed and second is not None else ""
        text = f"{subject} does not pay by held-out loss: {against}{but}, which is {why}"
    elif not first.passed:
        text = f"{subject} is not shown to pay by held-out loss: {against}, and {_power(first, data)}"
    elif second is None:
        text = f"{subject} is not shown to pay by held-out loss: {against}, but there is no second test: {no_second}"
    else:
        text = f"{subject} is not shown to pay by held-out loss: {against}, but {_best(second)}, and {_power(second, data)}"
    return f"{text}.{' ' + marks if marks else ''}"


def _best(test: LossTest) -> str:
    c = test.comparison
    numbers = f"95 % interval {interval(c.ci95)}, {p_text(test.deciding_p)}"
    return f"{points(c.delta_millinats)} milli-nats against the best unlooped model of the same compute ({c.other}: {numbers})"


def _power(test: LossTest, data: str) -> str:
    least = f"{test.smallest_detectable_millinats:.1f} milli-nats"
    return f"with {data} only a gain of at least {least} would have been likely to show (80 % power)"


def loss_advice(word: VerdictWord, first: LossTest, *, cost_ratio: float) -> str:
    """The rule of section 4.5, and what a loss does not say."""
    price = f"{ratio_text(cost_ratio)}x as much"
    rule = {
        "pays": f"Worth it only where parameters cannot grow (memory, disk or training budget is fixed): a token costs {price}.",
        "does not pay": f"Leave the loop out: a token would cost {price} and predict this text no better than the model without it can.",
        "not shown": f"No reason yet to pay for the loop (a token costs {price}); "
        + ("the second test is still open." if first.passed else "more documents or training seeds could show one."),
    }[word]
    return f"{rule} A lower loss promises no higher accuracy: judge the pair on tasks as well."
