"""What a report is made of, before it becomes HTML or Markdown: plain text in sections, tables and figures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "gain", "loss", "quiet"]
RowTone = Literal["", "key", "heading", "quiet"]
State = Literal["pays", "does-not-pay", "not-shown"]
Outcome = Literal["gain", "loss", "equivalent", "not-shown", "absent"]

_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_direction(text: str) -> str:
    """Text whose controls of writing direction show as U+FFFD: one in a name would turn round the numbers that follow it."""
    return _DIRECTION.sub("\ufffd", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A table's column."""

    title: str
    numeric: bool = False
    """Set right-aligned, in figures of equal width."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell. Its text comes from anywhere (model names, tasks), so both writers escape it."""

    text: str
    tone: Tone = ""
    strong: bool = False
    links: tuple[tuple[str, str], ...] = ()
    """Behind the text: words and where they lead, a place in the page (``#name``) or a file, its name quoted as a URL's path."""


@dataclass(frozen=True, slots=True)
class Row:
    """A table's row; one of tone ``heading`` has a single cell that spans the table."""

    cells: tuple[Cell, ...]
    tone: RowTone = ""
    arms: tuple[str, ...] = ()
    """The arms that its numbers were computed from, by name."""
    anchor: str = ""
    """Its place in the page; empty where nothing leads to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its caption; the first column names the row."""

    name: str
    """Its anchor in the page."""
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Set below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A drawn figure in two widths."""

    name: str
    """Its anchor in the page and its file's name."""
    title: str
    caption: str
    description: str
    """What it shows in words, for those who cannot see it."""
    svg: str
    """The wide drawing, also the file's."""
    narrow_svg: str
    """For a phone."""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


Block = Table | Figure | Text | Bullets


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report under one heading."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A difference and its intervals as positions on a line, in percent of its length."""

    estimate: float
    ci95: tuple[float, float]
    ci90: tuple[float, float]
    margin: tuple[float, float]
    zero: float
    ticks: tuple[tuple[float, str], ...]
    """Positions and what to write there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One of the two tests at a glance."""

    name: str
    title: str
    question: str
    outcome: Outcome
    outcome_text: str
    delta: str
    """The difference with its sign; empty for a test that did not take place."""
    unit: str
    facts: tuple[tuple[str, str], ...]
    statement: str
    """What the facts do not say; often empty."""
    interval: Interval | None
    links: tuple[tuple[str, str], ...] = ()
    """To the records behind it, as in a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report."""

    title: str
    state: State
    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    """What was judged, as pairs of a word and its value."""
    cards: tuple[Card, ...]
    advice: str
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]


def row(*cells: str | Cell, tone: RowTone = "", arms: tuple[str, ...] = ()) -> Row:
    """A row; plain strings become cells."""
    return Row(tuple(cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in cells), tone, arms)


def columns(*titles: str) -> tuple[Column, ...]:
    """Columns; a title that begins with ``#`` is numeric."""
    return tuple(Column(title=title.removeprefix("#"), numeric=title.startswith("#")) for title in titles)
