"""Several processes on one search, under torchrun: every rank runs the same search and scores its part of each wave."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among all of them."""

    rank: int = 0
    size: int = 1

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def join_ranks() -> Ranks:
    """Join the other processes that torchrun started, if it started any. They speak gloo: scores are small."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return Ranks(rank=dist.get_rank(), size=size)
