"""Figures over token budgets: accuracy against cost (Figure 2's form), and finish rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..protocol import ArmSummary, Verdict
from ..protocol.values import Measure
from .blocks import Figure
from .labels import Arms, budget_order, rule_words
from .numbers import MEASURE_NAMES, MEASURE_UNITS, cost, percent
from .panels import LARGER, LOOPED, OTHER, SAMPLED, TWIN, Axes, Point, draw_panels

_PREFIXES = {1: "", 10**3: "k", 10**6: "M", 10**9: "G", 10**12: "T", 10**15: "P"}


@dataclass(frozen=True, slots=True)
class _Scale:
    """A measure's unit on an axis."""

    divisor: float
    unit: str

    @classmethod
    def of(cls, measure: Measure, largest: float) -> _Scale:
        if measure != "flops":
            return cls(1.0, MEASURE_UNITS[measure])
        divisor = min(1000 ** max(0, int(math.log10(largest) // 3)), 10**15) if largest > 0 else 1
        return cls(divisor, _PREFIXES[divisor] + "FLOPs")


def accuracy_figure(verdict: Verdict, arms: Arms) -> Figure | None:
    """Accuracy against cost per answer, one panel a decoding rule; None where costs are not known."""
    measure = verdict.deciding_measure or next((one.measure for arm in verdict.arms for one in arm.costs), None)
    if measure is None:
        return None
    points = [one for arm in verdict.arms if (one := _cost_point(verdict, arms, arm, measure)) is not None]
    if len(points) < 2:
        return None
    scale = _Scale.of(measure, max(one.x for one in points))
    points = [replace(one, x=one.x / scale.divisor) for one in points]
    loop_cost = next((one.x for one in points if one.deciding and one.kind == LOOPED), None)
    axes = Axes(x=f"Cost per answer ({scale.unit})", y="Accuracy (%)", x_is_budget=False, marked_x=loop_cost)
    return _figure(
        points,
        axes,
        name="accuracy-against-cost",
        title="Accuracy against cost",
        caption=f"Macro accuracy over the cost of an answer ({MEASURE_NAMES[measure]}): a curve over token budgets for each model, a "
        "panel for each decoding rule. Numbers at the points are token budgets. The dashed line is the deciding loop's "
        "cost: unlooped arms of its rule on it or to its left are eligible.",
    )


def finish_figure(verdict: Verdict, arms: Arms) -> Figure | None:
    """Finish rate by token budget, one panel a decoding rule; None where the records do not say."""
    points = [one for arm in verdict.arms if (one := _finish_point(verdict, arms, arm)) is not None]
    if not points:
        return None
    return _figure(
        points,
        Axes(x="Token budget", y="Finished (%)", x_is_budget=True),
        name="finish-rate",
        title="Finish rate by token budget",
        caption="Share of answers that end within the budget, macro over benchmarks, a panel for each decoding rule.",
    )


def _figure(points: Sequence[Point], axes: Axes, *, name: str, title: str, caption: str) -> Figure:
    description = f"{title}. {'; '.join(one.tip for one in points)}."
    svg, narrow_svg = draw_panels(points, axes, description)
    return Figure(name=name, title=title, caption=caption, description=description, svg=svg, narrow_svg=narrow_svg)


def _kind(verdict: Verdict, arm: ArmSummary) -> str:
    if arm.side in ("looped", "larger"):
        return LOOPED if arm.side == "looped" else LARGER
    usual = {one.samples for one in verdict.arms if one.side == "looped"}
    if arm.votes is not None or arm.samples not in usual:
        return SAMPLED
    return TWIN if arm.side == "twin" else OTHER


def _point(verdict: Verdict, arms: Arms, arm: ArmSummary, *, x: float, y: float, tip: str) -> Point:
    kind = _kind(verdict, arm)
    test = verdict.equal_parameters
    return Point(
        panel=rule_words(arm.rule),
        kind=kind,
        x=x,
        y=y,
        budget=arm.budget_label,
        order=sum(budget_order(arm)),
        label=arm.budget_label if kind in (LOOPED, TWIN) else f"vote of {arm.votes}" if arm.votes else "",
        tip=f"{arms.setting_with_budget(arm.name)}: {tip}",
        deciding=arm.name in (test.looped, test.comparator),
    )


def _cost_point(verdict: Verdict, arms: Arms, arm: ArmSummary, measure: Measure) -> Point | None:
    spent = next((one for one in arm.costs if one.measure == measure), None)
    if spent is None or not spent.per_answer or (spent.ratio_to_loop is None and arm.side == "larger"):
        return None
    tip = f"{percent(arm.accuracy_percent)}% at {cost(spent.per_answer, measure)} per answer"
    return _point(verdict, arms, arm, x=spent.per_answer, y=arm.accuracy_percent, tip=tip)


def _finish_point(verdict: Verdict, arms: Arms, arm: ArmSummary) -> Point | None:
    if arm.finished_percent is None or arm.budget_label == "-" or _kind(verdict, arm) not in (LOOPED, TWIN):
        return None
    return _point(verdict, arms, arm, x=0.0, y=arm.finished_percent, tip=f"{percent(arm.finished_percent)}% finished")
