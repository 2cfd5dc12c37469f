"""Forest plots: twin and looped accuracy with the difference and its intervals, by contrast (Figure 4's form) and by benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..protocol import ComparatorRow, Verdict
from .benchmarks import tests_of
from .blocks import Figure, Tone
from .difference_marks import differences, labels, numbers
from .drawing import NARROW, PERCENT_LABEL, WIDE, chart_of, colour, draw, legend
from .labels import Arms, result_tone, significance
from .numbers import interval, p_equation, percent, points

_GAP = 16
_TONES: dict[Tone, str] = {"gain": "gain", "loss": "loss", "": "ink", "quiet": "soft"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """One contrast; without numbers it is the heading of those below it."""

    label: str
    numbers: tuple[float, float, float] | None = None
    """Looped, comparator, difference."""
    ci95: tuple[float, float] = (0.0, 0.0)
    ci90: tuple[float, float] = (0.0, 0.0)
    p_value: float = 1.0
    tone: Tone = ""
    key: bool = False


def contrasts_figure(verdict: Verdict, arms: Arms) -> Figure:
    """Every pair at equal parameters, and the best unlooped use of the same compute at each of the loop's budgets."""
    rows = [ForestRow(label="Equal parameters: against the twin")]
    rows += [_contrast(verdict, arms, one, one.decides and verdict.equal_parameters.result) for one in verdict.equal_parameters.rows]
    test = verdict.equal_flops
    cheaper = [] if test is None else [one for one in test.rows if one.role == "best cheaper"]
    if test is not None and cheaper:
        rows.append(ForestRow(label="Equal FLOPs: against the best cheaper unlooped arm"))
        rows += [_contrast(verdict, arms, one, one.decides and test.result) for one in cheaper]
    return _figure(
        rows,
        name="forest",
        title="Looped against unlooped",
        caption="Filled circles: looped model. Open circles: the unlooped arm that it is compared with. Bold rows decide. Right: "
        f"the difference with its 95% (thin) and 90% (thick) intervals; the grey band is ±{verdict.margin_points:g} points. "
        "Filled diamonds are significant.",
        margin=verdict.margin_points,
    )


def benchmarks_figure(verdict: Verdict) -> Figure:
    """Each benchmark of both tests, and the macro mean."""
    rows: list[ForestRow] = []
    for title, test in tests_of(verdict):
        rows.append(ForestRow(label=title))
        several = len(test.comparison.tasks) > 1
        for one in test.comparison.tasks if several else ():
            tone = significance(one.delta_points, one.holm_p, verdict.alpha)
            numbers = (one.looped_percent, one.other_percent, one.delta_points)
            rows.append(ForestRow(label=one.task, numbers=numbers, ci95=one.ci95, ci90=one.ci90, p_value=one.holm_p, tone=tone))
        c = test.comparison
        macro = (c.looped_percent, c.other_percent, c.delta_points)
        rows.append(
            ForestRow(
                label="macro" if several else c.tasks[0].task,
                numbers=macro,
                ci95=c.ci95,
                ci90=c.ci90,
                p_value=test.deciding_p,
                tone=result_tone(test.result),
                key=True,
            )
        )
    return _figure(
        rows,
        name="benchmarks",
        title="Differences by benchmark",
        caption="Looped minus comparator in points with 95% (thin) and 90% (thick) intervals; an interval inside the grey band of "
        f"±{verdict.margin_points:g} points at 90% is equivalence. Benchmarks carry Holm p.",
        margin=verdict.margin_points,
    )


def _contrast(verdict: Verdict, arms: Arms, one: ComparatorRow, result: Any) -> ForestRow:
    c = one.comparison
    p = one.p_value
    tone = result_tone(result) if result else significance(c.delta_points, p if one.holm_p is None else one.holm_p, verdict.alpha)
    numbers = (c.looped_percent, c.other_percent, c.delta_points)
    return ForestRow(
        label=arms.rule_and_budget(one.looped), numbers=numbers, ci95=c.ci95, ci90=c.ci90, p_value=p, tone=tone, key=one.decides
    )


def _figure(rows: Sequence[ForestRow], *, name: str, title: str, caption: str, margin: float) -> Figure:
    description = f"{title}. {'; '.join(map(_in_words, rows))}."
    return Figure(
        name=name,
        title=title,
        caption=caption,
        description=description,
        svg=_draw(rows, margin, WIDE, description),
        narrow_svg=_draw(rows, margin, NARROW, description),
    )


