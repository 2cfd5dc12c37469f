"""DeepLoop: post-norm with a residual scale that counts depth in visits."""

from __future__ import annotations

from torch import Tensor

from ..configuration import Architecture
from ..residual import Site
from .prenorm import PreNorm


def deeploop_constants(num_layer_visits: int) -> tuple[float, float]:
    """alpha = (2N)^(1/2) and beta = (8N)^(-1/2) for N layer visits (DeepLoop, arXiv 2607.13491; N = L R where the stack loops)."""
    return (2 * num_layer_visits) ** 0.5, (8 * num_layer_visits) ** -0.5


class DeepLoop(PreNorm):
    """x <- N_p(alpha x + f_p(x)) at every sublayer; beta is the gain of the initial values, outputs and MLPs (`initialise`).

    Post-RMSNorm with one alpha for both sublayers, N counted in layers at the trained ``num_loops``, and N_f before the head:
    DeepNorm's conventions, where the abstract does not say. A guess.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__(arch)
        self.alpha, self.beta = deeploop_constants(arch.num_layer_visits)

    def normed(self, site: Site, state: Tensor) -> Tensor:
        """The state itself: the branch has no norm before it."""
        return state

    def updated(self, site: Site, state: Tensor, branch: Tensor) -> Tensor:
        """The norm of the scaled sum."""
        return self.norms[site.sublayer](self.alpha * state + branch)  # type: ignore[no-any-return]
