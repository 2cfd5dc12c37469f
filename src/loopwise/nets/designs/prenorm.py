"""PreNormLoop: additive pre-normalised updates, the plain baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from ..configuration import Architecture
from ..norms import RMSNorm, make_norms
from ..residual import ResidualDesign, Site, running


class PreNorm(ResidualDesign):
    """x <- x + f_p(N_p(x)) at every sublayer; the head reads N_f(x) (ARLoop, Tables 1 and 5: "PreNormLoop").

    No re-injection of the embedding, no loop embedding and no norm between loops.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.norms = make_norms(2 * arch.num_hidden_layers, arch.hidden_size, arch.rms_norm_eps)
        self.final_norm = RMSNorm(arch.hidden_size, eps=arch.rms_norm_eps)

    def begin(self, embedding: Tensor, num_loops: int, depths: Tensor | None = None) -> StateStream:
        """Start from the embedding."""
        return StateStream(self, embedding, num_loops, depths)

    def normed(self, site: Site, state: Tensor) -> Tensor:
        """What the sublayer reads of the state."""
        return self.norms[site.sublayer](state)  # type: ignore[no-any-return]

    def updated(self, site: Site, state: Tensor, branch: Tensor) -> Tensor:
        """The state after the sublayer."""
        return state + branch

    def between_loops(self, state: Tensor, injected: Tensor | None) -> Tensor:
        """The state that the next loop starts from."""
        return state

    def injection(self, entry: Tensor) -> Tensor | None:
        """What `between_loops` adds, computed once a forward pass from what enters the first loop; None where it adds nothing."""
        return None


class StateStream:
    """A stream whose state is one tensor [batch, tokens, d_model], which damped and injected loops read and write."""

    def __init__(self, design: PreNorm, embedding: Tensor, num_loops: int, depths: Tensor | None) -> None:
        self.state, self.depths = embedding, depths
        self._design, self._num_loops = design, num_loops
        self._injected: Tensor | None = None

    def read(self, site: Site) -> Tensor:
        """The sublayer's input."""
        return self._design.normed(site, self.state)

    def push(self, site: Site, branch: Tensor) -> None:
        """Update the state of the sequences that still run."""
        self.replace(self._design.updated(site, self.state, branch), site.loop)

    def begin_loops(self) -> None:
        """Keep what the loops are given anew of the state that enters them."""
        self._injected = self._design.injection(self.state) if self._num_loops > 1 else None

    def end_loop(self, loop: int) -> None:
        """What acts before the next loop, for the sequences that will run it."""
        if loop < self._num_loops:
            self.replace(self._design.between_loops(self.state, self._injected), loop + 1)

    def replace(self, state: Tensor, loop: int) -> None:
        """Take ``state`` for the sequences that run loop ``loop``; the others keep theirs."""
        mask = running(self.depths, loop)
        self.state = state if mask is None else torch.where(mask, state, self.state)

    def output(self) -> Tensor:
        """N_f of the state."""
        return self._design.final_norm(self.state)  # type: ignore[no-any-return]
