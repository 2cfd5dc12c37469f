"""Tables of pretraining runs: every row can be, the published numbers, runs that share data, resume, and what the summary says."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwise.cli import main
from loopwise.cost import cost_of, read_shape
from loopwise.recipes.pretraining import PretrainingTable
from loopwise.recipes.pretraining_runs import LOSSES_FILE, run_table
from loopwise.recipes.pretraining_summary import RowSummary, summarise
from loopwise.recipes.pretraining_tables import TABLES, pretraining_table
from loopwise.training import TrainingError, held_out_loss, read_metrics, row_losses
from loopwise.training.saving import lock
from pretraining_cases import TABLE, run_of, tiny_row
from training_cases import write_text_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def trained(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("table")
    assert run_table(TABLE, run_of(shards, out)) == ()
    return out


@pytest.fixture(scope="module")
def summaries(trained: Path) -> dict[tuple[str, int], RowSummary]:
    return {(row.name, row.test_loops): row for row in summarise(TABLE, trained)}


@pytest.mark.parametrize("scale", ["paper", "nano"])
@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_every_table_can_be(name: str, scale: str) -> None:
    table = pretraining_table(name, scale)
    for row in table.rows:
        assert row.guesses, row.name
        assert row.architecture.vocab_size and row.budget.tokens >= row.budget.batch_tokens
        small = cost_of(read_shape(row.architecture.as_config()), ()).flops_per_token
        assert (small < 1e8) == (scale == "nano"), row.name
        assert scale == "paper" or not row.published, row.name


def test_the_tables_hold_what_the_papers_print() -> None:
    def perplexities(name: str) -> list[float]:
        return [row.published["perplexity"] for row in pretraining_table(name).rows if "perplexity" in row.published]

    assert sorted(perplexities("arloop-table-10")) == sorted(
        [18.20, 18.25, 18.26, 17.19, 17.18, 17.27, 16.59, 16.48, 16.46, 16.13, 16.02, 16.07]
    )
    assert perplexities("arloop-table-11") == [16.17, 16.03, 16.07, 16.14]
    assert perplexities("arloop-table-7") == [18.19, 18.44, 17.83, 17.52, 18.20]
    assert perplexities("arloop-table-9") == [16.07, 16.03, 13.65, 16.78]
    assert perplexities("arloop-table-15") == [16.07, 16.69, 16.52, 12.01, 12.33, 12.36]
    assert len(perplexities("arloop-table-1")) == 25 and len(perplexities("arloop-table-2")) == 15
    assert pretraining_table("arloop-table-1").row("parcae-140m-r5").published == {"perplexity": 15.96}
    assert [row.name for row in pretraining_table("arloop-table-2").rows if "perplexity" not in row.published] == [
        "prenorm-140m-r1",
        "arloop-full-140m-r1",
    ]
    assert pretraining_table("arloop-table-2").row("arloop-full-140m-r1").published == {"accuracy_percent": 41.82}  # Table 8
    assert pretraining_table("arloop-table-2").row("arloop-sw-370m-r3").published == {"perplexity": 12.17, "accuracy_percent": 50.67}


def test_free_loops_training_flops_are_those_of_its_table() -> None:
    table = pretraining_table("free-loop-table-6")
    base = _flops(table, "dense")
    for name in ("dense-flop-matched", "looped", "dense-16", "dense-longer"):
        assert _flops(table, name) / base == pytest.approx(table.row(name).published["training_flops_ratio"], abs=0.02), name
    for row in table.rows:
        depth = (row.test_loops or (row.architecture.num_loops,))[0]
        shape = read_shape(replace(row.architecture, num_loops=depth).as_config())
        dense = cost_of(read_shape(table.row("dense").architecture.as_config()), ()).flops_per_token
        assert cost_of(shape, ()).flops_per_token / dense == pytest.approx(row.published["inference_flops_ratio"], abs=0.04), row.name


def _flops(table: PretrainingTable, name: str) -> float:
    row = table.row(name)
    spent = row.budget.tokens * cost_of(read_shape(row.architecture.as_config()), ()).flops_per_token
    return spent + (_flops(table, row.begins_with) if row.begins_with else 0)


def test_designs_beside_what_the_same_flops_buy() -> None:
    table = pretraining_table("designs", "nano")
    assert len(table.rows) == 7 + 2 + 2
    looped = _flops(table, "prenorm-nano-r3")
    assert _flops(table, "dense-nano-l12") == pytest.approx(looped, rel=0.01)
    assert _flops(table, "dense-nano-longer") == pytest.approx(looped, rel=0.01)


def test_all_rows_read_the_same_batches_and_later_rows_go_on(trained: Path) -> None:
    hashes = {name: [m.batch_hash for m in read_metrics(trained / name / "seed-0")] for name in ("dense", "sw", "drawn", "added")}
    assert hashes["dense"] == hashes["sw"] == hashes["drawn"] and len(set(hashes["dense"])) == 4
    assert not set(hashes["added"]) & set(hashes["dense"])
    again = [m.batch_hash for m in read_metrics(trained / "dense" / "seed-1")]
    assert again == hashes["dense"]
    assert read_metrics(trained / "dense" / "seed-1")[0].loss != read_metrics(trained / "dense" / "seed-0")[0].loss


def test_a_loop_that_is_added_begins_with_the_trained_weights(trained: Path) -> None:
    """Beta g + (1 - beta) F^2 of a trained layer is near what it was: the loss goes on from the dense model's, not from chance."""
    ends = read_metrics(trained / "dense" / "seed-0")[-1].loss
    first = read_metrics(trained / "added" / "seed-0")[0].loss
    assert abs(first - ends) < 0.5 and first < math.log(257) - 0.8


