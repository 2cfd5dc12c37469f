"""Values of a loop, their notation, and the call sites of a forward pass. No torch."""

from .notation import format_loop, format_loops, parse_loops
from .sites import CallSite, LayerNode, Node, SpanNode, call_sites, loop_tree
from .values import Loop, LoopError, Operator, Part, check_loops, parent_of, with_passes

__all__ = [
    "CallSite",
    "LayerNode",
    "Loop",
    "LoopError",
    "Node",
    "Operator",
    "Part",
    "SpanNode",
    "call_sites",
    "check_loops",
    "format_loop",
    "format_loops",
    "loop_tree",
    "parent_of",
    "parse_loops",
    "with_passes",
]
