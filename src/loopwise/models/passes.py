"""How often inserted loops run in some forward passes, without surgery anew: the depth of a training step, a teacher without the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..loops import LoopError, with_passes
from .families import ModelError
from .surgery import looped_layers, plan_surgery


@contextmanager
def loop_passes(model: nn.Module, passes: int | None) -> Iterator[None]:
    """Within it, every outermost loop that was put into ``model`` runs ``passes`` times.

    One pass is the plain model, bit for bit; None is the loops as they were put in, within another `loop_passes` too. The loops
    themselves stay: `loops_of` and a sidecar name them as before. A backward pass may come later, checkpointed or not. The depth is the
    model's and not a thread's: one thread at a time.

    Raises:
        LoopError: fewer than one pass.
        ModelError: more than one pass of a model that no loop was put into.
    """
    layers = looped_layers(model)
    if passes is not None and passes < 1:
        raise LoopError(f"{passes} passes of a loop: at least 1 (the plain model)")
    if layers is None:
        if passes not in (None, 1):
            raise ModelError(f"{type(model).__name__} has no loop that was put in, so it cannot run {passes} passes; insert one first")
        yield
        return
    inserted, before = layers.surgery, layers.running
    layers.running = None if passes is None else plan_surgery(with_passes(inserted.loops, passes), inserted.family, inserted.num_layers)
    try:
        yield
    finally:
        layers.running = before