def test_the_summary_has_means_intervals_and_flops(trained: Path, summaries: dict[tuple[str, int], RowSummary]) -> None:
    assert set(summaries) == {("dense", 1), ("sw", 2), ("added", 2), ("drawn", 2), ("drawn", 1)}
    sw, dense = summaries["sw", 2], summaries["dense", 1]
    assert dense.reference is None and sw.reference == "dense"
    assert sw.loss_nats is not None and dense.loss_nats is not None and sw.difference_ci95 is not None
    assert sw.difference_nats == pytest.approx(sw.loss_nats - dense.loss_nats, abs=1e-9)
    assert sw.difference_ci95[0] <= sw.difference_nats <= sw.difference_ci95[1]
    assert sw.seeds == (0, 1) and sw.perplexity == pytest.approx(math.exp(sw.loss_nats))
    spread = abs(sw.loss_by_seed_nats[0] - sw.loss_by_seed_nats[1]) / 2
    assert sw.loss_half_width_nats == pytest.approx(12.706 * spread, rel=1e-3)  # t(0.975, 1) s / sqrt(2)
    added = summaries["added", 2]
    assert added.training_flops and dense.training_flops and added.training_flops > 2 * dense.training_flops
    report = (trained / "report.md").read_text()
    assert report.count("\n| ") == 2 + 5 and "paper" not in report  # nothing is published at this size
    assert len({line.count("|") for line in report.splitlines() if line.startswith("|")}) == 1


def test_sequence_losses_add_up_to_the_held_out_loss(shards: Path, trained: Path) -> None:
    from loopwise import load
    from loopwise.recipes.training import held_out_batches

    run = run_of(shards, trained)
    data = run.data(TABLE, TABLE.rows[1])
    text = data.held_out_text(data.open()[0])
    assert text is not None
    net = load(trained / "sw" / "seed-0" / "model").model
    sums, targets = row_losses(net, held_out_batches(text, 512))
    whole = held_out_loss(net, held_out_batches(text, 512))
    assert sum(sums) / sum(targets) == pytest.approx(whole, abs=1e-5)
    kept = json.loads((trained / "sw" / "seed-0" / LOSSES_FILE).read_text())["depths"]["2"]
    np.testing.assert_allclose(kept["loss_sums"], sums, rtol=1e-5)


def test_what_is_done_is_left_and_what_is_missing_is_made(shards: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "sw" / "seed-1")
    before = (tmp_path / "copy" / "dense" / "seed-0" / LOSSES_FILE).stat().st_mtime_ns
    told: list[str] = []
    run_table(TABLE, run_of(shards, tmp_path / "copy"), note=told.append)
    assert len(told) == 1 and "sw, seed 1" in told[0]
    assert (tmp_path / "copy" / "dense" / "seed-0" / LOSSES_FILE).stat().st_mtime_ns == before
    ours, theirs = ((out / "sw" / "seed-1" / LOSSES_FILE).read_text() for out in (tmp_path / "copy", trained))
    assert json.loads(ours)["depths"] == json.loads(theirs)["depths"]


def test_what_another_process_is_at_is_left_to_it(shards: Path, tmp_path: Path) -> None:
    two = replace(TABLE, rows=TABLE.rows[:2])
    (tmp_path / "dense" / "seed-0").mkdir(parents=True)
    handle = lock(tmp_path / "dense" / "seed-0")  # an own handle shuts out every other one, in this process too
    try:
        assert run_table(two, run_of(shards, tmp_path, seeds=(0,))) == ("dense/seed-0",)
        assert not (tmp_path / "dense" / "seed-0" / LOSSES_FILE).exists() and (tmp_path / "sw" / "seed-0" / LOSSES_FILE).exists()
    finally:
        os.close(handle)
    assert run_table(two, run_of(shards, tmp_path, seeds=(0,))) == ()
    assert (tmp_path / "dense" / "seed-0" / LOSSES_FILE).exists()


