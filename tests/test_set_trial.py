"""The trial of a set: every member and seed evaluated, each pair judged, controls in their tables; killed and gone on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning_sets import chat_model, chats, tiny_set
from loopwise import stats
from loopwise.cli import main
from loopwise.cli.set_plan import set_estimate_text
from loopwise.cost import answer_flops, read_shape
from loopwise.loops import parse_loops
from loopwise.protocol import TrialError, verdict_from_json
from loopwise.recipes import trial_estimate
from loopwise.recipes.judging import judge_trial
from loopwise.recipes.learning import learn
from loopwise.recipes.learning_members import Controls
from loopwise.recipes.set_estimate import estimate_set, training_sd
from loopwise.recipes.set_judging import SetTrialPlan, TriedMember, trained_no_more
from loopwise.recipes.set_trial import plan_members, set_trial
from loopwise.recipes.trial_estimate import Known
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import read_run

CONTROLS = Controls(names=("equal-flops", "relocated", "x2"))
QUICK = TrialSettings(rules=("plain",), limit=2, dtype="fp32")
TRIAL: dict[str, Any] = dict(tasks=("ladder",), budgets=(4,), settings=QUICK)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    model, data = chat_model(folder / "model"), chats(folder / "chats.jsonl")
    learn(tiny_set(model, data, folder / "set", seeds=(0, 1), tokens=96, controls=CONTROLS))
    return folder / "set"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    learn(tiny_set(chat_model(folder / "model"), chats(folder / "chats.jsonl"), folder / "set", tokens=96))
    return folder / "set"


@pytest.fixture(scope="module")
def tried(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trial")
    set_trial(trained, out=out, depths=(1, 3), **TRIAL)
    return out


def test_every_member_and_seed_answers_with_its_training_seed(tried: Path) -> None:
    headers = [file.parent for file in sorted((tried / "runs").rglob("header.json"))]
    found = {name: [one for one in headers if one.relative_to(tried / "runs").parts[0] == name] for name in _names(tried)}
    arms = {name: len({folder.parent.name for folder in folders}) for name, folders in found.items()}
    every = ("looped", "twin", "equal-flops", "relocated", "looped-x2", "twin-x2", "looped-k1", "looped-k3")
    assert arms == dict.fromkeys(every, 1) | {"twin": 2, "twin-x2": 2}  # those of pairs run at 1.25 times the budget too
    for folder in headers:
        run, seed = read_run(folder), int(folder.name.removeprefix("seed-"))
        assert {record.seed for record in run.records} == {seed} and len(run.records) == 2
        member = folder.relative_to(tried / "runs").parts[0]
        assert f"/{member.removesuffix('-k1').removesuffix('-k3')}/seed-{seed}/model" in run.header["model"]
        assert run.header["looped"] == (member in ("looped", "looped-x2", "relocated", "looped-k3"))
    assert {read_run(folder).header["loops"] for folder in found["looped-k3"]} == {"2:4 x3 damped beta=0.5"}


def _names(tried: Path) -> list[str]:
    return [one["name"] for one in json.loads((tried / "set_plan.json").read_text())["members"]]


def test_each_pair_is_judged_with_the_candidates_that_were_trained_no_more(tried: Path) -> None:
    verdict = verdict_from_json(json.loads((tried / "verdict.json").read_text()))
    assert verdict.seeds == (0, 1) and verdict.deciding_by == "plan" and not verdict.training_free
    assert verdict.model == "set/looped, 2 seeds"
    assert {arm.name.rpartition("-plain")[0] for arm in verdict.arms} == {"looped", "twin", "equal-flops"}
    longer = verdict_from_json(json.loads((tried / "pairs" / "looped-x2" / "verdict.json").read_text()))
    assert {arm.name.rpartition("-plain")[0] for arm in longer.arms} == {"looped-x2", "twin-x2", "twin", "equal-flops"}
    assert (tried / "report.html").exists() and (tried / "pairs" / "looped-x2" / "report.html").exists()
    rows = json.loads((tried / "set_verdict.json").read_text())["controls"]
    assert [(row["table"], row["ours"], row["other"]) for row in rows] == [
        ("placements", "looped", "relocated"),
        ("depths", "looped-k1", "twin"),
        ("depths", "looped-k3", "twin"),
        ("longer twins", "looped", "twin-x2"),
    ]
    text = (tried / "set_report.md").read_text()
    assert "Unlooped candidates beside its twin: equal-flops." in text and "never deciding" in text


def test_a_trial_goes_on_and_is_judged_again_to_the_same(small: Path, tmp_path: Path) -> None:
    set_trial(small, out=tmp_path, **TRIAL)
    files = {file: file.read_bytes() for file in sorted((tmp_path / "runs").rglob("records.jsonl"))}
    verdict = (tmp_path / "verdict.json").read_bytes()
    cut, kept = list(files)[:2]
    cut.write_bytes(b"".join(files[cut].splitlines(keepends=True)[:1]))
    with pytest.raises(ValueError, match=r"item .* is (missing|there)"):
        judge_trial(tmp_path)
    set_trial(small, out=tmp_path, **TRIAL)
    assert kept.read_bytes() == files[kept] and _answers(cut.read_bytes()) == _answers(files[cut])
    assert _numbers((tmp_path / "verdict.json").read_bytes()) == _numbers(verdict)
    with pytest.raises(TrialError, match="holds a trial of a set whose plan has another members"):
        set_trial(small, out=tmp_path, depths=(1,), **TRIAL)


def _answers(content: bytes) -> set[Any]:
    records = [json.loads(line) for line in content.splitlines()]
    return {((r["task"], r["item"], r["seed"], r["sample"]), r.get("answer"), r["correct"]) for r in records}


def _numbers(content: bytes) -> Any:
    values = json.loads(content)
    return values["sentence"], values["equal_parameters"]["delta_points"]


def test_what_does_not_belong_is_refused_or_left_out(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="leave out --placement, --noise-floor and --seed"):
        set_trial(trained, out=tmp_path / "x", **TRIAL | {"settings": replace(QUICK, noise_floor=True)})
    results = {name: trained / name / "seed-1" / "result.json" for name in ("relocated", "twin-x2", "looped")}
    kept = {file: file.read_text() for file in results.values()}
    try:
        for name in ("relocated", "twin-x2"):
            results[name].write_text(json.dumps({"failed": "step 2: the loss is nan", "again": False}))
        plan = plan_members(trained)
        assert [one.name for one in plan.members] == ["looped", "twin", "equal-flops"]
        assert plan.left_out == {"relocated": "failed with seed 1", "twin-x2": "failed with seed 1", "looped-x2": "its twin failed"}
        results["looped"].write_text(json.dumps({"failed": "step 2: the loss is nan", "again": False}))
        assert plan_members(trained).seeds == (0,)
        results["looped"].unlink()
        with pytest.raises(TrialError, match="looped, seed 1, is not done; finish the set"):
            plan_members(trained)
    finally:
        for file, text in kept.items():
            file.write_text(text)


def test_twins_that_read_other_batches_are_no_fair_test(trained: Path) -> None:
    file = trained / "twin" / "seed-0" / "metrics.jsonl"
    before = file.read_text()
    try:
        file.write_text(before.replace('"batch_hash": "', '"batch_hash": "0'))
        with pytest.raises(TrialError, match=r"twin other batches than .* there is no fair test"):
            plan_members(trained)
    finally:
        file.write_text(before)


def test_longer_training_of_the_twin_alone_is_no_candidate() -> None:
    def member(name: str, role: Any, factor: float, flops: float | None) -> TriedMember:
        return TriedMember(name=name, member=name, role=role, loops="none", token_factor=factor, training_flops=flops, every_arm=True)

    looped, longer = member("looped", "looped", 1, 120.0), member("looped-x3", "looped", 3, 360.0)
    twins = [member(f"twin-x{factor:g}", "twin", factor, 100.0 * factor) for factor in (1, 1.25, 3)]
    equal = member("equal-flops", "equal-flops", 1.2, 121.0)
    plan = SetTrialPlan(folder="x", seeds=(0,), members=(looped, longer, *twins, equal), left_out={})
    assert [one.name for one in plan.candidates(looped)] == ["equal-flops"]
    assert [one.name for one in plan.candidates(longer)] == ["twin-x1", "twin-x1.25", "equal-flops"]
    unknown = replace(twins[1], training_flops=None)
    assert not trained_no_more(unknown, looped) and trained_no_more(unknown, longer)


def test_the_command_recognises_a_set(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "ladder", "--budgets", "4", "--rules", "plain", "--limit", "2", "--dtype", "fp32"]
    with pytest.raises(SystemExit):
        main(["trial", str(small), "--out", str(tmp_path / "x"), "--loops", "1:2 x2", *options])
    assert "--loops has no meaning for a set" in capsys.readouterr().err
    main(["trial", str(small), "--out", str(tmp_path / "x"), *options])
    assert "# The set" in capsys.readouterr().out
    main(["report", str(tmp_path / "x")])
    assert "test 1, equal parameters" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["trial", "smollm2", "--out", str(tmp_path / "y"), "--depths", "2", *options])
    assert "--depths is for the folder of a set" in capsys.readouterr().err


# --- the plan of a set ---------------------------------------------------------------------------------------------------------------


def test_a_set_is_planned_by_member_and_in_sum(trained: Path, tried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, two items, a budget of four tokens: what can be counted by hand."""
    monkeypatch.setattr(trial_estimate, "load", lambda *args, **more: pytest.fail("weights were loaded"))
    found = estimate_set(trained, out=tmp_path / "out", depths=(1, 3), known=Known(tokens_per_second=10.0), **TRIAL)
    members = {one.name: one for one in found.members}
    short, pair = 2 * 2 * 4, 2 * 2 * (4 + 5)  # the unlooped half of a pair also runs at 1.25 times the budget
    every = ("looped", "equal-flops", "relocated", "looped-x2", "looped-k1", "looped-k3")
    assert {name: one.total("most_tokens") for name, one in members.items()} == dict.fromkeys(every, short) | dict.fromkeys(
        ("twin", "twin-x2"), pair
    )
    assert {name: one.total("num_answers") for name, one in members.items()} == dict.fromkeys(every, 4) | dict.fromkeys(
        ("twin", "twin-x2"), 8
    )
    assert (found.total("num_answers"), found.total("most_tokens"), found.total("expected_tokens")) == (40, 6 * short + 2 * pair, None)
    # Six layers of which two run twice, or three times: 8/6 and 10/6 of the plain model's layer passes.
    ratios = {"looped": 8 / 6, "relocated": 8 / 6, "looped-x2": 8 / 6, "looped-k3": 10 / 6, "looped-k1": 1, "twin": 1, "equal-flops": 1}
    for name, ratio in ratios.items():
        assert members[name].layer_pass_ratio == pytest.approx(ratio)
        assert members[name].total("seconds") == pytest.approx(ratio * (pair if name == "twin" else short) / 10)
    assert found.total("seconds") == pytest.approx((3 * 8 / 6 + 10 / 6 + 2) * short / 10 + 2 * pair / 10)
    shape = read_shape(trained / "twin" / "seed-0" / "model")
    prompts = [record.prompt_tokens for record in read_run(next((tried / "runs" / "twin").rglob("header.json")).parent).records]
    assert found.prompt_tokens["ladder"] == sum(prompts) / 2
    for name, loops in (("looped", "2:4 x2 damped beta=0.5"), ("looped-k3", "2:4 x3 damped beta=0.5"), ("equal-flops", "none")):
        flops = [answer_flops(shape, parse_loops(loops), prompt_tokens=n, generated_tokens=4) for n in prompts]
        assert members[name].total("most_flops") == pytest.approx(2 * sum(flops))
    assert found.num_items == {"ladder": 2} and not (tmp_path / "out").exists()


