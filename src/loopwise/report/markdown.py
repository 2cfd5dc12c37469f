"""A report as Markdown: the same sections and tables, figures as files beside it."""

from __future__ import annotations

import re

from .blocks import Block, Bullets, Cell, Figure, Page, Table, Text, without_direction

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!])")


def escape(text: str) -> str:
    """Text from anywhere as plain Markdown text: no markup, no HTML, one line."""
    text = " ".join(without_direction(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A colon or an at sign would let some viewers turn a bare address into a link.
    return _SPECIAL.sub(r"\\\1", text).replace("://", ":\u200b//").replace("www.", "www\u200b.")


def markdown(page: Page, tests: Table) -> str:
    """The whole report."""
    lines = [f"# {escape(page.verdict)}", "", f"**{escape(page.sentence)}**", ""]
    lines += [f"- {escape(word)}: {escape(value)}" for word, value in page.facts]
    lines += ["", escape(page.advice), "", *_table(tests)]
    if page.warnings:
        lines += ["## Before quoting these numbers", "", *(f"- {escape(one)}" for one in page.warnings), ""]
    for section in page.sections:
        lines += [f"## {escape(section.title)}", ""]
        for block in section.blocks:
            lines += _block(block)
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [escape(block.text), ""]
    if isinstance(block, Bullets):
        return [*(f"- {escape(item)}" for item in block.items), ""]
    if isinstance(block, Figure):
        alt = escape(block.description).replace("\n", " ")
        return [f"### {escape(block.title)}", "", f"![{alt}](figures/{block.name}.svg)", "", escape(block.caption), ""]
    return _table(block)


def _table(table: Table) -> list[str]:
    lines = [f"### {escape(table.title)}", "", escape(table.caption), ""]
    lines.append("| " + " | ".join(escape(column.title) for column in table.columns) + " |")
    lines.append("| " + " | ".join("---:" if column.numeric else "---" for column in table.columns) + " |")
    for row in table.rows:
        strong = row.tone in ("key", "heading")
        cells = [_cell(cell, strong and (row.tone == "heading" or n == 0)) for n, cell in enumerate(row.cells)]
        cells += [""] * (len(table.columns) - len(cells))
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for note in table.notes:
        lines += [escape(note), ""]
    return lines


def _cell(cell: Cell, strong: bool) -> str:
    text = escape(cell.text)
    text = f"**{text}**" if (strong or cell.strong) and text else text
    links = ", ".join(f"[{escape(words)}]({_target(href)})" for words, href in cell.links)
    return f"{text} {links}".strip()


def _target(href: str) -> str:
    """A row has no place of its own in Markdown: a link to one leads to its table's heading."""
    return href.rpartition("-")[0] if href.startswith("#") else href
