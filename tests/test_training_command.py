"""``loopwise train``: the whole line on shards, killed with -9 and gone on with, under torchrun, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from loopwise.cli import main
from loopwise.training import read_evaluations, read_metrics
from training_cases import start, write_text_shards

SMALL = ["hidden_size=32", "intermediate_size=48", "num_hidden_layers=2", "num_attention_heads=4", "num_key_value_heads=2", "head_dim=8"]
STEPS = 40


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards."""
    return write_text_shards(tmp_path_factory.mktemp("shards"))


def arguments(shards: Path, out: Path, *more: str) -> list[str]:
    sizes = ["--tokens", str(STEPS * 256), "--batch-tokens", "256", "--sequence-tokens", "32", "--checkpoint-every", "3", "--device", "cpu"]
    options = ["--set", *SMALL, "value_embedding_channels=8", "--recurrence", "poisson", "--learning-rate", "3e-3", *more]
    return ["train", "nets:arloop-nano", "--data", str(shards), "--out", str(out), *sizes, *options]


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    out = tmp_path_factory.mktemp("whole")
    done = start(*arguments(shards, out))
    text, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert f"{STEPS * 256:,} tokens in {STEPS} steps" in text and "FLOPs" in text and "held out loss" in text
    assert f"step {STEPS}/{STEPS}: loss" in errors and "left" in errors
    return out


def kill_after(process: subprocess.Popen[str], out: Path, num_lines: int) -> None:
    """Kill -9 as soon as so many steps are written."""
    file, ends = out / "metrics.jsonl", time.monotonic() + 60
    while not file.exists() or file.read_bytes().count(b"\n") < num_lines:
        assert process.poll() is None and time.monotonic() < ends, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_run_killed_twice_is_the_same_run(shards: Path, whole: Path, tmp_path: Path) -> None:
    for num_lines in (8, 20):
        kill_after(start(*arguments(shards, tmp_path)), tmp_path, num_lines)
    last = start(*arguments(shards, tmp_path))
    _, errors = last.communicate(timeout=120)
    assert last.returncode == 0 and "going on after step" in errors, errors
    ours, theirs = ([metrics.repeatable for metrics in read_metrics(out)] for out in (tmp_path, whole))
    assert ours == theirs and len(ours) == STEPS
    assert read_evaluations(tmp_path) == read_evaluations(whole)
    weights = [(out / "model" / "model.safetensors").read_bytes() for out in (tmp_path, whole)]
    assert weights[0] == weights[1]


def test_the_folder_says_what_ran(shards: Path, whole: Path) -> None:
    saved = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    assert saved["command"] == "train" and saved["config"]["tokens"] == str(STEPS * 256) and len(saved["hash"]) == 16
    header = json.loads((whole / "run.json").read_text(encoding="utf-8"))
    assert header["model"]["config"]["vocab_size"] == 257 and header["settings"]["recurrence"]["most"] == 3
    assert header["data"]["mixture"]["name"] == "single"
    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    assert model.config.eos_token_id == 256 and model.config.window_blocks == 3
    losses = [metrics.loss for metrics in read_metrics(whole)]
    assert losses[-1] < losses[0] - 1


def test_torchrun_starts_the_same_run(shards: Path, whole: Path, tmp_path: Path) -> None:
    process = start(*arguments(shards, tmp_path), torchrun=2)
    text, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-2000:]
    assert text.count("tokens in") == 1  # only the first process speaks
    ours, theirs = read_metrics(tmp_path), read_metrics(whole)
    assert [m.batch_hash for m in ours] == [m.batch_hash for m in theirs]
    assert [m.num_loops for m in ours] == [m.num_loops for m in theirs]
    assert [m.loss for m in ours] == pytest.approx([m.loss for m in theirs], abs=1e-4)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """The command's status and what it printed."""
    status: Any = 0
    try:
        main(args)
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr()
    return int(status or 0), printed.out, printed.err


