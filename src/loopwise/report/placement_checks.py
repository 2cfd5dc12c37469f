"""Figures that look beyond one study: accuracy against score, and the profiles of several texts or models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..loops import LoopError, parse_loops
from .blocks import Figure, Table, columns, row
from .drawing import WIDE, chart_of, colour, draw, legend
from .numbers import UNKNOWN, known_number, percent
from .placement_axes import DIFFERENCE, HEIGHT, NatsScale, figure, mark_row, nats, style, symbols, zero_line
from .placement_view import View, best_by_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One placement of the validation."""

    loops: str
    difference: float
    """Calibrated loss minus the unlooped model's, in nats."""
    accuracy: float
    """In percent."""
    error: float | None
    """Standard error of the accuracy, in points."""

    @property
    def label(self) -> str:
        """Its first layer."""
        try:
            return str(min(loop.start for loop in parse_loops(self.loops)))
        except (LoopError, ValueError):
            return self.loops


def checked_placements(validation: Mapping[str, Any]) -> tuple[Checked, ...]:
    """Those of validation.json with both numbers; accuracies there are parts of one."""
    found = []
    for one in validation.get("placements", ()):
        difference, accuracy = known_number(one.get("difference_nats")), known_number(one.get("accuracy"))
        if difference is not None and accuracy is not None:
            error = known_number(one.get("standard_error_points"))
            found.append(Checked(loops=str(one.get("loops")), difference=difference, accuracy=100 * accuracy, error=error))
    return tuple(found)


def correlation_text(validation: Mapping[str, Any]) -> str:
    """Spearman's rho with its interval, of all placements and of those that do no harm, and what it does not say."""
    words = (
        f"Spearman's rho between score and accuracy, positive where the better score has the higher accuracy: {_rho(validation, 'rho')} "
        f"over all placements, {_rho(validation, 'rho_non_destructive')} among those that do not destroy the model."
    )
    if "rho_plain" in validation:
        words += f" Of plain perplexity: {_rho(validation, 'rho_plain')}, and {_rho(validation, 'rho_plain_non_destructive')}."
    return " ".join([words, *map(str, validation.get("notes", ()))])


def validation_figure(validation: Mapping[str, Any]) -> Figure | None:
    """Accuracy on a task against the score; None where nothing was validated."""
    placements = checked_placements(validation)
    if not placements:
        return None
    scale, task = NatsScale.of([one.difference for one in placements]), str(validation.get("task"))
    base = known_number(validation.get("unlooped_accuracy"))
    ends = [end for one in placements for end in (one.accuracy - (one.error or 0), one.accuracy + (one.error or 0))]
    ends += [] if base is None else [100 * base]

    def drawn(width: int, description: str) -> str:
        import altair as alt

        entries = [("Placement, ± one standard error", "looped", "circle", True)]
        entries += [] if base is None else [("Unlooped model", "twin", "circle", False)]
        strip, words = legend(entries, width - 20)
        room = max(2.0, 0.08 * (max(ends) - min(ends)))
        y_scale = alt.Scale(domain=[min(ends) - room, max(ends) + room], nice=False, zero=False)
        x = alt.X(
            "x:Q",
            scale=scale.scale(),
            axis=scale.axis(DIFFERENCE if width == WIDE else "Calibrated loss difference (nats)", room=46 / (width - 74)),
        )
        y = alt.Y("y:Q", scale=y_scale, axis=alt.Axis(title=f"Accuracy on {task} (%)", tickCount=5, ticks=False, domain=False))
        tips = [f"{one.loops}: {percent(one.accuracy)}%, {nats(one.difference)} nats" for one in placements]
        data: dict[str, list[dict[str, Any]]] = {
            "legend": words,
            "placed": [
                mark_row(one.difference, one.accuracy, entries[0], tip) | {"label": one.label}
                for one, tip in zip(placements, tips, strict=True)
            ],
            "errors": [
                {"x": one.difference, "y": one.accuracy - one.error, "top": one.accuracy + one.error} for one in placements if one.error
            ],
            "base": [] if base is None else [mark_row(0.0, 100 * base, entries[1], f"unlooped: {percent(100 * base)}%")],
        }
        rule = chart_of("base").mark_rule(strokeWidth=1.6, strokeDash=[6, 4], color=colour("twin"), aria=False).encode(y=y)
        errors = chart_of("errors").mark_rule(strokeWidth=1.4, color=colour("looped"), aria=False).encode(x=x, y=y, y2="top:Q")
        label = chart_of("placed").mark_text(align="left", dx=7, dy=-7, fontSize=11, color=colour("soft"), aria=False)
        layers = [rule, errors, *symbols("placed", data["placed"], x, y), *symbols("base", data["base"], x, y, size=70)]
        chart = alt.layer(*layers, label.encode(x=x, y=y, text="label:N")).properties(width=width - 74, height=HEIGHT)
        return draw([[strip], [chart]], data, gap=0, description=description)

    return figure(
        drawn,
        name="validation",
        title="Accuracy against score",
        caption=f"Placements of equal cost along depth, evaluated on {task}; the number at a point is its first layer. "
        + correlation_text(validation),
        says="; ".join(f"{one.loops}: {percent(one.accuracy)}% at {nats(one.difference)} nats" for one in placements),
    )


