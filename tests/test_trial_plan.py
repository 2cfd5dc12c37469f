"""What a trial runs and what it would take: named sets of arms, reserves, a larger model, noise floors, the estimate before it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from loopwise import stats
from loopwise.cli import main
from loopwise.cli.trial_plan import estimate_text
from loopwise.models import resolve, resolve_loops
from loopwise.protocol import Bootstrap, PlannedTask, TrialError, compare, judge, make_plan, plan_from_json, plan_to_json
from loopwise.protocol.plan import RULES
from loopwise.protocol.prior import Prior, PriorRun, read_prior
from loopwise.recipes import trial_estimate
from loopwise.recipes.arm_runner import ArmRunner, deciding_twin
from loopwise.recipes.noise_floor import arms_repeated
from loopwise.recipes.trial import plan_trial, trial
from loopwise.recipes.trial_arms import in_arm_set
from loopwise.recipes.trial_estimate import Known, estimate_trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import Record, Run, read_json, read_run
from loopwise.report import beside
from loopwise.report.record_links import numbers_of
from loopwise.tasks import tasks_named
from tiny import tiny_model, tiny_tokenizer
from trial_runs import arm, draw, header, run

LOOPS = "1:4 x2 damped beta=0.25"
SETTINGS = TrialSettings(limit=5, batch_size=4, noise_floor=True, noise_floor_of=("looped-plain-20",))
QUICK = Bootstrap(resamples=500)


def saved(folder: Path, **changes: int) -> Path:
    tiny_model("llama", **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return saved(folder / "base"), saved(folder / "larger", num_hidden_layers=12)


@pytest.fixture(scope="module")
def done(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A trial with a larger model and noise floors, run for real."""
    out = tmp_path_factory.mktemp("trial") / "out"
    settings = replace(SETTINGS, larger_model=models[1])
    trial(models[0], out=out, loops=LOOPS, budgets=(12, 20), settings=settings)
    yield out


# --- sets of arms --------------------------------------------------------------------------------------------------------------


