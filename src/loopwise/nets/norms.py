"""RMSNorm, in one place for its eps and its dtype."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) times a learned gain, in the dtype of x whatever the gain's is."""

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: [..., d] -> [..., d]."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def make_norms(count: int, width: int, eps: float) -> nn.ModuleList:
    """``count`` norms of ``width``."""
    return nn.ModuleList(RMSNorm(width, eps=eps) for _ in range(count))
