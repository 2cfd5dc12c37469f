"""Weights of linear layers in the order in which oneDNN reads them, while a batch is decoded on a CPU.

The products of a decode step have a few rows and a whole matrix: what they cost is reading the matrix. In torch's own order MKL reads it
slowly on some processors (``benchmarks/packed_linear.py``).
A packed copy takes the memory of the weights once more, and is made only where that is free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..models import free_memory_bytes

LARGE_BYTES = 1 << 24
"""Of a weight that is packed for a single row, too, where threads sleep while they wait: torch's own product with a single row runs on
one thread and wakes none. Where threads spin, all together are faster for every weight (``benchmarks/packed_linear.py``). A guess."""
SHARE_OF_FREE = 0.25
"""Of the memory that is free, how much the copies may take. A guess: keys and values need the rest."""


@contextmanager
def packed_weights(model: nn.Module, num_rows: int) -> Iterator[None]:
    """Products with fp32 weights of linear layers on a CPU by oneDNN from packed copies, which are gone afterwards.

    Nothing changes for other types of layers (quantized, adapted, parametrized), other devices and dtypes, where torch lacks the two
    operators, where memory is short, and for single rows where it does not pay (`LARGE_BYTES`). Results are those of ``nn.Linear`` to
    rounding.

    Args:
        num_rows: of a decode step; 0 packs nothing.
    """
    linears = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    linears = [one for one in linears if one.weight.device.type == "cpu" and one.weight.dtype == torch.float32]
    linears = [one for one in linears if num_rows >= _fewest_rows(one)]
    if not linears or not _can_pack() or not _fits(linears):
        yield
        return
    try:
        for linear in linears:
            linear.forward = _Packed(linear, num_rows)  # type: ignore[method-assign, assignment]
        yield
    finally:
        for linear in linears:
            vars(linear).pop("forward", None)


class _Packed:
    """A linear layer's product from a packed copy of its weight."""

    def __init__(self, linear: nn.Linear, num_rows: int) -> None:
        self.weight, self.bias = linear.weight, linear.bias
        self.fewest_rows = _fewest_rows(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight, num_rows)

    def __call__(self, inputs: Tensor) -> Tensor:
        if inputs.numel() < self.fewest_rows * inputs.shape[-1] or inputs.dtype != torch.float32:
            return functional.linear(inputs, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return product


def _fewest_rows(linear: nn.Linear) -> int:
    asleep = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
    return 2 if asleep and 4 * linear.weight.numel() < LARGE_BYTES else 1


def _can_pack() -> bool:
    operators = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and hasattr(operators, "_reorder_linear_weight") and hasattr(operators, "_linear_pointwise")


def _fits(linears: list[nn.Linear]) -> bool:
    free = free_memory_bytes(torch.device("cpu"))
    return free is not None and sum(4 * linear.weight.numel() for linear in linears) <= SHARE_OF_FREE * free
