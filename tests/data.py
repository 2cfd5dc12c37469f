"""Where the tests' real data lie, or why a test that needs them is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_dir() -> Path:
    """The folder of benchmark data: ``LOOPWISE_DATA``, or ``shared/data`` beside the checkout; skips the test without one."""
    folder = Path(os.environ.get("LOOPWISE_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip(f"no benchmark data at {folder}: set LOOPWISE_DATA to a folder that holds gsm8k/, math500/, arc_challenge/")
    return folder
