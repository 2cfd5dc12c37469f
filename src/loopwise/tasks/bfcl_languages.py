"""What the leaderboard's rules say of each language: its types, and how the text of a Java or JavaScript value becomes a value.

In Java and JavaScript every argument comes as a text, and the described type says what it is read as. A text that does not have that
type's form stays a text; it is right where the gold has one too. The readers know the forms of the leaderboard's own checker: one level
of collections, members between commas, whatever stands inside quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One language's rules."""

    types: Mapping[str, type]
    """The names of types in descriptions, and the Python type that values of each have."""
    nested: tuple[str, ...]
    """Types whose ``items`` have a type of their own."""
    read: Callable[[str, str, str | None], Any] | None = None
    """Makes a value of an argument's text, its type and its members' type; None where arguments are values already."""


PYTHON = Language(
    types={
        "string": str,
        "integer": int,
        "float": float,
        "boolean": bool,
        "array": list,
        "tuple": list,
        "dict": dict,
        "any": str,
    },
    nested=("array", "tuple"),
)

_DECIMAL = r"-?\d+(\.\d+)?"
_EXPONENT = r"([eE][+-]?\d+)?"
_JAVA_NUMBERS: Mapping[str, tuple[str, type, str]] = {
    "byte": (r"-?\d+", int, ""),
    "short": (r"-?\d+", int, ""),
    "integer": (r"-?\d+", int, ""),
    "long": (r"-?\d+[lL]", int, "lL"),
    "float": (_DECIMAL + _EXPONENT + "[fF]", float, "fF"),
    "double": (_DECIMAL + _EXPONENT, float, ""),
}
"""Of each type the form, what it becomes, and the letters behind it that are no part of the number."""
_JAVASCRIPT_NUMBERS: Mapping[str, tuple[str, type, str]] = {
    "integer": (r"-?\d+", int, ""),
    "float": (_DECIMAL, float, ""),
    "Bigint": (r"-?\d+n", int, "n"),
}
_NEW_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{")
_NEW_LIST = re.compile(r"new\s+ArrayList<\w*>\(")
_NEW_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)")


def read_java(text: str, kind: str, inner: str | None) -> Any:
    """A Java value: numbers with the letters that their type wants, ``true`` and ``false``, arrays, ``ArrayList`` and ``HashMap``."""
    if kind in _JAVA_NUMBERS:
        return _number(text, *_JAVA_NUMBERS[kind])
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind == "Array":
        return _java_array(text, inner)
    if kind == "ArrayList":
        return _java_list(text, inner)
    return _java_map(text) if kind == "HashMap" else text


def read_javascript(text: str, kind: str, inner: str | None) -> Any:
    """A JavaScript value: numbers, ``true`` and ``false``, quoted texts, arrays and objects."""
    if kind in _JAVASCRIPT_NUMBERS:
        return _number(text, *_JAVASCRIPT_NUMBERS[kind])
    if kind == "Boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind == "String":
        return text[1:-1] if _is_quoted(text, "\"'") else text
    if kind == "array":
        return _javascript_array(text.strip(), inner)
    return _javascript_object(text.strip()) if kind == "dict" else text


JAVA = Language(
    types={
        "byte": int,
        "short": int,
        "integer": int,
        "long": int,
        "float": float,
        "double": float,
        "boolean": bool,
        "char": str,
        "String": str,
        "any": str,
        "Array": list,
        "ArrayList": list,
        "HashMap": dict,
    },
    nested=("Array", "ArrayList"),
    read=read_java,
)
JAVASCRIPT = Language(
    types={
        "String": str,
        "integer": int,
        "float": float,
        "Bigint": int,
        "Boolean": bool,
        "array": list,
        "dict": dict,
        "any": str,
    },
    nested=("array",),
    read=read_javascript,
)


def _number(text: str, form: str, kind: type, suffix: str) -> Any:
    try:
        return kind(text.rstrip(suffix) if suffix else text) if re.fullmatch(form, text) else text
    except ValueError:  # more digits than Python reads
        return text


def _is_quoted(text: str, quotes: str) -> bool:
    """Whether the same quote stands at both ends; a single quote is both."""
    return text[:1] != "" and text[0] in quotes and text[-1] == text[0]


def _up_to(text: str, end: str, least: int) -> str | None:
    """What stands before ``end``, at least ``least`` characters of one line; None where there is no such end."""
    place = text.find(end, least)
    return None if place < 0 or "\n" in text[:place] else text[:place]


