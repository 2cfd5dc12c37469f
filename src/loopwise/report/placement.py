"""Write the report of a placement study: where a loop could go, what the score hides, and how stable the answer is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from . import placement_figures as figures
from . import placement_tables as tables
from . import placement_words as words
from .blocks import Block, Bullets, Figure, Page, Section, Text
from .drawing import on_paper
from .markdown import markdown
from .placement_checks import studies_figure, validation_figure, validation_table
from .placement_view import View, view_study
from .render import html


def render_study(folder: str | Path, *, others: Sequence[str | Path] = ()) -> Path:
    """Write ``report.html``, ``report.md`` and ``figures/*.svg`` into a study's folder, also while searches write into it.

    Reads the study, its ``summary.json`` (stability, the front, what is within noise of the best; where it is missing the report says
    so) and ``validation.json``.

    Args:
        others: further studies, whose location profiles are drawn beside this one's.

    Returns:
        report.html.

    Raises:
        StudyError: a folder that holds no study, or a damaged one.
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    view = view_study(folder)
    page = build_study_page(view, [view_study(other) for other in others])
    drawn = [block for section in page.sections for block in section.blocks if isinstance(block, Figure)]
    (folder / "figures").mkdir(exist_ok=True)
    for old in set((folder / "figures").glob("*.svg")) - {folder / "figures" / f"{figure.name}.svg" for figure in drawn}:
        old.unlink()
    for figure in drawn:
        _write(folder / "figures" / f"{figure.name}.svg", on_paper(figure.svg))
    _write(folder / "report.md", markdown(page, tables.counts_table(view)))
    _write(folder / "report.html", html(page))
    return folder / "report.html"


def build_study_page(view: View, others: Sequence[View] = ()) -> Page:
    """Everything that the report says, figures drawn."""
    model = view.study.header.get("model", "a model")
    return Page(
        title=f"Where the loop goes: {model}",
        state="not-shown",
        verdict=words.headline(view),
        sentence=words.sentence(view),
        facts=words.facts(view),
        cards=words.cards(view),
        advice=words.advice(view),
        warnings=words.warnings(view),
        sections=tuple(section for section in _sections(view, others) if section.blocks),
    )


def _sections(view: View, others: Sequence[View]) -> list[Section]:
    nothing = None if view.scored else Text(f"{words.headline(view)}.")
    unlike = None if view.summary else Text("summary.json is not there: loopwise report computes it, and writes this report again.")
    traces = figures.traces_figures(view)
    return [
        _section("best", "Best candidates", nothing, tables.best_table(view)),
        _section("location", "Where in depth", figures.profile_figure(view), studies_figure([view, *others]) if others else None),
        _section("temperature-part", "Plain or calibrated", figures.temperature_figure(view), tables.hiding_table(view)),
        _section("cost", "What it costs", figures.pareto_figure(view), tables.pareto_table(view)),
        _section(
            "validation-part", "Does the score predict accuracy?", validation_figure(view.validation), validation_table(view.validation)
        ),
        _section("stability", "Stability", unlike, *traces, tables.stability_table(view), tables.searches_table(view)),
        _section("what-ran", "What ran", tables.header_table(view.study.header)),
        _reading(),
    ]


def _section(name: str, title: str, *blocks: Block | None) -> Section:
    return Section(name=name, title=title, blocks=tuple(block for block in blocks if block is not None))


def _reading() -> Section:
    return _section(
        "how-to-read",
        "How to read this",
        Bullets(
            (
                "Calibrated loss: mean negative log-likelihood of a token in nats when logits are divided by the temperature T that "
                "minimises it on another split of the same text. PPL_T is its exponential. T is for scoring only, never for decoding.",
                "Differences are against the unlooped model at its own fitted temperature; below 0 is better. Standard errors are paired "
                "by position; neighbouring positions of a document are not independent, so true errors are rather larger.",
                "Loops are written as loopwise trial takes them: 10:17 x2 runs layers 10 to 16 twice.",
                "Cost is the layer-pass ratio (N + m)/N: executions of layers for a token, in units of the unlooped model's.",
                "– means not known or not applicable, never zero.",
            )
        ),
    )


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
