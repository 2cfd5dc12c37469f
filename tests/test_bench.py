"""``loopwise bench`` and the engines benchmark: what they run and say. Their figures are taken on a quiet machine, not here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwise.cost import CostError, Rates, bound_of, cost_of, read_shape, step_bytes, step_flops
from loopwise.decoding import DecodingError, StaticBatch
from loopwise.decoding.batch import Batch
from loopwise.loops import format_loops, parse_loops
from loopwise.models import insert, loops_of
from loopwise.recipes import bench as bench_module
from loopwise.recipes import bench_batch
from loopwise.recipes.bench import bench
from loopwise.recipes.bench_batch import largest_batch, memory_to_fill, search_largest
from loopwise.recipes.bench_device import measure_rates
from loopwise.recipes.bench_values import BenchSettings
from tiny import tiny_config, tiny_model, tiny_tokenizer
from tiny_nets import tiny_net

SCRIPTS = Path(__file__).resolve().parents[1] / "benchmarks"
LOOPS = "2:4 x2 damped beta=0.5"
QUICK = BenchSettings(context_tokens=12, num_steps=3, repeats=2, batch_size=3)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "measure_rates", lambda device, dtype: Rates(bytes_per_second=1e9, flops_per_second=1e10))


# --- what bounds a step


def test_a_step_is_bound_by_what_explains_its_time() -> None:
    rates = Rates(bytes_per_second=100.0, flops_per_second=1000.0)
    assert bound_of(1.2, 100.0, 500.0, rates).regime == "bandwidth"
    assert bound_of(1.2, 50.0, 1000.0, rates).regime == "compute"
    assert bound_of(2.1, 100.0, 500.0, rates).regime == "launch"
    for single, regime in ((1.1, "launch"), (1.0, "bandwidth")):  # of 2.1 seconds, starting kernels takes at most these
        assert bound_of(2.1, 100.0, 500.0, rates, single_row_seconds=single).regime == regime
    found = bound_of(1.2, 100.0, 500.0, rates)
    assert (found.seconds, found.bandwidth_seconds, found.compute_seconds) == (1.2, 1.0, 0.5)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_cannot_be(rate: float) -> None:
    with pytest.raises(CostError, match="flops_per_second"):
        Rates(bytes_per_second=1.0, flops_per_second=rate)
    with pytest.raises(CostError, match="a step of"):
        bound_of(0.0, 1.0, 1.0, Rates(bytes_per_second=1.0, flops_per_second=1.0))


def test_a_steps_bytes_and_flops_are_those_of_its_call_sites() -> None:
    shape = read_shape(tiny_config("llama").to_dict())
    loops = parse_loops(LOOPS, 6)
    layer, head, kv = shape.layers[0], 32 * 128, 2 * 2 * 8 * 2
    for rows, context in ((1, 10), (7, 40)):
        for some, sites in (((), 6), (loops, 8)):
            moved = step_bytes(shape, some, batch_size=rows, context_tokens=context, dtype_bytes=2)
            assert moved == 2 * (sites * layer.matrix_parameters + head) + rows * sites * kv * context
            flops = step_flops(shape, some, batch_size=rows, context_tokens=context)
            assert flops == rows * (2 * (sites * layer.matrix_parameters + head) + sites * 4 * 32 * context)


def test_rates_are_measured() -> None:
    rates = measure_rates(CPU, torch.float32)
    assert 1e8 < rates.bytes_per_second < 1e13 and 1e8 < rates.flops_per_second < 1e16


# --- the largest batch


@pytest.mark.parametrize("most", [1, 2, 5, 8, 100])
@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8, 63, 100, 1000])
def test_the_search_finds_the_largest_that_fits(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(rows: int) -> bool:
        tried.append(rows)
        return rows <= limit

    assert search_largest(fits, most) == min(limit, most)
    assert len(tried) == len(set(tried)) and max(tried) <= most and len(tried) <= 15


def test_nothing_fits() -> None:
    with pytest.raises(DecodingError, match="not even a batch of 1"):
        search_largest(lambda rows: False, 8)


def test_rows_are_accounted_or_measured_whichever_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(bench_batch, "_measured_row_bytes", lambda decode, device: 50.0)
    assert largest_batch(ran.append, CPU, 1000, row_bytes=20.0, memory_bytes=1001.0) == 20
    assert largest_batch(ran.append, CPU, 1000, row_bytes=100.0, memory_bytes=1001.0) == 10
    assert largest_batch(ran.append, CPU, 7, row_bytes=100.0, memory_bytes=1001.0) == 7


def test_memory_to_fill_leaves_room_for_the_model() -> None:
    model = tiny_model("llama")
    own = sum(parameter.numel() * 4 for parameter in model.parameters())
    own += sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    assert memory_to_fill(model, own + 1000.0) == 1000.0
    assert memory_to_fill(model, None) > 1e6
    with pytest.raises(DecodingError, match="give more memory"):
        memory_to_fill(model, float(own))


def test_each_arm_has_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's cache is larger, so fewer rows fit."""
    monkeypatch.setattr(bench_batch, "_measured_row_bytes", lambda decode, device: 0.0)
    model = insert(tiny_model("llama"), LOOPS)
    own = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    settings = BenchSettings(context_tokens=12, num_steps=1, repeats=1, memory_bytes=own + 400_000.0, max_batch=500)
    plain, looped = bench(model, settings).arms
    assert 1 <= looped.batch_size < plain.batch_size < 500 and not plain.capped and not looped.capped


