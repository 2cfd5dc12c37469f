"""``loopwise trial --plan``: what a trial would take and could show, before anything is spent."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ..protocol import plan_to_json
from .console import UsageError, print_json, table
from .losses import refuse_given
from .sets import SET_ONLY

if TYPE_CHECKING:
    from ..protocol.prior import Throughput
    from ..recipes.trial_estimate import ArmEstimate, TrialEstimate
    from .trial import Command as TrialCommand

PLAN_ONLY = ("prior", "throughput", "probe")
"""Options of ``trial`` that only ``--plan`` reads."""


def plan_command(command: TrialCommand) -> None:
    """Print the estimate of a trial of one model.

    Raises:
        UsageError: several models, or options that only a set reads.
    """
    refuse_given(command, SET_ONLY, "is for the folder of a set that loopwise learn wrote; leave it out")
    if len(command.model) != 1 or len(command.twin) > 1:
        raise UsageError(f"--plan estimates a trial of one looped model, not of {len(command.model)}; plan them one by one")
    from ..recipes.trial_estimate import Known, estimate_trial

    found = estimate_trial(
        command.model[0],
        out=command.out,
        loops=command.loops,
        tasks=command.task,
        budgets=command.budgets,
        settings=command.settings(),
        known=Known(prior=command.prior, tokens_per_second=command.throughput, probe=command.probe),
    )
    if command.json:
        print_json(_as_json(found))
    else:
        print(estimate_text(found))


def _as_json(found: TrialEstimate) -> dict[str, Any]:
    values = asdict(found) | {"plan": plan_to_json(found.plan)}
    values["not_applicable"] = {arm.name: arm.reason for arm in found.plan.arms() if not arm.applicable}
    fields = ("num_answers", "most_tokens", "expected_tokens", "most_flops", "expected_flops", "seconds")
    return values | {"total": {name: found.total(name) for name in fields}}


def estimate_text(found: TrialEstimate) -> str:
    """The estimate as a page of text."""
    plan = found.plan
    budgets = ", ".join(f"{name} {tokens}" for name, tokens in plan.deciding_budgets_tokens().items())
    lines = [
        f"PLAN: {plan.model} with {plan.loops} ({plan.layer_pass_ratio:.2f}x layer passes); nothing has run",
        f"decides: {plan.deciding_rule} at {budgets} tokens, alpha {plan.alpha:g}, cost in {plan.measure}",
        "",
        table([_task_row(found, name) for name in found.num_items], ("benchmark", "items", "prompt tokens", "budgets", "reserves")),
        "",
        table([_arm_row(found, arm) for arm in found.arms] + [_total_row(found)], _HEADER),
    ]
    lines += [f"{arm.name}: not applicable: {arm.reason}" for arm in plan.arms() if not arm.applicable]
    lengths = lengths_text(found.num_prior_runs, known=found.total("expected_tokens") is not None)
    for text in (
        lengths,
        time_text(found.throughput, f"a looped token takes {plan.layer_pass_ratio:.2f} times as long"),
        *_gain_texts(found),
    ):
        lines += ["", *textwrap.wrap(text, 110)]
    return "\n".join(lines)


_HEADER = ("arm", "purpose", "answers", "tokens at most", "tokens expected", "FLOPs", "time")


def _task_row(found: TrialEstimate, name: str) -> list[str]:
    task = next(one for one in found.plan.tasks if one.name == name)
    budgets = " ".join(map(str, task.budgets_tokens))
    reserves = " ".join(map(str, (task.reserve_tokens, *task.further_reserves_tokens)))
    return [name, f"{found.num_items[name]:,}", f"{found.prompt_tokens[name]:.0f}", budgets, reserves]


def _arm_row(found: TrialEstimate, arm: ArmEstimate) -> list[str]:
    purpose = arm.purpose + (" (runs twice)" if arm.name in found.repeated else "")
    return [arm.name, purpose, *figures(partial(getattr, arm))]


def _total_row(found: TrialEstimate) -> list[str]:
    return ["all", "", *figures(found.total)]


def figures(of: Callable[[str], float | None]) -> list[str]:
    """Answers, tokens at most and expected, FLOPs and time as cells, from the fields of an `ArmEstimate` or their sums; where expected
    FLOPs are not known the last two are upper bounds."""
    tokens, flops, seconds = of("expected_tokens"), of("expected_flops"), of("seconds")
    bound = "≤" if flops is None else ""
    return [
        f"{of('num_answers') or 0:,.0f}",
        f"{of('most_tokens') or 0:,.0f}",
        "-" if tokens is None else f"{tokens:,.0f}",
        f"{bound}{flops or of('most_flops') or 0:.3g}",
        "-" if seconds is None else bound + _duration(seconds),
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def lengths_text(num_prior_runs: int, *, known: bool) -> str:
    """Where expected tokens come from."""
    if known:
        return (
            f"Expected tokens come from {num_prior_runs} earlier runs; an answer that did not end within its budget there is taken "
            "to use up the one here."
        )
    return (
        "Expected tokens are not known: no earlier run of every benchmark (--prior FOLDER). FLOPs and time are for answers of full length."
    )


def time_text(rate: Throughput | None, looped: str) -> str:
    """What the time is for.

    Args:
        looped: what a looped token takes, in words.
    """
    if rate is None:
        return "Time is not known: give --throughput, an earlier run with --prior, or --probe to measure for some seconds."
    return (
        f"Time is for {rate.tokens_per_second:,.1f} tokens of the plain model a second, from {rate.source}; {looped}, and prompts, loading "
        "and parity checks come on top."
    )


def _gain_texts(found: TrialEstimate) -> list[str]:
    texts = []
    for one in found.smallest_gains:
        how = "as in the earlier runs" if one.measured else "if so many do"
        least = "no gain could be shown" if one.points is None else f"a gain of {one.points:.1f} points is found 4 times in 5"
        texts.append(f"{100 * one.discordance:.1f} % of items differ between the arms, {how}: {least}.")
    joined = " ".join(texts)
    best = "no gain could be shown" if found.one_sided_points is None else f"{found.one_sided_points:.1f} points"
    return [
        f"Smallest gain of one comparison, at {100 * (1 - found.plan.alpha):g} % confidence: {joined} If no answer got worse: {best}. "
        "To pay, a loop must gain over its twin and over every unlooped arm that costs no more."
    ]
