"""Parcae's transition between loops: a learned decay, with or without what entered the first loop injected anew."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..configuration import Architecture
from ..norms import RMSNorm
from .prenorm import PreNorm

_INITIAL_DECAY = math.sqrt(1 / 5)


class Parcae(PreNorm):
    """Before every loop but the first: h <- Abar h + Delta (B N_e(e)); within loops pre-norm (Parcae, arXiv 2604.12946, and its code).

    e is what enters the first loop: the embedding in a flat loop, the prelude's output where a span loops (Parcae's own form).
    Delta = softplus(dt_bias), A = exp(A_log), Abar = exp(-Delta A): a decay in (0, 1) for every channel, sqrt(1/5) at first.
    B starts as the identity; the input's gain is Delta B (Euler's), as in the code. Without injection the bracket is gone. That the
    transition acts only between loops, without a random state and without C, is a guess: one loop then is pre-norm, as ARLoop's
    Table 1 has it. The parameters of the transition are vectors to an optimiser: no weight decay, B included.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__(arch)
        width = arch.hidden_size
        self.A_log = nn.Parameter(torch.zeros(width))
        self.dt_bias = nn.Parameter(torch.full((width,), math.log(math.expm1(-math.log(_INITIAL_DECAY)))))
        self.injects = arch.parcae_injection
        if self.injects:
            self.B = nn.Parameter(torch.eye(width))
            self.input_norm = RMSNorm(width, eps=arch.rms_norm_eps)

    def decay(self) -> tuple[Tensor, Tensor]:
        """Abar and Delta [d_model], in fp32 at least."""
        dtype = torch.promote_types(self.dt_bias.dtype, torch.float32)
        delta = F.softplus(self.dt_bias.to(dtype))
        return torch.exp(-delta * torch.exp(self.A_log.to(dtype))), delta

    def injection(self, entry: Tensor) -> Tensor | None:
        """Delta (B N_e(e))."""
        if not self.injects:
            return None
        return F.linear(self.input_norm(entry), self.B) * self.decay()[1].to(entry.dtype)

    def between_loops(self, state: Tensor, injected: Tensor | None) -> Tensor:
        """The decayed state, and the injection."""
        decayed = state * self.decay()[0].to(state.dtype)
        return decayed if injected is None else decayed + injected
