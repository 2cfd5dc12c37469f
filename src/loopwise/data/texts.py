"""Whole texts to measure a loss on, from the same files and data sets that training text comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .documents import DataError, Document
from .parts import find_parts, parse_training_sources
from .streams import part_rows

_ROWS_PER_CHUNK = 1 << 30
"""Text that is read once from its beginning needs no places to begin at."""


def check_texts(specs: Sequence[str]) -> None:
    """Check what can be known of sources before they are read.

    Raises:
        DataError: as `parse_training_sources`.
    """
    parse_training_sources(specs)


def read_texts(specs: Sequence[str], *, column: str | None = None, limit: int | None = None) -> tuple[Document, ...]:
    """The documents of sources, one a row, in order; of a text that is there twice the first copy stays.

    A source is ``[[DOMAIN/]NAME=]LOCATION``: a ``.jsonl``, ``.jsonl.gz``, ``.parquet`` or ``.txt`` file, a folder with such files, or
    a data set of the hub. A document is called by its source's name and its row, wherever the file lies. A ``.txt`` is cut at
    blank lines into documents of some 4,000 characters; JSONL sets the boundaries.

    Args:
        column: of rows, where the text is; None: the first that usually holds text.
        limit: only so many documents, from the beginning.

    Raises:
        DataError: no source, one that cannot be read, a limit below 1, or no text at all.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; give at least 1 document")
    parts = find_parts(parse_training_sources(specs), rows_per_chunk=_ROWS_PER_CHUNK, max_rows=None)
    num_parts = Counter(part.source for part in parts)
    documents: dict[str, Document] = {}
    for part in parts:
        label = part.source if num_parts[part.source] == 1 else f"{part.source}/{part.number}"
        for row, text in part_rows(part, column=column):
            if text and text.strip() not in documents:
                documents[text.strip()] = Document(name=f"{label}:{row}", domain=part.domain, text=text)
                if limit is not None and len(documents) == limit:
                    return tuple(documents.values())
    if not documents:
        raise DataError(f"{', '.join(specs)}: holds no text")
    return tuple(documents.values())
