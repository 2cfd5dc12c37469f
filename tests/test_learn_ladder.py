"""The ladder experiment: its problems are no test items, its tokenizer keeps digits apart, and the whole runs and goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from loopwise.decoding import read_chat
from loopwise.models import load
from loopwise.tasks.ladder import LADDER
from loopwise.tasks.problems import problems, side_of

SOURCE = Path(__file__).resolve().parents[1] / "src"
SCRIPT = SOURCE.parent / "benchmarks" / "learn_ladder.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("learn_ladder", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["learn_ladder"] = module
    spec.loader.exec_module(module)
    return module


def test_what_trains_what_checks_and_what_tests_share_no_calculation(script: ModuleType) -> None:
    for rung in script.CHECKED:
        trains, checks = (
            {" ".join(sorted(one.key.split())) for one in islice(script.training_problems(1, rung, check=check), 300)}
            for check in (False, True)
        )
        tests = {" ".join(sorted(one.key.split())) for one in problems(0, rung, "test", 40)}
        assert trains and checks and not trains & checks and not (trains | checks) & tests
        assert {side_of(one) for one in islice(script.training_problems(1, rung, check=True), 20)} == {"train"}


def test_a_training_problem_on_a_test_item_ends_the_experiment(script: ModuleType, tmp_path: Path) -> None:
    size = replace(script.SIZES["tiny"], limit=6)
    for name in ("base", "learn"):
        script.write_traces(tmp_path / f"{name}.jsonl", 1, size.draws)
    script.check_apart(tmp_path, "ladder:2,3", (2, 3), size)
    item = LADDER.load(None, 6)[2]
    row = json.dumps({"question": script.task_named("ladder:2").load(None, 1)[0].prompt, "answer": item.gold})
    (tmp_path / "learn.jsonl").write_text(row + "\n")
    with pytest.raises(SystemExit, match="trains on the test item"):
        script.check_apart(tmp_path, "ladder:2,3", (2, 3), size)


def test_digits_and_the_answers_opening_are_tokens_of_their_own(script: ModuleType, tmp_path: Path) -> None:
    size = script.SIZES["tiny"]
    script.write_traces(tmp_path / "base.jsonl", 1, size.draws)
    script.fresh_model(tmp_path / "fresh", tmp_path / "base.jsonl", size)
    model, tokenizer = load(tmp_path / "fresh")
    chat = read_chat(model, tokenizer)
    row = json.loads((tmp_path / "base.jsonl").read_text().splitlines()[0])
    written = tokenizer(row["answer"])["input_ids"]
    forced = chat.continuation(LADDER.answer_opener)
    assert len(forced) == 1 and forced[0] in written  # what is forced is what was learnt
    assert len(tokenizer("4711")["input_ids"]) == 4 and tokenizer.decode(written) == row["answer"]
    assert tokenizer.pad_token_id not in chat.end_ids


@pytest.mark.slow
def test_the_whole_experiment_runs_and_the_same_command_adds_nothing(script: ModuleType, tmp_path: Path) -> None:
    def run() -> str:
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(SCRIPT), "--size", "tiny", "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run().endswith((tmp_path / "report.md").read_text() + "\n")
    report = (tmp_path / "report.md").read_text()
    records = {file: file.read_bytes() for file in tmp_path.rglob("records.jsonl")}
    for recipe in script.RECIPES:
        assert f"## {recipe}" in report
    for name in ("looped-x3", "relocated", "equal training FLOPs", "budget-forcing 16 %"):
        assert report.count(name) >= 2
    (tmp_path / "report.md").unlink()
    run()
    assert (tmp_path / "report.md").read_text() == report
    assert {file: file.read_bytes() for file in tmp_path.rglob("records.jsonl")} == records
