"""The value of a loop, and the rules that a set of loops on one model must obey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Operator = Literal["repeat", "damped"]
Part = Literal["layer", "mlp"]


MOST_PASSES = 1000
"""Every pass is a list of call sites; a slip of the finger must not fill the memory with them."""


class LoopError(ValueError):
    """A loop that cannot be: the message names the span, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Layers ``start .. stop-1`` run ``passes`` times in one forward pass (no-free-loop, section 3 and A.1).

    Raises:
        LoopError: for an empty or reversed span, ``passes < 1``, or a beta that is missing, outside [0, 1] or without use.
    """

    start: int
    """First layer of the span, counted from 0."""
    stop: int
    """One past the last layer of the span (half-open)."""
    passes: int = 2
    """How often the span runs; 1 is the plain model."""
    operator: Operator = "repeat"
    """``repeat``: x <- g(x), passes times. ``damped`` (A.1), with K passes: F(x) = x + (g(x) - x)/K and
    g^(K)(x) = beta*g(x) + (1 - beta)*F^K(x); g(x) is F's first evaluation, so K passes cost K runs of the span."""
    beta: float | None = None
    """The anchor of the damped operator, in [0, 1]; None for ``repeat``."""
    part: Part = "layer"
    """``layer``: whole layers. ``mlp``: only the MLP half, with its norms and its residual add, of each layer of the span."""
    in_pass: int | None = None
    """For a nested loop: the one pass of the enclosing loop, counted from 1, in which it runs; None is every pass."""

    def __post_init__(self) -> None:
        for name in ("start", "stop", "passes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise LoopError(f"loop {self.start}:{self.stop}: {name} is {value!r}; give a whole number")
        if self.start < 0:
            raise LoopError(f"loop {self.span} starts before layer 0: layers are counted from 0")
        if self.stop < self.start:
            raise LoopError(f"loop {self.span} is reversed: write {self.stop}:{self.start}")
        if self.stop == self.start:
            raise LoopError(f"loop {self.span} is empty: half-open spans end one past the last layer, write {self.start}:{self.start + 1}")
        if self.passes < 1:
            raise LoopError(f"loop {self.span} has {self.passes} passes: at least 1 (the plain model)")
        if self.passes > MOST_PASSES:
            raise LoopError(f"loop {self.span} has {self.passes} passes: at most {MOST_PASSES}")
        if self.operator not in ("repeat", "damped"):
            raise LoopError(f"loop {self.span}: unknown operator {self.operator!r}; use repeat or damped")
        if self.part not in ("layer", "mlp"):
            raise LoopError(f"loop {self.span}: unknown part {self.part!r}; use layer or mlp")
        if self.operator == "repeat" and self.beta is not None:
            raise LoopError(f"loop {self.span}: beta={self.beta} has no meaning for repeat; use damped, or leave beta out")
        if self.operator == "damped" and self.beta is None:
            raise LoopError(f"loop {self.span}: damped needs its anchor, e.g. beta=0.25 (0 never anchors, 1 is the plain span)")
        if self.beta is not None and not (isinstance(self.beta, (int, float)) and 0.0 <= self.beta <= 1.0):
            raise LoopError(f"loop {self.span}: beta={self.beta} is outside [0, 1]")
        if self.beta == 0:  # -0.0 is written as another number
            object.__setattr__(self, "beta", 0.0)
        if self.in_pass is not None and (not isinstance(self.in_pass, int) or isinstance(self.in_pass, bool) or self.in_pass < 1):
            raise LoopError(f"loop {self.span}: in pass {self.in_pass}; passes are counted from 1")

    @property
    def span(self) -> str:
        """The span as the notation writes it, for messages."""
        if self.part == "mlp":
            return f"{self.start}.mlp" if self.stop == self.start + 1 else f"{self.start}:{self.stop}.mlp"
        return f"{self.start}:{self.stop}"

    def contains(self, other: Loop) -> bool:
        """Whether ``other`` may be nested in this loop: its span lies within, and is smaller or an MLP half."""
        if self.part == "mlp" or not (self.start <= other.start and other.stop <= self.stop):
            return False
        return other.part == "mlp" or (other.start, other.stop) != (self.start, self.stop)


def check_loops(loops: Iterable[Loop], num_layers: int | None = None) -> tuple[Loop, ...]:
    """The loops in canonical order (outer before inner, by start), after the rules that hold between them.

    Args:
        num_layers: the model's decoder layers; None checks everything but the range.

    Raises:
        LoopError: a span outside the model, two loops that neither are disjoint nor nest, or a named pass without its loop.
    """
    of_model = "" if num_layers is None else f" of a model with {num_layers} layers"
    ordered = tuple(sorted(loops, key=lambda loop: (loop.start, -loop.stop, loop.part == "mlp", loop.in_pass or 0)))
    for loop in ordered:
        if num_layers is not None and loop.stop > num_layers:
            raise LoopError(f"loop {loop.span} is out of range: the model has {num_layers} layers (0 to {num_layers - 1})")
    for index, first in enumerate(ordered):
        for second in ordered[index + 1 :]:
            if second.start < first.stop and not first.contains(second) and not second.contains(first):
                raise LoopError(f"loops {first.span} and {second.span}{of_model} overlap: loops are disjoint or one lies within the other")
    for loop in ordered:
        if loop.in_pass is None:
            continue
        parent = parent_of(loop, ordered)
        if parent is None:
            raise LoopError(f"loop {loop.span}{of_model} runs 'in pass {loop.in_pass}' but lies in no other loop")
        if loop.in_pass > parent.passes:
            raise LoopError(f"loop {loop.span}{of_model} runs 'in pass {loop.in_pass}' but {parent.span} has {parent.passes} passes")
    return ordered


def parent_of(loop: Loop, loops: Sequence[Loop]) -> Loop | None:
    """The smallest loop that encloses ``loop``, or None."""
    around = [other for other in loops if other is not loop and other.contains(loop)]
    return min(around, key=lambda other: other.stop - other.start, default=None)


def with_passes(loops: Iterable[Loop], passes: int) -> tuple[Loop, ...]:
    """The loops of a forward pass in which every outermost one runs ``passes`` times: what a depth drawn in training means.

    Nested loops run as they are, but for those of a pass that does not come. One pass is the plain model, so then none of them runs.

    Raises:
        LoopError: fewer than one pass.
    """
    ordered = check_loops(loops)
    left_out: list[Loop] = []
    kept: list[Loop] = []
    for loop in ordered:
        parent = parent_of(loop, ordered)
        if parent is None:
            kept.append(replace(loop, passes=passes))
        elif passes == 1 or parent in left_out or (parent_of(parent, ordered) is None and (loop.in_pass or 1) > passes):
            left_out.append(loop)
        else:
            kept.append(loop)
    return tuple(kept)