def test_so_many_held_out_tokens_are_read(shards: Path, tmp_path: Path) -> None:
    one = replace(TABLE, rows=TABLE.rows[:1])
    counts = []
    for tokens in (256, 512):
        run_table(one, run_of(shards, tmp_path / str(tokens), seeds=(0,), held_out_tokens=tokens))
        losses = json.loads((tmp_path / str(tokens) / "dense" / "seed-0" / LOSSES_FILE).read_text())
        counts.append(sum(losses["depths"]["1"]["targets"]))
    assert counts[0] <= 256 < counts[1] <= 512
    with pytest.raises(TrainingError, match="held_out_tokens"):
        run_table(one, run_of(shards, tmp_path / "512", seeds=(0,), held_out_tokens=256))


def test_a_row_that_diverges_is_told_and_the_others_go_on(shards: Path, tmp_path: Path) -> None:
    wild = replace(TABLE, rows=(tiny_row("wild", optimization=dict(learning_rate=1e30)), TABLE.rows[0]))
    told: list[str] = []
    run_table(wild, run_of(shards, tmp_path, seeds=(0,)), note=told.append)
    assert any("the loss is" in one or "gradient norm is" in one for one in told)
    rows = summarise(wild, tmp_path)
    assert rows[0].failed_seeds == (0,) and rows[0].loss_nats is None and rows[1].loss_nats
    assert "1 diverged" in (tmp_path / "report.md").read_text()


def test_what_begins_with_a_row_that_diverged_is_told_counted_and_passed_over(shards: Path, tmp_path: Path) -> None:
    wild = tiny_row("wild", changes=dict(num_loops=1), optimization=dict(learning_rate=1e30))
    rows = (wild, tiny_row("after", begins_with="wild"), TABLE.rows[0])
    told: list[str] = []
    assert run_table(replace(TABLE, rows=rows), run_of(shards, tmp_path, seeds=(0,)), note=told.append) == ()
    assert any("after, seed 0: wild, which it begins with, failed" in one for one in told)
    after, dense = summarise(replace(TABLE, rows=rows), tmp_path)[1:]
    assert after.failed_seeds == (0,) and after.loss_nats is None and dense.loss_nats
    assert (tmp_path / "report.md").read_text().count("1 diverged") == 2


def test_only_some_rows_and_those_that_they_begin_with() -> None:
    assert [row.name for row in TABLE.select(["added"])] == ["dense", "added"]
    assert TABLE.first_tokens(TABLE.row("added")) == 512
    longer = TABLE.with_tokens(1024)
    assert {row.budget.tokens for row in longer.rows} == {1024}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(rows=(TABLE.rows[2],), references={}), "begins with 'dense', which is no row before it"),
        (dict(rows=(TABLE.rows[0], TABLE.rows[0])), "two rows 'dense'"),
        (dict(references={None: "none"}), "the reference 'none' of group None is no row"),
        (dict(scale="large"), "scale is 'large'"),
    ],
)
def test_tables_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        replace(TABLE, **change)


def test_bad_input_is_one_line(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("pretrain", "table-9"): "no table is called 'table-9'; use arloop-table-1",
        ("pretrain", "designs", "--rows", "none"): "table designs has no row 'none'",
        ("pretrain", "designs", "--tokens", "3"): "3 tokens are less than one step; give at least",
        ("pretrain", "designs", "--data", str(shards)): "give --out",
        ("pretrain", "designs", "--data", str(shards), "--out", str(tmp_path), "--seeds", "1", "1"): "seeds are 1 1",
        ("pretrain", "designs", "--data", str(tmp_path), "--out", str(tmp_path)): "has no index.json",
    }
    for arguments, words in cases.items():
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        error = capsys.readouterr().err
        assert stop.value.code != 0 and words in error and error.count("\n") == 1, error


def test_another_table_in_the_folder_is_refused(shards: Path, trained: Path) -> None:
    with pytest.raises(TrainingError, match="holds runs with another tokens"):
        run_table(TABLE.with_tokens(1024), run_of(shards, trained))


def test_the_command_lists_estimates_and_trains(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pretrain", "arloop-table-11"])
    listed = capsys.readouterr().out
    assert "arloop-sw-140m-r4-w3" in listed and "perplexity 16.03" in listed and "guesses" in listed
    common = ["pretrain", "arloop-table-11", "--scale", "nano", "--data", str(shards), "--out", str(tmp_path), "--device", "cpu"]
    main([*common, "--estimate"])
    assert "488 steps" in capsys.readouterr().out
    main([*common, "--tokens", "4096", "--rows", "arloop-sw-nano-r4-w2", "arloop-sw-nano-r4-w3"])
    printed = capsys.readouterr().out
    assert "| W=2 | 4 | 1 |" in printed and "milli-nats" in printed
