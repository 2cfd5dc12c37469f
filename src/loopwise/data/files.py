"""Documents in files: plain text, and JSONL rows that hold a text or a chat."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .documents import DataError, Document

SUFFIXES = (".txt", ".jsonl", ".jsonl.gz")
CHAT_FIELDS = (("role", "content"), ("from", "value"))
"""How the messages of a chat name their speaker and their text."""

_TEXT_DOCUMENT_CHARACTERS = 4000
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPEAKERS = {"human": "user", "gpt": "assistant"}


def read_documents(path: str | Path, *, domain: str | None = None, label: str | None = None) -> tuple[Document, ...]:
    """The documents of a user's file.

    ``.jsonl`` and ``.jsonl.gz`` hold one ``{"text": ..., "domain": ...}`` a line, or ``messages`` in place of ``text``; the
    domain is ``text`` where it is left out. ``.txt`` is one domain, cut at blank lines into documents of some 4,000
    characters; use JSONL to set the boundaries.

    Args:
        domain: of all its documents, whatever the rows say.
        label: what the documents' names begin with; default the file's name.

    Raises:
        DataError: no such file, another suffix, a damaged line, or no text.
    """
    path = Path(path)
    check_file(path)
    content = _read(path)
    label = label or path.name
    documents = _parse_text(content, label) if path.suffix == ".txt" else _parse_lines(content, path, label)
    if not documents:
        raise DataError(f"{path}: holds no text")
    if domain is None:
        return documents
    return tuple(Document(name=document.name, domain=domain, text=document.text) for document in documents)


def check_file(path: Path) -> None:
    """Check that a file is there and of a kind that is read.

    Raises:
        DataError: it is not.
    """
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: text is read from .txt or .jsonl files, not from {path.suffix or 'a name without suffix'}")
    if not path.is_file():
        raise DataError(f"{path}: {'is no file' if path.exists() else 'no such file'}")


def chat_text(messages: Any) -> str | None:
    """A chat as one text, each speaker on a line before what they say; None for what is no chat.

    Messages are ``{"role": ..., "content": ...}`` or ``{"from": ..., "value": ...}``; those without words, such as calls of
    tools, are left out.
    """
    if not isinstance(messages, list):
        return None
    turns = []
    for message in messages:
        fields = next((one for one in CHAT_FIELDS if isinstance(message, Mapping) and all(field in message for field in one)), None)
        if fields is None:
            return None
        speaker, said = message[fields[0]], message[fields[1]]
        if not isinstance(speaker, str) or not isinstance(said, str | None):
            return None
        if said and said.strip():
            turns.append(f"{_SPEAKERS.get(speaker, speaker)}:\n{said.strip()}")
    return "\n\n".join(turns)


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); compress it again, or give the JSONL itself") from None


def _parse_text(content: str, label: str) -> tuple[Document, ...]:
    texts = [""]
    for paragraph in re.split(r"\n\s*\n", content):
        if len(texts[-1]) >= _TEXT_DOCUMENT_CHARACTERS:
            texts.append("")
        texts[-1] += ("\n\n" if texts[-1] else "") + paragraph
    texts = [text for text in texts if text.strip()]
    return tuple(Document(name=f"{label}:{number}", domain="text", text=text) for number, text in enumerate(texts))


def _parse_lines(content: str, path: Path, label: str) -> tuple[Document, ...]:
    documents = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):  # also of numbers and nesting beyond what Python reads
            raise DataError(f"{path}, line {number}: not a JSON object ({line[:40]!r}...)") from None
        text = _row_text(values)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{path}, line {number}: needs a 'text' that is a string with something in it, or 'messages' with roles")
        domain = values.get("domain", "text")
        if not isinstance(domain, str) or not domain:
            raise DataError(f"{path}, line {number}: domain is {domain!r}; give a name or leave it out")
        for name, value in (("text", text), ("domain", domain)):
            if half := _SURROGATE.search(value):
                raise DataError(
                    f"{path}, line {number}: the {name} has {half[0]!r}, half of a character; write the line again from its source, "
                    "or take it out"
                )
        documents.append(Document(name=f"{label}:{number}", domain=domain, text=text))
    return tuple(documents)


def _row_text(values: Any) -> Any:
    if not isinstance(values, dict):
        return None
    return values["text"] if "text" in values else chat_text(values.get("messages"))