# --- the whole measurement


def steps_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of every decode step whether the model was looped, and its rows."""
    seen: list[tuple[bool, int]] = []
    for kind in (Batch, StaticBatch):
        step = kind.step

        def watched(self: Any, token_ids: Any, step: Any = step) -> Any:
            seen.append((bool(loops_of(self._model)), len(token_ids)))
            return step(self, token_ids)

        monkeypatch.setattr(kind, "step", watched)
    return seen


@pytest.mark.parametrize("engine", ["eager", "static"])
def test_both_arms_are_measured_in_turn(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = insert(tiny_model("llama"), LOOPS)
    steps = steps_of(monkeypatch)
    shares: list[float] = []
    settings = BenchSettings(context_tokens=12, num_steps=3, repeats=2, batch_size=3, engine=engine)
    found = bench(model, settings, progress=lambda what, done, total: shares.append(done / total))
    assert format_loops(loops_of(model)) == LOOPS, "the model leaves as it came"
    assert [(arm.arm, arm.loops) for arm in found.arms] == [("plain", "none"), ("looped", LOOPS)]
    one = 5  # two steps to warm up and three timed
    timed = steps[2 * one :]  # the first are those of the peaks
    turns = [timed[first] for first in range(0, len(timed), one)]
    assert turns == [(False, 1), (False, 3), (True, 1), (True, 3), (True, 1), (True, 3), (False, 1), (False, 3)]
    shape, loops = read_shape(model.config.to_dict()), parse_loops(LOOPS, 6)
    for arm, some in zip(found.arms, ((), loops), strict=True):
        cost = cost_of(shape, some, context_tokens=12, kv_dtype_bytes=4)
        assert (arm.layer_pass_ratio, arm.kv_bytes_per_token, arm.kv_bytes) == (
            cost.layer_pass_ratio,
            cost.kv_bytes_per_token,
            cost.kv_bytes,
        )
        assert arm.latency_seconds.low <= arm.latency_seconds.median <= arm.latency_seconds.high
        assert arm.tokens_per_second.median > 0 and arm.batch_size == 3 and arm.capped
        assert arm.peak_bytes is None or arm.peak_bytes >= sum(4 * parameter.numel() for parameter in model.parameters())
    assert found.latency_ratio is not None and found.latency_ratio.low <= found.latency_ratio.median
    assert json.loads(json.dumps(found.to_json()))["settings"]["engine"] == engine
    assert shares[-1] == 1.0


def test_rows_hold_the_prompt_each_by_itself() -> None:
    model = tiny_model("qwen3_5")
    prompt = list(range(5, 14))
    with torch.no_grad():
        for engine in ("eager", "static"):
            settings = BenchSettings(context_tokens=12, num_steps=1, repeats=1, engine=engine)  # type: ignore[arg-type]
            measuring = bench_module._Measuring(model, prompt, {"plain": ()}, settings, None)
            batch, logits = measuring.open(3)
            step = batch.step([20, 21, 22])
            for row, token in enumerate((20, 21, 22)):
                alone = model(input_ids=torch.tensor([[*prompt, token]]), use_cache=False).logits[0]
                torch.testing.assert_close(logits[row], alone[-2], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(step[row], alone[-1], rtol=1e-4, atol=1e-4)


def test_models_with_one_arm() -> None:
    (plain,) = bench(tiny_model("llama"), QUICK).arms
    assert (plain.arm, plain.loops) == ("plain", "none")
    found = bench(tiny_net("sandwich"), QUICK)
    assert [arm.arm for arm in found.arms] == ["looped"] and found.latency_ratio is None
    assert found.arms[0].layer_pass_ratio == 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_steps=0), "num_steps is 0"),
        (dict(repeats=0), "repeats is 0"),
        (dict(batch_size=0), "batch_size is 0"),
        (dict(max_batch=0), "max_batch is 0"),
        (dict(memory_bytes=float("nan")), "memory_bytes is nan"),
        (dict(context_tokens=5), "3 timed steps need a context of at least 6"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        BenchSettings(**({"context_tokens": 12, "num_steps": 3} | changes))


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(DecodingError, match="the model has 512"):
        bench(tiny_model("llama"), BenchSettings(context_tokens=600))


# --- the command


def saved(folder: Path) -> Path:
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_step_is_said_with_its_share_of_the_rate_unless_it_is_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from loopwise.cli import main

    given = ["bench", str(saved(tmp_path)), "--context", "12", "--steps", "2", "--repeats", "1", "--batch-size", "1"]
    for rate, said in ((1.0, r"bandwidth-bound at \d+ % of the device's rate; a step takes"), (1e30, r"launch-bound; a step takes")):
        rates = Rates(bytes_per_second=rate, flops_per_second=1e30)
        monkeypatch.setattr(bench_module, "measure_rates", lambda device, dtype, rates=rates: rates)
        main(given)
        lines = [line for line in capsys.readouterr().out.splitlines() if "a step takes" in line]
        assert lines and all(re.search(said, line) for line in lines)


def test_the_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from loopwise.cli import main

    quick = ["--context", "12", "--steps", "2", "--repeats", "2", "--batch-size", "3"]
    main(["bench", str(saved(tmp_path)), "--loops", LOOPS, *quick, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [arm["arm"] for arm in found["arms"]] == ["plain", "looped"]
    assert found["arms"][1]["at_batch_1"]["regime"] in ("launch", "bandwidth", "compute")
    main(["bench", str(tmp_path), "--loops", LOOPS, *quick])
    text = capsys.readouterr().out
    for part in ("latency ms", "tokens/s", "KV bytes/token", "looped / plain: latency", "plain, batch 1:", "looped, batch 3:", "-bound"):
        assert part in text
    with pytest.raises(SystemExit):
        main(["bench", str(tmp_path), "--threads", "0"])
    assert "--threads 0: give at least 1" in capsys.readouterr().err


# --- the engines benchmark


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("engines", SCRIPTS / "engines.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "engines", module)
    spec.loader.exec_module(module)
    return module


def run(engines: Any, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    quick = ["--random", "--threads", "1", "--prompts", "5", "--batch", "2", "--budget", "5", "--tokens", "3", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["engines.py", *quick, *options])
    engines.main()


def test_engines_are_compared(engines: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(engines, monkeypatch, "--engines", "own eager", "Hugging Face generate", "vLLM", "--json")
    found = json.loads(capsys.readouterr().out)
    eager, theirs, vllm = found["results"]
    assert found["loops"] == "5:7 x2" and found["layer_pass_ratio"] == pytest.approx(14 / 12)
    assert theirs["over_hugging_face"]["median"] == 1.0 and eager["tokens_per_second"]["median"] > 0
    assert eager["slowdown_over_layer_passes"]["median"] == pytest.approx(eager["slowdown"]["median"] / (14 / 12))
    reason = "give --vllm-python, an interpreter that has vllm"
    assert vllm["tokens_per_second"] is None and vllm["reasons"] == [f"answers: {reason}", f"slowdown: {reason}"]


def test_one_figure_alone_is_measured(engines: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for named, missing in (("slowdown", "tokens_per_second"), ("answers", "slowdown")):
        run(engines, monkeypatch, "--engines", "own eager", "vLLM", "--figures", named, "--json")
        ours, vllm = json.loads(capsys.readouterr().out)["results"]
        assert ours[missing] is None and len([one for one in ours.values() if isinstance(one, dict)]) == (2 if named == "slowdown" else 1)
        assert [reason.partition(":")[0] for reason in vllm["reasons"]] == [named]


def test_every_engine_writes_the_same_tokens(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["engines.py", "--random", "--prompts", "5", "--batch", "2"])
    setting, prompts = engines.prepare(engines.parse_options())
    for ending, most in ((True, 9), (False, 4)):
        for looped in (False, True):
            lengths = engines.own(setting, prompts, most, looped, ending)
            assert lengths == engines.hugging_face(setting, prompts, most, looped, ending)
            assert ending or lengths == [4] * 5
    assert loops_of(setting.model) == ()


@pytest.mark.slow
def test_continuous_batching_writes_as_many_tokens(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["engines.py", "--random", "--prompts", "3", "--batch", "2", "--budget", "5", "--tokens", "3"])
    setting, prompts = engines.prepare(engines.parse_options())
    assert engines.continuous_batching(setting, prompts, 5, False, True) == engines.own(setting, prompts, 5, False, True)
    assert engines.continuous_batching(setting, prompts, 3, True, False) == [3] * 3


def test_the_unrolled_model_is_the_looped_one_on_the_same_weights(engines: Any) -> None:
    model = tiny_model("llama")
    deeper = engines.unrolled(model, parse_loops("1:3 x2", 6))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        theirs = deeper(ids, use_cache=False).logits
        ours = insert(model, "1:3 x2")(ids, use_cache=False).logits
    torch.testing.assert_close(theirs, ours)
    assert {id(p) for p in deeper.parameters()} == {id(p) for p in model.parameters()}
    assert model.config.num_hidden_layers == 6 and deeper.config.num_hidden_layers == 8


FAKE_VLLM = """
from types import SimpleNamespace as Some

