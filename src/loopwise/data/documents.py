"""Documents to score text with: what every Python brings along, and the user's own files."""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CODE_MODULES = (
    "argparse", "ast", "bisect", "calendar", "cmd", "code", "codecs", "configparser", "contextlib", "copy", "csv", "dataclasses",
    "difflib", "dis", "fileinput", "filecmp", "fnmatch", "fractions", "ftplib", "functools", "getopt", "gettext", "glob",
    "graphlib", "gzip", "heapq", "hmac", "inspect", "ipaddress", "linecache", "locale", "mimetypes", "netrc", "numbers",
    "optparse", "pathlib", "pickle", "pprint", "profile", "queue", "quopri", "random", "reprlib", "sched", "selectors", "shelve",
    "shlex", "shutil", "socketserver", "statistics", "string", "stringprep", "tabnanny", "tarfile", "tempfile", "textwrap",
    "timeit", "tokenize", "trace", "tracemalloc", "typing", "uuid", "warnings", "wave", "weakref", "zipapp", "zipfile",
)  # fmt: skip
"""Modules of the standard library that Python 3.11 to 3.13 have, read as code."""

_TEXT_DOCUMENT_CHARACTERS = 4000
_FIRST_DEFINITION = re.compile(r"^(?:@|def |class |async def )", re.MULTILINE)


class DataError(ValueError):
    """Text that cannot be used: names the file or domain, the fault and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text with its own beginning and end; windows never cross from one to the next."""

    name: str
    """Unique within a set of documents."""
    domain: str
    text: str


def named_documents(domain: str, texts: Iterable[str]) -> tuple[Document, ...]:
    """Texts of one domain as documents, named by their number."""
    return tuple(Document(name=f"{domain}:{number}", domain=domain, text=text) for number, text in enumerate(texts))


def standard_documents() -> tuple[Document, ...]:
    """Text that every Python has: its language reference (domain ``prose``) and modules of its standard library (``code``).

    Nothing is downloaded and no module is run. A model may have seen this text in training; it is held out from tasks and
    their answers, which is what a placement needs. It differs between versions of Python: a mixture's hash tells.

    Raises:
        DataError: this Python lacks one of the two.
    """
    return _language_reference() + _library_sources()


def _language_reference() -> tuple[Document, ...]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError("this Python has no pydoc_data to take prose from; give text of your own (.txt or .jsonl)") from None
    return tuple(Document(name=f"pydoc:{name}", domain="prose", text=text.strip()) for name, text in sorted(topics.items()))


def _library_sources() -> tuple[Document, ...]:
    documents = []
    for name in CODE_MODULES:
        spec = importlib.util.find_spec(name)
        source = spec.loader.get_source(name) if spec and isinstance(spec.loader, importlib.abc.InspectLoader) else None
        # From the first definition on: what stands before is licences and lists of imports.
        if source and (start := _FIRST_DEFINITION.search(source)):
            documents.append(Document(name=f"lib:{name}", domain="code", text=source[start.start() :]))
    if not documents:
        raise DataError("this Python has no sources of its standard library to take code from; give text of your own (.txt or .jsonl)")
    return tuple(documents)


def read_documents(path: str | Path) -> tuple[Document, ...]:
    """The documents of a user's file.

    ``.jsonl`` holds one ``{"text": ..., "domain": ...}`` a line; the domain is ``text`` where it is left out. ``.txt`` is
    one domain, cut at blank lines into documents of some 4,000 characters; use JSONL to set the boundaries.

    Raises:
        DataError: no such file, another suffix, a damaged line, or no text.
    """
    path = Path(path)
    if path.suffix not in (".txt", ".jsonl"):
        raise DataError(f"{path}: text is read from .txt or .jsonl files, not from {path.suffix or 'a name without suffix'}")
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    documents = _parse_text(content, path) if path.suffix == ".txt" else _parse_lines(content, path)
    if not documents:
        raise DataError(f"{path}: holds no text")
    return documents


def _parse_text(content: str, path: Path) -> tuple[Document, ...]:
    texts = [""]
    for paragraph in re.split(r"\n\s*\n", content):
        if len(texts[-1]) >= _TEXT_DOCUMENT_CHARACTERS:
            texts.append("")
        texts[-1] += ("\n\n" if texts[-1] else "") + paragraph
    texts = [text for text in texts if text.strip()]
    return tuple(Document(name=f"{path.name}:{number}", domain="text", text=text) for number, text in enumerate(texts))


def _parse_lines(content: str, path: Path) -> tuple[Document, ...]:
    documents = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            raise DataError(f"{path}, line {number}: not a JSON object ({line[:40]!r}...)") from None
        if not isinstance(values, dict) or not isinstance(values.get("text"), str) or not values["text"].strip():
            raise DataError(f"{path}, line {number}: needs a 'text' that is a string with something in it")
        domain = values.get("domain", "text")
        if not isinstance(domain, str) or not domain:
            raise DataError(f"{path}, line {number}: domain is {domain!r}; give a name or leave it out")
        documents.append(Document(name=f"{path.name}:{number}", domain=domain, text=values["text"]))
    return tuple(documents)