def test_with_the_sets_trial_as_prior_the_plan_is_what_was_spent(trained: Path, tried: Path) -> None:
    found = estimate_set(trained, out=tried, depths=(1, 3), **TRIAL)
    for one in found.members:
        records = [record for file in (tried / "runs" / one.name).rglob("header.json") for record in read_run(file.parent).records]
        assert one.total("num_answers") == len(records)
        if len({record.generated_tokens for record in records}) == 1:  # then it does not matter which seed's lengths are expected
            assert one.total("expected_tokens") == pytest.approx(sum(record.generated_tokens for record in records))
            assert one.total("expected_flops") == pytest.approx(sum(record.flops for record in records))
        assert one.total("most_flops") >= sum(record.flops for record in records) * 0.999
    assert found.total("num_answers") == sum(len(read_run(file.parent).records) for file in (tried / "runs").rglob("header.json"))
    assert found.throughput is not None and found.num_prior_runs == 20
    assert [one.num_seeds for one in found.training] == [2], "two seeds of the earlier trial say how much training runs differ"


def test_the_plan_of_a_set_says_what_training_runs_add(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "ladder", "--budgets", "4", "--rules", "plain", "--limit", "140", "--plan", "--out", str(tmp_path / "x")]
    main(["trial", str(trained), *options, "--json"])
    values = json.loads(capsys.readouterr().out)
    assert values["total"]["num_answers"] == 2 * 140 * 8 and [one["discordance"] for one in values["smallest_gains"]] == [
        0.05,
        0.1,
        0.2,
        0.3,
    ]
    # (1.960 + 0.8416) * sqrt(0.2 / 280), and 1.960 * sqrt(0.01^2 / 2 + 2 * 0.2 / 280) + 0.8416 * sqrt(0.01^2 / 2 + 0.2 / 280)
    assert values["smallest_gains"][2]["points"] == pytest.approx(7.4876, abs=1e-3)
    spread = next(one for one in values["training"] if one["points"] == 1.0)
    assert spread["num_seeds"] is None and spread["smallest_gains_points"][2] == pytest.approx(9.8632, abs=1e-3)
    main(["trial", str(trained), *options])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "PLAN: the set" in text and "nothing has run" in text and "standard deviation of 1 points between training runs (an assump" in text
    )
    assert "relocated placement" in text and "Expected tokens are not known" in text and "Time is not known" in text
    for more, message in (
        (["--loops", "1:2 x2"], "--loops has no meaning for a set"),
        (["--before", "y"], "--before is read when the set is tried"),
        (["--throughput", "nan"], "give a number above 0"),
    ):
        with pytest.raises(SystemExit):
            main(["trial", str(trained), *options, *more])
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_one_seed_says_nothing_of_other_training_runs(small: Path, tmp_path: Path) -> None:
    found = estimate_set(small, out=tmp_path, **TRIAL)
    assert found.training == () and "says nothing of other training runs" in " ".join(set_estimate_text(found).split())


