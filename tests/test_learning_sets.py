"""Whole sets on tiny models: trained, killed, shared, failed, chained; what the table says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning_sets import LOOPS, ROWS, TOKENS, chat_model, chats, tiny_set
from loopwise.cli import main
from loopwise.data import NO_LOSS
from loopwise.loops import LoopError, format_loops
from loopwise.models import ModelError, load, loops_of
from loopwise.recipes.learning import Telling, learn
from loopwise.recipes.learning_data import LearningData, open_data
from loopwise.recipes.learning_files import hold, read_result, read_set
from loopwise.recipes.learning_guesses import guesses
from loopwise.recipes.learning_members import Controls
from loopwise.recipes.learning_recipes import RECIPES, expected_passes
from loopwise.recipes.learning_set import LearningSet, bind_set, estimate_set, plan_set
from loopwise.recipes.learning_summary import MemberSummary, summarise_set
from loopwise.training import DivergedError, PassSchedule, TrainingError, read_metrics
from training_cases import KillAfter, Killed, Silent, write_text_shards

CONTROLS = Controls(names=("equal-flops", "relocated", "x2"))
MEMBERS = ("looped", "twin", "equal-flops", "relocated", "looped-x2", "twin-x2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chats(tmp_path_factory.mktemp("data") / "chats.jsonl")


@pytest.fixture(scope="module")
def trained(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("set")
    assert learn(tiny_set(model, data, out, seeds=(0, 1), controls=CONTROLS)) == ()
    return out


@pytest.fixture(scope="module")
def rows(trained: Path) -> dict[str, MemberSummary]:
    return {row.name: row for row in summarise_set(trained)}


def weights(out: Path, member: str, seed: int = 0) -> bytes:
    return (out / member / f"seed-{seed}" / "model" / "model.safetensors").read_bytes()


def hashes(out: Path, member: str, seed: int = 0) -> list[str]:
    return [step.batch_hash for step in read_metrics(out / member / f"seed-{seed}")]


def failing(monkeypatch: pytest.MonkeyPatch, loops: str, error: Exception) -> None:
    """Let the short fine-tune of one member fail."""
    recipe = RECIPES["short-ft"]

    def train(base: Any, given: Any, *rest: Any, **more: Any) -> Any:
        if given and format_loops(given) == loops:
            raise error
        return recipe.train(base, given, *rest, **more)

    monkeypatch.setitem(RECIPES, "short-ft", replace(recipe, train=train))


def test_members_of_a_seed_read_the_same_batches_in_the_same_order(trained: Path, rows: dict[str, MemberSummary]) -> None:
    assert tuple(rows) == MEMBERS
    for seed in (0, 1):
        longest = hashes(trained, "twin-x2", seed)
        assert len(longest) == 2 * len(hashes(trained, "looped", seed)) and len(set(longest)) == len(longest)
        assert all(hashes(trained, name, seed) == longest[: len(hashes(trained, name, seed))] for name in MEMBERS)
    assert hashes(trained, "looped", 0) != hashes(trained, "looped", 1)  # else seeds of full fine-tuning were one model
    assert weights(trained, "looped", 0) != weights(trained, "looped", 1)
    assert all(row.seeds == (0, 1) and not row.alarms for row in rows.values())
    assert "| shared |" in (trained / "report.md").read_text()


def test_members_are_saved_with_their_loops_and_nothing_else_differs(trained: Path) -> None:
    found = {name: format_loops(loops_of(load(trained / name / "seed-0" / "model").model)) for name in MEMBERS}
    relocated = "0:2 x2 damped beta=0.5"
    assert found == dict.fromkeys(MEMBERS, "none") | {"looped": LOOPS, "looped-x2": LOOPS, "relocated": relocated}
    headers = [json.loads((trained / name / "seed-0" / "run.json").read_text()) for name in MEMBERS]
    assert len({header["model"]["first_weights"] for header in headers}) == 1
    assert len({json.dumps(header["data"]) for header in headers}) == 1


def test_the_table_says_what_each_member_was_charged(trained: Path, rows: dict[str, MemberSummary], data: Path, model: Path) -> None:
    plan = plan_set(tiny_set(model, data, trained, seeds=(0, 1), controls=CONTROLS))
    source = open_data(plan.chosen.data, plan.source, trained / "data").source(0)
    result = read_result(trained / "looped" / "seed-0")
    assert result is not None
    batches = [source.batch(step) for step in range(result["num_steps"])]
    assert result["answer_tokens"] == sum(int(np.count_nonzero(batch.targets != NO_LOSS)) for batch in batches)
    assert result["tokens"] < result["input_tokens"] == result["num_steps"] * ROWS.step_tokens
    assert TOKENS <= result["tokens"] < TOKENS + ROWS.step_tokens  # the budget counts no padding
    looped, twin, equal = rows["looped"], rows["twin"], rows["equal-flops"]
    assert looped.layer_pass_ratio == pytest.approx(8 / 6) and twin.layer_pass_ratio == twin.step_time_ratio == twin.flops_ratio == 1.0
    assert looped.flops_ratio == pytest.approx(plan.flops_ratio) and 1 < plan.flops_ratio < 8 / 6
    assert equal.training_flops and looped.training_flops and twin.num_steps and looped.seconds and looped.loss_nats
    step_flops = (twin.training_flops or 0) / twin.num_steps
    assert abs(equal.training_flops - looped.training_flops) <= step_flops / 2 + 1
    assert rows["relocated"].training_flops == looped.training_flops
    estimated = {one.member.name: one for one in estimate_set(plan)}
    assert estimated["looped"].flops == pytest.approx(looped.training_flops / (looped.num_steps or 0) * (TOKENS / ROWS.step_tokens))
    assert estimated["twin-x2"].num_steps == 2 * TOKENS // ROWS.step_tokens


def test_a_killed_set_ends_with_the_same_weights(trained: Path, model: Path, data: Path, tmp_path: Path) -> None:
    chosen = tiny_set(model, data, tmp_path, controls=Controls(names=("relocated",)))
    for name, step in (("looped", 3), ("twin", 1), ("relocated", 2)):
        with pytest.raises(Killed):
            learn(chosen, Telling(reporter=lambda member, seed, at=(name, step): KillAfter(at[1]) if member.name == at[0] else Silent()))
        assert read_result(tmp_path / name / "seed-0") is None
    assert learn(chosen) == ()
    for name in ("looped", "twin", "relocated"):
        assert weights(tmp_path, name) == weights(trained, name) and hashes(tmp_path, name) == hashes(trained, name)
    written = {name: os.stat(tmp_path / name / "seed-0" / "result.json").st_mtime_ns for name in ("looped", "twin")}
    assert learn(chosen) == ()  # done already
    assert written == {name: os.stat(tmp_path / name / "seed-0" / "result.json").st_mtime_ns for name in written}


def test_a_member_that_diverges_does_not_take_the_set_down(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "0:2 x2 damped beta=0.5", DivergedError("step 2: the loss is nan"))
    chosen = tiny_set(model, data, tmp_path, controls=Controls(names=("relocated", "random"), random_seed=1))
    assert learn(chosen) == () and learn(chosen) == ()
    found = {row.name: row for row in summarise_set(tmp_path)}
    assert found["relocated"].failed == {0: "step 2: the loss is nan"} and found["relocated"].loss_nats is None
    assert found["random"].seeds == (0,) and "relocated, seed 0, failed: step 2" in (tmp_path / "report.md").read_text()


def test_what_the_machine_fails_at_is_tried_again(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch, LOOPS, RuntimeError("CUDA out of memory"))
        assert learn(tiny_set(model, data, tmp_path)) == ()
    assert read_result(tmp_path / "looped" / "seed-0") == {"failed": "CUDA out of memory", "again": True}
    assert summarise_set(tmp_path)[1].seeds == (0,)
    learn(tiny_set(model, data, tmp_path))
    assert summarise_set(tmp_path)[0].seeds == (0,)


def test_a_run_that_another_process_is_at_is_passed_over(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwise.recipes.learning_equal.seconds_per_step", lambda folder: 0.3 if folder.parent.name == "looped" else 0.2)
    chosen = tiny_set(model, data, tmp_path, controls=Controls(names=("equal-flops",), equal="measured"))
    handle = hold(tmp_path / "twin" / "seed-0.lock", wait=False)
    assert learn(chosen) == ("twin/seed-0", "equal-flops/seed-0")  # the second waits for the first one's time
    assert read_result(tmp_path / "looped" / "seed-0") and read_result(tmp_path / "twin" / "seed-0") is None
    os.close(handle)
    assert learn(chosen) == ()
    ratio = json.loads((tmp_path / "equal.json").read_text())["ratio"]
    steps = {row.name: row.num_steps for row in summarise_set(tmp_path)}
    assert ratio == pytest.approx(1.5) and steps["equal-flops"] == round(ratio * (steps["looped"] or 0))


def test_a_control_shorter_than_the_twin_is_left_out_with_its_reason(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwise.recipes.learning_equal.seconds_per_step", lambda folder: 0.2 if folder.parent.name == "looped" else 0.3)
    chosen = tiny_set(model, data, tmp_path, controls=Controls(names=("equal-flops", "relocated"), equal="measured"))
    assert learn(chosen) == () and learn(chosen) == ()
    found = {row.name: row for row in summarise_set(tmp_path)}
    reason = "equal-flops: the looped model took 0.2 seconds per step, no more than its twin's 0.3, so no longer training of the twin"
    assert found["equal-flops"].failed[0].startswith(reason) and found["equal-flops"].num_steps is None
    assert found["twin"].seeds == found["relocated"].seeds == (0,) and reason in (tmp_path / "report.md").read_text()


def test_how_time_is_made_equal_binds_only_calls_with_that_control(model: Path, data: Path, tmp_path: Path) -> None:
    def planned(*names: str, **how: Any) -> None:
        bind_set(plan_set(tiny_set(model, data, tmp_path, controls=Controls(names=names, **how))), {})

    planned()
    planned("equal-flops", equal="measured")
    planned("relocated")
    with pytest.raises(TrainingError, match=r"holds a set with another equal \(measured, now counted\)"):
        planned("equal-flops")


def test_other_batches_or_first_weights_raise_an_alarm(model: Path, data: Path, tmp_path: Path) -> None:
    learn(tiny_set(model, data, tmp_path, controls=Controls(names=("x2",))))
    file = tmp_path / "twin" / "seed-0" / "metrics.jsonl"
    before = file.read_text()
    file.write_text(before.replace(hashes(tmp_path, "twin")[1], "0" * 64))
    alarms = {row.name: row.alarms for row in summarise_set(tmp_path)}
    assert alarms == {**dict.fromkeys(alarms, ()), "twin": ("other batches than looped-x2 from step 2 on (seed 0)",)}
    assert "ALARM twin: other batches" in (tmp_path / "report.md").read_text()
    file.write_text(before)
    header = tmp_path / "looped-x2" / "seed-0" / "run.json"
    header.write_text(header.read_text().replace('"first_weights": "', '"first_weights": "x'))
    assert [row.alarms for row in summarise_set(tmp_path)][2] == ("other first weights than looped (seed 0)",)


def test_a_folder_holds_one_set_to_which_seeds_and_controls_may_be_added(model: Path, data: Path, tmp_path: Path) -> None:
    learn(tiny_set(model, data, tmp_path))
    for changed, field in (
        ({"loops": "1:3 x2"}, "loops "),
        ({"tokens": 2 * TOKENS}, rf"settings.tuning.num_tokens \({TOKENS}, now {2 * TOKENS}\)"),
    ):
        with pytest.raises(TrainingError, match=f"holds a set with another {field}"):
            learn(tiny_set(model, data, tmp_path, **changed))
    learn(tiny_set(model, data, tmp_path, controls=Controls(names=("relocated",)), seeds=(1,)))
    values = read_set(tmp_path)
    assert list(values["members"]) == ["looped", "twin", "relocated"] and values["seeds"] == [0, 1]


@pytest.mark.parametrize("recipe", ["long-ft", "conversion", "anchored", "lora-ft"])
def test_every_recipe_of_traces_trains_a_set(recipe: str, model: Path, data: Path, tmp_path: Path) -> None:
    settings = {"budget_seconds": 1e6, "measured_steps": 1} if recipe == "long-ft" else {}
    learn(tiny_set(model, data, tmp_path, recipe=recipe, settings=settings, controls=Controls(names=("equal-flops",))))
    looped, twin, equal = summarise_set(tmp_path)
    assert looped.num_steps == twin.num_steps and looped.seeds == twin.seeds == equal.seeds == (0,)
    assert not (looped.alarms or twin.alarms or equal.alarms)
    assert (tmp_path / "steps.json").exists() == (recipe == "long-ft")
    assert format_loops(loops_of(load(tmp_path / "looped" / "seed-0" / "model").model)) == LOOPS
    assert equal.training_flops and looped.training_flops and equal.num_steps and twin.num_steps
    assert equal.num_steps > twin.num_steps and equal.training_flops == pytest.approx(looped.training_flops, rel=0.35)


def test_continued_pretraining_and_a_short_finetune_after_it(model: Path, data: Path, tmp_path: Path) -> None:
    shards, first = write_text_shards(tmp_path / "shards"), tmp_path / "first"
    bytes_model = chat_model(tmp_path / "bytes")
    learn(tiny_set(bytes_model, shards, first, recipe="continued", data_options={"against": (), "held_out_tokens": 96}))
    for row in summarise_set(first):
        assert row.answer_tokens is None and row.tokens == TOKENS and row.held_out_nats
    result = read_result(first / "looped" / "seed-0")
    assert result and set(result["evaluation"]) == {"held_out_loss", "held_out_loss_1", "held_out_loss_2", "held_out_loss_3"}
    second = tmp_path / "second"
    learn(tiny_set(None, data, second, begins=first))
    assert {name: one["begins_with"] for name, one in read_set(second)["members"].items()} == {"looped": "looped", "twin": "twin"}
    headers = {name: json.loads((second / name / "seed-0" / "run.json").read_text()) for name in ("looped", "twin")}
    assert headers["looped"]["model"]["first_weights"] != headers["twin"]["model"]["first_weights"]
    looped = read_result(second / "looped" / "seed-0")
    assert looped and looped["training_flops_before"] == result["training_flops"] and not summarise_set(second)[0].alarms
    third = tmp_path / "third"
    learn(tiny_set(None, data, third, begins=first / "twin"))
    assert {one["begins_with"] for one in read_set(third)["members"].values()} == {"twin"}
    with pytest.raises(TrainingError, match="train that member with seed 5 first"):
        learn(tiny_set(None, data, tmp_path / "fourth", begins=first, seeds=(5,)))


BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], type[Exception], str]] = {
    "a span outside the model": (lambda model: {"loops": "4:9 x2"}, LoopError, "9 is out of range|out of range"),
    "no such control": (lambda model: {"controls": Controls(names=("deeper",))}, TrainingError, "does not fit 8 layers deeper"),
    "no such file": (lambda model: {"data": Path("no.jsonl")}, ValueError, "no.jsonl"),
    "packing of linear attention": (lambda model: {"data_options": {"packing": "packed"}}, ModelError, "carry their state"),
    "traces longer than the context": (lambda model: {"rows": 4096}, ValueError, "sequence_tokens is 4096"),
    "no chat template": (lambda model: {"template": None}, ValueError, "has no chat template"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_weights_are_read(name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import loopwise.training.tuning as tuning

    def no_weights(*_: Any, **__: Any) -> Any:
        raise AssertionError("weights were read")

    monkeypatch.setattr(tuning, "load", no_weights)
    make, error, words = BAD[name]
    model = chat_model(tmp_path / "model", "qwen3_5" if "linear" in name else "llama")
    changes = make(model)
    if changes.pop("template", 0) is None:
        (model / "chat_template.jinja").unlink()
    chosen = tiny_set(model, changes.pop("data", data), tmp_path / "set", **{k: v for k, v in changes.items() if k != "rows"})
    if "rows" in changes:
        rows = replace(ROWS, sequence_tokens=changes["rows"])
        chosen = replace(chosen, data=LearningData(given=chosen.data.given, rows=rows, against=("none",)))
    with pytest.raises(error, match=words) as raised:
        learn(chosen)
    assert "\n" not in str(raised.value)


def test_linear_attention_gets_one_trace_a_row(data: Path, tmp_path: Path) -> None:
    model, notes = chat_model(tmp_path / "model", "qwen3_5"), list[str]()
    learn(tiny_set(model, data, tmp_path / "set", tokens=ROWS.step_tokens), Telling(note=notes.append))
    assert any(note.startswith("one trace a row: qwen3_5_text: its linear_attention layers") for note in notes)
    assert read_set(tmp_path / "set")["data"]["packing"] == "one trace a row"


def test_expected_passes_are_those_that_are_drawn() -> None:
    for schedule in (
        PassSchedule(kind="uniform", most=3),
        PassSchedule(kind="introduced"),
        PassSchedule(kind="curriculum", most=4),
        PassSchedule(kind="fixed", most=2),
    ):
        drawn = [schedule.draw(seed=seed, step=step, num_steps=30) for seed in range(200) for step in range(30)]
        found = expected_passes(schedule, 30)
        assert sum(found.values()) == pytest.approx(30) and set(found) == set(drawn)
        assert all(found[passes] == pytest.approx(drawn.count(passes) / 200, abs=0.6) for passes in found)
    assert expected_passes(None, 7) == {None: 7}


def test_the_command_estimates_trains_and_prints_the_table(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["learn", "short-ft", "--scale", "nano"])
    assert "guesses, where the paper gives nothing" in capsys.readouterr().out
    arguments = ["learn", "short-ft", "--scale", "nano", "--model", str(model), "--loops", LOOPS, "--data", str(data), "--against", "none"]
    arguments += ["--out", str(tmp_path / "set"), "--tokens", "288", "--batch", "2", "--sequence-tokens", "48", "--device", "cpu"]
    main([*arguments, "--controls", "x2", "--estimate"])
    assert "4 members, 1 seeds" in capsys.readouterr().out and not (tmp_path / "set").exists()
    main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["members"]] == ["looped", "twin"] and found["busy"] == []
    main(["learn", "--config", str(tmp_path / "set" / "config.json")])
    assert "| looped |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*arguments[:-4], "--device", "cpu", "--loops", "0:9 x2"])
    assert "out of range" in capsys.readouterr().err.splitlines()[-1]


def test_passes_are_drawn_where_they_are_asked_for(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[LearningSet] = []
    monkeypatch.setattr("loopwise.recipes.learning_set.plan_set", lambda chosen: planned.append(chosen) or plan_set(chosen))

    def estimate(recipe: str, *passes: str) -> None:
        arguments = ["learn", recipe, "--scale", "nano", "--model", str(model), "--loops", LOOPS, "--data", str(data), "--against", "none"]
        arguments += ["--out", str(tmp_path / "set"), "--device", "cpu", "--estimate"]
        main([*arguments, *(["--draw-passes", *passes] if passes else [])])

    estimate("long-ft", "1", "3")
    assert planned[0].settings.passes == PassSchedule(kind="uniform", least=1, most=3)
    estimate("long-ft")
    assert planned[1].settings == replace(planned[0].settings, passes=None)
    for recipe, passes, words in (
        ("short-ft", ("1", "3"), "--draw-passes is for long-ft and continued, not for short-ft"),
        ("long-ft", ("3", "1"), "give 1 <= least <= most"),
    ):
        with pytest.raises(SystemExit):
            estimate(recipe, *passes)
        assert words in capsys.readouterr().err


def test_every_guess_is_listed_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "learning.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    listed = {(row[0].strip("`"), row[1].strip("`"), row[2].strip("`"), row[3]) for row in rows if len(row) == 4}
    assert {guess for guess in guesses() if guess not in listed} == set()
