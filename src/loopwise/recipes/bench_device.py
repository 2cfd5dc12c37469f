"""What a device reaches: bytes a second in a large copy, FLOPs a second in a large matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..cost import Rates

COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""Of one copy: larger than any cache between cores and memory. A guess."""
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices that are multiplied. A guess: large enough for the device's full rate."""
TRIES = 5


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The best of some tries of each; a busy machine makes both too low."""
    kind = device.type if device.type in COPY_BYTES else "cpu"
    source = torch.ones(COPY_BYTES[kind] // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(source)
    size = PRODUCT_SIZE[kind]
    left = torch.ones(size, size, dtype=dtype, device=device)
    moved = 2 * source.numel() * dtype.itemsize  # read and written
    return Rates(
        bytes_per_second=moved / _best_seconds(lambda: target.copy_(source), device),
        flops_per_second=2 * size**3 / _best_seconds(lambda: left @ left, device),
    )


def synchronize(device: torch.device) -> None:
    """Wait until what was started there is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    times = []
    for _ in range(TRIES):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)