def test_the_papers_set_has_an_arm_for_every_rule_of_the_paper(models: tuple[Path, Path]) -> None:
    source = resolve(models[0])
    (task,) = tasks_named(["gsm8k_thinking"])
    settings = TrialSettings(arms="paper", larger_model=models[1])
    plan = plan_trial(source, resolve_loops(source, LOOPS), [task], (), settings)
    own = 4096
    assert plan.tasks[0].budgets_tokens == (own // 2, own, 3 * own // 2, 2 * own)
    assert (plan.tasks[0].reserve_tokens, plan.tasks[0].further_reserves_tokens) == (512, (1024,))
    arms = plan.arms()
    assert len({one.name for one in arms}) == len(arms) and all(one.applicable for one in arms)
    pairs = {(one.rule, dict(one.budgets_tokens)[task.name], dict(one.reserves_tokens).get(task.name), one.looped) for one in arms[:48]}
    forced, other = [rule for rule in RULES if "forcing" in rule], [rule for rule in RULES if "forcing" not in rule]
    wanted = {
        (rule, b, reserve, side)
        for rule in forced
        for b in plan.tasks[0].budgets_tokens
        for reserve in (512, 1024)
        for side in (True, False)
    }
    wanted |= {(rule, b, None, side) for rule in other for b in plan.tasks[0].budgets_tokens for side in (True, False)}
    assert pairs == wanted and len(forced) == len(other) == 2
    rest = {(one.purpose, dict(one.budgets_tokens)[task.name], one.samples) for one in arms[48:]}
    assert rest == {("longer twin", 10240, 1)} | {
        (purpose, b, k) for purpose, k in (("repeated sampling", 4), ("larger model", 1)) for b in plan.tasks[0].budgets_tokens
    }
    assert (plan.deciding_rule, plan.deciding_reserves_tokens(), plan.larger_model) == ("budget-forcing", {task.name: 512}, str(models[1]))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_each_arm_decodes_under_its_own_rule_and_reserve(models: tuple[Path, Path], tmp_path: Path) -> None:
    source = resolve(models[0])
    (task,) = tasks_named(["gsm8k_thinking"])
    settings = TrialSettings(arms="paper")
    plan = plan_trial(source, resolve_loops(source, LOOPS), [task], (), settings)
    runner = ArmRunner(tmp_path, plan, {task.name: task}, None, settings, None)  # type: ignore[arg-type]  # nothing is decoded
    for one in plan.arms():
        rule = runner.rule(one, task)
        assert rule.name == one.rule and rule.thinking
        if rule.budget_forcing:
            assert rule.reserve_tokens == dict(one.reserves_tokens)[task.name] == (1024 if one.further_reserve else 512)
    assert sum(one.further_reserve for one in plan.arms()) == 16


def test_a_plan_of_an_earlier_version_is_read_with_its_defaults() -> None:
    task = PlannedTask(name="ladder", version="1", budgets_tokens=(64,), reserve_tokens=8)
    plan = make_plan(model="m", loops="1:2 x2", layer_pass_ratio=1.2, tasks=[task])
    values = json.loads(json.dumps(plan_to_json(plan)))
    del values["larger_model"], values["tasks"][0]["further_reserves_tokens"]
    assert plan_from_json(values) == plan
    del values["alpha"], values["rules"]
    with pytest.raises(TrialError, match=r"plan.rules is missing"):
        plan_from_json(values)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"arms": "mine"}, "unknown set of arms 'mine'; use default, paper"),
        ({"arms": "paper", "rules": ("plain",)}, "leave out rules of your own"),
        ({"reserves": (8, 8)}, "distinct numbers from 1"),
        ({"reserves": (0,)}, "distinct numbers from 1"),
        ({"larger_model": "SAME"}, "not a larger model"),
        ({"larger_model": "no/such/folder/here"}, "no such folder"),
        ({"noise_floor_of": ("twin-magic-20",)}, "no arm is called so; arms are looped-plain-4"),
        ({"noise_floor_of": ("twin-budget-forcing-4",)}, r"it is not applicable \(ladder: a budget of 4 tokens cannot hold"),
    ],
)
def test_arms_that_cannot_be_are_refused_before_anything_is_written(models: tuple[Path, Path], tmp_path: Path, wrong, message) -> None:
    wrong = {name: models[0] if value == "SAME" else value for name, value in wrong.items()}
    with pytest.raises(ValueError, match=message) as caught:
        trial(models[0], out=tmp_path / "out", loops=LOOPS, budgets=(4, 20), settings=TrialSettings(limit=2, **wrong))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


# --- reserves --------------------------------------------------------------------------------------------------------------------


def forced(accuracy: float, *, looped: bool, reserve: int, **more) -> Run:
    name = f"{'looped' if looped else 'twin'}-budget-forcing-128-reserve{reserve}"
    return arm(accuracy, looped=looped, rule="budget-forcing", seeds=3, items=300, reserve_tokens=reserve, arm=name, **more)


def test_another_reserve_is_another_rule_listed_and_never_deciding() -> None:
    """The better reserve would be a fix for one side only: both sides are compared at each."""
    looped = [forced(0.60, looped=True, reserve=8), forced(0.62, looped=True, reserve=16)]
    twin = [forced(0.50, looped=False, reserve=8), forced(0.75, looped=False, reserve=16)]
    task = PlannedTask(name="ladder", version="1", budgets_tokens=(128,), reserve_tokens=8, further_reserves_tokens=(16,))
    plan = make_plan(
        model="m", loops="10:16 x2", layer_pass_ratio=1.2, tasks=[task], rules=("budget-forcing",), longer_twin_ratio=None, resamples=500
    )
    verdict = judge(looped=looped, twin=twin, plan=plan)
    assert (verdict.verdict, verdict.equal_parameters.delta_points) == ("pays", pytest.approx(10))
    by_pair = {(row.looped[-2:], row.other[-2:]): row for row in verdict.equal_parameters.rows}
    assert {key: round(row.comparison.delta_points) for key, row in by_pair.items()} == {("e8", "e8"): 10, ("16", "16"): -13}
    assert all(row.holm_p is None for row in by_pair.values()), "one budget each: no family to adjust over"
    (other,) = [row for row in verdict.equal_flops.rows if row.role == "other rule"]
    assert other.other.endswith("reserve16") and "another reserve than the loop's 8 tokens" in other.reason and not other.eligible
    assert {one.reserve_label for one in verdict.arms} == {"8", "16"}
    with pytest.raises(TrialError, match="twin-budget-forcing-128-reserve16 has no complete run"):
        judge(looped=looped, twin=twin[:1], plan=plan)
    with pytest.raises(TrialError, match="one loop at a time, with one reserve"):
        judge(looped=looped, twin=twin)


