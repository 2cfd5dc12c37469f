"""The benchmark of depth attention at a tiny shape: that it measures every backend, mode and dtype, and says what it leaves out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
SCRIPT = SOURCE.parent / "benchmarks" / "depth_attention.py"
SIDES = ["prenorm", *(f"{kind} {backend}" for backend in ("fused", "reference", "two_phase") for kind in ("sw", "full"))]


def run(*options: str) -> tuple[list[dict[str, Any]], str]:
    tiny = ["--threads", "1", "--layers", "2", "--loops", "2", "--tokens", "16", "--width", "32", "--json"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT), *tiny, *options], capture_output=True, text=True, timeout=560, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_every_backend_is_measured_in_both_dtypes() -> None:
    rows, _ = run("--modes", "eager", "reads-eager", "--repeats", "2")
    kinds = [(dtype, mode) for dtype in ("fp32", "bf16") for mode in ("eager", "reads-eager")]
    assert [(row["dtype"], row["mode"], row["name"]) for row in rows] == [(*kind, name) for kind in kinds for name in SIDES]
    assert all(row["repeats"] == 2 and row["seconds"] > 0 and row["ratio"] > 0 for row in rows)
    of = {(row["dtype"], row["mode"], row["name"]): row for row in rows}
    for kind in kinds:
        plain, fused, reference = (of[*kind, name] for name in ("prenorm", "full fused", "full reference"))
        assert plain["ratio"] == plain["kept_ratio"] == plain["ratio_by_bytes"] == 1.0
        assert reference["moved_bytes"] > fused["moved_bytes"] > plain["moved_bytes"]
        assert reference["kept_bytes"] > fused["kept_bytes"]
    for name in SIDES[1:]:  # what a stream moves more than PreNorm's is the same beside attention and MLP and without them
        more = [of["fp32", mode, name]["moved_bytes"] - of["fp32", mode, "prenorm"]["moved_bytes"] for mode in ("eager", "reads-eager")]
        assert more[0] == pytest.approx(more[1], rel=0.1)
    assert of["bf16", "reads-eager", "full fused"]["kept_bytes"] < 0.7 * of["fp32", "reads-eager", "full fused"]["kept_bytes"]


def test_what_the_time_does_not_reach_is_said() -> None:
    rows, said = run("--modes", "reads-eager", "eager", "--dtypes", "fp32", "--minutes", "0.00001")
    assert rows == [] and "no time to prepare fp32 reads-eager prenorm, fp32 reads-eager sw fused" in said
    assert "fp32: too slow with attention and MLP for 1e-05 minutes" in said


@pytest.mark.slow
def test_compiled_steps_are_counted_as_they_run(tmp_path: Path) -> None:
    options = ["--dtypes", "fp32", "--backends", "fused", "--repeats", "1", "--minutes", "60", "--kernels", str(tmp_path)]
    modes, names = ("training", "blocks", "reads"), ("prenorm", "sw fused", "full fused")
    counts = []
    for _ in range(2):  # the second from kernels that the first has left
        rows, _said = run("--modes", *modes, *options)
        assert [(row["mode"], row["name"]) for row in rows] == [(mode, name) for mode in modes for name in names]
        counts.append({(row["mode"], row["name"]): row["moved_bytes"] for row in rows})
    assert counts[0] == counts[1]
    for name in names:
        assert counts[0]["reads", name] < counts[0]["training", name] < counts[0]["blocks", name]
