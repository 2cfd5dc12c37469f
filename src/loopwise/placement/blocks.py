"""The pieces that candidates are made of: a window, a window with an MLP loop inside it, or a span of MLP loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from loopwise.cost import ModelShape, cost_of
from loopwise.loops import Loop, Operator

Kind = Literal["window", "window+mlp", "mlp"]
T = TypeVar("T")
Setting = tuple[Operator, float | None]
GAP_LAYERS: dict[Kind, int] = {"window": 0, "window+mlp": 0, "mlp": 1}
"""Layers that lie at least between two blocks of a candidate. Touching MLP spans of one setting would be one longer span."""
INNER_PASS = (None, 1)
"""Where an MLP loop inside a window runs: in every pass, or in the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one kind of block may be, apart from where it lies."""

    widths: tuple[int, ...]
    passes: tuple[int, ...]
    settings: tuple[Setting, ...]
    """Operator and beta; ``repeat`` first, then the betas from low to high."""
    inner_passes: tuple[int, ...] = ()
    """Passes of the MLP loop inside a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One window or span of MLP loops, with what lies inside it."""

    kind: Kind
    loops: tuple[Loop, ...]
    """The outer loop, then the MLP loop inside it if there is one."""
    extra_passes: float
    """Layer passes beyond the plain model's, by the cost room's account; those of disjoint blocks add up."""

    @property
    def start(self) -> int:
        """The first layer of its span."""
        return self.loops[0].start

    @property
    def end(self) -> int:
        """The first layer at which another block of the same candidate may start."""
        return self.loops[0].stop + GAP_LAYERS[self.kind]

    def attributes(self) -> dict[str, int | tuple[bool, float]]:
        """What tells it from the other blocks of its kind, coarse to fine, each in a natural order."""
        outer = self.loops[0]
        values: dict[str, int | tuple[bool, float]] = {
            "passes": outer.passes,
            "width": outer.stop - outer.start,
            "start": outer.start,
            "setting": (outer.operator == "damped", outer.beta or 0.0),
        }
        for inner in self.loops[1:]:
            values |= {"mlp_offset": inner.start - outer.start, "mlp_passes": inner.passes, "mlp_in_pass": inner.in_pass or 0}
        return values


def list_blocks(kind: Kind, options: Options, shape: ModelShape, centre: tuple[float, float] | None) -> tuple[Block, ...]:
    """Every block of a kind whose span has its centre in the band, by start, stop, passes, operator and beta."""
    known: dict[object, float] = {}
    blocks = []
    for start in range(shape.num_layers):
        for stop in (
            start + width for width in options.widths if start + width <= shape.num_layers and _in_band(start, width, shape, centre)
        ):
            for passes in options.passes:
                for operator, beta in options.settings:
                    outer = Loop(start, stop, passes, operator, beta, "mlp" if kind == "mlp" else "layer")
                    for inner in inner_loops(outer, options.inner_passes) if kind == "window+mlp" else [()]:
                        loops = (outer, *inner)
                        blocks.append(Block(kind=kind, loops=loops, extra_passes=_extra_passes(shape, loops, known)))
    return tuple(blocks)


def _in_band(start: int, width: int, shape: ModelShape, centre: tuple[float, float] | None) -> bool:
    return centre is None or centre[0] - 1e-9 <= (2 * start + width) / 2 / shape.num_layers <= centre[1] + 1e-9


def inner_loops(outer: Loop, inner_passes: Sequence[int]) -> Iterator[tuple[Loop]]:
    """Every MLP loop that may lie in a window, alone."""
    for layer in range(outer.start, outer.stop):
        for passes in inner_passes:
            for in_pass in INNER_PASS:
                yield (Loop(layer, layer + 1, passes, part="mlp", in_pass=in_pass),)


def _extra_passes(shape: ModelShape, loops: tuple[Loop, ...], known: dict[object, float]) -> float:
    """By the call sites, once for all blocks that differ only in place, operator or beta and loop MLPs of the same shares."""
    key = tuple(
        (loop.stop - loop.start, loop.passes, loop.in_pass, tuple(layer.mlp_share for layer in shape.layers[loop.start : loop.stop]))
        if loop.part == "mlp"
        else (loop.stop - loop.start, loop.passes)
        for loop in loops
    )
    if key not in known:
        known[key] = cost_of(shape, loops).layer_passes - shape.num_layers
    return known[key]


def block_moves(block: Block, options: Options) -> dict[str, list[tuple[Loop, ...]]]:
    """Blocks one step away, as loops, some of which no space may hold; every step has its inverse among those of the other block.

    Start by one layer; the next or the previous width, at either end; the next or the previous passes or beta, or the other
    operator; the MLP loop inside by one layer, in its passes, or between every pass and the first. When a window moves, the
    MLP loop inside it stays at its layer or goes along.
    """
    outer, inner = block.loops[0], block.loops[1:]
    moves: dict[str, list[tuple[Loop, ...]]] = {"shift": [], "width": [], "passes": [], "setting": [], "mlp": []}
    width = outer.stop - outer.start
    for start in (outer.start - 1, outer.start + 1):
        moves["shift"] += moved(block, start, start + width)
    for other in _beside(options.widths, width):
        moves["width"] += moved(block, outer.start, outer.start + other)
        moves["width"] += moved(block, outer.stop - other, outer.stop)
    moves["passes"] += [(replace(outer, passes=passes), *inner) for passes in _beside(options.passes, outer.passes)]
    settings = [setting for setting in _beside(options.settings, (outer.operator, outer.beta)) if setting[0] == outer.operator]
    settings += [setting for setting in options.settings if setting[0] != outer.operator]
    moves["setting"] += [(replace(outer, operator=operator, beta=beta), *inner) for operator, beta in settings]
    for loop in inner:
        changed = [replace(loop, start=layer, stop=layer + 1) for layer in (loop.start - 1, loop.start + 1) if layer >= 0]
        changed += [replace(loop, passes=passes) for passes in _beside(options.inner_passes, loop.passes)]
        changed += [replace(loop, in_pass=in_pass) for in_pass in INNER_PASS if in_pass != loop.in_pass]
        moves["mlp"] += [(outer, other) for other in changed]
    return moves


def moved(block: Block, start: int, stop: int) -> list[tuple[Loop, ...]]:
    """The block over another span: an MLP loop inside stays at its layer, or at its place within the window, where it can."""
    outer = block.loops[0]
    if start < 0 or stop <= start:
        return []
    span = replace(outer, start=start, stop=stop)
    if len(block.loops) == 1:
        return [(span,)]
    inner = block.loops[1]
    layers = dict.fromkeys((inner.start, inner.start - outer.start + start))
    return [(span, replace(inner, start=layer, stop=layer + 1)) for layer in layers if start <= layer < stop]


def _beside(values: Sequence[T], value: T) -> list[T]:
    """The previous and the next of ``value`` among ``values``."""
    place = values.index(value)
    return [*values[max(place - 1, 0) : place], *values[place + 1 : place + 2]]
