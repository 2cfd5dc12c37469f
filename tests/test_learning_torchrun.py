"""``loopwise learn`` under torchrun: two processes train each member together, to the numbers of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learning_sets import LOOPS, chat_model, chats
from loopwise.cli import main
from loopwise.models import load
from loopwise.recipes.learning_files import read_result
from loopwise.training import read_metrics
from training_cases import start

MEMBERS = ("looped", "twin", "equal-flops")
RECIPES = {"anchored": [], "long-ft": ["--budget-seconds", "1e6"]}
"""One with an adapter and drawn passes, and one that measures first."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torchrun")
    chat_model(made / "model")
    chats(made / "chats.jsonl")
    return made


def arguments(folder: Path, recipe: str, out: Path, *, batch: int = 2) -> list[str]:
    given = ["learn", recipe, "--scale", "nano", "--model", str(folder / "model"), "--loops", LOOPS, "--against", "none"]
    given += ["--data", str(folder / "chats.jsonl"), "--batch", str(batch), "--sequence-tokens", "48", "--tokens", "288"]
    return [*given, "--device", "cpu", "--controls", "equal-flops", "--out", str(out), *RECIPES[recipe]]


@pytest.mark.parametrize("recipe", ["anchored", pytest.param("long-ft", marks=pytest.mark.slow)])
def test_two_processes_train_the_set_of_one(folder: Path, tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    process = start(*arguments(folder, recipe, two), torchrun=2)
    text, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    assert text.count("| looped |") == 1 and text.count("# " + recipe) == 1  # only the first process speaks
    main(arguments(folder, recipe, one))
    assert "| shared |" in capsys.readouterr().out and "DIFFER" not in text
    for name in MEMBERS:
        ours, theirs = (read_metrics(out / name / "seed-0") for out in (two, one))
        assert [(m.step, m.batch_hash, m.passes, m.lr) for m in ours] == [(m.step, m.batch_hash, m.passes, m.lr) for m in theirs] != []
        assert [m.loss for m in ours] == pytest.approx([m.loss for m in theirs], rel=1e-3)
        results = [read_result(out / name / "seed-0") for out in (two, one)]
        same = ("num_steps", "tokens", "answer_tokens", "training_flops", "training_flops_before")
        assert all(result is not None for result in results)
        assert [[result[field] for field in same] for result in results if result] == [[results[1][field] for field in same]] * 2  # type: ignore[index]
        load(two / name / "seed-0" / "model")
    assert json.loads((two / "config.json").read_text())["config"]["recipe"] == recipe
    assert (two / "steps.json").exists() == (recipe == "long-ft")


def test_a_batch_that_two_processes_cannot_share_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    process = start(*arguments(folder, "anchored", tmp_path / "set", batch=3), torchrun=2)
    text, errors = process.communicate(timeout=300)
    said = [line for line in errors.splitlines() if line.startswith("loopwise learn:")]
    assert process.returncode != 0 and text == ""
    assert said == ["loopwise learn: a batch of 3 sequences over 2 processes; give a multiple of 2"]
    assert not (tmp_path / "set").exists()