def test_reserves_of_several_benchmarks_line_up_by_rank() -> None:
    def side(looped: bool) -> list[Run]:
        found = []
        for task, reserves in (("a", (8, 16)), ("b", (32, 64))):
            for at, reserve in enumerate(reserves):
                head = header(looped=looped, rule="budget-forcing", task=task, reserve_tokens=reserve, arm=f"{looped} {at}")
                records = [Record(task=task, item=str(n), seed=0, sample=0, correct=n < 30 + 5 * looped) for n in range(60)]
                found.append(run(records, head))
        return found

    looped, twin = side(True), side(False)
    found = compare(looped[0::2], twin[0::2])
    assert (found.num_items, found.looped) == (120, "True 0")
    with pytest.raises(TrialError, match=r"True 0 .*; True 1 .*one loop at a time, with one reserve"):
        compare(looped, twin)


# --- a real trial ------------------------------------------------------------------------------------------------------------------


def test_a_larger_model_runs_and_never_decides(done: Path, models: tuple[Path, Path]) -> None:
    verdict = json.loads((done / "verdict.json").read_text())
    sides = {one["name"]: one["side"] for one in verdict["arms"]}
    assert {name for name, side in sides.items() if side == "larger"} == {"larger-budget-forcing-12", "larger-budget-forcing-20"}
    assert verdict["larger"]["name"] == "/".join(models[1].parts[-2:]) and verdict["threshold"] is not None
    heads = {file.parent.name: read_run(file.parent).header for file in (done / "runs").rglob("header.json")}
    assert heads["larger-budget-forcing-20"]["num_parameters"] > heads["twin-plain-20"]["num_parameters"]
    assert (heads["larger-budget-forcing-20"]["num_layers"], heads["larger-budget-forcing-20"]["loops"]) == (12, "none")
    rows = verdict["equal_flops"]["rows"] if verdict["equal_flops"] else verdict["unjudged_rows"]
    assert {row["other"] for row in rows if row["role"] == "larger model"} == {name for name in sides if name.startswith("larger")}


def test_a_finished_trial_is_left_as_it_is(done: Path, models: tuple[Path, Path]) -> None:
    before = {file: file.read_bytes() for file in sorted(done.rglob("records.jsonl"))}
    verdict = (done / "verdict.json").read_bytes()
    trial(models[0], out=done, loops=LOOPS, budgets=(12, 20), settings=replace(SETTINGS, larger_model=models[1]))
    assert {file: file.read_bytes() for file in sorted(done.rglob("records.jsonl"))} == before
    assert (done / "verdict.json").read_bytes() == verdict
    with pytest.raises(TrialError, match="another larger_model"):
        trial(models[0], out=done, loops=LOOPS, budgets=(12, 20), settings=SETTINGS)


def test_noise_floors_of_the_deciding_twin_and_of_an_arm_that_was_named(done: Path) -> None:
    first, other = read_json(done / "noise_floor.json"), read_json(done / "noise-floor" / "looped-plain-20.json")
    assert (first["arm"], other["arm"]) == ("twin-budget-forcing-20", "looped-plain-20")
    for one in (first, other):
        assert (one["num_answers"], one["batch_sizes"]) == (5, [4, 2])
        head, once = (read_run(done / below / one["arm"]).header for below in ("noise-floor", "runs"))
        assert (head["batch_size"], once["batch_size"]) == (2, 4) and head["batch_plan"] == once["batch_plan"] != ""
        ours, again = (read_run(done / below / one["arm"]).records for below in ("runs", "noise-floor"))
        assert one["changed_grades"] == sum(a.correct != b.correct for a, b in zip(ours, again, strict=True))
    text = (done / "report.md").read_text()
    assert text.count("ran twice, batches of 4 and of 2") == 2


