"""Documents to score text with, and those that every Python brings along."""

from __future__ import annotations

import importlib.abc
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass

CODE_MODULES = (
    "argparse", "ast", "bisect", "calendar", "cmd", "code", "codecs", "configparser", "contextlib", "copy", "csv", "dataclasses",
    "difflib", "dis", "fileinput", "filecmp", "fnmatch", "fractions", "ftplib", "functools", "getopt", "gettext", "glob",
    "graphlib", "gzip", "heapq", "hmac", "inspect", "ipaddress", "linecache", "locale", "mimetypes", "netrc", "numbers",
    "optparse", "pathlib", "pickle", "pprint", "profile", "queue", "quopri", "random", "reprlib", "sched", "selectors", "shelve",
    "shlex", "shutil", "socketserver", "statistics", "string", "stringprep", "tabnanny", "tarfile", "tempfile", "textwrap",
    "timeit", "tokenize", "trace", "tracemalloc", "typing", "uuid", "warnings", "wave", "weakref", "zipapp", "zipfile",
)  # fmt: skip
"""Modules of the standard library that Python 3.11 to 3.13 have, read as code."""

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
