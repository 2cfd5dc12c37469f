"""Several processes: DDP and FSDP2 over gloo give the numbers of one process, and their checkpoints load in another number."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from loopwise.training import StepMetrics, read_evaluations, read_metrics, train
from training_cases import SOURCE, Walks, fresh_net
from training_ranks import CASES, CPU, SETTINGS, SHARDED, evaluate

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes."""
    out = tmp_path_factory.mktemp("two")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        str(TESTS / "training_ranks.py"),
        str(out),
    ]
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}:{TESTS}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def assert_same(ours: tuple[StepMetrics, ...], theirs: tuple[StepMetrics, ...], accuracy: float) -> None:
    assert [m.step for m in ours] == [m.step for m in theirs] == [1, 2, 3, 4, 5]
    assert [m.batch_hash for m in ours] == [m.batch_hash for m in theirs]
    assert [(m.num_loops, m.tokens, m.lr) for m in ours] == [(m.num_loops, m.tokens, m.lr) for m in theirs]
    assert [m.loss for m in ours] == pytest.approx([m.loss for m in theirs], abs=accuracy)
    assert [m.grad_norm for m in ours] == pytest.approx([m.grad_norm for m in theirs], rel=100 * accuracy)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(two: Path, tmp_path: Path, name: str) -> None:
    net, settings = CASES[name]
    train(fresh_net(**net), Walks(), settings, tmp_path, execution=CPU, evaluate=evaluate)
    accuracy = 1e-3 if name == "muon" else 1e-6  # Newton-Schulz steps are in bf16, which magnifies rounding
    assert_same(read_metrics(two / f"ddp-{name}"), read_metrics(tmp_path), accuracy)
    ours, theirs = (read_evaluations(out)[5]["held_out_loss"] for out in (two / f"ddp-{name}", tmp_path))
    assert ours == pytest.approx(theirs, abs=max(accuracy, 1e-5))


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_weights_train_as_whole_ones(two: Path, tmp_path: Path, name: str) -> None:
    net, settings = SHARDED[name]
    train(fresh_net(**net), Walks(), settings, tmp_path, execution=CPU, evaluate=evaluate)
    assert_same(read_metrics(two / f"fsdp-{name}"), read_metrics(tmp_path), 1e-5)
    ours, theirs = (read_evaluations(out)[5]["held_out_loss"] for out in (two / f"fsdp-{name}", tmp_path))
    assert ours == pytest.approx(theirs, abs=1e-5)
    saved = AutoModelForCausalLM.from_pretrained(two / f"fsdp-{name}" / "model")
    assert evaluate(saved, 5)["held_out_loss"] == pytest.approx(theirs, abs=1e-5)
    assert saved.config.architectures == ["LoopedTransformer"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_run_of_two_processes_goes_on_in_one(two: Path, tmp_path: Path, kind: str) -> None:
    net, settings = CASES["prenorm"]
    cut = two / f"{kind}-cut"
    assert [m.step for m in read_metrics(cut)] == [1, 2, 3]
    train(fresh_net(**net), Walks(), SETTINGS, cut, execution=replace(CPU, micro_batch_sequences=4))
    train(fresh_net(**net), Walks(), settings, tmp_path, execution=CPU)
    assert_same(read_metrics(cut), read_metrics(tmp_path), 1e-6)


def test_what_two_processes_cannot_do_left_nothing(two: Path) -> None:
    assert not (two / "refused").exists()
