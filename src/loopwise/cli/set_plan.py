"""``loopwise trial SET --plan``: what the trial of a set would take and could show."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..protocol import plan_to_json
from .console import print_json, table
from .losses import refuse_given
from .sets import OF_ONE_MODEL
from .trial_plan import figures, lengths_text, time_text

if TYPE_CHECKING:
    from ..recipes.set_estimate import MemberEstimate, SetEstimate, TrainingSpread
    from .trial import Command as TrialCommand

_FIELDS = ("num_answers", "most_tokens", "expected_tokens", "most_flops", "expected_flops", "seconds")
_HEADER = ("member", "role", "loops", "arms", "answers", "tokens at most", "tokens expected", "FLOPs", "time")


def set_plan_command(command: TrialCommand) -> None:
    """Print the estimate of a set's trial."""
    refuse_given(command, OF_ONE_MODEL, "has no meaning for a set, whose loops, twins and seeds are its own; leave it out")
    refuse_given(command, ("before",), "is read when the set is tried; leave it out of --plan")
    from ..recipes.set_estimate import estimate_set
    from ..recipes.trial_estimate import Known

    found = estimate_set(
        command.model[0],
        out=command.out,
        tasks=command.task,
        budgets=command.budgets,
        depths=command.depths,
        settings=command.settings(),
        known=Known(prior=command.prior, tokens_per_second=command.throughput, probe=command.probe),
    )
    if command.json:
        print_json(_as_json(found))
    else:
        print(set_estimate_text(found))


def _as_json(found: SetEstimate) -> dict[str, Any]:
    values = asdict(found) | {"plan": plan_to_json(found.plan)}
    values["members"] = [asdict(one) | {"total": {name: one.total(name) for name in _FIELDS}} for one in found.members]
    return values | {"total": {name: found.total(name) for name in _FIELDS}}


def set_estimate_text(found: SetEstimate) -> str:
    """The estimate as a page of text."""
    plan, tested = found.plan, found.tested
    budgets = ", ".join(f"{name} {tokens}" for name, tokens in plan.deciding_budgets_tokens().items())
    items = [[name, f"{count:,}", f"{found.prompt_tokens[name]:.0f}"] for name, count in found.num_items.items()]
    loops = f"{plan.loops} ({plan.layer_pass_ratio:.2f}x layer passes)"
    lines = [
        f"PLAN: the set {tested.folder}, {loops}, seeds {_listed(plan.seeds)}; nothing has run",
        f"decides: {plan.deciding_rule} at {budgets} tokens, alpha {plan.alpha:g}, cost in {plan.measure}",
        "",
        table(items, ("benchmark", "items", "prompt tokens")),
        "",
        table([_row(one) for one in found.members] + [_total(found)], _HEADER),
        f"Every member runs its arms with each of the {len(plan.seeds)} seeds.",
    ]
    lines += [f"left out, {name}: {reason}" for name, reason in tested.left_out.items()]
    lines += [f"{arm.name}: not applicable: {arm.reason}" for arm in plan.arms() if not arm.applicable]
    lengths = lengths_text(found.num_prior_runs, known=found.total("expected_tokens") is not None)
    for text in (
        lengths,
        time_text(found.throughput, "a looped token takes as many times as long as its member's layer passes say"),
        *_gain_texts(found),
    ):
        lines += ["", *textwrap.wrap(text, 110)]
    return "\n".join(lines)


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def _row(one: MemberEstimate) -> list[str]:
    return [one.name, one.role, one.loops, str(len(one.arms)), *figures(one.total)]


def _total(found: SetEstimate) -> list[str]:
    return ["all", "", "", str(sum(len(one.arms) for one in found.members)), *figures(found.total)]


def _gain_texts(found: SetEstimate) -> list[str]:
    confidence = f"{100 * (1 - found.plan.alpha):g} %"
    measured = all(one.measured for one in found.smallest_gains)
    how = "as in the earlier runs" if measured else "an assumption: no earlier pair of every benchmark"
    shown = [f"{100 * one.discordance:.1f} %: {_points(one.points)}" for one in found.smallest_gains]
    best = "none" if found.one_sided_points is None else f"{found.one_sided_points:.1f} points"
    texts = [
        f"Smallest gain of the looped model over its twin that is found 4 times in 5, at {confidence} confidence, by the share of items "
        f"that differ in one seed ({how}): {'; '.join(shown)}. Without any loss: {best}. This is the test that decides, about these "
        f"{len(found.plan.seeds)} training runs; it takes an item's differences in two seeds as independent. If every seed differed on "
        "the same items, more seeds would add nothing."
    ]
    texts += [_training_text(found, one) for one in found.training]
    if not found.training:
        texts.append("One training seed says nothing of other training runs: no gain over these can be shown with it.")
    return [*texts, "To pay, a loop must gain over its twin and over every unlooped arm that costs no more."]


def _training_text(found: SetEstimate, one: TrainingSpread) -> str:
    source = (
        "an assumption, no earlier trial of a set with these benchmarks"
        if one.num_seeds is None
        else f"measured over {one.num_seeds} seeds"
    )
    shown = [
        f"{100 * gain.discordance:.1f} %: {_points(points)}"
        for gain, points in zip(found.smallest_gains, one.smallest_gains_points, strict=True)
    ]
    return (
        f"With the seeds drawn again too, of training runs like these (the interval that stands beside), if the true difference has a "
        f"standard deviation of {one.points:.2g} points between training runs ({source}): {'; '.join(shown)}."
    )


def _points(points: float | None) -> str:
    return "none" if points is None else f"{points:.1f} points"
