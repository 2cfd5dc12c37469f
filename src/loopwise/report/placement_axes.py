"""What the figures of a study share: differences in nats on a symmetric log scale, thinned points, styles of series."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .blocks import Figure
from .drawing import NARROW, WIDE, chart_of, colour

HEIGHT = 330
"""Of a figure's drawing, in pixels."""
DIFFERENCE = "Calibrated loss against the unlooped model (nats)"

STYLES: tuple[tuple[str, str, bool], ...] = (
    ("looped", "circle", True),
    ("loss", "square", True),
    ("gain", "triangle-up", True),
    ("sampling", "diamond", True),
    ("larger", "triangle-down", True),
    ("ink", "cross", True),
    ("twin", "triangle-right", True),
    ("looped", "triangle-left", True),
    ("loss", "diamond", True),
)
"""Colour, shape and whether it is filled, of the first, second, ... series; open symbols are left for what was read in part."""

SIGNED = "datum.value == 0 ? '0' : replace(format(datum.value, '+~g'), '-', '−')"
"""How an axis of differences writes its numbers."""

_COORDINATES = re.compile(r'(?<= )(?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"]*"')
_LONG_NUMBER = re.compile(r"(\.\d{2})\d+")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsScale:
    """Differences in nats: linear within ``constant`` of zero, logarithmic beyond, so that harm by nats and gains by
    thousandths share an axis."""

    low: float
    high: float
    constant: float

    @classmethod
    def of(cls, values: Iterable[float]) -> NatsScale:
        """A scale that holds the values and zero, with room at both ends; its fine part is as wide as the best gain."""
        numbers = sorted([0.0, *values])
        gains = -numbers[0] if numbers[0] < 0 else min((one for one in numbers if one > 0), default=0.01)
        constant = min(0.1, max(0.001, 10.0 ** math.floor(math.log10(gains / 2)))) if gains > 0 else 0.01
        low, high = _bend(numbers[0], constant), _bend(numbers[-1], constant)
        room = 0.07 * max(high - low, 1.0)
        return cls(low=_unbend(low - room, constant), high=_unbend(high + room, constant), constant=constant)

    def place(self, value: float) -> float:
        """From 0 at the lower end to 1 at the upper one."""
        low, high = _bend(self.low, self.constant), _bend(self.high, self.constant)
        return (_bend(value, self.constant) - low) / (high - low)

    def ticks(self) -> list[float]:
        """Zero, and 1 and 3 times powers of ten on both sides, in the order in which labels keep their place."""
        sizes = [m * 10.0**power for power in range(-4, 4) for m in (1, 3) if m * 10.0**power >= self.constant]
        return [0.0, *(round(sign * one, 6) for one in sizes for sign in (-1, 1) if self.low < sign * one < self.high)]

    def scale(self) -> Any:
        """For Altair."""
        import altair as alt

        return alt.Scale(type="symlog", constant=self.constant, domain=[self.low, self.high], nice=False, zero=False)

    def axis(self, title: str, *, room: float = 0.045) -> Any:
        """For Altair; labels stand at least ``room`` of the axis's length apart."""
        import altair as alt

        values: list[float] = []
        for tick in self.ticks():
            if all(abs(self.place(tick) - self.place(other)) >= room for other in values):
                values.append(tick)
        return alt.Axis(title=title, values=sorted(values), labelExpr=SIGNED, ticks=False, domain=False, labelOverlap=False)


def thin(points: Sequence[_T], place: Callable[[_T], tuple[float, float]], *, cell: float = 5.0) -> list[_T]:
    """Of points that would cover each other, the first: at most one for each square of ``cell`` pixels."""
    kept: dict[tuple[int, int], _T] = {}
    for point in points:
        x, y = place(point)
        kept.setdefault((math.floor(x / cell), math.floor(y / cell)), point)
    return list(kept.values())


def style(number: int) -> tuple[str, str, bool]:
    """The style of a series by its number."""
    return STYLES[number % len(STYLES)]


def figure(drawn: Callable[[int, str], str], *, name: str, title: str, caption: str, says: str) -> Figure:
    """A figure in both widths, its coordinates cut to hundredths of a pixel."""
    description = f"{title}. {says}"
    wide, narrow = (
        _COORDINATES.sub(lambda found: _LONG_NUMBER.sub(r"\1", found[0]), drawn(width, description)) for width in (WIDE, NARROW)
    )
    return Figure(name=name, title=title, caption=caption, description=description, svg=wide, narrow_svg=narrow)


def nats(value: float | None, digits: int = 4) -> str:
    """A difference in nats with its sign: ``−0.0123``."""
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def mark_row(x: float, y: float, entry: tuple[str, str, str, bool], tip: str = "") -> dict[str, Any]:
    """A point in the style of a legend's entry, for `symbols`."""
    _, ink, shape, filled = entry
    return {"x": x, "y": y, "ink": colour(ink), "fill": colour(ink if filled else "paper"), "shape": shape, "tip": tip}


def zero_line(y: Any) -> Any:
    """The unlooped model's line."""
    return chart_of("zero").mark_rule(strokeWidth=1.6, strokeDash=[6, 4], color=colour("twin"), aria=False).encode(y=y)


def symbols(data: str, rows: Iterable[Mapping[str, Any]], x: Any, y: Any, size: int = 42) -> list[Any]:
    """A layer a shape; only rows with a tip carry one, since every tip takes room in the file."""
    import altair as alt

    layers = []
    for shape, tipped in sorted({(str(row["shape"]), bool(row["tip"])) for row in rows}):
        marks = chart_of(data).transform_filter(f"datum.shape == '{shape}' && (datum.tip != '') == {str(tipped).lower()}")
        mark = marks.mark_point(shape=shape, size=size, strokeWidth=1.4, opacity=1, aria=tipped)
        encoded = mark.encode(x=x, y=y, stroke=alt.Stroke("ink:N", scale=None), fill=alt.Fill("fill:N", scale=None))
        layers.append(encoded.encode(description="tip:N") if tipped else encoded)
    return layers


def _bend(value: float, constant: float) -> float:
    return math.copysign(math.log1p(abs(value) / constant), value)


def _unbend(value: float, constant: float) -> float:
    return math.copysign(math.expm1(abs(value)) * constant, value)
