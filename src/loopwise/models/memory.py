"""How much memory is free where a model lies or is to lie."""

from __future__ import annotations

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")


def free_memory_bytes(device: torch.device) -> int | None:
    """Memory that programs can still take on a device; None where the system does not say.

    On a CPU that is what the kernel could give, with the page cache that it would drop: what has just been read from disk is not lost.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