def test_an_estimate_is_printed_and_nothing_is_made(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys, *arguments(shards, tmp_path / "out", "--estimate"))
    assert status == 0 and "optimizer" in text and f"in {STEPS} steps" in text and not (tmp_path / "out").exists()
    status, text, _ = run(capsys, *arguments(shards, tmp_path / "out", "--estimate", "--json"))
    assert json.loads(text)["tokens"] == STEPS * 256


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--learning-rate", "0"], "learning_rate is 0.0"),
        (["--tokens", "many"], "--tokens 'many': give a number such as"),
        (["--batch-tokens", "100"], "a batch of 100 tokens is no whole number of sequences of 32; give e.g. 96"),
        (["--schedule", "linear"], "schedule is 'linear'; use constant, cosine, trapezoid"),
        (["--recurrence", "sometimes"], "recurrence 'sometimes' is unknown"),
        (["--set", "colour=red"], "an architecture has no field 'colour'"),
        (["--set", "design"], "--set 'design': give FIELD=VALUE"),
        (["--data", "/nowhere"], "/nowhere"),
        (["--held-out", "/nowhere"], "/nowhere"),
        (["--mixture", "soup"], "no mixture is called 'soup'"),
        (["--set", "vocab_size=100"], "257 token ids, too many for a vocabulary of 100"),
        (["--set", "vocab_size=256"], "257 token ids, too many for a vocabulary of 256"),
        (["--set", "rms_norm_eps=abc"], "rms_norm_eps is 'abc'; give a finite number"),
        (["--recurrence-mean", "0"], "with mean 0.0"),
        (["--recurrence-mean", "inf"], "with mean inf"),
        (["--recurrence-most", "0"], "from 1 to 0; give 1 <= least <= most"),
        (["--recurrence", "uniform", "--recurrence-mean", "2"], "recurrence uniform has no mean"),
        (["--fsdp"], "start it with torchrun"),
    ],
)
def test_bad_options_are_one_line(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    given = arguments(shards, tmp_path / "out")
    if more[0] in given and more[0] != "--set":
        at = given.index(more[0])
        del given[at : at + 2]
    status, _, errors = run(capsys, *given, *more)
    last = errors.strip().splitlines()[-1]
    assert status != 0 and words in last and last.startswith("loopwise train:"), errors
    assert not (tmp_path / "out").exists()


def test_held_out_text_is_checked_before_training(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "other" / "heldout" / "index.json"
    write_text_shards(tmp_path / "other", num_documents=1)
    given = arguments(shards, tmp_path / "out", "--held-out", str(index.parent))
    given[given.index("--sequence-tokens") + 1] = given[given.index("--batch-tokens") + 1] = "128"
    status, _, errors = run(capsys, *given)
    assert status == 1 and "give more text or shorter sequences" in errors
    index.write_text(index.read_text(encoding="utf-8").replace('"sha256": "', '"sha256": "0'), encoding="utf-8")
    status, _, errors = run(capsys, *given)
    assert status == 1 and "was made with another tokenizer than" in errors and not (tmp_path / "out").exists()


def test_measurements_of_text_that_is_not_there_are_refused(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(shards, bare, ignore=shutil.ignore_patterns("heldout"))
    status, _, errors = run(capsys, *arguments(bare, tmp_path / "out", "--evaluate-every", "1"))
    assert status == 1 and "evaluate_every_steps is 1, and" in errors and "give --held-out" in errors
    assert not (tmp_path / "out").exists()


def test_another_run_is_refused(shards: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(capsys, *arguments(shards, whole, "--weight-decay", "0.2"))
    assert status == 1 and "was trained with settings.weight_decay 0.1, now it is 0.2" in errors
    status, _, errors = run(capsys, *arguments(shards, whole, "--data-seed", "3"))
    assert status == 1 and "data.seed 0, now it is 3" in errors


def test_a_trained_model_trains_further(shards: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tokens", "1024", "--batch-tokens", "256", "--sequence-tokens", "32", "--device", "cpu", "--learning-rate", "1e-4"]
    further = ["train", str(whole / "model"), "--data", str(shards), "--out", str(tmp_path / "out"), *options]
    status, text, errors = run(capsys, *further)
    assert status == 0 and "1,024 tokens in 4 steps" in text, errors
    assert read_metrics(tmp_path / "out")[0].loss == pytest.approx(read_metrics(whole)[-1].loss, abs=0.5)
    status, _, errors = run(capsys, *further, "--set", "design=parcae")
    assert status == 1 and "nothing of its architecture can be set" in errors
