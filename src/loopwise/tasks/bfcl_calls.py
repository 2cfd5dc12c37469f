"""Function calls that a model wrote, read as data: Python's own grammar, none of its execution.

The forms are those that the Berkeley Function Calling Leaderboard reads (its ``ast_parse``); where that evaluates arithmetic with
``eval``, numbers are computed here, within limits, and texts put together.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST_TEXT = 20_000
"""Characters; longer texts are no list of calls, and slow to read."""
LARGEST_NUMBER = 10**30
LARGEST_EXPONENT = 64

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class CallsError(ValueError):
    """A text that is no list of function calls."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: a dotted name, and its named arguments. Arguments without a name are dropped, as the leaderboard drops them."""

    name: str
    arguments: dict[str, Any]


def parse_calls(text: str) -> tuple[Call, ...]:
    """The calls of a whole answer: ``[f(a=1), g.h(b="x")]``; ``[]`` is none. Brackets and single quotes around it may be missing or be
    too many, for the leaderboard strips them all.

    Raises:
        CallsError: it is anything else; nothing in it was run.
    """
    text = text.strip("`\n ")
    inner = text.strip("[]'")
    if len(text) > LONGEST_TEXT:
        raise CallsError(f"{len(text)} characters are no list of calls")
    if not inner and len(text) > len("[]"):
        raise CallsError("brackets around nothing")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a string is the model's business
            body = ast.parse(f"[{inner}\n]", mode="eval").body
        match body:
            case ast.List(elts=[ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements)]):
                return tuple(map(_call, elements))
            case ast.List(elts=elements):
                return tuple(map(_call, elements))
        raise CallsError("not a list")
    except (SyntaxError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError) as error:
        raise CallsError(f"no list of calls ({type(error).__name__})") from None


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise CallsError("something else than a call")
    parts: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        raise CallsError("a call of something without a name")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise CallsError("arguments unpacked from a mapping")
        arguments[keyword.arg] = _value(keyword.value)
    return Call(".".join([function.id, *reversed(parts)]), arguments)


def _value(node: ast.expr) -> Any:
    """A literal as it is; a bare name, an index or a call without named arguments as its text; a call as ``{name: arguments}``."""
    match node:
        case ast.Constant(value=value):
            return "..." if value is Ellipsis else value
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element) for element in elements)
        case ast.Dict(keys=keys, values=values):
            if None in keys:
                raise CallsError("a mapping unpacked into another")
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.BinOp(op=ast.Add()) if (text := _text(node)) is not None:
            return text
        case ast.UnaryOp() | ast.BinOp():
            return _number(node)
        case ast.Name(id=name):
            return name
        case ast.Subscript():
            return ast.unparse(node)
        case ast.Call(keywords=[]):
            return ast.unparse(node)
        case ast.Call():
            inner = _call(node)
            return {inner.name: inner.arguments}
        case _:
            raise CallsError(f"a value that is a {type(node).__name__}")


def _text(node: ast.expr) -> str | None:
    """Texts put together with ``+``; None where something else is among them."""
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            one, other = _text(left), _text(right)
            return None if one is None or other is None else one + other
    return None


def _number(node: ast.expr) -> int | float:
    """Arithmetic on numbers that are written out."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _number(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            one, other = _number(left), _number(right)
            if isinstance(operation, ast.Pow) and not abs(other) <= LARGEST_EXPONENT:
                raise CallsError("too large a power")
            result = _OPERATORS[type(operation)](one, other)
            if isinstance(result, int | float) and abs(result) <= LARGEST_NUMBER:
                return result
    raise CallsError("arithmetic on something else than numbers, or with too large a result")
