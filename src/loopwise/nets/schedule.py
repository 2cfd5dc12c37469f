"""Which sublayers one forward pass runs, in order, and in which cache slot each keeps its keys and values. No torch.

Order and slots are those of `loops.call_sites`, so a network here and a trained model with the same loop agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..loops import Loop, call_sites
from .configuration import Architecture, NetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One execution of one sublayer in a forward pass."""

    index: int
    """Its place among the executed sublayers, counted from 0: the effective sublayer l."""
    sublayer: int
    """The physical sublayer, 0 .. 2L-1, whose weights run."""
    layer: int
    """The physical layer, 0 .. L-1."""
    loop: int
    """Which run of that sublayer this is, counted from 1; layers outside the looped span have only run 1."""
    is_mlp: bool
    """The MLP sublayer of its layer, not the attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One execution of one layer: its two sublayers and its cache slot."""

    layer: int
    slot: int
    attention: Site
    mlp: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One forward pass: the prelude once, the looped span once a loop, the coda once."""

    prelude: tuple[Step, ...]
    loops: tuple[tuple[Step, ...], ...]
    coda: tuple[Step, ...]

    @property
    def num_slots(self) -> int:
        """Cache slots: one for every execution of a layer."""
        return len(self.prelude) + sum(map(len, self.loops)) + len(self.coda)


def own_loops(arch: Architecture, num_loops: int | None = None) -> tuple[Loop, ...]:
    """The loops of the network as values that call sites, costs and plots read; none where it runs once and injects nothing."""
    passes = arch.num_loops if num_loops is None else num_loops
    start, stop = arch.span
    return () if passes == 1 and not arch.input_injection else (Loop(start, stop, passes, arch.operator, arch.beta),)


def schedule(arch: Architecture, num_loops: int) -> Schedule:
    """The forward pass with ``num_loops`` loops.

    Raises:
        NetError: fewer loops than one.
    """
    if num_loops < 1:
        raise NetError(f"num_loops is {num_loops}; give at least 1")
    start, stop = arch.span
    steps = [
        _step(index, site.layer, site.visit + 1, site.slot if site.slot is not None else site.layer)
        for index, site in enumerate(call_sites(own_loops(arch, num_loops), arch.num_hidden_layers))
    ]
    looped, size = steps[start : start + num_loops * (stop - start)], stop - start
    return Schedule(
        prelude=tuple(steps[:start]),
        loops=tuple(tuple(looped[at : at + size]) for at in range(0, len(looped), size)),
        coda=tuple(steps[start + len(looped) :]),
    )


def _step(index: int, layer: int, loop: int, slot: int) -> Step:
    attention = Site(index=2 * index, sublayer=2 * layer, layer=layer, loop=loop, is_mlp=False)
    mlp = Site(index=2 * index + 1, sublayer=2 * layer + 1, layer=layer, loop=loop, is_mlp=True)
    return Step(layer=layer, slot=slot, attention=attention, mlp=mlp)
