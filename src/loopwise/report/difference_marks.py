"""What figures of differences are drawn with: names, numbers, and a diamond with two intervals over the margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .drawing import chart_of, colour


def labels(y: Any, *, limit: int = 330, dy: int = 0) -> list[Any]:
    """Row labels; headings and deciding rows are bold (a layer each: a weight cannot be encoded)."""
    import altair as alt

    layers = []
    for data, weight in (("bold", 600), ("normal", "normal")):
        text = chart_of(data).mark_text(align="left", dy=dy, limit=limit, fontWeight=weight, color=colour("ink"), aria=False)
        layers.append(text.encode(y=y, x=alt.value(0), text="label:N"))
    return layers


def numbers(y: Any, *, x: int, dy: int = 0) -> Any:
    import altair as alt

    text = chart_of("rows").mark_text(align="right", dy=dy, aria=False)
    return text.encode(y=y, x=alt.value(x), text="text:N", color=alt.Color("ink:N", scale=None))


def differences(values: Sequence[dict[str, Any]], y: Any, margin: float, title: str) -> list[Any]:
    """The difference with both intervals over the equivalence margin; ``title``: the axis's."""
    import altair as alt

    ends = [one[side] for one in values if not one["heading"] for side in ("low95", "high95")]
    low, high = min(-1.3 * margin, *ends), max(1.3 * margin, *ends)
    room = 0.06 * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False, zero=False)
    signed = "datum.value == 0 ? '0' : replace(format(datum.value, '+~g'), '-', '−')"
    axis = alt.Axis(title=title, tickCount=5, ticks=False, domain=False, labelExpr=signed)
    ink, fill = alt.Color("ink:N", scale=None), alt.Fill("fill:N", scale=None)
    base, band = chart_of("rows").encode(y=y), chart_of("band")
    return [
        band.mark_rect(color=colour("margin"), aria=False).encode(x=alt.X("from:Q", scale=scale, axis=axis), x2="to:Q"),
        band.mark_rule(color=colour("axis"), aria=False).encode(x=alt.X("at:Q", scale=scale)),
        base.mark_rule(strokeWidth=1.4, aria=False).encode(x=alt.X("low95:Q", scale=scale), x2="high95:Q", color=ink),
        base.mark_rule(strokeWidth=4, aria=False).encode(x=alt.X("low90:Q", scale=scale), x2="high90:Q", color=ink),
        base.mark_point(size=80, strokeWidth=2, opacity=1, shape="diamond").encode(
            x=alt.X("delta:Q", scale=scale), fill=fill, stroke=alt.Stroke("ink:N", scale=None), description="tip:N"
        ),
    ]
