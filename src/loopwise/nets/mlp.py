"""The MLP branch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration import Architecture
from .linear import Linear


class MLP(GradientCheckpointingLayer):
    """``swiglu``: W2(silu(W1 x) * W3 x). ``relu2``: W2(s relu(W1 x)^2), s = 0.5 in Parcae's code. No biases, no norm, no add."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        width, inner = arch.hidden_size, arch.intermediate_size
        self.scale = arch.relu2_scale
        self.up_proj = Linear(width, inner, "mlp")
        self.gate_proj = Linear(width, inner, "mlp") if arch.activation == "swiglu" else None
        self.down_proj = Linear(inner, width, "output")

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: [batch, tokens, d_model] -> the same."""
        up = self.up_proj(x)
        inner = self.scale * F.relu(up).square() if self.gate_proj is None else F.silu(self.gate_proj(x)) * up
        return self.down_proj(inner)  # type: ignore[no-any-return]