def test_every_arm_can_be_repeated() -> None:
    task = PlannedTask(name="ladder", version="1", budgets_tokens=(4, 64), reserve_tokens=8)
    plan = make_plan(model="m", loops="1:2 x2", layer_pass_ratio=1.2, tasks=[task])
    twin = deciding_twin(plan).name
    assert arms_repeated(plan, twin, deciding=False, others=()) == ()
    assert arms_repeated(plan, twin, deciding=True, others=("looped-plain-4",)) == ("looped-plain-4", twin)
    assert arms_repeated(plan, twin, deciding=False, others=("all",)) == tuple(one.name for one in plan.arms() if one.applicable)


# --- links to records --------------------------------------------------------------------------------------------------------------


def test_every_row_of_numbers_leads_to_its_records(done: Path) -> None:
    page = (done / "report.html").read_text()
    ids = set(re.findall(r'\sid="([^"]+)"', page))
    listed: dict[str, list[str]] = {}
    for number, cells in re.findall(r'<tr id="records-(\d+)"[^>]*>(.*?)</tr>', page, re.DOTALL):
        listed[number] = [unquote(href) for href in re.findall(r'href="([^"#]+)"', cells)]
    assert listed and all(
        files and all((done / file).is_file() and file.startswith("runs/") for file in files) for files in listed.values()
    )
    for name in ("equal-parameters", "equal-flops", "measures", "benchmarks", "both-finished", "settings"):
        table = re.search(rf'id="table-{name}".*?</table>', page, re.DOTALL)
        if name == "both-finished" and not table:  # no answer was finished by both
            continue
        assert table, name
        rows = [row for row in re.findall(r"<tr(?![^>]*heading)[^>]*>.*?</tr>", table[0], re.DOTALL) if "<td" in row]
        for row in rows:
            targets = re.findall(r'href="#(records-\d+)"', row)
            assert targets and set(targets) <= ids, row
    assert len(re.findall(r'Records: \s*<a href="#records-', page)) == (2 if read_json(done / "verdict.json")["equal_flops"] else 1)
    # An arm's row leads to that arm's answers and to no others.
    settings = re.search(r'id="table-settings".*?</table>', page, re.DOTALL)[0]
    for words, name in (("Looped + budget forcing<", "looped"), ("Unlooped + budget forcing<", "twin")):
        row = next(one for one in re.findall(r"<tr.*?</tr>", settings, re.DOTALL) if words in one)
        (number,) = re.findall(r'href="#records-(\d+)"', row)
        assert listed[number] == [f"runs/{name}-budget-forcing-12/records.jsonl"]
    markdown = (done / "report.md").read_text()
    assert "### Records" in markdown and "](runs/twin-plain-12/records.jsonl)" in markdown and "](#records)" in markdown


def test_votes_share_the_records_of_their_samples() -> None:
    sampled = run(draw(0.4, samples=4, stream=3), header(looped=False, budget=32, decoding={"temperature": 0.7}, arm="sampled"), "s")
    verdict = judge(looped=arm(0.6, looped=True), twin=[arm(0.5, looped=False), sampled], bootstrap=QUICK)
    sources = {one.name: one.sources for one in verdict.arms}
    assert sources["sampled"] == sources["sampled, vote of 4"] == ("s",) and sources["looped-plain-128"] == ("made-up",)
    assert numbers_of(verdict)["sampled"] == numbers_of(verdict)["sampled, vote of 2"] != numbers_of(verdict)["looped-plain-128"]


