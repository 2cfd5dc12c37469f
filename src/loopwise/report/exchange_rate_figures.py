"""The figures of an exchange rate: r against tokens, the three thresholds, loss against training compute (no-free-loop, Figures 3, 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .blocks import Figure
from .numbers import scaled
from .placement_axes import figure
from .training_axes import POWERS, TOKENS, Axes, Level, Mark, Series, draw_series

Result = Mapping[str, Any]
_TOKENS = "Tokens the looped model trained on"
_INKS = {
    "own first pass": ("gain", "triangle-up"),
    "twin": ("looped", "circle"),
    "equal training compute": ("loss", "square"),
}
"""The paper's green, blue and red."""


def rate_figure(result: Result) -> Figure:
    """r(D) with its lines."""
    over, points = result["interval_over"], result["rate"]["points"]
    seeds = _seeds([point["per_seed"] for point in points], [point["tokens"] for point in points])
    series = [
        Series(
            label="exchange rate r",
            ink="looped",
            shape="circle",
            marks=tuple(mark for point in points if (mark := _rate_mark(point, over)) is not None),
            seeds=seeds,
        )
    ]
    levels = [
        Level(y=line["ratio"], label=_level_words(line), ink="twin" if line["name"] == "twin" else "loss")
        for line in (one["line"] for one in result["rate"]["lines"])
    ]
    axes = Axes(x=_TOKENS, y="Twin's tokens per looped token (r)")
    return figure(
        lambda width, description: draw_series(series, levels, axes, width, description),
        name="exchange-rate",
        title="Token exchange rate",
        caption="How many tokens the twin needs for each of the looped model's to reach the same held-out loss. Above 1 the loop beats its "
        "twin; above a training-cost line it also pays for the compute that it was trained with. " + _interval_words(result, seeds),
        says="; ".join(mark.tip for mark in series[0].marks),
    )


def thresholds_figure(result: Result) -> Figure:
    """The differences of C.1."""
    over = result["interval_over"]
    found = [one for one in result["thresholds"] if one["points"]]
    series = [
        Series(
            label=_threshold_words(one),
            ink=_INKS[one["name"]][0],
            shape=_INKS[one["name"]][1],
            marks=tuple(_difference_mark(one, point, over) for point in one["points"]),
            seeds=_seeds([point["per_seed"] for point in one["points"]], [point["tokens"] for point in one["points"]]),
        )
        for one in found
    ]
    largest = max(abs(mark.y) for one in series for mark in one.marks)
    axes = Axes(x=_TOKENS, y="Loss above the looped model's (milli-nats)", symlog=largest > 100)
    seeds = series[0].seeds
    return figure(
        lambda width, description: draw_series(series, [Level(y=0.0, label="", ink="twin")], axes, width, description),
        name="thresholds",
        title="Three thresholds",
        caption="Held-out loss of each comparison model minus that of the looped model; above zero the loop is ahead. A curve ends where "
        "the twin was not trained on. "
        + ("The axis is linear within 10 milli-nats of zero. " if axes.symlog else "")
        + _interval_words(result, seeds),
        says="; ".join(f"{one.label}: {one.marks[-1].tip}" for one in series),
    )


def compute_figure(result: Result) -> Figure | None:
    """Loss against training compute; None where the cost of a token is not known."""
    compute = result["compute"]
    if compute is None:
        return None
    series = [
        Series(
            label={"looped": "looped model", "twin": "twin"}[name],
            ink=name,
            shape="circle" if name == "looped" else "square",
            marks=tuple(
                Mark(x=x, y=y, tip=f"{y:.4f} nats at {x:.3g} {compute['unit']}")
                for x, y in zip(compute[name]["compute"], compute[name]["losses"], strict=True)
            ),
        )
        for name in ("looped", "twin")
        if compute[name]["losses"]
    ]
    flops = compute["unit"] == "FLOPs"
    axes = Axes(
        x="Training FLOPs" if flops else "Training compute, in tokens of the twin",
        y="Held-out loss (nats)",
        x_format=POWERS if flops else TOKENS,
    )
    return figure(
        lambda width, description: draw_series(series, (), axes, width, description),
        name="loss-against-compute",
        title="Held-out loss against training compute",
        caption=f"{compute['words']} At equal compute the lower curve is the better use of it.",
        says="; ".join(f"{one.label}: {one.marks[-1].tip}" for one in series),
    )


def _rate_mark(point: Result, over: str | None) -> Mark | None:
    where = scaled(point["tokens"])
    if point["rate"] is None:
        for bound in ("at_least", "at_most"):
            if point[bound] is not None:
                words = bound.replace("_", " ")
                return Mark(x=point["tokens"], y=point[bound], tip=f"{words} {point[bound]:.3f} at {where} tokens", bound=words)
        return None
    low, high = _ends(point, over)
    return Mark(x=point["tokens"], y=point["rate"], tip=f"r {point['rate']:.3f} at {where} tokens", low=low, high=high)


def _difference_mark(threshold: Result, point: Result, over: str | None) -> Mark:
    low, high = _ends(point, over)
    value = f"{point['difference_millinats']:+.1f}".replace("-", "−")
    tip = f"{value} milli-nats at {scaled(point['tokens'])} tokens"
    return Mark(x=point["tokens"], y=point["difference_millinats"], tip=tip, low=low, high=high)


def _ends(point: Result, over: str | None) -> tuple[float | None, float | None]:
    found = point.get(f"ci95_{over}")
    if found is None:
        return None, None
    low, high = found
    return -math.inf if low is None else low, math.inf if high is None else high


def _seeds(values: Sequence[Sequence[float | None]], tokens: Sequence[float]) -> tuple[tuple[tuple[float, float], ...], ...]:
    """The single seeds' curves, where there are several."""
    if len(values[0]) < 2:
        return ()
    curves = []
    for seed in range(len(values[0])):
        curve = tuple((float(at), float(value)) for at, row in zip(tokens, values, strict=True) if (value := row[seed]) is not None)
        if len(curve) > 1:
            curves.append(curve)
    return tuple(curves)


def _interval_words(result: Result, seeds: Sequence[Any]) -> str:
    band = (
        ""
        if result["interval_over"] is None
        else f"The band is the 95 % interval over {result['interval_over']}, cut at the figure's edge."
    )
    return band + (" Dashed: the single seeds." if seeds else "")


def _level_words(line: Result) -> str:
    return "1, its twin" if line["name"] == "twin" else f"{line['ratio']:.2f} {line['name']}"


def _threshold_words(threshold: Result) -> str:
    words = {
        "own first pass": "its own first pass",
        "twin": "its twin",
        "equal training compute": f"twin with {threshold['ratio']:.2f}× the tokens",
    }
    return words[threshold["name"]]
