"""How sources of training text are named on the command line, and divided into parts and chunks of rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .documents import DataError
from .folders import bind, read_json
from .hub import parse_hub_source
from .shards import ALL
from .streams import STREAM_SUFFIXES, Part, hub_faults, is_hub, load_hub, open_parquet

_NAMED = re.compile(r"(?:(?P<domain>\w[\w.-]*)/)?(?P<name>\w[\w.-]*)=(?P<location>.+)")
_EDGE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSource:
    """One source as it was named: a file, a folder or a data set."""

    name: str
    """What shards and mixtures call it: letters, digits, ``_``, ``.`` and ``-``."""
    domain: str
    """What several sources may have in common; the name where none was given."""
    location: str


def parse_training_sources(specs: Sequence[str]) -> tuple[TrainingSource, ...]:
    """Sources from ``[[DOMAIN/]NAME=]LOCATION``.

    A location is a ``.jsonl``, ``.jsonl.gz``, ``.parquet`` or ``.txt`` file, a folder with such files at any depth, or
    ``hub:ORG/NAME[/CONFIG][:SPLIT[:COLUMN]]``. Without a name it is the file's or data set's. Locations of one name are one source.

    Raises:
        DataError: no source, one that is given twice, that is not there, or is of no kind that is read.
    """
    if not specs:
        raise DataError("no text is given; name a .jsonl, .parquet or .txt file, a folder of them, or hub:ORG/NAME")
    sources = tuple(map(_parse, specs))
    seen: dict[str, TrainingSource] = {}
    for source in sources:
        place = str(parse_hub_source(source.location)) if is_hub(source.location) else str(Path(source.location).resolve())
        if place in seen:
            raise DataError(f"{source.location}: is given twice; leave one out")
        seen[place] = source
        first = next(one for one in sources if one.name == source.name)
        if first.domain != source.domain:
            raise DataError(f"source {source.name!r} is in domains {first.domain!r} and {source.domain!r}; give it one")
        if not is_hub(source.location):
            _files(source.location)
    if any(ALL in (source.name, source.domain) for source in sources):
        raise DataError(f"{ALL!r} means every source together; give the source another name")
    domains = {source.domain for source in sources if source.domain != source.name}
    if clash := sorted(domains & {source.name for source in sources}):
        raise DataError(f"{clash[0]!r} is the name of a source and of a domain; mixtures could mean either: rename one")
    return sources


def find_parts(sources: Sequence[TrainingSource], *, rows_per_chunk: int, max_rows: int | None) -> tuple[Part, ...]:
    """The parts of sources. JSONL files are read once to count their rows; nothing else is read through.

    Args:
        max_rows: of each source; each of its parts gives an equal number, rounded up, from its beginning.

    Raises:
        DataError: a file without rows or a data set that cannot be had.
    """
    parts: list[Part] = []
    places = [(source, place) for source in sources for place in _places(source)]
    for source, (location, identity, hub_file) in places:
        num_places = sum(other.name == source.name for other, _ in places)
        part = Part(
            source=source.name,
            domain=source.domain,
            number=sum(part.source == source.name for part in parts),
            location=location,
            identity=identity,
            num_rows=None,
            limit_rows=None if max_rows is None else -(-max_rows // num_places),
            hub_file=hub_file,
        )
        parts.append(_counted(part, rows_per_chunk))
    return tuple(parts)


def bound_parts(
    folder: Path,
    plan_file: str,
    settings: Mapping[str, Any],
    sources: Sequence[TrainingSource],
    *,
    rows_per_chunk: int,
    max_rows: int | None = None,
) -> tuple[Part, ...]:
    """The parts that a folder was begun with, or those found now; bind the folder to them and to its settings.

    Raises:
        DataError: the folder was begun with other settings or other text, or the sources cannot be read.
    """
    bound = dict(settings) | {"sources": [asdict(source) for source in sources]}
    if (folder / plan_file).exists():
        there = read_json(folder / plan_file).get("parts", [])
        bind(folder, plan_file, bound | {"parts": there})
        parts = tuple(map(part_from_json, there))
        check_parts(parts, sources)
        return parts
    parts = find_parts(sources, rows_per_chunk=rows_per_chunk, max_rows=max_rows)
    bind(folder, plan_file, bound | {"parts": [asdict(part) for part in parts]})
    return parts


def check_parts(parts: Sequence[Part], sources: Sequence[TrainingSource]) -> None:
    """Check that the files of earlier found parts are still those that the sources name, and unchanged.

    The size and both ends of a file tell; a change in its middle that keeps its size is not seen.

    Raises:
        DataError: they are not; names the file.
    """
    found = [file for source in sources if not is_hub(source.location) for file in _files(source.location)]
    known = [part.location for part in parts if part.hub_file is None]
    if {str(file) for file in found} != set(known):
        other = sorted({str(file) for file in found} ^ set(known))[0]
        raise DataError(f"{other}: the files of the sources are not those that this folder was begun with; give a new --out")
    for part in parts:
        if part.hub_file is None and _identity(Path(part.location)) != part.identity:
            raise DataError(f"{part.location}: has changed since this folder was begun with it; give a new --out")


def part_from_json(values: dict[str, Any]) -> Part:
    """A part as a plan records it."""
    hub_file = values["hub_file"]
    seeks = tuple((int(chunk), int(offset)) for chunk, offset in values["seeks"])
    return Part(**values | {"seeks": seeks, "hub_file": None if hub_file is None else (int(hub_file[0]), int(hub_file[1]))})


def _parse(spec: str) -> TrainingSource:
    match = None if Path(spec).exists() else _NAMED.fullmatch(spec)
    if match:
        return TrainingSource(name=match["name"], domain=match["domain"] or match["name"], location=match["location"])
    own = parse_hub_source(spec).name.rpartition("/")[2] if is_hub(spec) else Path(spec).resolve().name
    for suffix in STREAM_SUFFIXES:
        own = own.removesuffix(suffix)
    name = re.sub(r"[^\w.-]+", "-", own).strip(".-") or "text"
    return TrainingSource(name=name, domain=name, location=spec)


def _files(location: str) -> tuple[Path, ...]:
    path = Path(location)
    if path.is_dir():
        files = tuple(sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(STREAM_SUFFIXES)))
        if not files:
            raise DataError(f"{path}: has no file of {', '.join(STREAM_SUFFIXES)} in it")
        return files
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if not path.name.endswith(STREAM_SUFFIXES):
        raise DataError(f"{path}: text is read from {', '.join(STREAM_SUFFIXES)} files, not from {path.suffix or 'a name without suffix'}")
    return (path,)


def _places(source: TrainingSource) -> Iterator[tuple[str, str, tuple[int, int] | None]]:
    """Location, identity and hub file of each part of one named source."""
    if not is_hub(source.location):
        for file in _files(source.location):
            yield str(file), _identity(file), None
        return
    location = str(parse_hub_source(source.location))
    revision = _commit(location)
    num_files = int(load_hub(location, revision).num_shards)
    for file_number in range(num_files):
        yield location, revision, (file_number, num_files)


def _identity(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as opened:
        edges = opened.read(_EDGE_BYTES)
        opened.seek(max(0, size - _EDGE_BYTES))
        edges += opened.read()
    return f"{size}:{hashlib.sha256(edges).hexdigest()}"


def _commit(location: str) -> str:
    """The commit that a data set is at now, so that a run that goes on tomorrow reads the same text."""
    try:
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(parse_hub_source(location).name).sha)
    except hub_faults() as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{location}: cannot be had from the hub ({reason}); check the name, or give a .jsonl file") from None


def _counted(part: Part, rows_per_chunk: int) -> Part:
    """The part with its rows counted, where that is cheap, and the chunks that reading can begin at."""
    if part.hub_file is not None or part.location.endswith((".txt", ".gz")):
        return part
    if part.location.endswith(".parquet"):
        file = open_parquet(part.location)
        total = int(file.metadata.num_rows)
        first_rows = [0]
        for group in range(file.num_row_groups):
            first_rows.append(first_rows[-1] + int(file.metadata.row_group(group).num_rows))
        seeks = sorted({-(-row // rows_per_chunk) for row in first_rows})
        found = [(chunk, 0) for chunk in seeks if chunk == 0 or chunk * rows_per_chunk < total]
    else:
        total, found = _count_lines(part.location, rows_per_chunk)
    if not total:
        raise DataError(f"{part.location}: holds no text")
    num_rows = total if part.limit_rows is None else min(total, part.limit_rows)
    kept = tuple(seek for seek in found if seek[0] * rows_per_chunk < num_rows)
    return replace(part, num_rows=num_rows, seeks=kept)


def _count_lines(path: str, rows_per_chunk: int) -> tuple[int, list[tuple[int, int]]]:
    num_lines, position, seeks = 0, 0, [(0, 0)]
    with Path(path).open("rb") as file:
        for line in file:
            num_lines += 1
            position += len(line)
            if num_lines % rows_per_chunk == 0:
                seeks.append((num_lines // rows_per_chunk, position))
    return num_lines, seeks
