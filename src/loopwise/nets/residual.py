"""What carries the state of one forward pass from sublayer to sublayer: the interface of every residual design.

A model is a row of branches (attention or MLP, without norms of their own) and one residual design. The design owns the norms,
the mixing and whatever acts between loops; the branches own the matrices::

    stream = design.begin(embedding, num_loops)
    for site in sites:
        stream.push(site, branch(stream.read(site)))
    hidden = stream.output()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from torch import Tensor, nn

from .configuration import NetError
from .norms import RMSNorm
from .schedule import Site

__all__ = ["NetError", "ResidualDesign", "Site", "Stream", "running"]


class Stream(Protocol):
    """The state of one forward pass; nothing of it lives on a module."""

    def read(self, site: Site) -> Tensor:
        """The input of a sublayer, normed as the design norms it [batch, tokens, d_model]."""
        ...

    def push(self, site: Site, branch: Tensor) -> None:
        """Take the output of the sublayer that was just read [batch, tokens, d_model]."""
        ...

    def begin_loops(self) -> None:
        """The prelude has been pushed; called once, before the first loop."""
        ...

    def end_loop(self, loop: int) -> None:
        """The last sublayer of loop ``loop`` (from 1) has been pushed; called after every loop, the last one included."""
        ...

    def output(self) -> Tensor:
        """What the head reads, the final norm included [batch, tokens, d_model]."""
        ...


class ResidualDesign(nn.Module, ABC):
    """One residual design: one per model, with its parameters (the sublayers' norms, depth queries, a decay)."""

    def compile_reads(self, **options: Any) -> None:
        """Compile what sublayers read, part by part, with options of ``torch.compile``: here the norms."""
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.compile(**options)

    @abstractmethod
    def begin(self, embedding: Tensor, num_loops: int, depths: Tensor | None = None) -> Stream:
        """Start a forward pass.

        Args:
            embedding: the token embeddings [batch, tokens, d_model].
            num_loops: how many loops will run, R.
            depths: each sequence's own number of loops [batch], at most ``num_loops`` and at least 1. A sequence that has
                finished is frozen: what later loops push and do between loops leaves it as it is. None: all run ``num_loops``.
        """


def running(depths: Tensor | None, loop: int) -> Tensor | None:
    """Which sequences still run in loop ``loop`` [batch, 1, 1]; None where all do."""
    return None if depths is None else (depths >= loop)[:, None, None]
