"""Small multiples: one panel a decoding rule, a curve for the looped model and one for its twin, on shared scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .drawing import NARROW, PERCENT_LABEL, WIDE, chart_of, colour, draw, legend

LOOPED, TWIN, SAMPLED, OTHER, LARGER = "Looped", "Unlooped twin", "Repeated sampling", "Other unlooped", "Larger model"
_STYLES = {
    TWIN: ("twin", "circle", False, 120),
    LOOPED: ("looped", "circle", True, 60),
    SAMPLED: ("sampling", "triangle-up", True, 70),
    OTHER: ("twin", "square", True, 70),
    LARGER: ("larger", "diamond", True, 90),
}
"""Colour, shape, whether it is filled, and size: a looped point inside its twin's ring stays visible."""
_HEIGHT, _LABEL_HEIGHT, _LETTER_WIDTH = 270, 14, 6.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An arm in a panel."""

    panel: str
    kind: str
    x: float
    y: float
    budget: str
    order: int
    """Sorts budgets."""
    label: str
    tip: str
    deciding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What the axes show."""

    x: str
    y: str
    x_is_budget: bool
    """Budgets side by side instead of a number line."""
    marked_x: float | None = None
    """Where a dashed line stands, in panels with a deciding point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The scales that all panels share, and a panel's width in pixels."""

    x_domain: tuple[float, float]
    y_domain: tuple[float, float]
    log: bool
    width: int

    def place(self, one: Point) -> tuple[float, float]:
        """A point in pixels."""
        low, high = self.x_domain
        share = math.log(one.x / low) / math.log(high / low) if self.log else (one.x - low) / (high - low)
        return share * self.width, (self.y_domain[1] - one.y) / (self.y_domain[1] - self.y_domain[0]) * _HEIGHT


def draw_panels(points: Sequence[Point], axes: Axes, description: str) -> tuple[str, str]:
    """The figure for a wide page, panels beside each other, and for a phone, panels below each other."""
    return _draw(points, axes, WIDE, description), _draw(points, axes, NARROW, description)


def _draw(points: Sequence[Point], axes: Axes, width: int, description: str) -> str:
    titles = sorted({one.panel for one in points}, key=lambda title: (title != "plain", title))
    across = 1 if width == NARROW else 2 if len(titles) in (2, 4) else min(len(titles), 3)
    each = (width - 56 - 26 * (across - 1)) // across if across > 1 else min(width - 56, 480)
    frame = _frame(points, axes, each)
    data: dict[str, list[dict[str, Any]]] = {"marked": [{"x": axes.marked_x}]}
    panels = []
    for n, title in enumerate(titles):
        inside = [one for one in points if one.panel == title]
        data[f"panel{n}"] = [asdict(one) for one in inside]
        data[f"labels{n}"] = _labels(inside, axes, frame)
        panel = _panel(f"panel{n}", f"labels{n}", points, axes, frame, first=n % across == 0, marked=any(one.deciding for one in inside))
        panels.append(panel.properties(width=each, height=_HEIGHT, title=title.capitalize()))
    strip, data["legend"] = legend(
        [(kind, *style[:3]) for kind, style in _STYLES.items() if any(one.kind == kind for one in points)], width - 20
    )
    rows = [[strip], *(panels[n : n + across] for n in range(0, len(panels), across))]
    return draw(rows, data, gap=26, description=description)


def _frame(points: Sequence[Point], axes: Axes, width: int) -> _Frame:
    xs, ys = [one.x for one in points], [one.y for one in points]
    room = max(2.1, 0.1 * (max(ys) - min(ys)))  # no tick at the very edge, where its label would push the title
    y_domain = (max(-room / 4, min(ys) - room), min(100 + room / 4, max(ys) + room))  # points at 0 and 100 stay off the edge
    if axes.x_is_budget:
        return _Frame(x_domain=(0, 1), y_domain=y_domain, log=False, width=width)
    low, high = min(xs), max(xs)
    if high > 4 * low:
        return _Frame(x_domain=(low * (low / high) ** 0.12, high * (high / low) ** 0.12), y_domain=y_domain, log=True, width=width)
    spread = (high - low) or high
    return _Frame(x_domain=(max(0.0, low - 0.2 * spread), high + 0.2 * spread), y_domain=y_domain, log=False, width=width)


