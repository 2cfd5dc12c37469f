"""Matrices that know what they are for, because that decides how they start."""

from __future__ import annotations

from typing import Literal

from torch import nn

Role = Literal["query_key", "value", "mlp", "output", "gate", "adapter", "head"]


class Linear(nn.Linear):
    """A matrix without bias."""

    def __init__(self, width: int, width_out: int, role: Role) -> None:
        super().__init__(width, width_out, bias=False)
        self.role = role
