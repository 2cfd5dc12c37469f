"""The figure of a loss trial: what every unlooped model loses more, or less, than the looped one, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..protocol import LossTest, LossVerdict
from .blocks import Figure, Tone
from .drawing import NARROW, WIDE, chart_of, colour, draw, legend
from .labels import result_tone, significance
from .numbers import interval, p_equation, points

FIGURE = "loss-differences"
_GAP = 16
_NUMBER_WIDTH = 150
_TONES: dict[Tone, str] = {"gain": "gain", "loss": "loss", "": "ink", "quiet": "soft"}


def loss_figure(verdict: LossVerdict, tests: Sequence[tuple[str, LossTest]]) -> Figure:
    """Every eligible comparison of every test, the deciding one of each in bold; above zero the loop is ahead (Figure 3's sign).

    Args:
        tests: with their headings.
    """
    rows = [row for heading, test in tests for row in _rows(verdict, heading, test)]
    words = "; ".join(str(row["tip"]) if row["tip"] else str(row["label"]) for row in rows)
    description = f"Differences in held-out loss. {words}."
    return Figure(
        name=FIGURE,
        title="Held-out loss: the other model's minus the looped model's",
        caption="Milli-nats per token, above zero where the loop is ahead, with 95% (thin) and 90% (thick) intervals. Bold rows are what a "
        f"test rests on; the grey band is ±{verdict.margin_millinats:g} milli-nats. Filled diamonds are significant. "
        "Models that spend more stand in the table only.",
        description=description,
        svg=_draw(rows, verdict.margin_millinats, WIDE, description),
        narrow_svg=_draw(rows, verdict.margin_millinats, NARROW, description),
    )


def _rows(verdict: LossVerdict, heading: str, test: LossTest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"label": heading, "bold": True, "heading": True, "tip": ""}]
    for one in test.rows:
        if not one.eligible:  # it may be far off, and would squeeze the rest
            continue
        c = one.comparison
        tone = result_tone(test.result) if one.decides else significance(c.delta_millinats, c.p_value, verdict.alpha)
        p = test.deciding_p if one.decides else c.p_value
        rows.append(
            {
                "label": c.other,
                "bold": one.decides,
                "heading": False,
                "delta": c.delta_millinats,
                "low95": c.ci95[0],
                "high95": c.ci95[1],
                "low90": c.ci90[0],
                "high90": c.ci90[1],
                "ink": colour(_TONES[tone]),
                "fill": colour(_TONES[tone] if tone in ("gain", "loss") else "paper"),
                "text": f"{points(c.delta_millinats)} ({p_equation(p)})",
                "tip": f"{c.other}: {points(c.delta_millinats)} milli-nats {interval(c.ci95)}, {p_equation(p)}",
            }
        )
    return rows


def _draw(rows: Sequence[dict[str, Any]], margin: float, width: int, description: str) -> str:
    """Label, difference and its number side by side; on a phone label and number above the marks."""
    import altair as alt

    wide = width == WIDE
    values = [{"row": n, **row} for n, row in enumerate(rows)]
    y = alt.Y("row:O", axis=None, scale=alt.Scale(domain=list(range(len(values)))))
    entries = [
        ("Significant gain", "gain", "diamond", True),
        ("Significant loss", "loss", "diamond", True),
        ("Neither", "ink", "diamond", False),
    ]
    strip, legend_data = legend(entries, width - 20)
    data = {
        "legend": legend_data,
        "bold": [one for one in values if one["bold"]],
        "normal": [one for one in values if not one["bold"]],
        "rows": [one for one in values if not one["heading"]],
        "band": [{"from": -margin, "to": margin, "at": 0}],
    }
    each, height = (WIDE - _NUMBER_WIDTH - 2 * _GAP) // 2 if wide else NARROW - 16, (26 if wide else 42) * len(values)
    if wide:
        body = [
            alt.layer(*_labels(y, each), width=each, height=height),
            alt.layer(*_marks(values, y, margin), width=each, height=height),
            alt.layer(_numbers(y, _NUMBER_WIDTH), width=_NUMBER_WIDTH, height=height),
        ]
    else:
        layers = [*_marks(values, y, margin), *_labels(y, each, dy=-14), _numbers(y, each, dy=-14)]
        body = [alt.layer(*layers, width=each, height=height)]
    return draw([[strip], body], data, gap=_GAP, description=description)


def _labels(y: Any, limit: int, dy: int = 0) -> list[Any]:
    import altair as alt

    layers = []
    for data, weight in (("bold", 600), ("normal", "normal")):  # a weight cannot be encoded
        text = chart_of(data).mark_text(align="left", dy=dy, limit=limit, fontWeight=weight, color=colour("ink"), aria=False)
        layers.append(text.encode(y=y, x=alt.value(0), text="label:N"))
    return layers


def _numbers(y: Any, x: int, dy: int = 0) -> Any:
    import altair as alt

    text = chart_of("rows").mark_text(align="right", dy=dy, aria=False)
    return text.encode(y=y, x=alt.value(x), text="text:N", color=alt.Color("ink:N", scale=None))


def _marks(values: Sequence[dict[str, Any]], y: Any, margin: float) -> list[Any]:
    """The difference with both intervals over the margin."""
    import altair as alt

    ends = [one[side] for one in values if not one["heading"] for side in ("low95", "high95")]
    low, high = min(-1.3 * margin, *ends), max(1.3 * margin, *ends)
    room = 0.06 * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False, zero=False)
    signed = "datum.value == 0 ? '0' : replace(format(datum.value, '+~g'), '-', '−')"
    axis = alt.Axis(title="Difference (milli-nats per token)", tickCount=5, ticks=False, domain=False, labelExpr=signed)
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
