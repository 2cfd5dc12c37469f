"""``--engine vllm`` where vLLM is not installed: the same records as the own engine's, by an engine that a Hugging Face model runs."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwise
from like_vllm import ModelLLM, fake_vllm, save_ending_early, start_like_vllm
from likelihood_rows import write_rows
from loopwise.cli import main
from loopwise.decoding import DecodingRule
from loopwise.evaluation import ParityError, check_vllm_way
from loopwise.evaluation.engines import parity_json
from loopwise.models import ModelError, load, save
from loopwise.protocol import TrialError
from loopwise.recipes import arm_runner
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_estimate import Known, estimate_trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import Record, read_run
from loopwise.serving import EngineGap, ServingError, VllmEngine, VllmHost
from test_evaluation import make_task
from tiny import tiny_model, tiny_tokenizer

LOOPS = "1:4 x2 damped beta=0.25"
TOKENIZER = tiny_tokenizer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_ending_early(tmp_path / "model")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[VllmEngine]:
    """The engines that were started, in their order."""
    return start_like_vllm(monkeypatch)


def alike(records: tuple[Record, ...]) -> list[Record]:
    return [replace(record, seconds=0.0) for record in records]


@pytest.mark.parametrize("loops", ["none", LOOPS])
@pytest.mark.parametrize("rule", [DecodingRule(), DecodingRule(budget_forcing=True, reserve_tokens=4, repetition_stop=True)])
def test_the_records_are_those_of_the_own_engine(loops: str, rule: DecodingRule, folder: Path, started: list[VllmEngine]) -> None:
    model = load(folder, loops=loops).model
    own = loopwise.evaluate(model, TOKENIZER, make_task(), rule=rule)
    run = loopwise.evaluate(model, TOKENIZER, make_task(), rule=rule, engine="vllm", out=folder.parent / "run", batch_size=3)
    assert alike(run.records) == alike(own.records) and len({record.generated_tokens for record in run.records}) > 1
    assert run.header["engine"] == "vllm" and run.header["versions"]["vllm"] == "0.0-like" and own.header["engine"] == "eager"
    parity = run.header["parity"]
    assert parity["ok"] and parity["max_abs_nats"] < 1e-4 and parity["tolerance"] == 1e-3 and len(set(parity["prompt_tokens"])) == 4
    assert (parity["mean_abs_nats_to_plain"] is None) is (loops == "none")
    meter = json.loads((folder.parent / "run" / "meter.json").read_text())
    assert (meter["peak_bytes"], meter["memory"], meter["num_answers"]) == (None, "none", 10), "vLLM's processes have their own memory"
    [engine] = started
    assert not engine.llm.running, "an engine of the call's own is stopped at its end"


def test_a_run_goes_on_after_a_kill_and_is_no_run_of_another_engine(folder: Path, started: list[VllmEngine]) -> None:
    model, out = load(folder, loops=LOOPS).model, folder.parent / "run"
    whole = loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out)
    file = out / "records.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:3]))
    assert alike(loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out).records) == alike(whole.records)
    with pytest.raises(ValueError, match="another engine"):
        loopwise.evaluate(model, TOKENIZER, make_task(), out=out)


def test_a_host_keeps_its_engine_while_model_loops_and_room_stay(folder: Path, started: list[VllmEngine]) -> None:
    model = load(folder, loops=LOOPS).model

    def ask(budget: int = 8, batch_size: int = 4) -> int:
        loopwise.evaluate(model, TOKENIZER, make_task(), budget_tokens=budget, batch_size=batch_size, engine="vllm", host=host)
        return len(started)

    with VllmHost() as host:
        assert ask() == ask(budget=4) == ask(batch_size=2) == 1
        assert ask(budget=30) == 2 and ask(batch_size=9) == 3
        loopwise.models.remove(model)
        assert ask() == 4
        loopwise.insert(model, LOOPS)
        assert ask(budget=30, batch_size=9) == 5, "what was asked for once has room from then on"
        assert started[-1].llm.running
    assert not started[-1].llm.running and started[-1].max_tokens == started[2].max_tokens


def test_a_start_that_failed_leaves_nothing_to_the_next(folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    works = sys.modules["loopwise.serving.host"].load_engine

    def fails(name: Any, **more: Any) -> Any:
        folders.append(Path(os.environ["VLLM_RPC_BASE_PATH"]))
        assert folders[-1].is_dir()
        if more["max_tokens"] > 100:
            raise RuntimeError("no room")
        return works(name, **more)

    folders: list[Path] = []
    monkeypatch.setattr("loopwise.serving.host.load_engine", fails)
    host, model = VllmHost(), load(folder, loops=LOOPS).model
    with pytest.raises(RuntimeError, match="no room"):
        host.on(model, max_tokens=101, max_rows=2)
    assert "VLLM_RPC_BASE_PATH" not in os.environ and not folders[0].exists()
    assert host.on(model, max_tokens=50, max_rows=2).max_tokens == 50, "what failed is not asked for again"
    shutil.rmtree(folders[-1])  # as of a host that nobody stopped
    with VllmHost() as other:
        host.stop()
        other.on(model, max_tokens=50, max_rows=2)
        assert folders[-1].is_dir() and folders[-1] != folders[-2]
    assert "VLLM_RPC_BASE_PATH" not in os.environ and not folders[-1].exists()


def test_a_start_that_fails_is_said_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def llm(name: str, **more: Any) -> Any:
        raise RuntimeError("Engine core initialization failed.\nSee root cause above.")

    fake_vllm(monkeypatch)
    module: Any = sys.modules["vllm"]
    module.LLM, module.plugins = llm, sys.modules["vllm.plugins"]
    module.plugins.load_general_plugins = lambda: None
    out = folder.parent / "run"
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder), "--task", "ladder", "--limit", "2", "--budget", "8", "--engine", "vllm", "--out", str(out)])
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error.startswith("loopwise evaluate: vLLM does not start on ")
        and "Engine core initialization failed. See root cause above." in error
    )
    assert "take fewer rows or shorter sequences" in error and not (out / "header.json").exists()


def test_another_checkpoint_in_the_same_folder_starts_another_engine(folder: Path, started: list[VllmEngine]) -> None:
    with VllmHost() as host:
        for seed in (0, 1):
            save(tiny_model("llama", seed=seed), TOKENIZER, folder)
            model = load(folder).model
            run = loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", host=host)
            assert alike(run.records) == alike(loopwise.evaluate(model, TOKENIZER, make_task()).records)
    assert len(started) == 2


@pytest.mark.parametrize(
    ("mean", "to_plain", "ok"),
    [(0.03, None, True), (0.11, None, False), (math.nan, None, False), (0.03, 0.04, True), (0.03, 0.02, False), (0.2, 2.0, False)],
)
def test_in_half_precision_a_gap_is_small_and_smaller_than_to_the_plain_model(mean: float, to_plain: float | None, ok: bool) -> None:
    gap = EngineGap(
        dtype="bfloat16",
        model_dtype="bfloat16",
        prompt_tokens=(4,),
        new_tokens=64,
        mean_abs_nats=mean,
        max_abs_nats=9.0,
        tokens_differing=1,
        mean_abs_nats_to_plain=to_plain,
        seconds=0.0,
    )
    assert gap.ok is ok and parity_json(gap)["ok"] is ok and parity_json(gap)["tolerance_from"] == "of the mean"


def test_an_engine_that_runs_another_model_is_refused(folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModelLLM.next

    def other(self: ModelLLM, past: list[int], params: Any = None) -> tuple[int, float]:
        token, nats = real(self, past, params)
        return token, nats - 0.01

    monkeypatch.setattr(ModelLLM, "next", other)
    with pytest.raises(ParityError, match=r"differ from Hugging Face's by 0.01 nats in the mean, 0.01 at most .*use the own engine"):
        loopwise.evaluate(load(folder, loops=LOOPS).model, TOKENIZER, make_task(), engine="vllm", out=folder.parent / "run")
    assert not (folder.parent / "run").exists() and not started[0].llm.running


def test_what_vllm_cannot_be_asked_for_is_refused_before_it_starts(
    folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(model: Any, **more: Any) -> None:
        loopwise.evaluate(model, TOKENIZER, make_task(), engine=more.pop("engine", "vllm"), out=folder.parent / "run", **more)

    model = load(folder).model
    with pytest.raises(ServingError, match="leave --fixed-rows out"):
        ask(model, fixed_rows=True)
    with pytest.raises(ServingError, match="in 2 processes: it spreads over devices by itself"):
        check_vllm_way([], fixed_rows=False, num_ranks=2)
    with pytest.raises(ValueError, match="engine 'fast' is unknown; use eager, static, compiled, vllm"):
        ask(model, engine="fast")
    with pytest.raises(ServingError, match="never loaded from some, or was changed in memory"):
        ask(tiny_model("llama"))
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    with pytest.raises(ServingError, match="was changed in memory"):
        ask(model)
    other = folder.parent / "gemma"
    save(tiny_model("gemma3"), TOKENIZER, other)
    with pytest.raises(ModelError, match=r"vLLM runs loops in .*LlamaForCausalLM.*: use the own engine"):
        ask(load(other).model)
    monkeypatch.delitem(__import__("sys").modules, "vllm")
    monkeypatch.setattr("loopwise.serving.host.find_spec", lambda name: None)
    with pytest.raises(ServingError, match="vLLM is not installed here; pip install 'loopwise"):
        ask(load(folder).model)
    assert not started and not (folder.parent / "run").exists()


def test_a_trial_asks_vllm_for_both_models_one_after_the_other(folder: Path, started: list[VllmEngine]) -> None:
    settings = TrialSettings(rules=("plain", "budget-forcing"), limit=3, noise_floor=True)
    where = folder.parent
    ways = {"own": settings, "vllm": replace(settings, engine="vllm")}
    for name, chosen in ways.items():
        trial(folder, loops=LOOPS, tasks=("ladder",), budgets=(4, 8), out=where / name, settings=chosen)
    assert [loopwise.format_loops(engine.loops) for engine in started] == [LOOPS, "none"]
    files = sorted(file.parent.relative_to(where / "own") for file in (where / "own").rglob("records.jsonl"))
    assert len(files) > 4
    for file in files:
        own, other = read_run(where / "own" / file), read_run(where / "vllm" / file)
        assert alike(own.records) == alike(other.records) and (own.header["engine"], other.header["engine"]) == ("eager", "vllm")
    verdicts = [json.loads((where / name / "verdict.json").read_text())["verdict"] for name in ways]
    assert verdicts[0] == verdicts[1]
    assert "of a log-probability where vLLM decoded" in (where / "vllm" / "report.md").read_text()


def test_a_trial_without_anything_to_decode_does_not_ask_vllm(folder: Path, started: list[VllmEngine]) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed here: pip install 'loopwise[lm-eval]'")
    write_rows(folder.parent, "sciq")
    settings = TrialSettings(rules=("plain",), limit=3, engine="vllm", data=folder.parent)
    with pytest.raises(TrialError, match="engine 'vllm' has nothing to decode: lm-eval:sciq"):
        trial(folder, loops=LOOPS, tasks=("lm-eval:sciq",), out=folder.parent / "none", settings=settings)
    assert not started


def test_every_model_of_a_trial_must_be_one_that_vllm_loops_and_a_plan_knows_vllms_speed_alone(
    folder: Path, started: list[VllmEngine]
) -> None:
    other, settings = folder.parent / "gemma", TrialSettings(rules=("plain",), limit=3, engine="vllm")
    save(tiny_model("gemma3", num_hidden_layers=12, layer_types=["full_attention"] * 12), TOKENIZER, other)
    asked: dict[str, Any] = dict(loops=LOOPS, tasks=("ladder",), budgets=(4,), out=folder.parent / "trial")
    with pytest.raises(ModelError, match="gemma"):
        trial(folder, twin=other, settings=settings, **asked)
    with pytest.raises(ModelError, match="gemma"):
        trial(folder, settings=replace(settings, larger_model=other), **asked)
    assert not started and not (folder.parent / "trial").exists()
    with pytest.raises(TrialError, match="a probe decodes eagerly and says nothing of engine 'vllm'"):
        estimate_trial(folder, settings=settings, known=Known(probe=True), **asked)
    trial(folder, settings=replace(settings, engine="eager"), **asked)
    asked.pop("out")
    ways = {engine: replace(settings, engine=engine) for engine in ("eager", "vllm")}  # type: ignore[arg-type]
    known = Known(prior=(folder.parent / "trial",))
    plans = {name: estimate_trial(folder, out=folder.parent / "new", settings=way, known=known, **asked) for name, way in ways.items()}
    assert plans["eager"].throughput is not None and plans["vllm"].throughput is None


def test_the_next_model_is_loaded_when_the_engine_before_has_stopped(
    folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = folder.parent / "larger"
    save(tiny_model("llama", num_hidden_layers=9), TOKENIZER, larger)
    real, loaded = arm_runner.load, []

    def spy(name: Any, **more: Any) -> Any:
        loaded.append((name, [engine.llm.running for engine in started]))
        return real(name, **more)

    monkeypatch.setattr(arm_runner, "load", spy)
    settings = TrialSettings(rules=("plain",), limit=3, engine="vllm", larger_model=larger)
    trial(folder, loops=LOOPS, tasks=("ladder",), budgets=(4,), out=folder.parent / "trial", settings=settings)
    assert loaded == [(larger, [False, False])] and len(started) == 3


def test_the_command_says_how_near_vllm_is(folder: Path, started: list[VllmEngine], capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "run"
    command = ["evaluate", str(folder), "--task", "ladder", "--limit", "3", "--budget", "6", "--engine", "vllm", "--out", str(out)]
    main(command)
    assert "vLLM's log-probabilities are Hugging Face's to" in capsys.readouterr().out
    fixed = ["--task", "arloop-large", "--allow-code-execution", "--engine", "vllm", "--fixed-rows"]
    with pytest.raises(SystemExit):  # before a row of its tasks is looked for
        main(["evaluate", str(folder), *fixed, "--out", str(out)])
    assert "leave --fixed-rows out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder), "--task", "arc_challenge", "--engine", "vllm", "--out", str(out)])
    assert "--engine has no meaning with --task arc_challenge, which is answered by letters" in capsys.readouterr().err