class SamplingParams(Some):
    pass

class LLM:
    def __init__(self, model, **options):
        assert options["kv_cache_memory_bytes"] > 0
        self.looped = model.endswith("looped")
        print("[noise]", options["dtype"], flush=True)

    def generate(self, prompts, how, use_tqdm):
        ids = [0] * (how.max_tokens if how.ignore_eos else 2)
        assert all(prompt["prompt_token_ids"] for prompt in prompts)
        return [Some(outputs=[Some(token_ids=ids + [1] * self.looped)]) for _ in prompts]
"""


def is_stopped(pid: int) -> bool:
    for _ in range(100):  # five seconds at most
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found:
            return os.WIFSTOPPED(status)
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("plugin", [True, False])
def test_vllm_runs_in_processes_of_its_own(plugin: bool, engines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    if plugin:
        (tmp_path / "fake-1.dist-info").mkdir()
        (tmp_path / "fake-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1\n")
        (tmp_path / "fake-1.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nloopwise = x:y\n")
    python = tmp_path / "python"  # isolated: it sees no packages but those here
    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH={tmp_path} {Path(sys.executable).resolve()} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(engines, "_workers", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    refused: list[Any] = []
    monkeypatch.setattr(sys.modules["vllm_worker"], "end", lambda worker: (engines.end(worker), refused.append(worker)))
    model, folder = tiny_model("llama"), saved(tmp_path / "model")
    setting = engines.Setting(model, tiny_tokenizer(), folder, parse_loops("1:3 x2", 6), 2, str(python), 99)
    some = [(5, 6), (7,), (8, 9, 10)]
    try:
        assert engines.vllm(setting, some, 7, False, False) == [7, 7, 7]
        assert engines.vllm(setting, some, 7, False, True) == [2, 2, 2]
        assert is_stopped(engines._workers[False].pid), "it would spin while others are timed"
        if plugin:
            assert engines.vllm(setting, some, 7, True, False) == [8, 8, 8]
        else:
            with pytest.raises(engines.Unavailable, match="its plugin for loops is missing"):
                engines.vllm(setting, some, 7, True, False)
        assert not list(tmp_path.glob("loopwise-engines-*")), "the looped folder is gone once it is read"
    finally:
        for worker in engines._workers.values():
            engines.end(worker)
            assert worker.returncode is not None
    assert [worker.returncode for worker in refused] == ([] if plugin else [-signal.SIGKILL]), "nothing stays of one that did not load"


def test_missed_targets_are_said(engines: Any) -> None:
    def result(engine: str, over: float | None, slow: float | None) -> Any:
        def figure(value: float | None) -> Any:
            return None if value is None else engines.Figure(value, value, value)

        return engines.Result(engine, figure(1.0), figure(over), figure(1.2), figure(slow), ())

    good = [result("own eager", 1.2, 1.0), result("own compiled", 1.6, 1.04), result("vLLM", None, None)]
    assert engines.missed_targets(good) == []
    bad = [result("own eager", 1.2, 1.0), result("vLLM", 3.0, 1.06)]
    assert len(engines.missed_targets(bad)) == 2
