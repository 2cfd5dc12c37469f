"""The benchmark of training on GPUs, on a CPU: that it runs and writes what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
SCRIPT = SOURCE.parent / "benchmarks" / "gpu_pretrain.py"


def rows_of(out: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), "--sizes", "nano", "--device", "cpu", "--modes", "eager", "--out", str(out), *options]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == out.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_design_is_measured(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows", "--repeats", "2")
    assert [row["design"] for row in rows] == ["prenorm", "arloop-full", "arloop-sw"]
    assert {(row["result"], row["repeats"]) for row in rows} == {("measured", 2)} and rows[0]["relative"] == 1.0
    assert all(row["tokens_per_second"] > 0 and row["peak_memory_bytes"] > 0 for row in rows)


def test_a_budget_that_is_spent_is_said(tmp_path: Path) -> None:
    assert [row["result"] for row in rows_of(tmp_path / "rows", "--seconds", "0")] == ["no time left"] * 3
