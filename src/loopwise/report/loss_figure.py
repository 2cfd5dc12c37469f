"""The figure of a loss trial: what every unlooped model loses more, or less, than the looped one, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..protocol import LossTest, LossVerdict
from .blocks import Figure, Tone
from .difference_marks import differences, labels, numbers
from .drawing import NARROW, WIDE, colour, draw, legend
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
    marks = differences(values, y, margin, "Difference (milli-nats per token)")
    if wide:
        body = [
            alt.layer(*labels(y, limit=each), width=each, height=height),
            alt.layer(*marks, width=each, height=height),
            alt.layer(numbers(y, x=_NUMBER_WIDTH), width=_NUMBER_WIDTH, height=height),
        ]
    else:
        layers = [*marks, *labels(y, limit=each, dy=-14), numbers(y, x=each, dy=-14)]
        body = [alt.layer(*layers, width=each, height=height)]
    return draw([[strip], body], data, gap=_GAP, description=description)
