"""How much memory is free: what the kernel can give, not what it has left unused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loopwise.models import free_memory_bytes, memory

CPU = torch.device("cpu")


def test_the_page_cache_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       32000 kB\nMemFree:         1000 kB\nMemAvailable:   20000 kB\nCached:         19000 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    assert free_memory_bytes(CPU) == 20000 * 1024


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    assert free_memory_bytes(CPU) is None


def test_a_card_says_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 9))
    assert free_memory_bytes(torch.device("cuda", 0)) == 5