def test_the_spread_of_training_runs_leaves_out_what_chance_in_the_items_makes() -> None:
    apart = np.array([[1.0, 1.0], [0.0, 0.0]])  # 100 points between two seeds, on every item: a variance of 1/2
    assert training_sd([apart]) == pytest.approx(np.sqrt(0.5))
    assert training_sd([apart, np.zeros((2, 2))]) == pytest.approx(np.sqrt(0.125)), "half as much in the mean of two benchmarks"
    assert training_sd([np.array([[1.0, 0.0], [0.0, 0.0]])]) == 0.0, "one item of one seed is chance: 1/8 between seeds, 1/8 by it"
    rng = np.random.default_rng(0)
    drawn = [
        training_sd([rng.normal(0.0, 0.02, size=(8, 1)) + rng.normal(0.05, 0.1, size=(1, 200)) + rng.normal(0.0, 0.3, size=(8, 200))])
        for _ in range(200)
    ]
    assert np.sqrt(np.mean(np.square(drawn))) == pytest.approx(0.02, abs=0.003)


@pytest.mark.parametrize(("spread", "seeds"), [(0.0, 8), (0.02, 3)])
def test_the_smallest_gain_over_training_runs_is_found_four_times_in_five(spread: float, seeds: int) -> None:
    """By the product's own interval of items and seeds."""
    items, discordance = 300, 0.2
    gain = stats.smallest_gain_over_training_runs([items], discordance, spread, num_seeds=seeds)
    assert gain is not None
    rng = np.random.default_rng(3)
    found = 0
    for n in range(300):
        true = np.clip(rng.normal(gain, spread, size=(seeds, 1)), -discordance, discordance)
        draws = rng.random((seeds, items))
        differences = (draws < (discordance + true) / 2) * 1.0 - (draws > 1 - (discordance - true) / 2)
        again = stats.macro_bootstrap([differences], stats.Bootstrap(resamples=300, seed=n, resampling="items and seeds"))
        found += again.p_value < 0.05 and again.value > 0
    assert found / 300 == pytest.approx(0.78, abs=3 * np.sqrt(0.8 * 0.2 / 300))
    for wrong in (dict(num_seeds=1), dict(num_seeds=2, training_sd=-1.0), dict(num_seeds=2, training_sd=float("nan"))):
        with pytest.raises(stats.StatsError):
            stats.smallest_gain_over_training_runs([300], 0.2, **{"training_sd": 0.0, **wrong})
    assert stats.smallest_gain_over_training_runs([48], 0.05, 0.0, num_seeds=2) is None
