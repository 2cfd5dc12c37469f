"""Write a verdict's report: one HTML file that needs nothing else, Markdown, and the figures as SVG."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..protocol import Plan, Verdict
from .blocks import Bullets, Figure, Page, Table, Text, without_direction
from .comparisons import tests_table
from .drawing import dark_rules, on_paper
from .labels import Arms
from .markdown import markdown
from .record_links import beside, linked_table, numbers_of
from .running import NoiseFloors
from .sections import build_page

FIGURES = ("accuracy-against-cost", "benchmarks", "finish-rate", "forest")
"""Every figure that a report can have."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Where a report lies."""

    html: Path
    markdown: Path
    figures: tuple[Path, ...]


def render(
    verdict: Verdict,
    folder: str | Path,
    *,
    plan: Plan | None = None,
    headers: Sequence[Mapping[str, Any]] = (),
    noise_floor: NoiseFloors = None,
) -> ReportFiles:
    """Write ``report.html``, ``report.md`` and ``figures/*.svg`` into a folder, each whole or not at all.

    Args:
        plan: what was fixed before the runs.
        headers: of the runs that were judged, in any order; none for foreign records.
        noise_floor: how many of an arm's answers change when nothing but the batching does, of one arm or of several: ``arm``,
            ``batch_sizes``, ``num_answers``, ``changed_texts``, ``changed_answers``, ``changed_grades``, ``accuracy_points``.

    The verdict's arms name their sources; what of them is a file is linked, as a path from ``folder``.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    verdict = beside(verdict, folder)
    ordered = sorted(headers, key=lambda header: (str(header.get("arm")), str(header.get("task")), str(header.get("seeds"))))
    page = build_page(verdict, plan=plan, headers=ordered, noise_floor=noise_floor)
    figures = [block for section in page.sections for block in section.blocks if isinstance(block, Figure)]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name in set(FIGURES) - {figure.name for figure in figures}:
        (folder / "figures" / f"{name}.svg").unlink(missing_ok=True)  # of an earlier report
    files = ReportFiles(
        html=folder / "report.html",
        markdown=folder / "report.md",
        figures=tuple(folder / "figures" / f"{figure.name}.svg" for figure in figures),
    )
    for path, figure in zip(files.figures, figures, strict=True):
        _write(path, on_paper(figure.svg))
    _write(files.markdown, markdown(page, linked_table(tests_table(verdict, Arms(verdict)), numbers_of(verdict))))
    _write(files.html, html(page))
    return files


def html(page: Page) -> str:
    """The page as one file without a script and without a request to anywhere."""
    from markupsafe import Markup

    css = (_HERE / "report.css").read_text(encoding="utf-8").replace("/* dark figures */", dark_rules())
    # Only our own style sheet and our own drawings pass unescaped: every text inside them was escaped when it was written.
    return str(_template().render(page=page, css=Markup(css), drawing=Markup, kind=_kind))


def _kind(block: object) -> str:
    kinds = {Text: "text", Bullets: "bullets", Table: "table", Figure: "figure"}
    return kinds[type(block)]


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _finalize(value: Any) -> Any:
    return without_direction(value) if type(value) is str else value  # markup of our own is another type, and was cleaned before


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
