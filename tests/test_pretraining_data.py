"""All runs of a table's folder share their data, held-out text and dtype: another one is refused, and no summary compares them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwise.recipes.pretraining_runs import LOSSES_FILE, run_table
from loopwise.recipes.pretraining_summary import summarise
from loopwise.training import TrainingError
from pretraining_cases import TABLE, run_of
from training_cases import write_text_shards

TWO = replace(TABLE, rows=TABLE.rows[:2])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_shards(tmp_path_factory.mktemp("other"), num_documents=150)


@pytest.fixture(scope="module")
def trained(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table")
    run_table(TWO, run_of(shards, out, seeds=(0,)))
    return out


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("shards", lambda shards, other: dict(folders=(other,), held_out=shards / "heldout")),
        ("held_out", lambda shards, other: dict(held_out=other / "heldout")),
        ("dtype", lambda shards, other: dict(dtype="bf16")),
    ],
)
def test_rows_on_other_data_do_not_come_into_the_table(
    shards: Path, other: Path, trained: Path, named: str, change: Callable[[Path, Path], dict[str, Any]]
) -> None:
    before = (trained / "table.json").read_text()
    with pytest.raises(TrainingError, match=rf"^{trained}: holds runs with another {named} .*; give a new --out$"):
        run_table(TWO, replace(run_of(shards, trained, seeds=(1,)), **change(shards, other)))
    assert (trained / "table.json").read_text() == before and not (trained / "dense" / "seed-1").exists()


def test_the_same_shards_may_lie_elsewhere(shards: Path, copy: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(shards, tmp_path / "moved"))
    assert run_table(TWO, run_of(moved, copy, seeds=(0,), held_out=shards / "heldout")) == ()


@pytest.mark.parametrize("field", ["shards", "held_out", "dtype"])
def test_a_table_that_does_not_say_its_data_is_refused_and_can_be_measured_again(shards: Path, copy: Path, field: str) -> None:
    edit(copy / "table.json", lambda values: values.pop(field))
    with pytest.raises(TrainingError, match=rf"table.json: does not say which {field} its runs have; give a new --out, or remove"):
        run_table(TWO, run_of(shards, copy, seeds=(0,)))
    files = [copy / row.name / "seed-0" / LOSSES_FILE for row in TWO.rows]
    before = [json.loads(file.read_text())["depths"] for file in files]
    for file in (copy / "table.json", *files):
        file.unlink()
    run_table(TWO, run_of(shards, copy, seeds=(0,)))
    assert [json.loads(file.read_text())["depths"] for file in files] == before


def test_what_is_measured_again_must_be_of_the_same_shards(shards: Path, other: Path, copy: Path) -> None:
    (copy / "table.json").unlink()
    (copy / "dense" / "seed-0" / LOSSES_FILE).unlink()
    with pytest.raises(TrainingError, match="was trained with data"):
        run_table(TWO, run_of(other, copy, seeds=(0,), held_out=shards / "heldout"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda values: values.update(held_out_sha256="0" * 64),
            "sw/seed-0: was measured on other held-out sequences than .*dense",
        ),
        (lambda values: values.pop("held_out_sha256"), "sw/seed-0/losses.json: does not say what the run was measured on; remove"),
        (lambda values: values.pop("depths"), "sw/seed-0/losses.json: does not say what the run was measured on; remove"),
    ],
)
def test_runs_measured_on_other_text_are_not_compared(copy: Path, change: Callable[[dict[str, Any]], object], words: str) -> None:
    assert len(summarise(TWO, copy)) == 2
    edit(copy / "sw" / "seed-0" / LOSSES_FILE, change)
    with pytest.raises(TrainingError, match=words):
        summarise(TWO, copy)


def test_other_sequences_of_one_text_have_another_hash(shards: Path, trained: Path, copy: Path, tmp_path: Path) -> None:
    fewer = run_of(shards, tmp_path / "fewer", seeds=(0,), held_out_tokens=256)
    run_table(replace(TWO, rows=TWO.rows[1:], references={}), fewer)
    shutil.copy(tmp_path / "fewer" / "sw" / "seed-0" / LOSSES_FILE, copy / "sw" / "seed-0" / LOSSES_FILE)
    with pytest.raises(TrainingError, match="other held-out sequences"):
        summarise(TWO, copy)
