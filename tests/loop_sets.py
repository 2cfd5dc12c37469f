"""Any valid set of loops, for property tests. Knows nothing of torch."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from loopwise.loops import Loop


@st.composite
def loop_sets(draw: st.DrawFn, layers: tuple[int, int] = (1, 24), max_passes: int = 5, max_depth: int = 4) -> tuple[tuple[Loop, ...], int]:
    """Disjoint and nested loops of both operators and both parts, in any order, and the number of layers of a model for them.

    Args:
        layers: fewest and most layers of the model.
        max_depth: how many loops of whole layers may lie in one another.
    """
    num_layers = draw(st.integers(*layers))
    loops: list[Loop] = []

    def value(start: int, stop: int, part: Any, parent: Loop | None) -> Loop:
        damped = draw(st.booleans())
        in_pass = draw(st.none() | st.integers(1, parent.passes)) if parent else None
        beta = draw(st.floats(0, 1)) if damped else None
        return Loop(start, stop, draw(st.integers(1, max_passes)), "damped" if damped else "repeat", beta, part, in_pass)

    def fill(start: int, stop: int, parent: Loop | None, depth: int) -> None:
        place = start
        while place < stop:
            first = draw(st.integers(place, stop))
            if first == stop:
                return
            last = draw(st.integers(first + 1, stop))
            kind = draw(st.sampled_from(["layer", "mlp", "plain"]))
            whole = parent is not None and (first, last) == (parent.start, parent.stop)
            if kind == "mlp":
                loops.append(value(first, last, "mlp", parent))
            elif kind == "layer" and not whole:
                loops.append(loop := value(first, last, "layer", parent))
                if depth < max_depth:
                    fill(first, last, loop, depth + 1)
            place = last

    fill(0, num_layers, None, 1)
    return tuple(draw(st.permutations(loops))), num_layers
