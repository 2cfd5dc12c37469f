"""Curves along training as figures: lines over a logarithmic axis, with bands, single seeds, bounds and level lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .drawing import WIDE, chart_of, colour, draw, legend
from .placement_axes import HEIGHT, mark_row, symbols

TOKENS = "replace(format(datum.value, '~s'), 'G', 'B')"
"""How an axis of tokens writes its numbers: 500M, 1B."""
PLAIN = "replace(format(datum.value, '~r'), '-', '−')"
POWERS = "format(datum.value, '~e')"
_BEND_MILLINATS = 10.0
_LABEL_HEIGHT = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point of a curve."""

    x: float
    y: float
    tip: str
    low: float | None = None
    """Of its interval; None with ``high``: it has none. An infinite end is not known, and is drawn to the edge."""
    high: float | None = None
    bound: str = ""
    """``at least`` or ``at most`` where the value itself is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A curve, with those of the single seeds that it is the mean of."""

    label: str
    ink: str
    shape: str
    marks: tuple[Mark, ...]
    seeds: tuple[tuple[tuple[float, float], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line."""

    y: float
    label: str
    ink: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What the axes say."""

    x: str
    y: str
    x_format: str = TOKENS
    symlog: bool = False
    """Linear within 10 of zero, logarithmic beyond."""


def draw_series(series: Sequence[Series], levels: Sequence[Level], axes: Axes, width: int, description: str) -> str:
    """One figure as SVG. Bands are cut at the edge, so that an interval that is not bounded leaves the curves legible."""
    import altair as alt

    entries = [(one.label, one.ink, one.shape, True) for one in series]
    if any(mark.bound for one in series for mark in one.marks):
        entries.append(("only a bound is known", "soft", "triangle-up", False))
    strip, words = legend(entries, width - 20)
    marks = [mark for one in series for mark in one.marks]
    x = _x(axes, [mark.x for mark in marks])
    low, high = _domain([mark.y for mark in marks] + [y for one in series for seed in one.seeds for _, y in seed], levels)
    # Labels stand in the figure's corner, so that they are short of the curve's end.
    y = _y(axes, low, high, width)
    layers = []
    data: dict[str, list[dict[str, Any]]] = {"legend": words}
    for number, level in enumerate(levels):
        data[f"level{number}"] = [{"y": level.y}]
        rule = chart_of(f"level{number}").mark_rule(strokeWidth=1.4, strokeDash=[6, 4], color=colour(level.ink), aria=False)
        layers.append(rule.encode(y=y))
    for number, one in enumerate(series):
        layers += _series_layers(one, number, data, x, y, (low, high))
    if labelled := [level for level in levels if level.label]:
        left = min(mark.x for mark in marks)
        data["labels"] = [{"x": left, "y": at, "label": level.label} for at, level in _spread(labelled, low, high)]
        text = chart_of("labels").mark_text(align="left", baseline="bottom", dx=2, dy=-3, fontSize=12, color=colour("soft"), aria=False)
        layers.append(text.encode(x=x, y=y, text="label:N"))
    chart = alt.layer(*layers).properties(width=width - 74, height=HEIGHT)
    return draw([[strip], [chart]], data, gap=0, description=description)


def _series_layers(
    one: Series, number: int, data: dict[str, list[dict[str, Any]]], x: Any, y: Any, domain: tuple[float, float]
) -> list[Any]:
    ink, layers = colour(one.ink), []
    low, high = domain
    band = [
        {"x": mark.x, "y": max(low, min(high, mark.low)), "high": max(low, min(high, mark.high))}
        for mark in one.marks
        if mark.low is not None and mark.high is not None
    ]
    if len(band) > 1:
        data[f"band{number}"] = band
        layers.append(chart_of(f"band{number}").mark_area(color=ink, opacity=0.16, aria=False).encode(x=x, y=y, y2="high:Q"))
    elif band:
        data[f"band{number}"] = band
        layers.append(chart_of(f"band{number}").mark_rule(color=ink, strokeWidth=1.5, aria=False).encode(x=x, y=y, y2="high:Q"))
    for which, seed in enumerate(one.seeds):
        data[f"seed{number}-{which}"] = [{"x": at, "y": value} for at, value in seed]
        line = chart_of(f"seed{number}-{which}").mark_line(color=ink, strokeWidth=1, strokeDash=[4, 3], opacity=0.6, aria=False)
        layers.append(line.encode(x=x, y=y))
    data[f"line{number}"] = [{"x": mark.x, "y": mark.y} for mark in one.marks if not mark.bound]
    layers.append(chart_of(f"line{number}").mark_line(color=ink, strokeWidth=2.2, aria=False).encode(x=x, y=y))
    rows = [mark_row(mark.x, mark.y, _entry(one, mark), mark.tip) for mark in one.marks]
    data[f"marks{number}"] = rows
    return layers + symbols(f"marks{number}", rows, x, y, size=48)


def _entry(one: Series, mark: Mark) -> tuple[str, str, str, bool]:
    shape = {"at least": "triangle-up", "at most": "triangle-down"}.get(mark.bound, one.shape)
    return one.label, one.ink, shape, not mark.bound


def _domain(values: Sequence[float], levels: Sequence[Level]) -> tuple[float, float]:
    numbers = [*values, *(level.y for level in levels)]
    room = 0.08 * (max(numbers) - min(numbers)) or 0.05 * abs(numbers[0]) or 1.0
    return min(numbers) - room, max(numbers) + room


def _x(axes: Axes, values: Sequence[float]) -> Any:
    import altair as alt

    low, high = min(values), max(values)
    low, high = (low * (low / high) ** 0.06, high * (high / low) ** 0.06) if high > low else (low / 2, high * 2)
    steps: tuple[float, ...] = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 5, 7)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if high / low > 1e4:
        steps = (1,)
    ticks = [at for power in powers for step in steps if low <= (at := step * 10.0**power) <= high]
    axis = alt.Axis(title=axes.x, grid=False, values=ticks, labelExpr=axes.x_format, labelOverlap="greedy")
    return alt.X("x:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)


def _y(axes: Axes, low: float, high: float, width: int) -> Any:
    import altair as alt

    title = axes.y if width == WIDE else axes.y.partition(" (")[0]
    if not axes.symlog:
        axis = alt.Axis(title=title, tickCount=6, ticks=False, domain=False, labelExpr=PLAIN)
        return alt.Y("y:Q", scale=alt.Scale(domain=[low, high], nice=False, zero=False), axis=axis)
    sizes = [step * 10.0**power for power in range(0, 6) for step in (1, 3) if step * 10.0**power >= _BEND_MILLINATS]
    ticks = sorted([0.0, *(at for size in sizes for at in (-size, size) if low <= at <= high)])
    axis = alt.Axis(title=title, values=ticks, ticks=False, domain=False, labelExpr=PLAIN)
    scale = alt.Scale(type="symlog", constant=_BEND_MILLINATS, domain=[low, high], nice=False, zero=False)
    return alt.Y("y:Q", scale=scale, axis=axis)


def _spread(levels: Sequence[Level], low: float, high: float) -> list[tuple[float, Level]]:
    """Where labels stand so that none covers another: each on its line, or just above the one below."""
    step, placed, at = (high - low) * _LABEL_HEIGHT / HEIGHT, [], -math.inf
    for level in sorted(levels, key=lambda level: level.y):
        at = max(level.y, at + step)
        placed.append((at, level))
    return placed
