"""Documents of data sets on the Hugging Face hub: the first ones, streamed, with no code of the data set's run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .documents import DataError, Document
from .files import chat_text

PREFIX = "hub:"
TEXT_COLUMNS = ("text", "messages", "conversations", "conversation", "content")
"""Where a row's text is looked for when no column is named; the first that the rows have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """What ``hub:ORG/NAME[/CONFIG][:SPLIT[:COLUMN]]`` names."""

    name: str
    config: str | None
    split: str
    column: str | None

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        return f"{PREFIX}{self.name}{config}:{self.split}" + (f":{self.column}" if self.column else "")


def parse_hub_source(text: str) -> HubSource:
    """The value of a ``hub:`` notation; the split is ``train`` where it is left out.

    Raises:
        DataError: text that is none.
    """
    path, *rest = text.removeprefix(PREFIX).split(":")
    parts = path.split("/")
    if not text.startswith(PREFIX) or not 2 <= len(parts) <= 3 or not all(parts) or len(rest) > 2 or not all(rest):
        raise DataError(f"{text!r} names no data set; write {PREFIX}ORG/NAME[/CONFIG][:SPLIT[:COLUMN]]")
    split, column = [*rest, None, None][:2]
    return HubSource(name="/".join(parts[:2]), config=parts[2] if len(parts) == 3 else None, split=split or "train", column=column)


def hub_documents(source: HubSource, *, domain: str, limit: int) -> tuple[Document, ...]:
    """The first ``limit`` rows that hold text; a column of messages becomes one text with its speakers.

    Raises:
        DataError: no ``datasets`` library, no such data set, no way to it, no such column, or no text.
    """
    documents: list[Document] = []
    for number, row in enumerate(_rows(source)):
        text = _text(row, source, number)
        if text.strip():
            documents.append(Document(name=f"{source}:{number}", domain=domain, text=text))
        if len(documents) == limit:
            break
    if not documents:
        raise DataError(f"{source}: holds no text")
    return tuple(documents)


def _rows(source: HubSource) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise DataError(f"{source}: needs the datasets library: pip install 'loopwise[hub]', or give a .jsonl file") from None
    transport = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))  # of the HTTP library in use
    expected: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *transport)
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(source.name, source.config, split=source.split, streaming=True)
        yield from rows
    except expected as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{source}: cannot be had from the hub ({reason}); check the name, or give a .jsonl file") from None


def _text(row: Mapping[str, Any], source: HubSource, number: int) -> str:
    """A row's text, empty where it has none."""
    named = (source.column,) if source.column else TEXT_COLUMNS
    column = next((name for name in named if name in row), None)
    if column is None:
        what = f"has no column {source.column!r}" if source.column else "has no column that usually holds text"
        raise DataError(f"{source}: {what}; its columns are {', '.join(sorted(row))}: name one as {PREFIX}ORG/NAME:SPLIT:COLUMN")
    value = row[column]
    text = value if isinstance(value, str) else "" if value is None else chat_text(value)
    if text is None:
        raise DataError(f"{source}, row {number}: column {column!r} holds {str(value)[:40]!r}, neither text nor messages with roles")
    return text
