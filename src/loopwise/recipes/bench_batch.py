"""The most rows that fit into memory: tried on a GPU, which says when they do not; accounted elsewhere, where trying can kill."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from ..cost import Meter
from ..decoding import DecodingError
from ..models import free_memory_bytes

FREE_SHARE = 0.9
"""Of the memory that is free, how much is filled where no size is given. A guess: the rest is the allocator's and the system's."""
FEW_ROWS, MORE_ROWS = 4, 12
"""Batches whose peaks tell what a row takes beyond its cache."""


def search_largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to ``most`` that fits: doubled until one does not, then halved in between.

    Raises:
        DecodingError: not even 1 fits.
    """
    if not fits(1):
        raise DecodingError("not even a batch of 1 fits into memory; take a shorter context or a smaller model")
    good = 1
    while good < most and fits(min(2 * good, most)):
        good = min(2 * good, most)
    bad = min(2 * good, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def largest_batch(decode: Callable[[int], object], device: torch.device, most: int, *, row_bytes: float, memory_bytes: float) -> int:
    """The most rows, up to ``most``, that ``decode`` can run.

    Args:
        row_bytes: what one row keeps, by account.
        memory_bytes: what the rows may take together. On CUDA a limit on the process, tried; elsewhere divided by what a row was
            measured to take, or by its account where that is more.

    Raises:
        DecodingError: not even 1 row fits.
    """
    if device.type == "cuda":
        return search_largest(lambda rows: _runs_on_cuda(decode, device, rows), most)
    taken = max(row_bytes, _measured_row_bytes(decode, str(device)))
    return search_largest(lambda rows: rows * taken <= memory_bytes, most)


def memory_to_fill(model: PreTrainedModel, memory_bytes: float | None) -> float:
    """Bytes that rows may take: the memory given, less the model's own, or a share of what is free.

    On CUDA a given size is set as this process's limit.

    Raises:
        DecodingError: free memory is not known here, or the model alone takes more than was given.
    """
    device = model.device
    own = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    if memory_bytes is not None:
        if memory_bytes <= own:
            raise DecodingError(f"the model takes {own / 1e9:.1f} GB of {memory_bytes / 1e9:.1f} GB; give more memory")
        if device.type == "cuda":
            share = memory_bytes / torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
        return memory_bytes - own
    free = free_memory_bytes(device)
    if free is None:
        raise DecodingError("how much memory is free is not known on this system; give --memory-gb or --batch-size")
    return FREE_SHARE * free


def _runs_on_cuda(decode: Callable[[int], object], device: torch.device, rows: int) -> bool:
    try:
        decode(rows)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _measured_row_bytes(decode: Callable[[int], object], device: str) -> float:
    peaks = []
    for rows in (FEW_ROWS, MORE_ROWS):
        with Meter(device) as meter:
            decode(rows)
        peaks.append(meter.peak_bytes or 0)
    return max(0.0, (peaks[1] - peaks[0]) / (MORE_ROWS - FEW_ROWS))
