"""Every execution of a layer in one forward pass, in order: the one account that caches, costs, surgery and plots read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .values import Loop, Part, check_loops, parent_of


@dataclass(frozen=True, slots=True)
class CallSite:
    """One execution of one layer, or of its MLP half alone."""

    index: int
    """Its place in the forward pass, counted from 0."""
    layer: int
    """The layer whose weights run."""
    part: Part
    """``layer`` for a whole layer, ``mlp`` for a further run of its MLP half (which keeps no state)."""
    passes: tuple[int, ...]
    """The pass of each enclosing loop, outermost first, counted from 1; for an MLP run its own pass comes last."""
    visit: int
    """How often this layer ran as a whole before this site (for an MLP run: before the run it belongs to)."""
    slot: int | None
    """The cache slot that holds this site's keys and values or its recurrent state; None for an MLP run.
    Slots 0 .. num_layers-1 are each layer's first execution, as in the plain model; further executions follow in order."""


@dataclass(frozen=True, slots=True)
class LayerNode:
    """One layer in the tree of loops, with the loop of its MLP half."""

    layer: int
    mlp_loop: Loop | None

    def mlp_loop_in(self, pass_number: int | None) -> Loop | None:
        """The MLP loop, if it runs in pass ``pass_number`` of the enclosing loop (None outside any loop)."""
        return self.mlp_loop if self.mlp_loop and _active(self.mlp_loop, pass_number) else None


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A loop of whole layers with everything inside it."""

    loop: Loop
    body: tuple[LayerNode | SpanNode, ...]

    def passes_in(self, pass_number: int | None) -> int:
        """How often the body runs in pass ``pass_number`` of the enclosing loop: once where the loop is confined to another."""
        return self.loop.passes if _active(self.loop, pass_number) else 1


Node = LayerNode | SpanNode


def loop_tree(loops: Iterable[Loop], num_layers: int) -> tuple[Node, ...]:
    """The model's layers in order, those of a loop gathered in a `SpanNode`.

    Raises:
        LoopError: as `check_loops`.
    """
    checked = check_loops(loops, num_layers)
    spans = [loop for loop in checked if loop.part == "layer"]
    mlps = [loop for loop in checked if loop.part == "mlp"]

    def build(start: int, stop: int, parent: Loop | None) -> Iterator[Node]:
        layer = start
        while layer < stop:
            inner = next((loop for loop in spans if loop.start == layer and parent_of(loop, spans) is parent), None)
            if inner is None:
                yield LayerNode(layer, next((loop for loop in mlps if loop.start <= layer < loop.stop), None))
                layer += 1
            else:
                yield SpanNode(inner, tuple(build(inner.start, inner.stop, inner)))
                layer = inner.stop

    return tuple(build(0, num_layers, None))


def call_sites(loops: Iterable[Loop], num_layers: int) -> tuple[CallSite, ...]:
    """Every execution of one forward pass in order.

    Raises:
        LoopError: as `check_loops`.
    """
    sites: list[CallSite] = []
    visits = [0] * num_layers
    next_slot = num_layers

    def walk(nodes: Iterable[Node], pass_number: int | None, passes: tuple[int, ...]) -> None:
        nonlocal next_slot
        for node in nodes:
            if isinstance(node, SpanNode):
                for number in range(1, node.passes_in(pass_number) + 1):
                    walk(node.body, number, (*passes, number))
                continue
            visit = visits[node.layer]
            slot = node.layer if visit == 0 else next_slot
            next_slot += visit > 0
            visits[node.layer] += 1
            sites.append(CallSite(len(sites), node.layer, "layer", passes, visit, slot))
            mlp_loop = node.mlp_loop_in(pass_number)
            for number in range(2, (mlp_loop.passes if mlp_loop else 1) + 1):
                sites.append(CallSite(len(sites), node.layer, "mlp", (*passes, number), visit, None))

    walk(loop_tree(loops, num_layers), None, ())
    return tuple(sites)


def _active(loop: Loop, pass_number: int | None) -> bool:
    return loop.in_pass is None or loop.in_pass == pass_number