def _labels(points: Sequence[Point], axes: Axes, frame: _Frame) -> list[dict[str, Any]]:
    """Labels beside the points: the looped curve's to its right, all others' to the left; those that would overlap are left out."""
    if axes.x_is_budget:
        return []
    taken: list[tuple[float, float, float]] = []
    labels = []
    for one in sorted(points, key=lambda one: (not one.deciding, one.kind != LOOPED, one.order)):
        x, y = frame.place(one)
        length = _LETTER_WIDTH * len(one.label)
        right = (one.kind == LOOPED and x + 10 + length < frame.width) or x - 10 - length < 0
        start = x + 10 if right else x - 10 - length
        if not one.label or any(start < stop and begin < start + length and abs(y - at) < _LABEL_HEIGHT for begin, stop, at in taken):
            continue
        taken.append((start, start + length, y))
        labels.append({"x": one.x, "y": one.y, "label": one.label, "side": "right" if right else "left"})
    return labels


def _panel(name: str, labels: str, points: Sequence[Point], axes: Axes, frame: _Frame, *, first: bool, marked: bool) -> Any:
    import altair as alt

    y_axis = alt.Axis(title=axes.y if first else None, labels=first, tickCount=5, ticks=False, domain=False, labelExpr=PERCENT_LABEL)
    y = alt.Y("y:Q", scale=alt.Scale(domain=list(frame.y_domain), nice=False, zero=False), axis=y_axis)
    x = _x(points, axes, frame)
    base = chart_of(name).encode(x=x, y=y)
    layers = []
    if axes.marked_x is not None and marked:
        layers.append(chart_of("marked").mark_rule(strokeDash=[3, 3], strokeWidth=1.2, color=colour("looped"), aria=False).encode(x=x))
    for kind, dash in ((TWIN, [5, 4]), (LOOPED, [1, 0])):
        curve = base.transform_filter(alt.FieldEqualPredicate(field="kind", equal=kind))
        layers.append(curve.mark_line(strokeWidth=2.2, strokeDash=dash, color=colour(_STYLES[kind][0]), aria=False).encode(order="order:Q"))
    for kind, (ink, shape, filled, size) in _STYLES.items():
        if any(one.kind == kind for one in points):
            dots = base.transform_filter(alt.FieldEqualPredicate(field="kind", equal=kind))
            mark = dots.mark_point(
                shape=shape, size=size, strokeWidth=2, opacity=1, stroke=colour(ink), fill=colour(ink if filled else "paper")
            )
            layers.append(mark.encode(description="tip:N"))
    if not axes.x_is_budget:
        layers += _label_layers(labels, x, y)
    return alt.layer(*layers)


def _label_layers(labels: str, x: Any, y: Any) -> list[Any]:
    import altair as alt

    layers = []
    for side, align, dx in (("right", "left", 10), ("left", "right", -10)):
        text = chart_of(labels).transform_filter(alt.FieldEqualPredicate(field="side", equal=side)).encode(x=x, y=y, text="label:N")
        layers.append(text.mark_text(align=align, dx=dx, fontSize=11, color=colour("soft"), aria=False))
    return layers


def _x(points: Sequence[Point], axes: Axes, frame: _Frame) -> Any:
    import altair as alt

    if axes.x_is_budget:
        order = list(dict.fromkeys(one.budget for one in sorted(points, key=lambda one: one.order)))
        axis = alt.Axis(title=axes.x, labelAngle=0, grid=False)
        return alt.X("budget:O", sort=order, scale=alt.Scale(domain=order, padding=0.3), axis=axis)
    low, high = frame.x_domain
    more = (
        {"values": [v for power in range(-6, 13) for m in (1, 2, 5) if low <= (v := m * 10.0**power) <= high]}
        if frame.log
        else {"tickCount": 5}
    )
    # Not the axis's own format: with "g" it takes its digits from the step between ticks, and writes 100 as 1e+2.
    axis = alt.Axis(title=axes.x, grid=False, labelExpr="format(datum.value, ',.9~r')", **more)
    return alt.X("x:Q", scale=alt.Scale(type="log" if frame.log else "linear", domain=[low, high], nice=False), axis=axis)
