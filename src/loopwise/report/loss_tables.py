"""The tables of a loss trial's report."""

from __future__ import annotations

from ..protocol import LossTest, LossVerdict
from .blocks import Cell, Table, columns, row
from .labels import RESULT_WORDS, result_tone
from .numbers import UNKNOWN, count, interval, p_number, points, ratio, scaled

SIDES = {"looped": "Looped", "twin": "Twin", "unlooped": "Other unlooped"}


def tests_of(verdict: LossVerdict) -> list[LossTest]:
    """The tests that took place, in order."""
    return [test for test in (verdict.equal_parameters, verdict.equal_flops, verdict.equal_training) if test is not None]


def heading(test: LossTest) -> str:
    """A test's name at the beginning of a line."""
    return test.name[0].upper() + test.name[1:]


def models_table(verdict: LossVerdict) -> Table:
    """Table 6's form: what each model spends, and its loss on the text in three units."""
    rows = [
        row(
            model.name,
            SIDES[model.side],
            model.loops,
            scaled(model.num_parameters),
            scaled(model.flops_per_token, "FLOPs"),
            ratio(model.flops_ratio),
            scaled(model.training_flops, "FLOPs"),
            ratio(model.training_flops_ratio),
            f"{model.loss_nats:.4f}",
            ", ".join(f"{loss:.4f}" for loss in model.loss_by_seed) if len(model.loss_by_seed) > 1 else UNKNOWN,
            UNKNOWN if model.bits_per_byte is None else f"{model.bits_per_byte:.4f}",
            f"{model.perplexity:.4g}",
            tone="key" if model.side == "looped" else "",
        )
        for model in verdict.models
    ]
    return Table(
        name="table-models",
        title="Models",
        caption="Loss in nats per token over all documents; inference FLOPs of one token's forward pass, head included, without attention "
        "scores; training FLOPs as the run's folder says them. Ratios are over the looped model.",
        columns=columns(
            "Model",
            "Side",
            "Loop",
            "#Parameters",
            "#FLOPs per token",
            "#× looped",
            "#Training FLOPs",
            "#× looped",
            "#Loss (nats/token)",
            "#By seed",
            "#Bits per byte",
            "#Perplexity",
        ),
        rows=tuple(rows),
    )


def comparisons_table(verdict: LossVerdict) -> Table:
    """Every comparison of every test, the deciding ones marked."""
    rows = []
    for test in tests_of(verdict):
        rows.append(row(heading(test), tone="heading"))
        for one in test.rows:
            c = one.comparison
            tone = result_tone(test.result) if one.decides else ""
            rows.append(
                row(
                    c.other,
                    one.reason,
                    Cell(points(c.delta_millinats), tone, tone != ""),
                    interval(c.ci95),
                    interval(c.ci90),
                    p_number(test.deciding_p if one.decides else c.p_value),
                    ", ".join(map(points, c.seed_deltas)),
                    tone="key" if one.decides else "" if one.eligible else "quiet",
                )
            )
    return Table(
        name="table-comparisons",
        title="Comparisons",
        caption="The other model's loss minus the looped model's, in milli-nats per token: above zero the loop is ahead. The marked row "
        "of a test is its comparator; its p is the largest over all eligible models, because a gain has to hold against each; for a loss "
        "it is the comparator's times their number.",
        columns=columns("Against", "Why", "#Δ (milli-nats)", "#95% CI", "#90% CI", "#p", "#Δ by seed"),
        rows=tuple(rows),
    )


def tests_table(verdict: LossVerdict) -> Table:
    """Both tests in two lines, for the head of the Markdown report."""
    rows = []
    for test in tests_of(verdict):
        c = test.comparison
        standing = "" if test.reached else ", does not decide"
        rows.append(
            row(
                heading(test),
                c.other,
                points(c.delta_millinats),
                interval(c.ci95),
                p_number(test.deciding_p),
                RESULT_WORDS[test.result] + standing,
            )
        )
    return Table(
        name="table-tests",
        title="The tests",
        caption="Milli-nats per token, above zero where the loop is ahead.",
        columns=columns("Test", "Against", "#Δ (milli-nats)", "#95% CI", "#p", "Result"),
        rows=tuple(rows),
        notes=() if verdict.equal_flops else (f"There is no second test: {verdict.equal_flops_reason}.",),
    )


def windows_table(verdict: LossVerdict) -> Table:
    """How the text was read."""
    first = "not scored" if verdict.start_token is None else f"predicted from {verdict.start_token}"
    rows = (
        row("Context", f"{count(verdict.context_tokens)} tokens"),
        row("Stride", f"{count(verdict.stride_tokens)} tokens; every token is scored once"),
        row("First token of a document", first),
        row("Hash of the text", verdict.text_hash),
        row("Resampled", f"{verdict.resampling.replace('items', 'documents')}, {count(verdict.resamples)} times"),
        row("Alpha, margin", f"{verdict.alpha:g}, ±{verdict.margin_millinats:g} milli-nats"),
    )
    return Table(
        name="table-windows", title="Text and windows", caption="The same for all models.", columns=columns("What", "Value"), rows=rows
    )
