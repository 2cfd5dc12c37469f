"""Text to train on as streams of numbered rows: files, folders of files and hub data sets, never a whole corpus in memory.

A source has parts, each of which is read on its own: its files, or the files of a hub data set. In a part every row has a number,
counted from 0, and reading can begin at a known one. `parts` says how a source is divided; here it is read.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from .documents import DataError
from .files import chat_text
from .hub import PREFIX, TEXT_COLUMNS, parse_hub_source

T = TypeVar("T")

STREAM_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".txt")

_DOCUMENT_CHARACTERS = 4000
_LONGEST_DOCUMENT_CHARACTERS = 100_000
_PARQUET_BATCH_ROWS = 64
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What of a source is read from its beginning to its end by one reader."""

    source: str
    """The name of its source."""
    domain: str
    number: int
    """Among the parts of its source, from 0."""
    location: str
    """A file's path, or ``hub:ORG/NAME[/CONFIG]:SPLIT[:COLUMN]``."""
    identity: str
    """Tells the text from another at the same place: size and hash of both ends of a file, or a hub data set's commit."""
    num_rows: int | None
    """Rows that are read of it; None where only reading tells."""
    limit_rows: int | None = None
    """Rows beyond which it is not read; None: to its end."""
    seeks: tuple[tuple[int, int], ...] = ((0, 0),)
    """Chunks (of rows) that reading can begin at without reading what is before, each with its place in bytes (JSONL only)."""
    hub_file: tuple[int, int] | None = None
    """Number and count of the data set's files."""

    def document_name(self, row: int) -> str:
        """How reports call the document in a row."""
        file = f", file {self.hub_file[0]}" if self.hub_file else ""
        return f"{self.location}{file}, row {row}"


def part_rows(part: Part, *, start: int = 0, offset_bytes: int = 0, column: str | None = None) -> Iterator[tuple[int, str]]:
    """The rows of a part from ``start`` on: number and text, which is empty for a row without any.

    A row's text is its column ``column``, or the first that it has of text, messages, conversations, conversation and content;
    a chat becomes one text with its speakers. A text with half of a character (a lone surrogate) counts as none.
    A ``.txt`` is cut at blank lines into rows of some 4,000 characters, at the latest at a line's end after 100,000.

    Args:
        offset_bytes: where row ``start`` of a ``.jsonl`` begins, from ``part.seeks``; 0 reads up to it.

    Raises:
        DataError: damaged or foreign content, a missing library, or a data set that cannot be had.
    """
    if part.hub_file is not None:
        rows = _hub_rows(part, start, column)
    elif part.location.endswith(".parquet"):
        rows = _parquet_rows(part, start, column)
    elif part.location.endswith(".txt"):
        rows = ((row, _usable(text)) for row, text in enumerate(_text_documents(part.location)))
    else:
        rows = _json_rows(part, start, offset_bytes, column)
    yield from _between(rows, start, part.limit_rows)


def part_values(part: Part, *, start: int = 0, offset_bytes: int = 0) -> Iterator[tuple[int, Any]]:
    """The rows of a part from ``start`` on: number and object, None for an empty one; of a ``.txt`` it is ``{"text": ...}``.

    Raises:
        DataError: as `part_rows`; what the objects hold is not looked at.
    """
    rows: Iterator[tuple[int, Any]]
    if part.hub_file is not None:
        rows = _hub_values(part, start)
    elif part.location.endswith(".parquet"):
        rows = _parquet_values(open_parquet(part.location), start, None)
    elif part.location.endswith(".txt"):
        rows = ((row, {"text": text}) for row, text in enumerate(_text_documents(part.location)))
    else:
        rows = _json_values(part, start, offset_bytes)
    yield from _between(rows, start, part.limit_rows)


def _between(rows: Iterator[tuple[int, T]], start: int, stop: int | None) -> Iterator[tuple[int, T]]:
    for row, value in rows:
        if stop is not None and row >= stop:
            return
        if row >= start:
            yield row, value


def row_text(row: Any, column: str | None, where: str) -> str:
    """The text of a row of JSON, Parquet or a data set; empty where it has none.

    Raises:
        DataError: no object, no column of text, or one that holds something else.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: not a JSON object ({str(row)[:40]!r})")
    found = next((name for name in ((column,) if column else TEXT_COLUMNS) if name in row), None)
    if found is None:
        raise DataError(
            f"{where}: has no column {column or 'that usually holds text'}; it has {', '.join(map(str, row))}: name one as column"
        )
    value = row[found]
    text = value if isinstance(value, str) else "" if value is None else chat_text(value)
    if text is None:
        raise DataError(f"{where}: column {found!r} holds {str(value)[:40]!r}, neither text nor messages with roles")
    return _usable(text)


def open_parquet(path: str) -> Any:
    """A ``pyarrow.parquet.ParquetFile``.

    Raises:
        DataError: no pyarrow, or no Parquet.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'loopwise[hub]', or give JSONL") from None
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file ({_short(error)}); write it again") from None


