"""The figures of a study: location profile, what hides behind temperature, the Pareto front, search traces."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..records import SearchTrace
from .blocks import Figure
from .drawing import WIDE, chart_of, colour, draw, legend
from .numbers import known_number, ratio
from .placement_axes import DIFFERENCE, HEIGHT, NatsScale, figure, mark_row, nats, style, symbols, thin, zero_line
from .placement_view import Spot, View, best_by_start, series_of


def profile_figure(view: View) -> Figure | None:
    """The best difference at each window start, one line a width; None before anything was measured."""
    known = [spot.difference for spot in view.spots if spot.difference is not None]
    if not known:
        return None
    scale = NatsScale.of(known)
    series = series_of([spot for spot in view.spots if spot.fate != "failed"])
    last = max(spot.start for spot in view.spots)
    best = {name: best_by_start(spots) for name, spots in series.items()}
    rows = {name: [_profile_row(spot, scale, n) for spot in best[name].values()] for n, name in enumerate(series)}

    def drawn(width: int, description: str) -> str:
        import altair as alt

        entries = [(name, *style(n)) for n, name in enumerate(rows)]
        fates = {row["fate"] for points in rows.values() for row in points}
        if fates & {"part", "dropped"}:
            entries.append(("on a part of the text", "soft", "circle", False))
        if "ruined" in fates:
            entries.append(("ruined (at the top edge)", "soft", "cross", True))
        strip, words = legend(entries, width - 20)
        x = alt.X("x:Q", title="First layer of the window", scale=alt.Scale(domain=[-0.6, last + 0.6], nice=False))
        x = x.axis(alt.Axis(grid=False, values=list(range(last + 1)), format="d", labelOverlap="parity"))
        y = alt.Y("y:Q", scale=scale.scale(), axis=scale.axis(DIFFERENCE if width == WIDE else "Loss difference (nats)"))
        layers = [zero_line(y)]
        data: dict[str, list[dict[str, Any]]] = {"legend": words, "zero": [{"y": 0.0}]}
        for n, points in enumerate(rows.values()):
            data[f"s{n}"] = points
            data[f"l{n}"] = [row for row in points if row["fate"] != "ruined"]
            layers.append(_line(f"l{n}", n).encode(x=x, y=y))
            layers += symbols(f"s{n}", points, x, y)
        chart = alt.layer(*layers).properties(width=width - 74, height=HEIGHT)
        return draw([[strip], [chart]], data, gap=0, description=description)

    return figure(
        drawn,
        name="location-profile",
        title="Location profile",
        caption="For each first layer of the window, the best candidate of that width over passes, operators and betas: its calibrated "
        "loss minus the unlooped model's, below the line at 0 is better. The axis is linear near 0 and logarithmic beyond. Open "
        "symbols: values of the part of the text that was read before the candidate was dropped. Crosses at the top edge: every "
        "candidate there is ruined.",
        says="; ".join(f"{name}: {_run(points)}" for name, points in best.items()),
    )


def temperature_figure(view: View) -> Figure | None:
    """Plain against calibrated difference; None before a candidate and the unlooped model were scored on the whole text."""
    spots = [spot for spot in view.scored if spot.plain_difference is not None and "temperature" in spot.result.values]
    if not spots:
        return None
    scale = NatsScale.of([value for spot in spots for value in (spot.difference or 0.0, spot.plain_difference or 0.0)])
    bins = _temperature_bins([spot.result.values["temperature"] for spot in spots])
    hiding = sum(spot.hides for spot in spots)

    def drawn(width: int, description: str) -> str:
        import altair as alt

        side = min(width - 74, 460)

        def place(spot: Spot) -> tuple[float, float]:
            return scale.place(spot.plain_difference or 0.0) * side, scale.place(spot.difference or 0.0) * side

        # Those that hide are what the figure is about: they go first, so that thinning keeps them.
        shown = thin(sorted(spots, key=lambda spot: not spot.hides), place)
        strip, words = legend([(label, *style(n)) for n, (label, _, _) in enumerate(bins)], width - 20)
        x = alt.X("x:Q", scale=scale.scale(), axis=scale.axis("Plain loss against the unlooped model (nats)", room=46 / side))
        y = alt.Y("y:Q", scale=scale.scale(), axis=scale.axis(DIFFERENCE if width == WIDE else "Calibrated (nats)"))
        data: dict[str, list[dict[str, Any]]] = {
            "legend": words,
            "zero": [{"x": 0.0, "y": 0.0}],
            "same": [{"x": scale.low, "y": scale.low}, {"x": scale.high, "y": scale.high}],
            "corner": [{"left": scale.low, "right": 0.0, "bottom": 0.0, "top": scale.high}],
            "words": [{"x": scale.low, "y": scale.high, "text": f"hides behind temperature: {hiding}"}],
        }
        corner = chart_of("corner").mark_rect(color=colour("margin"), aria=False)
        layers = [
            corner.encode(x=alt.X("left:Q", scale=scale.scale()), x2="right:Q", y=alt.Y("bottom:Q", scale=scale.scale()), y2="top:Q"),
            chart_of("same").mark_line(strokeDash=[2, 4], strokeWidth=1.2, color=colour("axis"), aria=False).encode(x=x, y=y),
            zero_line(y),
            chart_of("zero").mark_rule(strokeWidth=1.4, color=colour("twin"), aria=False).encode(x=x),
        ]
        for n, (_, low, high) in enumerate(bins):
            inside = [spot for spot in shown if low <= spot.result.values["temperature"] < high]
            rows = [_temperature_row(spot, n) for spot in inside]
            data[f"s{n}"] = rows
            layers += symbols(f"s{n}", rows, x, y, size=26)
        text = chart_of("words").mark_text(align="left", baseline="top", dx=6, dy=6, color=colour("ink"), fontSize=12, aria=False)
        layers.append(text.encode(x=x, y=y, text="text:N"))
        chart = alt.layer(*layers).properties(width=side, height=side)
        return draw([[strip], [chart]], data, gap=0, description=description)

    verb = "lies" if hiding == 1 else "lie"
    return figure(
        drawn,
        name="temperature",
        title="What hides behind temperature",
        caption=f"Each candidate's plain loss difference against its calibrated one, by its fitted temperature T. {hiding:,} of "
        f"{len(spots):,} {verb} in the shaded corner: better than the unlooped model on plain loss, worse once both are calibrated, so "
        "that all they do is flatten the output, which a temperature does for nothing. On the dotted diagonal both differences "
        "agree. Points that would cover each other are drawn once.",
        says=f"{hiding} of {len(spots)} candidates hide behind temperature",
    )


def pareto_figure(view: View) -> Figure | None:
    """Calibrated loss against cost, with the front; None before anything was scored on the whole text."""
    spots, front = view.scored, [str(loops) for loops in view.summary.get("pareto", ())]
    if not spots:
        return None
    scale = NatsScale.of([spot.difference or 0.0 for spot in spots])
    highest = max(spot.result.layer_pass_ratio for spot in spots)
    by_loops = {spot.loops: spot for spot in spots}
    steps = [(by_loops[loops].result.layer_pass_ratio, by_loops[loops].difference or 0.0, loops) for loops in front if loops in by_loops]
    if "" in front:
        steps.insert(0, (1.0, 0.0, "unlooped model"))

    def drawn(width: int, description: str) -> str:
        import altair as alt

        inner, span = width - 74, max(highest - 1.0, 0.05)

        def place(spot: Spot) -> tuple[float, float]:
            return (spot.result.layer_pass_ratio - 1) / span * inner, scale.place(spot.difference or 0.0) * HEIGHT

        ends = alt.Scale(domain=[1 - 0.03 * span, highest + 0.05 * span], nice=False, zero=False)
        x = alt.X("x:Q", scale=ends, axis=alt.Axis(title="Layer-pass ratio (cost of a token, unlooped = 1)", grid=False, tickCount=6))
        y = alt.Y("y:Q", scale=scale.scale(), axis=scale.axis(DIFFERENCE if width == WIDE else "Loss difference (nats)"))
        entries = [("Candidate", "twin", "circle", False), ("On the front", "looped", "circle", True)]
        strip, words = legend(entries, width - 20)
        data = {
            "legend": words,
            "zero": [{"y": 0.0}],
            "all": [mark_row(spot.result.layer_pass_ratio, spot.difference or 0.0, entries[0]) for spot in thin(spots, place)],
            "front": [mark_row(cost, value, entries[1], f"{loops}: {nats(value)} nats at {ratio(cost)}") for cost, value, loops in steps],
            "end": [{"x": cost, "y": value} for cost, value, _ in steps] + [{"x": highest, "y": steps[-1][1]}] if steps else [],
        }
        line = chart_of("end").mark_line(interpolate="step-after", strokeWidth=2, color=colour("looped"), aria=False)
        layers = [zero_line(y), *symbols("all", data["all"], x, y, size=26), line.encode(x=x, y=y), *symbols("front", data["front"], x, y)]
        chart = alt.layer(*layers).properties(width=inner, height=HEIGHT)
        return draw([[strip], [chart]], data, gap=0, description=description)

    return figure(
        drawn,
        name="pareto",
        title="Loss against cost",
        caption="The calibrated loss difference of every candidate scored on the whole text over what it costs. The front joins those that "
        "no candidate of at most their cost beats; the unlooped model takes part, at 1 and 0. Points that would cover each other are "
        "drawn once.",
        says="; ".join(f"{loops}: {nats(value)} nats at {ratio(cost)}" for cost, value, loops in steps) or "front not computed",
    )


def traces_figures(view: View) -> list[Figure]:
    """Best score so far against evaluations, a figure an objective; none where a single grid is all there is."""
    searches = [search for search in view.study.searches if any(step.best_score is not None for step in search.steps)]
    if all(search.header.get("algorithm") == "grid" for search in searches) and len(searches) < 2:
        return []
    objectives = list(dict.fromkeys(str(search.header.get("objective")) for search in searches))
    return [_traces_figure(view, name, [one for one in searches if one.header.get("objective") == name]) for name in objectives]


def _traces_figure(view: View, objective: str, searches: Sequence[SearchTrace]) -> Figure:
    reference = _reference(view, objective)
    algorithms = list(dict.fromkeys(str(search.header.get("algorithm")) for search in searches))
    lines = [(search, _progress(search, reference)) for search in searches]
    drawn_lines = list(_with_medians(lines, algorithms))
    scale = NatsScale.of([y for _, points in lines for _, y in points])
    ends = (max(1.0, min(points[0][0] for _, points in lines)), max(points[-1][0] for _, points in lines))
    log = ends[1] > 8 * ends[0]
    title = f"{objective}, best so far" + (" against the unlooped model (nats)" if reference else "")

    def drawn(width: int, description: str) -> str:
        import altair as alt

        entries = [(name, *style(n)) for n, name in enumerate(algorithms)]
        strip, words = legend(entries, width - 20)
        domain = [ends[0] * 0.95, ends[1] * 1.08] if log else [0, ends[1] * 1.03]
        x = alt.X("x:Q", scale=alt.Scale(type="log" if log else "linear", domain=domain, nice=False))
        x = x.axis(alt.Axis(title="Evaluations (whole texts)", grid=False, tickCount=6, format=",~r", labelOverlap="parity"))
        y = alt.Y("y:Q", scale=scale.scale(), axis=scale.axis(title if width == WIDE else "Best so far"))
        data: dict[str, list[dict[str, Any]]] = {"legend": words, "zero": [{"y": 0.0}]}
        layers = [zero_line(y)] if reference else []
        for n, (name, which, points, is_one_of_many) in enumerate(drawn_lines):
            data[f"l{n}"] = [{"x": max(at, domain[0]), "y": value} for at, value in points]
            width_and_opacity = (0.75, 0.3) if is_one_of_many else (1.75, 0.9)
            line = _line(f"l{n}", which, interpolate="step-after", strokeWidth=width_and_opacity[0], opacity=width_and_opacity[1])
            layers.append(line.encode(x=x, y=y, order="x:Q"))
            if not is_one_of_many:
                last, value = points[-1]
                data[f"s{n}"] = [mark_row(last, value, entries[which], f"{name}: {nats(value)} after {last:,.0f} evaluations")]
                layers += symbols(f"s{n}", data[f"s{n}"], x, y)
        chart = alt.layer(*layers).properties(width=width - 74, height=HEIGHT)
        return draw([[strip], [chart]], data, gap=0, description=description)

    return figure(
        drawn,
        name="search-traces-" + "".join(letter if letter.isalnum() else "-" for letter in objective),
        title=f"Search traces, objective {objective}",
        caption="The best score so far over whole evaluations (a part of the text counts as that part), one line a search, one colour and "
        "symbol an algorithm; of an algorithm with several seeds the strong line is their median"
        + ("; the score is drawn minus the unlooped model's." if reference else ". Lower is better."),
        says="; ".join(f"{search.name}: {nats(points[-1][1])} after {points[-1][0]:,.0f} evaluations" for search, points in lines),
    )


_Points = list[tuple[float, float]]


def _with_medians(lines: Sequence[tuple[SearchTrace, _Points]], algorithms: Sequence[str]) -> Iterator[tuple[str, int, _Points, bool]]:
    """Name, algorithm, points of each line, and whether it is one of several whose median follows as a line of its own."""
    for which, algorithm in enumerate(algorithms):
        own = [(search, points) for search, points in lines if str(search.header.get("algorithm")) == algorithm]
        yield from ((search.name, which, points, len(own) > 2) for search, points in own)
        if len(own) > 2:
            places = sorted({at for _, points in own for at, _ in points if all(points[0][0] <= at for _, points in own)})
            best = [(at, statistics.median([y for x, y in points if x <= at][-1] for _, points in own)) for at in places]
            yield f"{algorithm}, median of {len(own)}", which, best, False


def _progress(search: SearchTrace, reference: float) -> list[tuple[float, float]]:
    """Where the best score changed, and the end: a trace has a step for every batch, a line needs only its corners."""
    points: list[tuple[float, float]] = []
    for step in search.steps:
        if step.best_score is not None and (not points or step.best_score - reference != points[-1][1]):
            points.append((step.evaluations, step.best_score - reference))
    return [*points, (search.steps[-1].evaluations, points[-1][1])]


def _reference(view: View, objective: str) -> float:
    """The unlooped model's own score where the objective is a loss; 0 for the others."""
    fields: Mapping[str, str] = {"ppl_t": "loss_nats", "ppl": "plain_loss_nats"}
    values = view.unlooped.values if view.unlooped else {}
    return known_number(values.get(fields.get(objective, ""))) or 0.0


