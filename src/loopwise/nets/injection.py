"""Input-injected recurrence, Huginn's: every loop starts from an adapter on state and input, the first from a random state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .configuration import Architecture
from .linear import Linear


class InputInjection(nn.Module):
    """s_k = Core(A [s_{k-1}; e]), s_0 ~ TruncNormal(0, 2/(5d), +-3 sd) * sqrt(d), e the prelude's output (Huginn, arXiv 2502.05171).

    In training s_0 is fresh noise from torch's generator. In evaluation it is a hash of (seed, position, channel), so that a token's
    state depends neither on its batch nor on what was decoded before it, and a cache holds what a full recompute would.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.adapter = Linear(2 * arch.hidden_size, arch.hidden_size, "adapter")
        self.seed = arch.initial_state_seed

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        """A [s; e]. Shapes: [batch, tokens, d_model] each."""
        return self.adapter(torch.cat([state, injected], dim=-1))  # type: ignore[no-any-return]

    def initial_state(self, injected: Tensor, positions: Tensor) -> Tensor:
        """s_0 for tokens at ``positions`` [batch or 1, tokens], in the shape of ``injected``."""
        uniform = torch.rand(injected.shape, device=injected.device) if self.training else hashed_uniform(positions, injected, self.seed)
        edge = math.erf(3 / math.sqrt(2))
        normal = math.sqrt(2) * torch.erfinv((2 * uniform - 1) * edge)
        return (math.sqrt(2 / 5) * normal).to(injected.dtype)


def hashed_uniform(positions: Tensor, like: Tensor, seed: int) -> Tensor:
    """Numbers in (0, 1) in the shape of ``like`` [batch, tokens, d_model], from position and channel alone; the same on every device."""
    channels = torch.arange(like.shape[2], device=like.device, dtype=torch.int64)
    x = positions.to(torch.int64)[..., None] * 2654435761 + channels * 2246822519 + seed * 3266489917
    for _ in range(2):  # the low-bias 32-bit integer hash of C. Wellons
        x = x & 0xFFFFFFFF
        x = (x ^ (x >> 16)) * 0x21F0AAAD & 0xFFFFFFFF
        x = (x ^ (x >> 15)) * 0x735A2D97 & 0xFFFFFFFF
        x = x ^ (x >> 15)
    return ((x.to(torch.float32) / 2**32).clamp(1e-7, 1 - 1e-7)).expand_as(like)
