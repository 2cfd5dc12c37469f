"""The speed benchmark runs and compares what it says. Its figures are taken on a quiet machine, not here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwise.models import loops_of

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "decode_speed.py"


@pytest.fixture
def benchmark(monkeypatch) -> Any:
    spec = importlib.util.spec_from_file_location("decode_speed", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "decode_speed", module)
    spec.loader.exec_module(module)
    return module


def run(benchmark, monkeypatch, *options: str) -> None:
    threads = str(torch.get_num_threads())
    monkeypatch.setattr(
        sys, "argv", ["decode_speed.py", "--random", "--threads", threads, "--repeats", "2", "--tokens", "4", "--budget", "4", *options]
    )
    benchmark.main()


def test_all_ratios_are_measured(benchmark, monkeypatch, capsys):
    run(benchmark, monkeypatch, "--batch", "1", "3", "--json")
    ratios = json.loads(capsys.readouterr().out)["ratios"]
    looped = [r for r in ratios if r["layer_pass_ratio"]]
    assert [(r["batch_size"], r["layer_pass_ratio"]) for r in looped] == [(b, c) for b in (1, 3) for c in (13 / 12, 1.25, 1.25)]
    assert all(r["target"] == pytest.approx(1.03 * r["layer_pass_ratio"]) for r in looped)
    assert [r["what"] for r in ratios[6:]] == [f"ours ({rows}) / Hugging Face generate" for rows in ("rows leaving", "fixed rows")]
    assert all(r["quartiles"][0] <= r["median"] <= r["quartiles"][1] and min(r["seconds"]) > 0 for r in ratios)


def test_a_missed_target_is_an_error_under_check(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "LOOPED_TARGET", 0.0)
    with pytest.raises(SystemExit, match="missed its target"):
        run(benchmark, monkeypatch, "--batch", "1", "--loops", "4:5 x2", "--skip-hugging-face", "--check")


def test_each_side_of_a_ratio_runs_what_it_says(benchmark, monkeypatch):
    model, tokenizer = benchmark.random_model()
    seen: list[tuple[Any, int, list[int]]] = []
    generate = benchmark.generate

    def watched(model, *args, **options):
        done = generate(model, *args, **options)
        seen.append((loops_of(model), model.config.eos_token_id, [c.generated_tokens for c in done]))
        return done

    monkeypatch.setattr(benchmark, "generate", watched)
    monkeypatch.setattr(sys, "argv", ["decode_speed.py", "--repeats", "1", "--tokens", "4"])
    benchmark.looped_ratio(model, tokenizer, benchmark.make_prompts(model, tokenizer, 2), "4:6 x2", benchmark.parse_options())
    assert [bool(loops) for loops, _, _ in seen] == [True, False] * 2
    assert all(tokens == [4, 4] for _, _, tokens in seen)
    assert loops_of(model) == () and model.config.eos_token_id == 2
