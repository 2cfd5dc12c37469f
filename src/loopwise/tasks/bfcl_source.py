"""One Java or JavaScript call that a model wrote, read as data with tree-sitter's grammars; nothing of it is run.

The grammars and what is taken from their trees are those of the Berkeley Function Calling Leaderboard, since its rules are about that
tree: which call counts, that every value is a text, that quotes around a text fall away, and that a Java object keeps its constructor's
arguments and loses its body.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .bfcl_calls import LONGEST_TEXT, Call, CallsError
from .values import TaskError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

UNNAMED = ""
"""The name of an argument without one, which no function has."""
_WHOLE = ("identifier", "class_literal", "type_identifier", "method_invocation")
"""Of Java, nodes whose text is taken as it was written."""


@functools.cache
def source_parser(language: str) -> Parser:
    """A parser of ``java`` or ``javascript``.

    Raises:
        TaskError: the grammars are not installed.
    """
    try:
        import tree_sitter

        grammar = importlib.import_module(f"tree_sitter_{language}")
    except ImportError:
        raise TaskError(f"bfcl_v3:{language} reads answers with tree-sitter's grammars: pip install 'loopwise[bfcl]'") from None
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))


def parse_java(text: str) -> tuple[Call, ...]:
    """The first method call in an answer, with or without brackets around it, its named arguments as texts.

    Raises:
        CallsError: no Java, no call, or a name that is given twice.
    """
    text = _inside(text)
    tree = _tree("java", text)
    call = next((node for node in _nodes(tree) if node.type == "method_invocation"), None)
    if call is None:
        raise CallsError("no call of a method")
    owner, name, given = (call.child_by_field_name(field) for field in ("object", "name", "arguments"))
    if name is None:
        raise CallsError("a call without a name")
    arguments: dict[str, Any] = {}
    for child in given.children if given is not None else ():
        if child.type == "assignment_expression":
            _put(arguments, _raw(child.children[0], text), _java_text(child.children[2], text))
        elif child.type in ("identifier", "class_literal"):
            _put(arguments, UNNAMED, _raw(child, text))
    full_name = _raw(name, text) if owner is None else f"{_raw(owner, text)}.{_raw(name, text)}"
    return (Call(full_name, arguments),)


def parse_javascript(text: str) -> tuple[Call, ...]:
    """The first statement of an answer that is a call, with or without brackets around it, its named arguments as texts.

    Raises:
        CallsError: no JavaScript, no call, or a name that is given twice.
    """
    tree = _tree("javascript", _inside(text))
    statements = (child for child in tree.children if child.type == "expression_statement") if tree.type == "program" else ()
    call = next((node for statement in statements for node in statement.children if node.type == "call_expression"), None)
    if call is None:
        raise CallsError("no statement that is a call")
    arguments: dict[str, Any] = {}
    for child in call.children[1].children:
        if child.type == "assignment_expression":
            value = _decoded(child.children[2])
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            _put(arguments, _decoded(child.children[0]), value[1:-1] if quoted else value)
        elif child.type in ("identifier", "true"):
            _put(arguments, UNNAMED, _decoded(child))
    return (Call(_decoded(call.children[0]), arguments),)


def _inside(text: str) -> str:
    text = text.strip("`\n ")
    return text.removeprefix("[").removesuffix("]")


def _tree(language: str, text: str) -> Node:
    """The root of a text's tree; a missing semicolon is no error."""
    if len(text) > LONGEST_TEXT:
        raise CallsError(f"{len(text)} characters are no call")
    try:
        tree = source_parser(language).parse(text.encode())
    except UnicodeEncodeError:
        raise CallsError("text that is no Unicode") from None
    if any(node.type == "ERROR" for node in _nodes(tree.root_node)):
        raise CallsError(f"no {language}")
    return tree.root_node


def _nodes(root: Node) -> Iterator[Node]:
    """All nodes in the order of the text, a node before its children."""
    left = [root]
    while left:
        node = left.pop()
        yield node
        left += reversed(node.children)


def _put(arguments: dict[str, Any], name: str, value: str) -> None:
    if name in arguments:
        raise CallsError(f"{name or 'a value without a name'} given twice")
    arguments[name] = value


def _java_text(node: Node, text: str) -> str:
    """A value's text: of a string or a character what is between its quotes."""
    if node.type in ("string_literal", "character_literal"):
        return _raw(node, text)[1:-1]
    try:
        return _rebuilt(node, text)
    except RecursionError:
        raise CallsError("too deep an expression") from None


def _rebuilt(node: Node, text: str) -> str:
    """A node's text without blanks and comments between its parts; of an object what it is made of, not its body."""
    if node.type in _WHOLE or not node.children or node.type in ("string_literal", "character_literal"):
        return _raw(node, text)
    if node.type == "array_creation_expression":
        kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        if kind is None or value is None:
            raise CallsError("an array without its members")
        return f"new {_rebuilt(kind, text)}[]{_rebuilt(value, text)}"
    if node.type == "object_creation_expression":
        kind, given = node.child_by_field_name("type"), node.child_by_field_name("arguments")
        if kind is None:
            raise CallsError("an object without a type")
        parts = [] if given is None else [_rebuilt(child, text) for child in given.children if child.type not in (",", "(", ")")]
        return f"new {_rebuilt(kind, text)}({', '.join(parts)})"
    return "".join(_rebuilt(child, text) for child in node.children)


def _raw(node: Node, text: str) -> str:
    """A node's text by its place among the bytes, in the characters: after a letter beyond ASCII that is another place, on the
    leaderboard as here."""
    return text[node.start_byte : node.end_byte]


def _decoded(node: Node) -> str:
    return (node.text or b"").decode()
