"""How figures are drawn: one palette for paper and screen, Altair charts turned into SVG, and SVG made fit for a page.

A figure carries the light colours. In a page, one style rule a colour sets the dark ones: a style rule outranks an SVG's own
attributes, so the file and the drawing in the page stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from .blocks import without_direction

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
WIDE, NARROW = 760, 340
"""Widths that figures are laid out for, in pixels; `NARROW` is a phone's."""

PERCENT_LABEL = "datum.value < 0 || datum.value > 100 ? '' : datum.label"
"""Axes of percent leave room around 0 and 100 for the marks, but write no number there."""

PALETTE: dict[str, tuple[str, str]] = {
    "ink": ("#1f2733", "#e6e9ee"),
    "soft": ("#596373", "#a7b0bd"),
    "axis": ("#8b95a3", "#69737f"),
    "grid": ("#e3e7ec", "#2c343e"),
    "margin": ("#edf0f4", "#222a33"),
    "paper": ("#fefefe", "#14181e"),
    "looped": ("#0a62ab", "#6db3f2"),
    "twin": ("#69737e", "#a9b3be"),
    "sampling": ("#a2508f", "#e3a0d2"),
    "larger": ("#8a6d00", "#d9ba55"),
    "gain": ("#00745a", "#4fcfa6"),
    "loss": ("#bf4110", "#ff9a6c"),
}
"""Light and dark. Told apart by colour-blind readers too; shapes, dashes and signs say the same again."""

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_SVG = "http://www.w3.org/2000/svg"


def colour(name: str) -> str:
    """A colour as figures carry it."""
    return PALETTE[name][0]


def dark_rules() -> str:
    """The style rules that give figures in a page their dark colours."""
    return "\n".join(
        f'  .figure svg [{attribute}="{light}"] {{ {attribute}: {dark}; }}'
        for light, dark in PALETTE.values()
        for attribute in ("fill", "stroke")
    )


def draw(rows: Sequence[Sequence[Any]], data: Mapping[str, Sequence[Mapping[str, Any]]], *, gap: int, description: str) -> str:
    """Altair charts as one SVG on a transparent ground.

    The charts are put together here: Altair's own concatenation copies every chart at every level, which takes seconds.

    Args:
        rows: charts beside each other, row below row.
        data: the named data that the charts refer to.
        gap: pixels between charts of a row.
        description: what a reader who cannot see it is told.
    """
    import vl_convert

    parts = [{"hconcat": [_part(chart) for chart in row], "spacing": gap} for row in rows]
    spec = {"$schema": _SCHEMA, "vconcat": parts, "spacing": 14, "config": _config(), "datasets": data}
    return _fit(vl_convert.vegalite_to_svg(spec), description)


def _part(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}


def chart_of(dataset: str) -> Any:
    """A chart of named data."""
    import altair as alt

    return alt.Chart(alt.NamedData(name=dataset))


def legend(entries: Sequence[tuple[str, str, str, bool]], width: int) -> tuple[Any, list[dict[str, Any]]]:
    """A strip of symbols with their words, and its data (named ``legend``).

    Vega's own legend cannot show shape, fill and stroke of one series in one symbol across panels.

    Args:
        entries: words, colour, shape, and whether the shape is filled.
    """
    import altair as alt

    data: list[dict[str, Any]] = []
    x, line = 8.0, 0
    for words, ink, shape, filled in entries:
        needed = 26 + 6.6 * len(words)
        if x + needed > width and x > 8:
            x, line = 8.0, line + 1
        data.append({"words": words, "x": x, "y": line, "ink": colour(ink), "fill": colour(ink if filled else "paper"), "shape": shape})
        x += needed + 12
    scale = alt.Scale(domain=[0, width], range=[0, width])
    base = chart_of("legend").encode(
        x=alt.X("x:Q", axis=None, scale=scale), y=alt.Y("y:O", axis=None, scale=alt.Scale(domain=list(range(line + 1))))
    )
    shapes = list(dict.fromkeys(shape for _, _, shape, _ in entries))
    symbols = base.mark_point(size=75, strokeWidth=2, opacity=1, aria=False).encode(
        stroke=alt.Stroke("ink:N", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        shape=alt.Shape("shape:N", scale=alt.Scale(domain=shapes, range=shapes), legend=None),
    )
    words = base.mark_text(align="left", dx=12, color=colour("ink"), aria=False).encode(text="words:N")
    return alt.layer(symbols, words).properties(width=width, height=20 * (line + 1)), data


def on_paper(svg: str) -> str:
    """The SVG as a file of its own: the same drawing on white."""
    return re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#ffffff"/>', svg, count=1)


def _config() -> dict[str, Any]:
    label = {
        "labelColor": colour("soft"),
        "labelFontSize": 12,
        "titleColor": colour("soft"),
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **label,
            "gridColor": colour("grid"),
            "domainColor": colour("axis"),
            "tickColor": colour("axis"),
            "labelOverlap": "greedy",
            "labelFlush": False,
            "titlePadding": 8,
        },
        "title": {"color": colour("ink"), "fontSize": 13, "fontWeight": 600, "anchor": "start", "frame": "group", "offset": 10},
        "text": {"color": colour("ink"), "fontSize": 12},
    }


def _fit(svg: str, description: str) -> str:
    """One image with one description; what a mark stands for as its tooltip."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)
    for element in list(root.iter()):
        label = element.get("aria-label")
        is_mark = element.get("role") == "graphics-symbol" and element.get("aria-roledescription") not in ("axis", "legend", "title")
        for attribute in [one for one in element.attrib if one.startswith("aria-") or one in ("role", "class", "pointer-events")]:
            del element.attrib[attribute]
        if label and is_mark:
            tip = ElementTree.Element(f"{{{_SVG}}}title")
            tip.text = label
            element.insert(0, tip)
    root.set("role", "img")
    root.set("aria-label", description)
    return without_direction(ElementTree.tostring(root, encoding="unicode"))
