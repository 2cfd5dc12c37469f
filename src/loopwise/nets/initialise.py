"""The weights that training starts from."""

from __future__ import annotations

import math

from torch import Tensor, nn

from .attention import ValueTable
from .configuration import Architecture
from .designs import deeploop_constants
from .linear import Linear


def initialise(module: nn.Module, arch: Architecture) -> None:
    """Set one matrix or table (`Architecture.init`); norms and the vectors of residual designs keep what they were made with."""
    std = math.sqrt(2 / (5 * arch.hidden_size))
    if isinstance(module, ValueTable):
        nn.init.normal_(module.weight)  # as in Parcae's code
    elif isinstance(module, nn.Embedding):
        _truncated_normal(module.weight, std)
    elif isinstance(module, Linear) and module.role == "gate":
        nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))  # torch's own for a Linear, as in Parcae's code
    elif isinstance(module, Linear) and arch.design == "deeploop" and module.role in ("query_key", "value", "mlp", "output"):
        # DeepNorm's rule: Xavier, gain beta for values, outputs and MLPs, 1 for queries and keys
        beta = deeploop_constants(arch.num_layer_visits)[1]
        nn.init.xavier_normal_(module.weight, gain=1.0 if module.role == "query_key" else beta)
    elif isinstance(module, Linear) and module.role == "output":
        if arch.init == "scaled_zero":
            nn.init.zeros_(module.weight)
        else:
            _truncated_normal(module.weight, std / math.sqrt(2 * arch.num_layer_visits))
    elif isinstance(module, Linear):
        _truncated_normal(module.weight, std)


def _truncated_normal(weight: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std)
