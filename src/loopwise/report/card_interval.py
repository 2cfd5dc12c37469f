"""The small drawing on a card: a difference on a line that holds zero, the margin and the interval."""

from __future__ import annotations

from .blocks import Interval
from .numbers import points

_APART = 12.0
"""Percent of the line between a margin and zero, below which their numbers would lie on one another on a phone."""


def card_interval(delta: float, ci95: tuple[float, float], ci90: tuple[float, float], margin: float) -> Interval:
    """Positions of a difference, its intervals and the margin of equivalence, all in one unit."""
    reach = 1.15 * max(1.5 * margin, *(abs(end) for end in (*ci95, delta)))

    def place(value: float) -> float:
        return round(50 + 50 * value / reach, 2)

    ticked = (-margin, 0.0, margin) if place(margin) - 50 >= _APART else (0.0,)
    return Interval(
        estimate=place(delta),
        ci95=(place(ci95[0]), place(ci95[1])),
        ci90=(place(ci90[0]), place(ci90[1])),
        margin=(place(-margin), place(margin)),
        zero=place(0),
        ticks=tuple((place(at), _number(at)) for at in ticked),
    )


def _number(value: float) -> str:
    if value % 1:
        return points(value)
    return "0" if value == 0 else f"{value:+.0f}".replace("-", "−")