def _temperature_bins(values: Sequence[float]) -> list[tuple[str, float, float]]:
    """At most four bins with about as many temperatures each, at rounded bounds: label, from, to."""
    ordered = sorted(values)
    digits = 2 if ordered[-1] - ordered[0] > 0.2 else 3
    cuts = sorted({round(ordered[len(ordered) * n // 4], digits) for n in (1, 2, 3)} - {round(ordered[0], digits)})
    edges = [float("-inf"), *cuts, float("inf")]
    bins = []
    for low, high in pairwise(edges):
        inside = [one for one in ordered if low <= one < high]
        if inside:
            bins.append((f"T {inside[0]:.{digits}f}–{inside[-1]:.{digits}f}", low, high))
    return bins


def _profile_row(spot: Spot, scale: NatsScale, number: int) -> dict[str, Any]:
    ink, shape, filled = style(number)
    ruined, whole = spot.fate == "ruined" or spot.difference is None, spot.fate == "scored"
    value = scale.high if ruined or spot.difference is None else spot.difference
    row = mark_row(spot.start, value, ("", ink, "cross" if ruined else shape, filled if whole else ruined), _tip(spot))
    return row | {"fate": "ruined" if ruined else spot.fate}


def _temperature_row(spot: Spot, number: int) -> dict[str, Any]:
    tip = f"{_tip(spot)}, plain {nats(spot.plain_difference)}, T {spot.result.values['temperature']:.3f}" if spot.hides else ""
    return mark_row(spot.plain_difference or 0.0, spot.difference or 0.0, ("", *style(number)), tip)


def _tip(spot: Spot) -> str:
    if spot.difference is None or spot.fate == "ruined":
        return f"{spot.loops}: {spot.fate}"
    part = "" if spot.fate == "scored" else f" on {spot.result.share:.0%} of the text"
    return f"{spot.loops}: {nats(spot.difference)} nats{part}"


def _run(points: Mapping[int, Spot]) -> str:
    """A series in words: its best start."""
    known = [spot for spot in points.values() if spot.difference is not None and spot.fate == "scored"]
    if not known:
        return "nothing scored on the whole text"
    best = min(known, key=lambda spot: spot.difference or 0.0)
    return f"best from layer {best.start}, {nats(best.difference)} nats"


def _line(data: str, number: int, **more: Any) -> Any:
    return chart_of(data).mark_line(color=colour(style(number)[0]), aria=False, **({"strokeWidth": 1.6} | more))