def test_links_hold_wherever_the_report_is_written_and_name_files_only(tmp_path: Path) -> None:
    rows = [{"task": "t", "item": str(n), "seed": 0, "sample": 0} for n in range(20)]
    names = {"looped": "a b#1.jsonl", "twin": "t%.jsonl"}
    for side, name in names.items():
        (tmp_path / name).write_text("".join(json.dumps(row | {"correct": side == "looped"}) + "\n" for row in rows))
    verdict = judge(looped=tmp_path / names["looped"], twin=tmp_path / names["twin"], bootstrap=QUICK)
    found = beside(verdict, tmp_path / "out" / "deep")
    assert sorted(one.sources for one in found.arms) == [("../../a b#1.jsonl",), ("../../t%.jsonl",)]
    assert beside(found, tmp_path / "out" / "deep") == found
    assert all(one.sources == () for one in beside(judge(looped=arm(0.6, looped=True), twin=arm(0.5, looped=False)), tmp_path).arms)
    main(["judge", "--looped", str(tmp_path / names["looped"]), "--twin", str(tmp_path / names["twin"]), "--out", str(tmp_path / "j")])
    hrefs = re.findall(r'href="([^"#]+)"', (tmp_path / "j" / "report.html").read_text())
    assert {"../a%20b%231.jsonl", "../t%25.jsonl"} <= set(hrefs)


# --- the smallest gain ---------------------------------------------------------------------------------------------------------------


def found_share(items: int, gained: float, lost: float, *, trials: int = 120) -> float:
    """How often the product's own comparison calls such a gain significant."""
    rng = np.random.default_rng(items)
    significant = 0
    for n in range(trials):
        kinds = rng.choice([1, -1, 0], p=[gained, lost, 1 - gained - lost], size=items)

        def side(right: np.ndarray) -> Run:
            return run([Record(task="t", item=f"{i:04d}", seed=0, sample=0, correct=bool(one)) for i, one in enumerate(right)])

        found = compare(side(kinds > 0), side(kinds < 0), bootstrap=Bootstrap(resamples=400, seed=n))
        significant += found.p_value < 0.05 and found.delta_points > 0
    return significant / trials


@pytest.mark.parametrize(("items", "discordance"), [(150, 0.3), (400, 0.1)])
def test_the_smallest_gain_is_found_four_times_in_five(items: int, discordance: float) -> None:
    gain = stats.smallest_gain([items], discordance)
    share = found_share(items, (discordance + gain) / 2, (discordance - gain) / 2)
    assert share == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / 120))


def test_a_gain_without_losses_is_limited_by_the_sign_test() -> None:
    gain = stats.smallest_one_sided(48)
    assert 6 / 48 < gain < 0.2
    assert found_share(48, gain, 0.0) == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / 120))
    assert stats.smallest_one_sided(5) is None, "five items can never be significant"
    assert stats.smallest_gain([5], 1.0) is None


def test_no_gain_is_named_where_none_could_be_shown() -> None:
    """48 items of which 5 % differ: not even if all of these favoured the loop."""
    assert stats.smallest_gain([48], 0.05) is None
    assert found_share(48, 0.05, 0.0) < 0.5
    assert stats.smallest_gain([1319, 500], 0.2) == pytest.approx(stats.smallest_detectable([1319, 500], 1, 0.2))
    for wrong in (
        dict(num_items=[10], discordance=1.5),
        dict(num_items=[], discordance=0.1),
        dict(num_items=[9], discordance=0.1, alpha=0),
    ):
        with pytest.raises(stats.StatsError):
            stats.smallest_gain(**wrong)


# --- the estimate ----------------------------------------------------------------------------------------------------------------------


def test_with_the_trial_itself_as_prior_the_estimate_is_what_was_spent(done: Path, models: tuple[Path, Path]) -> None:
    settings = replace(SETTINGS, larger_model=models[1])
    found = estimate_trial(models[0], out=done, loops=LOOPS, budgets=(12, 20), settings=settings)
    runs = {file.parent.name: read_run(file.parent) for file in (done / "runs").rglob("header.json")}
    assert {one.name for one in found.arms} == set(runs) and found.num_items == {"ladder": 5}
    for one in found.arms:
        assert one.num_answers == len(runs[one.name].records)
        if one.purpose == "pair":
            records = runs[one.name].records
            assert one.expected_tokens == pytest.approx(sum(record.generated_tokens for record in records))
            assert one.expected_flops == pytest.approx(sum(record.flops for record in records))
        assert one.expected_tokens <= one.most_tokens and one.expected_flops <= one.most_flops
    assert found.repeated == ("looped-plain-20", "twin-budget-forcing-20")
    assert found.total("num_answers") == sum(len(one.records) for one in runs.values()) + 10
    prompts = [record.prompt_tokens for record in runs["twin-plain-12"].records]
    assert found.prompt_tokens["ladder"] == pytest.approx(sum(prompts) / 5)
    assert found.throughput is not None and "the meter of" in found.throughput.source
    assert all(one.seconds > 0 for one in found.arms)


