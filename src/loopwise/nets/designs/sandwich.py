"""Sandwich-Norm, Huginn's: a norm before the branch and one after the add."""

from __future__ import annotations

from torch import Tensor

from ..configuration import Architecture
from ..norms import make_norms
from ..residual import Site
from .prenorm import PreNorm


class Sandwich(PreNorm):
    """x <- N2(x + f_p(N1(x))) at every sublayer, N1 and N2 its own (Huginn, arXiv 2502.05171, and its code).

    The second norm is on the stream, after the add; what Ouro and Gemma call a sandwich norms the branch instead.
    That ARLoop's baseline is this block in a flat loop, without Huginn's prelude, adapter and coda, is a guess.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__(arch)
        self.norms_after = make_norms(2 * arch.num_hidden_layers, arch.hidden_size, arch.rms_norm_eps)

    def updated(self, site: Site, state: Tensor, branch: Tensor) -> Tensor:
        """N2 of the sum."""
        return self.norms_after[site.sublayer](state + branch)  # type: ignore[no-any-return]