def validation_table(validation: Mapping[str, Any]) -> Table | None:
    """The same as numbers."""
    placements = checked_placements(validation)
    if not placements:
        return None
    return Table(
        name="table-validation",
        title="Validated placements",
        caption=f"On {validation.get('task')}, in the order of the score.",
        columns=columns("Loops", "#Loss difference (nats)", "#Accuracy (%)", "#Standard error (points)"),
        rows=tuple(
            row(one.loops, nats(one.difference), percent(one.accuracy), percent(one.error))
            for one in sorted(placements, key=lambda one: one.difference)
        ),
    )


def studies_figure(views: Sequence[View]) -> Figure | None:
    """Location profiles of several studies over relative depth; None for a single one."""
    profiles = {}
    for view in views:
        best = {at: spot for at, spot in best_by_start(view.scored).items() if spot.difference is not None}
        if view.num_layers and best:
            profiles[view.study.folder.name] = [(at / view.num_layers, spot) for at, spot in best.items()]
    if len(profiles) < 2:
        return None
    scale = NatsScale.of([spot.difference or 0.0 for points in profiles.values() for _, spot in points])

    def drawn(width: int, description: str) -> str:
        import altair as alt

        entries = [(name, *style(n)) for n, name in enumerate(profiles)]
        strip, words = legend(entries, width - 20)
        axis = alt.Axis(title="First layer as a part of depth", grid=False, tickCount=6, format=".1f")
        x = alt.X("x:Q", scale=alt.Scale(domain=[-0.02, 1.0], nice=False), axis=axis)
        y = alt.Y("y:Q", scale=scale.scale(), axis=scale.axis(DIFFERENCE if width == WIDE else "Loss difference (nats)"))
        data: dict[str, list[dict[str, Any]]] = {"legend": words, "zero": [{"y": 0.0}]}
        layers = [zero_line(y)]
        for n, points in enumerate(profiles.values()):
            data[f"s{n}"] = [
                mark_row(at, spot.difference or 0.0, entries[n], f"{spot.loops}: {nats(spot.difference)} nats") for at, spot in points
            ]
            layers.append(chart_of(f"s{n}").mark_line(color=colour(style(n)[0]), strokeWidth=1.6, aria=False).encode(x=x, y=y))
            layers += symbols(f"s{n}", data[f"s{n}"], x, y)
        return draw([[strip], [alt.layer(*layers).properties(width=width - 74, height=HEIGHT)]], data, gap=0, description=description)

    return figure(
        drawn,
        name="studies",
        title="Location profiles of several studies",
        caption="The best candidate scored on the whole text at each first layer, by study: other texts or models, drawn over relative "
        "depth. The line at 0 is each study's own unlooped model.",
        says="; ".join(f"{name}: {len(points)} starts" for name, points in profiles.items()),
    )


def _rho(validation: Mapping[str, Any], name: str) -> str:
    value, ends = known_number(validation.get(name)), validation.get(f"{name}_ci95")
    if value is None:
        return UNKNOWN
    interval = [known_number(end) for end in ends] if isinstance(ends, list) else []
    if len(interval) != 2 or None in interval:
        return nats(value, 2)
    return f"{nats(value, 2)} (95% interval {nats(interval[0], 2)} to {nats(interval[1], 2)})"
