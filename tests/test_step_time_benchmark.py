"""The benchmark of training steps runs what it says, by turns. Its figures are taken on a quiet machine, not here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwise.models import loops_of

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "step_time.py"
TINY = ["--batch", "1", "--tokens", "8", "--repeats", "2", "--threads", str(torch.get_num_threads())]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("step_time", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "step_time", module)
    spec.loader.exec_module(module)
    return module


def test_both_sides_take_turns_on_the_same_batches(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[int, str]] = []
    step = benchmark.Times.step

    def watched(self: Any, metrics: Any, num_steps: int) -> None:
        steps.append((id(self), metrics.batch_hash))
        step(self, metrics, num_steps)

    monkeypatch.setattr(benchmark.Times, "step", watched)
    benchmark.main(["--models", "random", "--json", *TINY])
    row = json.loads(capsys.readouterr().out)
    assert row["loops"] == "3:5 x2" and row["layer_pass_ratio"] == 10 / 8 and 1 < row["flops_ratio"] < 10 / 8
    assert row["target"] == pytest.approx(1.05 * 10 / 8) and row["ok"] == (row["ratio"] <= row["target"])
    assert row["repeats"] == 2 and row["quartiles"][0] <= row["ratio"] <= row["quartiles"][1] and row["twin"]["median_seconds"] > 0
    assert len(steps) == 2 * (benchmark.WARM_STEPS + 2)
    sides, batches = [side for side, _ in steps], [batch for _, batch in steps]
    assert len(set(sides[:2])) == 2 and sides == sides[:2] * (len(sides) // 2)
    assert batches[::2] == batches[1::2] and len(set(batches[::2])) == len(batches) // 2


def test_a_pair_has_one_set_of_weights_and_one_has_the_loop(benchmark: Any) -> None:
    options = benchmark.parse(["--loops", "2:4 x3"])
    looped, twin = benchmark.make_pair("random", options)
    assert [bool(loops_of(model)) for model in (looped, twin)] == [True, False]
    assert all(torch.equal(one, other) for one, other in zip(looped.parameters(), twin.parameters(), strict=True))
    looped, twin = benchmark.make_pair("nets:prenorm-nano", options)
    assert [model.model.arch.num_loops for model in (looped, twin)] == [2, 1]
    assert all(torch.equal(one, other) for one, other in zip(looped.parameters(), twin.parameters(), strict=True))


def test_a_nano_network_is_measured_and_a_missed_target_is_an_error_under_check(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "TARGET", 0.0)
    with pytest.raises(SystemExit, match="missed its target"):
        benchmark.main(["--models", "nets:prenorm-nano", "--check", *TINY])
    shown = capsys.readouterr().out
    assert "at most 0.000: MISSED" in shown and "layer passes 2.000" in shown


def test_a_run_that_fails_ends_both(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair = benchmark.make_pair("random", benchmark.parse([]))
    with torch.no_grad():
        pair[1].lm_head.weight.fill_(float("nan"))
    source = benchmark.RandomRows(num_sequences=1, sequence_tokens=8, vocab_size=500)
    with pytest.raises(ValueError, match="step 1: the loss is nan"):
        benchmark.alternating_steps(pair, source, benchmark.TrainSettings(num_steps=9), tmp_path, "cpu")
    assert not list(tmp_path.rglob("*.safetensors"))