def test_the_estimate_reads_no_weights_and_writes_nothing(models: tuple[Path, Path], tmp_path: Path, capsys, monkeypatch) -> None:
    bare = saved(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    monkeypatch.setattr(trial_estimate, "load", lambda *args, **more: pytest.fail("weights were loaded"))
    args = [
        "trial",
        str(bare),
        "--loops",
        LOOPS,
        "--task",
        "ladder",
        "--budgets",
        "4",
        "20",
        "--limit",
        "30",
        "--out",
        str(tmp_path / "out"),
        "--plan",
    ]
    main(args)
    text = capsys.readouterr().out
    assert "nothing has run" in text and "looped-budget-forcing-20" in text and "not applicable: ladder" in text
    assert "Expected tokens are not known" in text and "Time is not known" in text and "a gain of" in text
    main([*args, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["total"]["seconds"] is None is found["total"]["expected_tokens"] and found["total"]["most_tokens"] > 0
    assert not any(one["measured"] for one in found["smallest_gains"])
    main([*args, "--json", "--throughput", "50"])
    timed = json.loads(capsys.readouterr().out)
    twin = next(one for one in timed["arms"] if one["name"] == "twin-plain-20")
    looped = next(one for one in timed["arms"] if one["name"] == "looped-plain-20")
    assert twin["seconds"] == pytest.approx(30 * 20 / 50) and looped["seconds"] == pytest.approx(1.5 * 30 * 20 / 50)
    assert not (tmp_path / "out").exists()
    main(["trial", str(models[0]), "--loops", LOOPS, "--limit", "3", "--out", str(tmp_path / "out"), "--plan"])
    assert "If no answer got worse: no gain could be shown." in " ".join(capsys.readouterr().out.split())


def test_options_and_written_answers_in_one_trial_are_refused_with_a_remedy(models: tuple[Path, Path]) -> None:
    source = resolve(models[0])
    loops = resolve_loops(source, LOOPS)
    for names in (("ladder", "arc_challenge"), ("arc_challenge", "ladder")):
        for budgets in ((), (24, 48)):
            with pytest.raises(TrialError, match=r"arc_challenge is answered by letters and ladder in words, .* judge the runs together"):
                plan_trial(source, loops, tasks_named(names), budgets, TrialSettings())


def test_options_by_letters_are_not_decoded(models: tuple[Path, Path]) -> None:
    source = resolve(models[0])
    loops = resolve_loops(source, LOOPS)
    tasks = tasks_named(("arc_challenge", "mmlu_pro"))
    arms = [arm for arm in plan_trial(source, loops, tasks, (), TrialSettings()).arms() if arm.applicable]
    assert [arm.name for arm in arms] == ["looped-plain-1", "twin-plain-1"]
    for budgets, settings, what in (
        ((24, 48), TrialSettings(), "budgets"),
        ((), TrialSettings(vote_samples=4), "votes"),
        ((), TrialSettings(rules=("plain", "repetition-stop")), "the rule repetition-stop"),
    ):
        with pytest.raises(TrialError, match=f"arc_challenge is answered by letters and decodes nothing: {what} would do nothing"):
            plan_trial(source, loops, tasks, budgets, settings)


def test_a_probe_measures(models: tuple[Path, Path], tmp_path: Path) -> None:
    settings = TrialSettings(limit=4, batch_size=4)
    found = estimate_trial(models[0], out=tmp_path / "out", loops=LOOPS, budgets=(20,), settings=settings, known=Known(probe=True))
    assert found.throughput is not None and found.throughput.tokens_per_second > 0 and "a probe of 4 prompts" in found.throughput.source
    assert "a probe of 4 prompts" in estimate_text(found)
    with pytest.raises(TrialError, match="measured by a probe or given, not both"):
        estimate_trial(models[0], out=tmp_path, loops=LOOPS, known=Known(probe=True, tokens_per_second=3.0))
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(TrialError, match="give a number above 0"):
            estimate_trial(models[0], out=tmp_path, loops=LOOPS, known=Known(tokens_per_second=wrong))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prior", "x"], "--prior is read with --plan only"),
        (["--probe"], "--probe is read with --plan only"),
        (["--plan", "--prior", "no/such/folder"], "no such folder of earlier runs"),
        (["--plan", "--loss", "x.txt"], "--plan has no meaning with --loss"),
        (["--plan", "--throughput", "nan"], "give a number above 0"),
        (["--plan", "--arms", "mine"], "unknown set of arms"),
    ],
)
def test_options_of_the_plan_that_do_not_go_together(
    models: tuple[Path, Path], tmp_path: Path, capsys, args: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        main(["trial", str(models[0]), "--loops", LOOPS, "--limit", "2", "--out", str(tmp_path / "out"), *args])
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


def prior_run(lengths: list[int], budget: int, *, looped: bool = False, rule: str = "plain", right: int = 0, **more) -> PriorRun:
    tokens = np.minimum(np.array(lengths, dtype=float), budget)
    values = dict(
        task="t",
        looped=looped,
        rule=rule,
        budget_tokens=budget,
        tokens=tokens,
        finished=(np.array(lengths) <= budget).astype(float),
        correct={(str(n), 0, 0): n < right for n in range(len(lengths))},
        layer_pass_ratio=1.5 if looped else 1.0,
        seconds=None,
        batch_size=8,
        device="cpu",
    )
    return PriorRun(**(values | more))


def test_expected_tokens_under_another_budget() -> None:
    """Greedy answers cut earlier are the same answers; one that did not end is taken to use up a longer budget."""
    lengths = [3, 9, 15, 40, 100]
    seen = Prior((prior_run(lengths, 50), prior_run([1] * 5, 50, looped=True)))
    for budget in (5, 12, 50):
        truth = np.minimum(lengths, budget).mean()
        assert seen.expected_tokens("t", looped=False, rule="plain", budget_tokens=budget) == pytest.approx(truth)
    assert seen.expected_tokens("t", looped=False, rule="plain", budget_tokens=80) == pytest.approx((3 + 9 + 15 + 40 + 80) / 5)
    assert seen.expected_tokens("t", looped=True, rule="plain", budget_tokens=80) == 1
    assert seen.expected_tokens("other", looped=True, rule="plain", budget_tokens=80) is None
    nearer = Prior((prior_run([30], 50), prior_run([20], 25), prior_run([10], 25, rule="budget-forcing")))
    assert nearer.expected_tokens("t", looped=False, rule="plain", budget_tokens=25) == 20
    assert nearer.expected_tokens("t", looped=False, rule="budget-forcing", budget_tokens=12) == 10


def test_discordance_and_throughput_of_earlier_runs() -> None:
    runs = (prior_run([10] * 8, 50, looped=True, right=6, seconds=4.0), prior_run([10] * 8, 50, right=4, seconds=2.0, batch_size=4))
    assert Prior(runs).discordance("t") == 2 / 8
    assert Prior(runs[:1]).discordance("t") is None
    assert Prior(runs).throughput(8).tokens_per_second == pytest.approx(1.5 * 80 / 4)
    assert Prior(runs).throughput(16).tokens_per_second == pytest.approx((1.5 * 80 + 80) / 6), "none has such batches: all are taken"
    assert Prior((prior_run([10], 50),)).throughput(8) is None


def test_runs_that_cannot_be_read_are_left_out_and_said(done: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "header.json").write_text("{")
    said: list[str] = []
    assert read_prior([tmp_path], warn=said.append).runs == ()
    assert len(said) == 1 and "damaged" in said[0]
    whole = read_prior([done / "runs"])
    assert {one.rule for one in whole.runs} == {"plain", "budget-forcing"} and all(one.seconds for one in whole.runs)


def test_settings_of_a_set_of_arms() -> None:
    assert in_arm_set(TrialSettings()) == TrialSettings()
    paper = in_arm_set(TrialSettings(arms="paper"))
    assert (paper.rules, paper.vote_samples) == (RULES, 4)
    assert in_arm_set(TrialSettings(arms="paper", vote_samples=8)).vote_samples == 8
