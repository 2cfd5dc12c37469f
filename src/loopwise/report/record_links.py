"""Every row of numbers names the records that it was computed from, and links to them.

Arms are numbered in a table of records, whose rows hold links to the files. Tables name the arms behind a row by these numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from ..protocol import Verdict
from .blocks import Cell, Column, Page, Row, Section, Table, columns, row
from .labels import Arms

TABLE = "records"
_COLUMN = Column(title="Records")


def beside(verdict: Verdict, folder: Path) -> Verdict:
    """The verdict with the sources of every arm as files of records that are there, named from ``folder``, so that links hold when the
    folder is moved with its runs. What is no file (records in memory) is left out."""
    return replace(verdict, arms=tuple(replace(arm, sources=_files(arm.sources, folder)) for arm in verdict.arms))


def _files(sources: Sequence[str], folder: Path) -> tuple[str, ...]:
    # Joined as text: the report's folder need not be there yet.
    found = (_file(Path(os.path.normpath(folder / source))) or _file(Path(source)) for source in sources)
    return tuple(Path(os.path.relpath(path, folder)).as_posix() for path in found if path is not None)


def _file(path: Path) -> Path | None:
    try:
        if path.is_dir():
            records = path / "records.jsonl"
            return records if records.is_file() else path
        return path if path.is_file() else None
    except (OSError, ValueError):  # a name that no file system has
        return None


def numbers_of(verdict: Verdict) -> dict[str, int]:
    """The number of each arm whose records are known; arms that share their records, as votes do, share the number."""
    known: dict[tuple[str, ...], int] = {}
    return {arm.name: known.setdefault(arm.sources, len(known) + 1) for arm in verdict.arms if arm.sources}


def records_table(verdict: Verdict, arms: Arms) -> Table | None:
    """The arms by number, with the files of their graded answers; None where no file is known."""
    numbers = numbers_of(verdict)
    by_number: dict[int, list[str]] = {}
    for name, number in numbers.items():
        by_number.setdefault(number, []).append(name)
    if not by_number:
        return None
    sources = {numbers[arm.name]: arm.sources for arm in verdict.arms if arm.name in numbers}
    rows = tuple(
        replace(
            row(str(number), "; ".join(arms.setting_with_budget(name) for name in names), Cell("", links=_links(sources[number]))),
            anchor=f"{TABLE}-{number}",
        )
        for number, names in by_number.items()
    )
    return Table(
        name=TABLE,
        title="Records",
        caption="The graded answers behind every number of this report, one a line. Tables and cards name them by their number here.",
        columns=columns("#No.", "Arm", "Files"),
        rows=rows,
    )


def _links(sources: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((source, quote(source, safe="/")) for source in sources)


def link(page: Page, verdict: Verdict) -> Page:
    """The page with the records of every row and card named."""
    numbers = numbers_of(verdict)
    if not numbers:
        return page
    tests = (verdict.equal_parameters, verdict.equal_flops)
    cards = tuple(
        card if test is None else replace(card, links=_numbered((test.looped, test.comparator), numbers))
        for card, test in zip(page.cards, tests, strict=True)
    )
    return replace(page, cards=cards, sections=tuple(_section(section, numbers) for section in page.sections))


def _section(section: Section, numbers: Mapping[str, int]) -> Section:
    blocks = tuple(linked_table(block, numbers) if isinstance(block, Table) else block for block in section.blocks)
    return replace(section, blocks=blocks)


def linked_table(table: Table, numbers: Mapping[str, int]) -> Table:
    """A table with a last column that names the records of its rows; one without rows of arms as it is."""
    if not any(name in numbers for one in table.rows for name in one.arms):
        return table
    return replace(table, columns=(*table.columns, _COLUMN), rows=tuple(_row(one, numbers) for one in table.rows))


def _row(one: Row, numbers: Mapping[str, int]) -> Row:
    if one.tone == "heading":
        return one
    return replace(one, cells=(*one.cells, Cell("", links=_numbered(one.arms, numbers))))


def _numbered(names: Sequence[str], numbers: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    found = dict.fromkeys(numbers[name] for name in names if name in numbers)
    return tuple((str(number), f"#{TABLE}-{number}") for number in found)