def _bare(text: str, quotes: str) -> Any:
    """A value whose type is not described: what it looks like."""
    if text in ("true", "false"):
        return text == "true"
    if _is_quoted(text, quotes):
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _bare_java(text: str) -> Any:
    for kind in ("long", "float"):
        value = read_java(text, kind, None)
        if not isinstance(value, str):
            return value
    return _bare(text, '"')


def _java_array(text: str, inner: str | None) -> Any:
    for head in _NEW_ARRAY.finditer(text):
        members = _up_to(text[head.end() :], "}", 0)
        if members is not None:
            parts = [part.strip() for part in members.split(",")]
            return [read_java(part, inner, None) if inner else _bare_java(part) for part in parts if part]
    return text


def _java_list(text: str, inner: str | None) -> Any:
    """The members lose their quotes here and keep them in an array: so the leaderboard has it. What is added in an object's body is there
    inside quotes only, as in a map."""

    def member(part: str) -> Any:
        return part[1:-1] if inner in ("char", "String") else read_java(part, inner, None) if inner else _bare_java(part)

    listed = "Arrays.asList("
    for head in _NEW_LIST.finditer(text):
        rest = text[head.end() :]
        members = _up_to(rest[len(listed) :], "))", 1) if rest.startswith(listed) else None
        if members is not None:
            return [member(part.strip()) for part in members.split(",")]
    empty = [text[head.end() + 1 :] for head in _NEW_LIST.finditer(text) if text[head.end() :].startswith(")")]
    for rest in empty:
        body, end, _ = rest.lstrip().removeprefix("{{").partition("}}")
        if end and body.strip() and rest.lstrip().startswith("{{"):
            return [member(part.strip()) for part in re.findall(r"add\((.+?)\)", body)]
    return [] if empty else text


def _java_map(text: str) -> Any:
    """What is put into a map stands in the body of an object, which a Java answer's tree loses: it is there inside quotes only."""
    head = _NEW_MAP.search(text)
    if head is None:
        return text
    body, end, _ = text[head.end() :].lstrip().partition("}")
    puts = re.findall(r'put\("(.*?)",\s*(.*?)\)', body) if end and body.startswith("{") else ()
    return {key: _bare_java(value.strip()) for key, value in puts}


def _javascript_array(text: str, inner: str | None) -> Any:
    rows = re.match(r"(?:new\s+Array\(\s*|\[\s*)(?=\[)", text)
    if rows:
        found = _rows(text, rows.end(), ")" if text.startswith("new") else "]")
        if found is not None:
            return found
    head = re.match(r"\[|new\s+Array\(", text)
    members = _up_to(text[head.end() :], "]" if head.group() == "[" else ")", 0) if head else None
    if members is None:
        return text
    parts = [part.strip() for part in members.split(",")] if members.strip() else []
    return [read_javascript(part, inner, None) if inner else _bare(part, "\"'") for part in parts]


def _rows(text: str, start: int, end: str) -> list[list[Any]] | None:
    """An array of arrays, row by row; None where something else than rows stands in it."""
    rows, place = [], start
    while True:
        members = _up_to(text[place + 1 :], "]", 0) if text[place : place + 1] == "[" else None
        if members is None:
            return None
        rows.append([_bare(part.strip(), "\"'") for part in members.strip().split(",")])
        rest = text[place + 1 + len(members) + 1 :].lstrip()
        if rest.startswith(end):
            return rows
        if not rest.startswith(","):
            return None
        place = len(text) - len(rest[1:].lstrip())


def _javascript_object(text: str) -> Any:
    if not text.startswith("{"):
        return text
    content = _up_to(text[1:], "}", 0)
    if content is None:
        return text
    found: dict[str, Any] = {}
    while ":" in content.lstrip(":"):
        key, _, rest = content.lstrip(":").partition(":")
        value, content = _entry(rest.lstrip())
        found[key.strip().strip("'\"")] = _entry_value(value.strip())
    return found


def _entry(text: str) -> tuple[str, str]:
    """An entry's value, and what follows the comma behind it: a comma ends an entry where a colon comes before the next comma."""
    for comma in re.finditer(",", text):
        after = text[comma.end() :]
        if re.match(r"\s*[^,]+:", after):
            return text[: comma.start()], after.lstrip()
    return text, ""


def _entry_value(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return _javascript_array(text, None)
    if text.startswith("{") and text.endswith("}"):
        return _javascript_object(text)
    return _bare(text.strip("'\"").strip(), "\"'")
