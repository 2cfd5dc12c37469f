"""The meter: seconds and peak bytes of a block, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import mmap
import time

import pytest

from loopwise.cost import CostError, Meter

MIB = 2**20


def _hold(mebibytes: int) -> None:
    """Hold new pages: what malloc returns may be resident since an earlier test, and then nothing rises."""
    with mmap.mmap(-1, mebibytes * MIB) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1  # written, hence resident


def test_meter_measures_seconds_and_peak() -> None:
    with Meter() as meter:
        time.sleep(0.02)
        _hold(64)
    assert meter.seconds is not None and 0.02 <= meter.seconds < 5
    assert meter.peak_bytes is not None
    if meter.memory == "rss":
        assert 60 * MIB < meter.peak_bytes < 100 * MIB


def test_a_smaller_block_after_a_larger_one_has_its_own_peak() -> None:
    with Meter() as large:
        _hold(96)
    with Meter() as small:
        _hold(32)
    if large.memory != "rss":
        pytest.skip("this system keeps only a lifetime peak of resident memory")
    assert large.peak_bytes is not None and small.peak_bytes is not None
    assert 28 * MIB < small.peak_bytes < 60 * MIB < large.peak_bytes


def test_an_inner_meter_does_not_hide_the_peak_from_the_outer_one() -> None:
    with Meter() as outer:
        _hold(96)
        with Meter() as inner:
            _hold(32)
        with Meter():
            pass
    if outer.memory != "rss":
        pytest.skip("this system keeps only a lifetime peak of resident memory")
    assert outer.peak_bytes is not None and inner.peak_bytes is not None
    assert outer.peak_bytes > 90 * MIB > inner.peak_bytes
    with Meter() as around, Meter() as within:
        _hold(64)
    assert around.peak_bytes is not None and within.peak_bytes is not None
    assert around.peak_bytes >= within.peak_bytes - MIB > 55 * MIB


def test_meter_refuses_a_device_that_it_cannot_measure() -> None:
    with pytest.raises(CostError, match="'tpu'"):
        Meter("tpu")


def test_meter_counts_cuda_tensors_exactly() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with Meter("cuda") as outer:
        big = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del big
        with Meter("cuda") as inner:
            torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    assert (outer.memory, outer.peak_bytes, inner.peak_bytes) == ("cuda", 64 * MIB, 16 * MIB)
