"""Learning recipes in two processes over gloo: the numbers of one process, and a run that one process goes on with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from learning_cases import LOOPS, recipes, tiny_folder
from learning_ranks import NAMES, TWO
from loopwise.loops import format_loops
from loopwise.models import load, loops_of
from loopwise.training import StepMetrics, read_metrics
from training_cases import SOURCE

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama on the disk."""
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def two(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes."""
    out = tmp_path_factory.mktemp("two")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [sys.executable, *launch, str(TESTS / "learning_ranks.py"), str(model), str(out)]
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}:{TESTS}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def assert_same(ours: tuple[StepMetrics, ...], theirs: tuple[StepMetrics, ...]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert (one.step, one.batch_hash, one.passes, one.lr) == (other.step, other.batch_hash, other.passes, other.lr)
        assert one.loss == pytest.approx(other.loss, rel=1e-4) and one.grad_norm == pytest.approx(other.grad_norm, rel=1e-3)
        assert one.terms == pytest.approx(other.terms, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_are_one(two: Path, model: Path, tmp_path: Path, name: str) -> None:
    recipes(two / "steps.json")[name](model, LOOPS, tmp_path, execution=TWO)  # the long one reads the two processes' step count
    assert_same(read_metrics(two / name), read_metrics(tmp_path))
    assert format_loops(loops_of(load(two / name / "model").model)) == LOOPS


def test_a_conversion_of_two_processes_goes_on_in_one(two: Path, model: Path) -> None:
    cut = two / "cut"
    assert [metrics.step for metrics in read_metrics(cut)] == [1, 2, 3]
    recipes(two / "steps.json")["conversion"](model, LOOPS, cut)
    assert_same(read_metrics(cut), read_metrics(two / "conversion"))
