"""Numbers as a reader wants them: units, sensible digits, a true minus sign; what is not known is a dash."""

from __future__ import annotations

import math
from typing import Any

from ..protocol.values import Measure

UNKNOWN = "–"
MEASURE_UNITS: dict[Measure, str] = {
    "layer-passes": "tokens of the plain model",
    "flops": "FLOPs",
    "seconds": "seconds",
}
MEASURE_NAMES: dict[Measure, str] = {
    "layer-passes": "layer passes × generated tokens",
    "flops": "FLOPs, head included",
    "seconds": "measured seconds",
}


def known_number(value: Any) -> float | None:
    """A number out of a file that anybody may have written; anything else is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def percent(value: float | None) -> str:
    """A share in percent with one decimal, without its sign: the column names the unit."""
    return UNKNOWN if value is None else f"{value:.1f}"


def whole_percent(value: float | None) -> str:
    """A share in whole percent, as finish rates are printed; 99.7 is not all, so it is ``>99``."""
    if value is None:
        return UNKNOWN
    if 99.5 <= value < 100:
        return ">99"
    return "<1" if 0 < value < 0.5 else f"{value:.0f}"


def points(value: float | None) -> str:
    """A difference in points with its sign, e.g. ``+4.1``, ``−0.3``."""
    if value is None:
        return UNKNOWN
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def interval(ci: tuple[float, float] | None) -> str:
    """An interval of a difference: ``[−1.9, +0.8]``."""
    return UNKNOWN if ci is None else f"[{points(ci[0])}, {points(ci[1])}]"


def p_number(value: float | None) -> str:
    """A p-value alone: ``<0.001``, ``0.034``, ``0.21``."""
    if value is None:
        return UNKNOWN
    if value < 0.001:
        return "<0.001"
    return f"{value:.3f}" if value < 0.0995 else f"{value:.2f}"


def p_equation(value: float | None) -> str:
    """A p-value in running text: ``p<0.001``, ``p=0.034``."""
    number = p_number(value)
    return number if number == UNKNOWN else f"p{number}" if number.startswith("<") else f"p={number}"


def ratio(value: float | None) -> str:
    """A factor: ``1.25×``."""
    return UNKNOWN if value is None else f"{value:.2f}×"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def scaled(value: float | None, unit: str = "") -> str:
    """A large number with three digits and its prefix: ``135M``, ``7.62B``, ``1.24 TFLOPs``."""
    if value is None:
        return UNKNOWN
    prefixes = ("", "k", "M", "B", "T") if not unit else ("", "k", "M", "G", "T", "P", "E")
    step = 0
    while abs(value) >= 999.5 and step < len(prefixes) - 1:
        value, step = value / 1000, step + 1
    digits = 0 if abs(value) >= 99.95 or (step == 0 and value == int(value)) else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{' ' if unit else ''}{prefixes[step]}{unit}"


def amount(value: float | None) -> str:
    """A mean of tokens or seconds: three digits below a hundred, whole numbers above."""
    if value is None:
        return UNKNOWN
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def cost(value: float | None, measure: Measure) -> str:
    """The cost of an answer with its unit."""
    if value is None:
        return UNKNOWN
    if measure == "flops":
        return scaled(value, "FLOPs")
    return f"{amount(value)} {'s' if measure == 'seconds' else 'tokens'}"


def yes_no(value: bool | None) -> str:
    """An answer; None is not known."""
    return UNKNOWN if value is None else "yes" if value else "no"
