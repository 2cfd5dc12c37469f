"""Sources of text as the command line names them: files and hub data sets, each with the domain of its documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .documents import DataError, Document
from .files import check_file, read_documents
from .hub import PREFIX, hub_documents, parse_hub_source

HUB_DOCUMENTS = 2000
"""Documents taken of a hub data set: far more than windows that a search reads of one domain."""

_WITH_DOMAIN = re.compile(r"(?P<domain>\w[\w .-]*)=(?P<source>.+)")


def read_sources(specs: Sequence[str], *, hub_documents_each: int = HUB_DOCUMENTS) -> tuple[Document, ...]:
    """The documents of several sources, no two of one name or one text: of a text that is there twice the first copy stays.

    A source is the path of a ``.txt``, ``.jsonl`` or ``.jsonl.gz`` file, or ``hub:ORG/NAME[/CONFIG][:SPLIT[:COLUMN]]``;
    ``DOMAIN=SOURCE`` names the domain of its documents. Without one JSONL rows may name it, a ``.txt`` file is ``text``, and
    a data set of the hub is a domain of its name.

    Raises:
        DataError: no source, one that is given twice or cannot be read, or whose whole text is in others; one line says which.
    """
    check_sources(specs)
    parsed = [_parse(spec) for spec in specs]
    labels = Counter(Path(source).name for _, source in parsed)
    documents: dict[str, Document] = {}
    for domain, source in parsed:
        if source.startswith(PREFIX):
            found = parse_hub_source(source)
            own = found.name.rpartition("/")[2]
            read = hub_documents(found, domain=domain or own, limit=hub_documents_each)
        else:
            label = Path(source).name
            read = read_documents(source, domain=domain, label=label if labels[label] == 1 else source)
        before = len(documents)
        for document in read:  # a copy could be fitted on in one split and scored on in the other
            documents.setdefault(document.text.strip(), document)
        if len(documents) == before:
            raise DataError(f"{source}: all its text is in the sources before it; leave it out")
    return tuple(documents.values())


def check_sources(specs: Sequence[str]) -> None:
    """Check what can be known of sources before they are read.

    Raises:
        DataError: no source, a file that is not there or is no text, no name of a data set, or one that is given twice.
    """
    if not specs:
        raise DataError("no text is given; name a .txt or .jsonl file, or hub:ORG/NAME")
    sources = [source for _, source in map(_parse, specs)]
    identities = Counter(map(_identity, sources))
    for source in sources:
        if identities[_identity(source)] > 1:
            raise DataError(f"{source}: is given twice; a document in both splits would be fitted and scored on")
        if not source.startswith(PREFIX):
            check_file(Path(source))


def _parse(spec: str) -> tuple[str | None, str]:
    """The domain, if one is named, and the source; a file whose own name has the ``=`` is a file."""
    match = _WITH_DOMAIN.fullmatch(spec)
    if match is None or Path(spec).is_file():
        return None, spec
    return match["domain"].strip(), match["source"]


def _identity(source: str) -> str:
    return str(parse_hub_source(source)) if source.startswith(PREFIX) else str(Path(source).resolve())
