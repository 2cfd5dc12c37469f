"""Seconds and peak bytes of a block of code. torch is imported only for an accelerator."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import ClassVar, Literal, Self

from .config import CostError

Memory = Literal["cuda", "rss", "rss-lifetime", "none"]

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Meter:
    """Measures the block it wraps: ``with Meter() as meter: ...``, then ``meter.seconds`` and ``meter.peak_bytes``.

    Meters may be nested in one thread, not shared between threads: the operating system and CUDA keep one peak each.
    """

    seconds: float | None
    """Wall time; the device is synchronised before and after. None until the block ends."""
    peak_bytes: int | None
    """The most memory that the block held above what was held at its start; None until it ends, or where ``memory`` is none."""
    memory: Memory
    """What ``peak_bytes`` is. ``cuda``: tensors on that device, exact (`torch.cuda.max_memory_allocated`). ``rss``: resident
    memory of the whole process (Linux), so with the allocator's caches and any other thread's, and without what an earlier
    block freed but the allocator kept: a lower bound on what a fresh process would need. ``rss-lifetime``: only the rise of
    the process's high-water mark, 0 when it was once larger. ``none``: not measured on this device."""

    _open: ClassVar[list[Meter]] = []

    def __init__(self, device: str = "cpu") -> None:
        """Measure on ``device``: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

        Raises:
            CostError: another kind of device.
        """
        self.device = str(device)
        self.memory = _memory_of(self.device)
        self.seconds, self.peak_bytes = None, None
        self._highest = self._start_bytes = 0
        self._started = 0.0

    def __enter__(self) -> Self:
        # The peak is reset here; a meter around this one must first hear of the peak so far.
        self._tell_open()
        self._synchronize()
        self._reset_peak()
        self._start_bytes = self._highest = self._held()
        Meter._open.append(self)
        self._started = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._synchronize()
        self.seconds = time.perf_counter() - self._started
        self._tell_open()
        Meter._open.remove(self)
        if self.memory != "none":
            self.peak_bytes = max(0, self._highest - self._start_bytes)

    @staticmethod
    def _tell_open() -> None:
        for meter in Meter._open:
            meter._highest = max(meter._highest, meter._peak())

    def _synchronize(self) -> None:
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)
        elif self.device.startswith("mps"):
            import torch

            torch.mps.synchronize()

    def _reset_peak(self) -> None:
        if self.memory == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.memory == "rss":
            _CLEAR_REFS.write_text("5")

    def _held(self) -> int:
        if self.memory == "cuda":
            import torch

            return int(torch.cuda.memory_allocated(self.device))
        if self.memory == "rss":
            return _status_bytes("VmRSS")
        return self._peak()

    def _peak(self) -> int:
        if self.memory == "cuda":
            import torch

            return int(torch.cuda.max_memory_allocated(self.device))
        if self.memory == "rss":
            return _status_bytes("VmHWM")
        return _lifetime_peak() if self.memory == "rss-lifetime" else 0


def _memory_of(device: str) -> Memory:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        raise CostError(f"cannot measure on device {device!r}; use cpu, cuda or mps")
    if kind != "cpu":
        return "cuda" if kind == "cuda" else "none"
    return "rss" if _can_reset_rss() else "rss-lifetime"


def _can_reset_rss() -> bool:
    """Whether this is a Linux that lets a process reset its own high-water mark of resident memory."""
    try:
        _status_bytes("VmHWM")
        _CLEAR_REFS.open("w").close()
    except (OSError, KeyError):
        return False
    return True


def _status_bytes(name: str) -> int:
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    return int(fields[name].split()[0]) * 1024


def _lifetime_peak() -> int:
    try:
        import resource
    except ImportError:  # Windows keeps no such count
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
