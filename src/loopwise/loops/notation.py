"""Loops as text: ``10:18 x2 damped beta=0.25 + 10.mlp x3 in pass 1``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from .values import Loop, LoopError, Operator, check_loops

_TERM = re.compile(
    r"(?P<first>-?\d+)(?:(?P<dash>[:-])(?P<last>-?\d+))?(?P<mlp>\.mlp)?"
    r"\s*x(?P<passes>-?\d+)"
    r"(?:\s+(?P<operator>[a-z]+))?"
    r"(?:\s+beta=(?P<beta>\S+))?"
    r"(?:\s+in\s+pass\s+(?P<in_pass>-?\d+))?"
)
_EXAMPLE = "'10:14 x2', '10-13 x2 damped beta=0.25', '10:18 x2 + 10.mlp x3 in pass 1'"


def parse_loops(text: str, num_layers: int | None = None) -> tuple[Loop, ...]:
    """Read the notation, terms joined by ``+``; an empty text or ``none`` is no loop.

    ``10:14`` is half-open (layers 10 to 13), ``10-13`` inclusive (the same layers), ``12`` one layer, ``12.mlp`` the MLP
    half of layer 12. ``xK`` gives the passes; ``damped beta=B`` the damped operator (``beta=B`` alone implies it);
    ``in pass P`` confines a nested loop to one pass of the loop around it.

    Raises:
        LoopError: with the term, the fault and the model's layer count in one line.
    """
    if not isinstance(text, str):
        raise LoopError(f"loops are {text!r}; give text, e.g. {_EXAMPLE}")
    text = text.strip().lower().replace("×", "x")
    if text in ("", "none"):
        return ()
    try:
        return check_loops((_parse_term(term.strip()) for term in text.split("+")), num_layers)
    except LoopError as error:
        count = f"the model has {num_layers} layers"
        if num_layers is None or f"{num_layers} layers" in str(error):
            raise
        raise LoopError(f"{error}; {count}") from None


def _parse_term(term: str) -> Loop:
    match = _TERM.fullmatch(term)
    if match is None or match["operator"] == "in":
        raise LoopError(f"cannot read the loop {term!r}: write e.g. {_EXAMPLE}")
    first = int(match["first"])
    last = first if match["last"] is None else int(match["last"])
    half_open = match["dash"] == ":"
    if not half_open and last < first:
        raise LoopError(f"loop {first}-{last} is reversed: write {last}-{first}")
    operator = cast(Operator, match["operator"] or ("damped" if match["beta"] else "repeat"))  # Loop refuses any other word
    return Loop(
        start=first,
        stop=last if half_open else last + 1,
        passes=int(match["passes"]),
        operator=operator,
        beta=None if match["beta"] is None else _parse_beta(match["beta"], term),
        part="mlp" if match["mlp"] else "layer",
        in_pass=None if match["in_pass"] is None else int(match["in_pass"]),
    )


def _parse_beta(text: str, term: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LoopError(f"loop {term!r}: beta={text} is not a number in [0, 1]") from None


def format_loops(loops: Iterable[Loop]) -> str:
    """The canonical text of loops; ``parse_loops`` reads it back to the same values. No loop is ``none``."""
    return " + ".join(format_loop(loop) for loop in check_loops(loops)) or "none"


def format_loop(loop: Loop) -> str:
    """The text of one loop, whatever lies around it."""
    text = f"{loop.span} x{loop.passes}"
    if loop.beta is not None:
        text += f" damped beta={loop.beta:g}" if float(f"{loop.beta:g}") == loop.beta else f" damped beta={float(loop.beta)!r}"
    return text if loop.in_pass is None else f"{text} in pass {loop.in_pass}"