def load_hub(location: str, revision: str) -> Any:
    """A hub data set at a commit, streamed; no code of the data set's is run.

    Raises:
        DataError: no ``datasets`` library, or a data set that cannot be had.
    """
    source = parse_hub_source(location)
    try:
        import datasets
    except ImportError:
        raise DataError(f"{source}: needs the datasets library: pip install 'loopwise[hub]', or give a .jsonl file") from None
    try:
        return datasets.load_dataset(source.name, source.config, split=source.split, streaming=True, revision=revision)
    except hub_faults() as error:
        raise DataError(f"{source}: cannot be had from the hub ({_short(error)}); check the name, or give a .jsonl file") from None


def hub_faults() -> tuple[type[Exception], ...]:
    """What the hub's libraries raise where a data set or the way to it is missing."""
    from huggingface_hub.errors import HfHubHTTPError

    transport = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))  # of the HTTP library in use
    return (OSError, ValueError, RuntimeError, *transport)


def _usable(text: str) -> str:
    return text if text.strip() and not _SURROGATE.search(text) else ""


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _json_rows(part: Part, start: int, offset_bytes: int, column: str | None) -> Iterator[tuple[int, str]]:
    for row, values in _json_values(part, start, offset_bytes):
        yield row, "" if values is None else row_text(values, column, f"{part.location}, line {row + 1}")


def _json_values(part: Part, start: int, offset_bytes: int) -> Iterator[tuple[int, Any]]:
    """Every line; those before ``start`` are not parsed and, like empty ones, None."""
    for row, line in enumerate(read_lines(part.location, offset_bytes), start if offset_bytes else 0):
        line = line.removeprefix(_BYTE_ORDER_MARK) if row == 0 else line
        if row < start or not line.strip():
            yield row, None
            continue
        where = f"{part.location}, line {row + 1}"
        try:
            values = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise DataError(f"{where}: not UTF-8 text") from None
        except (ValueError, RecursionError):  # also of numbers and nesting beyond what Python reads
            raise DataError(f"{where}: not a JSON object ({line[:40].decode('utf-8', 'replace')!r}...)") from None
        if not isinstance(values, Mapping):
            raise DataError(f"{where}: not a JSON object ({str(values)[:40]!r})")
        yield row, values


def read_lines(path: str, offset_bytes: int = 0) -> Iterator[bytes]:
    """The lines of a file, plain or gzip, from a place in it on.

    Raises:
        DataError: no such file, or no whole gzip file.
    """
    try:
        with _open(path) as file:
            file.seek(offset_bytes)
            yield from file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); compress it again, or give the JSONL itself") from None


def _open(path: str) -> BinaryIO:
    return gzip.open(path) if path.endswith(".gz") else Path(path).open("rb")  # type: ignore[return-value]


def _text_documents(path: str) -> Iterator[str]:
    """Documents of whole paragraphs; the same that `read_documents` makes, but for paragraphs that are too long for one."""
    document, gap = "", ""
    for number, line in enumerate(read_lines(path)):
        try:
            text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 0 else line).decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path}, line {number + 1}: not UTF-8 text") from None
        if not text.strip():
            gap = "\n\n" if document else ""
            if len(document.rstrip("\n")) >= _DOCUMENT_CHARACTERS:
                yield document.rstrip("\n")
                document, gap = "", ""
            continue
        document = (document.rstrip("\n") + gap if gap else document) + text
        gap = ""
        if len(document) >= _LONGEST_DOCUMENT_CHARACTERS:
            yield document.rstrip("\n")
            document = ""
    if document.strip():
        yield document.rstrip("\n")


def _parquet_rows(part: Part, start: int, column: str | None) -> Iterator[tuple[int, str]]:
    file = open_parquet(part.location)
    names = file.schema_arrow.names
    found = next((name for name in ((column,) if column else TEXT_COLUMNS) if name in names), None)
    if found is None:
        raise DataError(
            f"{part.location}: has no column {column or 'that usually holds text'}; it has {', '.join(names)}: name one as column"
        )
    for row, values in _parquet_values(file, start, [found]):
        yield row, row_text(values, found, f"{part.location}, row {row}") if row >= start else ""


def _parquet_values(file: Any, start: int, columns: list[str] | None) -> Iterator[tuple[int, Any]]:
    """From the group of rows on that ``start`` is in; None for columns is all of them."""
    row = 0
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if row + size <= start:
            row += size
            continue
        for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS, row_groups=[group], columns=columns):
            for values in batch.to_pylist():
                yield row, values
                row += 1


def _hub_rows(part: Part, start: int, column: str | None) -> Iterator[tuple[int, str]]:
    column = parse_hub_source(part.location).column or column
    for row, values in _hub_values(part, start):
        yield row, row_text(values, column, f"{part.location}, row {row}")


def _hub_values(part: Part, start: int) -> Iterator[tuple[int, Any]]:
    assert part.hub_file is not None
    file, num_files = part.hub_file
    rows = load_hub(part.location, part.identity).shard(num_shards=num_files, index=file)
    rows = iter(rows.skip(start) if start else rows)
    row = start
    while True:
        try:
            values = next(rows)
        except StopIteration:
            return
        except hub_faults() as error:
            where = f"{part.location}, file {file}, row {row}"
            raise DataError(f"{where}: cannot be had from the hub ({_short(error)}); the same command goes on when it can") from None
        yield row, values
        row += 1


def is_hub(location: str) -> bool:
    """Whether a location is a data set's and not a file's."""
    return location.startswith(PREFIX)