def _in_words(one: ForestRow) -> str:
    if one.numbers is None:
        return one.label
    accuracies = f"{percent(one.numbers[1])}% to {percent(one.numbers[0])}%"
    return f"{one.label}: {accuracies}, {points(one.numbers[2])} points {interval(one.ci95)}, {p_equation(one.p_value)}"


def _draw(rows: Sequence[ForestRow], margin: float, width: int, description: str) -> str:
    values = _values(rows)
    entries = [("Unlooped", "twin", "circle", False), ("Looped", "looped", "circle", True), ("Difference", "ink", "diamond", False)]
    strip, legend_data = legend(entries, width - 20)
    body = _wide(values, margin) if width == WIDE else _narrow(values, margin)
    data = {
        "legend": legend_data,
        "bold": [one for one in values if one["bold"]],
        "normal": [one for one in values if not one["bold"]],
        "rows": [one for one in values if not one["heading"]],
        "band": [{"from": -margin, "to": margin, "at": 0}],
    }
    return draw([[strip], *body], data, gap=_GAP, description=description)


def _values(rows: Sequence[ForestRow]) -> list[dict[str, Any]]:
    values = []
    for n, one in enumerate(rows):
        value: dict[str, Any] = {"row": n, "label": one.label, "bold": one.key or one.numbers is None, "heading": one.numbers is None}
        if one.numbers:
            value |= {
                "looped": one.numbers[0],
                "other": one.numbers[1],
                "delta": one.numbers[2],
                "low95": one.ci95[0],
                "high95": one.ci95[1],
                "low90": one.ci90[0],
                "high90": one.ci90[1],
                "ink": colour(_TONES[one.tone]),
                "fill": colour(_TONES[one.tone] if one.tone in ("gain", "loss") else "paper"),
                "text": f"{points(one.numbers[2])} ({p_equation(one.p_value)})",
                "tip": f"{one.label}: {points(one.numbers[2])} points {interval(one.ci95)}, {p_equation(one.p_value)}",
            }
        values.append(value)
    return values


def _wide(values: list[dict[str, Any]], margin: float) -> list[list[Any]]:
    """Label, accuracies, difference and its number side by side, like a table."""
    import altair as alt

    height, y = 26 * len(values), _y(values)
    label_width, number_width = 200, 110
    each = (WIDE - label_width - number_width - 3 * _GAP) // 2
    parts = [
        (labels(y), label_width),
        (_accuracies(values, y), each),
        (differences(values, y, margin, "Difference (points)"), each),
        ([numbers(y, x=number_width)], number_width),
    ]
    return [[alt.layer(*layers, width=width, height=height) for layers, width in parts]]


def _narrow(values: list[dict[str, Any]], margin: float) -> list[list[Any]]:
    """On a phone: each row's label and number above its marks, accuracies first and differences below."""
    import altair as alt

    width, height, y = NARROW - 16, 42 * len(values), _y(values)
    names = labels(y, dy=-14)
    parts = [
        [*_accuracies(values, y), *names],
        [*differences(values, y, margin, "Difference (points)"), *names, numbers(y, x=width, dy=-14)],
    ]
    return [[alt.layer(*layers, width=width, height=height)] for layers in parts]


def _y(values: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Y("row:O", axis=None, scale=alt.Scale(domain=list(range(len(values)))))


def _accuracies(values: list[dict[str, Any]], y: Any) -> list[Any]:
    """A dumbbell a row: the unlooped arm's open circle and the looped one's filled circle."""
    import altair as alt

    numbers = [one[side] for one in values if not one["heading"] for side in ("looped", "other")]
    room = max(2.0, 0.08 * (max(numbers) - min(numbers)))
    scale = alt.Scale(domain=[max(-room / 4, min(numbers) - room), min(100 + room / 4, max(numbers) + room)], nice=False, zero=False)
    axis = alt.Axis(title="Accuracy (%)", tickCount=5, ticks=False, domain=False, labelExpr=PERCENT_LABEL)
    base = chart_of("rows").encode(y=y)
    layers = [
        base.mark_rule(strokeWidth=2, color=colour("axis"), aria=False).encode(x=alt.X("other:Q", scale=scale, axis=axis), x2="looped:Q")
    ]
    for side, ink, fill, size in (("other", "twin", "paper", 120), ("looped", "looped", "looped", 60)):
        mark = base.mark_point(size=size, strokeWidth=2, opacity=1, stroke=colour(ink), fill=colour(fill), shape="circle")
        layers.append(mark.encode(x=alt.X(f"{side}:Q", scale=scale), description="tip:N"))
    return layers
