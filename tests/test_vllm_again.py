"""What is finished is not begun again: no command starts vLLM, or checks a model's decoding, where no answer is missing."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loopwise
from learning_sets import chat_model, chats, tiny_set
from like_vllm import save_ending_early, start_like_vllm
from loopwise.cli import main
from loopwise.evaluation import engines
from loopwise.models import load, save
from loopwise.recipes import arm_runner, set_trial
from loopwise.recipes.learning import learn
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import Record, RecordsError, read_run
from loopwise.serving import VllmEngine, VllmHost
from loopwise.tasks.suites import SUITES, Suite, SuiteTask
from test_evaluation import make_task
from tiny import tiny_model, tiny_tokenizer

LOOPS = "1:4 x2 damped beta=0.25"
TOKENIZER = tiny_tokenizer()
TRIAL = TrialSettings(rules=("plain", "budget-forcing"), limit=3, noise_floor=True, vote_samples=2, engine="vllm", dtype="fp32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_ending_early(tmp_path / "model")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[VllmEngine]:
    return start_like_vllm(monkeypatch)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    learn(tiny_set(chat_model(folder / "model"), chats(folder / "chats.jsonl"), folder / "set", tokens=96))
    return folder / "set"


def refuse(*given: Any, **more: Any) -> Any:
    raise AssertionError("something was begun although no answer is missing")


def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwise.serving.host.load_engine", refuse)
    for check in ("measure_gap", "check_parity"):
        monkeypatch.setattr(engines, check, refuse)


def alike(records: tuple[Record, ...]) -> list[Record]:
    return [replace(record, seconds=0.0) for record in records]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted((folder).rglob("*.jsonl"))}


@pytest.mark.parametrize("engine", ["vllm", "eager"])
def test_a_finished_run_is_given_back_and_an_unfinished_one_goes_on(
    engine: Any, folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = load(folder, loops=LOOPS).model, folder.parent / "run"
    asked: dict[str, Any] = dict(engine=engine, out=out)
    whole = loopwise.evaluate(model, TOKENIZER, make_task(), **asked)
    meter = (out / "meter.json").read_bytes()
    with monkeypatch.context() as patch:
        nothing_begins(patch)
        again = loopwise.evaluate(model, TOKENIZER, make_task(), **asked)
        assert again == whole and again.header["parity"]["ok"]
        assert loopwise.evaluate(model, TOKENIZER, make_task(), parity=refuse, **asked) == whole
        file = out / "records.jsonl"
        for content in (file.read_bytes()[:-1], b"".join(file.read_bytes().splitlines(keepends=True)[:-1]), b""):
            file.write_bytes(content)
            with pytest.raises(AssertionError, match="begun"):
                loopwise.evaluate(model, TOKENIZER, make_task(), **asked)
            assert file.read_bytes() == content
    assert (out / "meter.json").read_bytes() == meter
    assert alike(loopwise.evaluate(model, TOKENIZER, make_task(), **asked).records) == alike(whole.records)


def test_what_cannot_be_written_is_refused_before_vllm_starts(
    folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = load(folder, loops=LOOPS).model, folder.parent / "run"
    loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out)
    nothing_begins(monkeypatch)
    with pytest.raises(RecordsError, match="another arm"):
        loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out, budget_tokens=7)
    with monkeypatch.context() as patch:
        patch.setattr("vllm.__version__", "0.1-like")
        with pytest.raises(RecordsError, match="another versions"):
            loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out)
    file = out / "records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2] + lines[:1]))
    with pytest.raises(RecordsError, match="is there twice"):
        loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out)
    file.write_text("".join(lines))
    file.write_text(file.read_text().replace('"correct"', '"wrong"', 1))
    with pytest.raises(RecordsError, match="field 'correct' is missing"):
        loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out)
    with file.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RecordsError, match="another process is writing this run"):
            loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", out=out)


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_a_temperature_that_vllm_does_not_draw_at_is_refused_before_a_model_is_loaded(
    temperature: float, folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loopwise.models.load", refuse)
    for task in ("ladder", "free-loop"):
        with pytest.raises(SystemExit):
            main(f"evaluate {folder} --task {task} --engine vllm --temperature {temperature} --out {folder.parent / 'run'}".split())
        assert f"temperature is {temperature:g}, and vLLM draws at 0.01 to 2; give one of these" in capsys.readouterr().err
    assert not (folder.parent / "run").exists()


def test_the_commands_evaluate_and_of_a_suite_start_nothing_again(
    folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = Suite(source="made", tasks=(SuiteTask(task="ladder:0-1"), SuiteTask(task="ladder:2-3")))
    monkeypatch.setitem(SUITES, "made", suite)
    for task in ("ladder", "made"):
        out = folder.parent / task
        command = ["evaluate", str(folder), "--task", task, "--limit", "3", "--engine", "vllm", "--budget", "6", "--out", str(out)]
        main(command)
        said, before, num_started = capsys.readouterr().out, contents(out), len(started)
        with monkeypatch.context() as patch:
            nothing_begins(patch)
            main(command)
        assert capsys.readouterr().out == said and contents(out) == before and len(before) == (1 if task == "ladder" else 2)
        cut = out / list(before)[-1]
        cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:-1]))
        main(command)
        assert len(started) == num_started + 1, "of the task that lacks an answer alone"
        capsys.readouterr()
    assert not any(engine.llm.running for engine in started)


def test_a_finished_trial_is_judged_again_and_one_answer_starts_its_own_model_alone(
    folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    larger, out = folder.parent / "larger", folder.parent / "trial"
    save(tiny_model("llama", num_hidden_layers=9), TOKENIZER, larger)
    asked: dict[str, Any] = dict(loops=LOOPS, tasks=("ladder",), budgets=(4, 8), out=out, settings=replace(TRIAL, larger_model=larger))
    verdict = trial(folder, **asked)
    assert [loopwise.format_loops(engine.loops) for engine in started] == [LOOPS, "none", "none"]
    before = contents(out)
    assert any("sampled2" in name for name in before) and any("noise-floor" in name for name in before)
    with monkeypatch.context() as patch:
        nothing_begins(patch)
        assert trial(folder, **asked) == verdict and contents(out) == before
        command = f"trial {folder} --task ladder --budgets 4 8 --limit 3 --engine vllm --dtype fp32 --votes 2 --noise-floor --out {out}"
        main([*command.split(), "--loops", LOOPS, "--larger-model", str(larger)])
    capsys.readouterr()
    looped = next(name for name in before if "/looped-plain-4/" in name)
    (out / looped).write_bytes(b"".join(before[looped].splitlines(keepends=True)[:-1]))
    assert trial(folder, **asked).sentence == verdict.sentence
    assert [loopwise.format_loops(engine.loops) for engine in started[3:]] == [LOOPS]
    assert alike(read_run((out / looped).parent).records) == alike_lines(before[looped])


def alike_lines(content: bytes) -> list[Record]:
    values = [json.loads(line) for line in content.decode().splitlines()]
    return alike(tuple(sorted((loopwise.records.runs.record_from(one, "kept") for one in values), key=lambda one: one.key)))


def test_the_trial_of_a_set_stops_vllm_before_the_next_member_is_loaded_and_starts_nothing_again(
    learned: Path, tmp_path: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrialSettings(rules=("plain",), limit=2, vote_samples=2, dtype="fp32")
    asked: dict[str, Any] = dict(tasks=("ladder",), budgets=(4,), depths=(1, 3))
    own = set_trial.set_trial(learned, out=tmp_path / "own", settings=settings, **asked)
    real, loaded = set_trial.load, []

    def spy(name: Any, **more: Any) -> Any:
        loaded.append((name.parent.parent.name, [engine.llm.running for engine in started]))
        return real(name, **more)

    monkeypatch.setattr(set_trial, "load", spy)
    vllm = replace(settings, engine="vllm")
    ours = set_trial.set_trial(learned, out=tmp_path / "vllm", settings=vllm, **asked)
    assert [name for name, _ in loaded] == ["looped", "twin", "looped", "looped"]
    assert [running for _, running in loaded] == [[False] * n for n in range(4)] and len(started) == 4
    assert not started[-1].llm.running
    assert [loopwise.format_loops(engine.loops)[:6] for engine in started] == ["2:4 x2", "none", "none", "2:4 x3"]
    assert ours.sentence == own.sentence
    names = sorted(contents(tmp_path / "own"))
    assert names == sorted(contents(tmp_path / "vllm")) and any("sampled2" in name for name in names)
    for name in names:
        one, other = (read_run((tmp_path / way / name).parent) for way in ("own", "vllm"))
        assert [record.key for record in one.records] == [record.key for record in other.records]
        assert "sampled" in name or alike(one.records) == alike(other.records)
    nothing_begins(monkeypatch)
    assert set_trial.set_trial(learned, out=tmp_path / "vllm", settings=vllm, **asked) == ours


@pytest.mark.parametrize("where", ["an arm", "a start"])
def test_an_error_in_the_middle_of_a_trial_leaves_no_engine(
    where: str, folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = arm_runner.evaluate, []

    def fails(model: Any, *given: Any, **more: Any) -> Any:
        if more["arm"].startswith("twin"):
            raise RuntimeError("the disk is full")
        seen.append(started[-1].llm.running if started else None)
        return real(model, *given, **more)

    if where == "an arm":
        monkeypatch.setattr(arm_runner, "evaluate", fails)
    else:
        monkeypatch.setattr("loopwise.serving.host.load_engine", fails_to_start)
    with pytest.raises(RuntimeError, match=r"full|no room"):
        trial(folder, loops=LOOPS, tasks=("ladder",), budgets=(4, 8), out=folder.parent / "trial", settings=TRIAL)
    assert not any(engine.llm.running for engine in started) and len(started) == (where == "an arm")
    assert seen == ([None, True] if where == "an arm" else [])


def fails_to_start(*given: Any, **more: Any) -> Any:
    raise RuntimeError("no room for the cache")


def test_a_host_can_be_used_again_after_a_start_or_an_evaluation_that_failed(
    folder: Path, started: list[VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder, loops=LOOPS).model
    own = loopwise.evaluate(model, TOKENIZER, make_task())
    with VllmHost() as host:
        with monkeypatch.context() as patch:
            patch.setattr("loopwise.serving.host.load_engine", fails_to_start)
            with pytest.raises(RuntimeError, match="no room"):
                loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", host=host)
        with pytest.raises(AssertionError, match="begun"):
            loopwise.evaluate(model, TOKENIZER, make_task(grader=refuse), engine="vllm", host=host)
        assert alike(loopwise.evaluate(model, TOKENIZER, make_task(), engine="vllm", host=host).records) == alike(own.records)
    assert len(started) == 1 and not started[0].llm.running
