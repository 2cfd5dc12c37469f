"""Sources of text as the command line names them: files and hub data sets, each with the domain of its documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .documents import DataError, Document
from .files import read_documents
from .hub import PREFIX, hub_documents, parse_hub_source

HUB_DOCUMENTS = 2000
"""Documents taken of a hub data set: far more than windows that a search reads of one domain."""

_WITH_DOMAIN = re.compile(r"(?P<domain>\w[\w .-]*)=(?P<source>.+)")


def read_sources(specs: Sequence[str], *, hub_documents_each: int = HUB_DOCUMENTS) -> tuple[Document, ...]:
    """The documents of several sources, no two of one name.

    A source is the path of a ``.txt``, ``.jsonl`` or ``.jsonl.gz`` file, or ``hub:ORG/NAME[/CONFIG][:SPLIT[:COLUMN]]``;
    ``DOMAIN=SOURCE`` names the domain of its documents. Without one JSONL rows may name it, a ``.txt`` file is ``text``, and
    a data set of the hub is a domain of its name.

    Raises:
        DataError: no source, one that is given twice or cannot be read; one line says which.
    """
    if not specs:
        raise DataError("no text is given; name a .txt or .jsonl file, or hub:ORG/NAME")
    parsed = [_parse(spec) for spec in specs]
    identities = Counter(_identity(source) for _, source in parsed)
    labels = Counter(Path(source).name for _, source in parsed)
    documents: list[Document] = []
    for domain, source in parsed:
        if identities[_identity(source)] > 1:
            raise DataError(f"{source}: is given twice; a document in both splits would be fitted and scored on")
        if source.startswith(PREFIX):
            found = parse_hub_source(source)
            own = found.name.rpartition("/")[2]
            documents += hub_documents(found, domain=domain or own, limit=hub_documents_each)
        else:
            label = Path(source).name
            documents += read_documents(source, domain=domain, label=label if labels[label] == 1 else source)
    return tuple(documents)


def _parse(spec: str) -> tuple[str | None, str]:
    """The domain, if one is named, and the source; a file whose own name has the ``=`` is a file."""
    match = _WITH_DOMAIN.fullmatch(spec)
    if match is None or Path(spec).is_file():
        return None, spec
    return match["domain"].strip(), match["source"]


def _identity(source: str) -> str:
    return str(parse_hub_source(source)) if source.startswith(PREFIX) else str(Path(source).resolve())
