"""Write the report of an exchange rate: what the twin needs to match the loop, when it passes its thresholds, and at what compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import exchange_rate_figures as figures
from .blocks import Block, Bullets, Figure, Page, Section, Table, columns, row
from .drawing import on_paper
from .markdown import markdown
from .numbers import UNKNOWN, scaled
from .render import _write, html

Result = Mapping[str, Any]
_POSITIONS = {"above": "above", "below": "below", "within": "interval holds it"}
_STATUSES = {"from": "passed", "always": "above throughout", "never": "not reached", "fell": "fallen below", "unknown": "not known"}
NO_INFERENCE = (
    "This is about training compute alone. Every token that a looped model serves pays for the loop again; whether that pays is for "
    "loopwise trial to say."
)


def render_exchange_rate(result: Result, folder: str | Path) -> Path:
    """Write ``report.html``, ``report.md`` and ``figures/*.svg`` from what ``result.json`` holds.

    Returns:
        report.html.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    page = build_exchange_rate_page(result)
    drawn = [block for section in page.sections for block in section.blocks if isinstance(block, Figure)]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for figure in drawn:
        _write(folder / "figures" / f"{figure.name}.svg", on_paper(figure.svg))
    # Markdown has the lines' table at its top already.
    lines = lines_table(result)
    sections = [replace(one, blocks=tuple(block for block in one.blocks if block != lines)) for one in page.sections]
    _write(folder / "report.md", markdown(replace(page, sections=tuple(sections)), lines))
    _write(folder / "report.html", html(page))
    return folder / "report.html"


def build_exchange_rate_page(result: Result) -> Page:
    """Everything that the report says, figures drawn."""
    last = [point for point in result["rate"]["points"] if point["rate"] is not None][-1]
    return Page(
        title=f"Exchange rate: {result['looped'][0]} against {result['twin'][0]}",
        state="not-shown",
        verdict=f"A looped token is worth {_rate_words(last)} of the twin's after {scaled(last['tokens'])} tokens",
        sentence=_sentence(result),
        facts=_facts(result),
        cards=(),
        advice=NO_INFERENCE,
        warnings=tuple(result["warnings"]),
        sections=(
            _section(
                "rate",
                "Token exchange rate",
                figures.rate_figure(result),
                lines_table(result),
                Bullets(tuple(one["words"] for one in result["rate"]["lines"])),
                _rate_table(result),
            ),
            _section(
                "thresholds-part",
                "Three thresholds",
                figures.thresholds_figure(result),
                Bullets(tuple(one["words"] for one in result["thresholds"])),
                _differences_table(result),
            ),
            *([_section("compute", "Loss against training compute", drawn)] if (drawn := figures.compute_figure(result)) else []),
            _reading(result),
        ),
    )


def lines_table(result: Result) -> Table:
    """Where r passes each line."""
    rows = []
    for one in result["rate"]["lines"]:
        crossing, line = one["crossing"], one["line"]
        between = f"{_tokens(crossing['after_tokens'])} – {_tokens(crossing['before_tokens'])}" if crossing["status"] == "from" else UNKNOWN
        rows.append(
            row(
                "as good as the twin" if line["name"] == "twin" else f"training cost by {line['name']}",
                f"{line['ratio']:.3f}",
                line["source"],
                _STATUSES[crossing["status"]],
                between,
                _tokens(crossing["at_tokens"]),
                _tokens_interval(crossing["ci95_tokens"]),
                _POSITIONS[one["position"]],
            )
        )
    over = result["interval_over"]
    return Table(
        name="table-lines",
        title="Where the exchange rate passes each line",
        caption="Between which checkpoints r comes to stay above the line, where that is on a straight line in log tokens, and "
        + (f"its 95 % interval over {over}." if over else "no interval: one seed, and no losses of single documents.")
        + " The last column is for the last checkpoint at which r is known.",
        columns=columns("Line", "#Ratio", "From", "r", "#Between (tokens)", "#About", "#95 % interval", "At the end"),
        rows=tuple(rows),
    )


def _rate_table(result: Result) -> Table:
    rows = [
        row(
            scaled(point["tokens"]),
            f"{point['looped_loss']:.4f}",
            _rate_words(point),
            _interval(point["ci95_seeds"], 3),
            _interval(point["ci95_documents"], 3),
            ", ".join(UNKNOWN if one is None else f"{one:.3f}" for one in point["per_seed"]),
        )
        for point in result["rate"]["points"]
    ]
    low, high = result["rate"]["twin_range_tokens"]
    return Table(
        name="table-rate",
        title="Exchange rate at every checkpoint",
        caption=f"Twins were measured from {scaled(low)} to {scaled(high)} tokens. Where the looped model's loss lies outside of what they "
        "reached there, only a bound is known; nothing is extrapolated. … is an end beyond the twin's curve.",
        columns=columns("#Tokens", "#Looped loss (nats)", "#r", "#95 % over seeds", "#95 % over documents", "r of each seed"),
        rows=tuple(rows),
    )


def _differences_table(result: Result) -> Table:
    rows = []
    for threshold in result["thresholds"]:
        name = threshold["name"] + (f", {threshold['ratio']:.2f}× tokens" if threshold["name"] == "equal training compute" else "")
        rows.append(row(name[0].upper() + name[1:], tone="heading"))
        rows += [
            row(
                scaled(point["tokens"]),
                _signed(point["difference_millinats"]),
                _interval(point["ci95_seeds"], 1, signed=True),
                _interval(point["ci95_documents"], 1, signed=True),
                ", ".join(map(_signed, point["per_seed"])),
            )
            for point in threshold["points"]
        ]
    return Table(
        name="table-differences",
        title="Held-out loss differences",
        caption="Loss of the comparison model minus the looped model's, in milli-nats per token, paired by seed and by document; above "
        "zero the looped model is ahead.",
        columns=columns("#Tokens", "#Difference", "#95 % over seeds", "#95 % over documents", "Each seed"),
        rows=tuple(rows),
    )


def _reading(result: Result) -> Section:
    return _section(
        "how-to-read",
        "How to read this",
        Bullets(
            (
                "Exchange rate r(D): the tokens that the twin needs to reach the held-out loss of the looped model after D tokens, divided "
                "by D (no-free-loop, C.2).",
                f"Between checkpoints: {result['interpolation']}. The most that a loss was moved for it is "
                f"{1000 * result['rate']['largest_correction_nats']:.2f} milli-nats.",
                "Over seeds: Student's t over the seeds' own values, each pair on its own curves. With two or three seeds it is wide, and "
                "it should be.",
                "Over documents: held-out documents drawn again, the same draw for both models, all checkpoints and all seeds. It says "
                "what these trained models would do on other text, not what other trainings would give.",
                "– means not known or not applicable, never zero.",
            )
        ),
    )


def _sentence(result: Result) -> str:
    known = [point for point in result["rate"]["points"] if point["rate"] is not None]
    first, last = known[0], known[-1]
    span = f"r is {first['rate']:.3f} at {scaled(first['tokens'])} tokens"
    if len(known) > 1:
        span += f" and {last['rate']:.3f} at {scaled(last['tokens'])}"
    sides = {"above": "it is above", "within": "it cannot be told from", "below": "it is below"}
    found = {position: [one["line"] for one in result["rate"]["lines"] if one["position"] == position] for position in sides}
    words = [f"{sides[position]} {_list(lines)}" for position, lines in found.items() if lines]
    return f"{span}. There {'; '.join(words)}."


def _list(lines: Sequence[Result]) -> str:
    return ", ".join(f"{line['ratio']:.3g} ({'its twin' if line['name'] == 'twin' else line['name']})" for line in lines)


def _facts(result: Result) -> tuple[tuple[str, str], ...]:
    over = result["interval_over"]
    documents = result["num_documents"]
    return (
        ("Looped", ", ".join(result["looped"])),
        ("Twin", ", ".join(result["twin"])),
        ("Seeds", str(result["rate"]["num_seeds"])),
        ("Held-out documents", "losses not known one by one" if documents is None else f"{documents:,}"),
        ("Intervals", "none" if over is None else f"95 %, over {over}"),
    )


def _section(name: str, title: str, *blocks: Block) -> Section:
    return Section(name=name, title=title, blocks=blocks)


def _rate_words(point: Result) -> str:
    if point["rate"] is not None:
        return f"{point['rate']:.3f}"
    bounds = [f"{words} {point[name]:.3f}" for name, words in (("at_least", "at least"), ("at_most", "at most")) if point[name] is not None]
    return " and ".join(bounds) or UNKNOWN


def _tokens(value: float | None) -> str:
    return scaled(value)


def _tokens_interval(found: Any) -> str:
    if found is None:
        return UNKNOWN
    return f"[{'…' if found[0] is None else scaled(found[0])}, {'…' if found[1] is None else scaled(found[1])}]"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _interval(found: Any, digits: int, *, signed: bool = False) -> str:
    if found is None:
        return UNKNOWN
    sign = "+" if signed else ""
    return f"[{', '.join('…' if end is None else format(end, f'{sign}.{digits}f').replace('-', '−') for end in found)}]"
