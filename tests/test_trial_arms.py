"""How arms form from anybody's records, what they cost, how votes are taken, and which plan follows from few words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loopwise.protocol import Bootstrap, Plan, PlannedTask, TrialError, judge, make_plan, plan_from_json, plan_to_json
from loopwise.protocol.costs import cost_per_answer, cost_ratio
from loopwise.protocol.gather import gather, unique_names
from loopwise.protocol.votes import majority, normalise_answer, vote_arms
from loopwise.records import Record, Run
from trial_runs import arm, draw, header, run

QUICK = Bootstrap(resamples=1000)
BARE = ("task", "item", "seed", "sample", "correct")


def write(folder, name, records, keep=BARE, **more):
    """A plain JSONL file with these fields a line."""
    path = folder / f"{name}.jsonl"
    lines = [json.dumps({field: getattr(r, field) for field in keep} | more) for r in records]
    path.write_text("\n".join(lines) + "\n")
    return path


# --- foreign records ------------------------------------------------------------------------------------------------------


def test_bare_records_give_the_first_test_and_a_reason_for_no_second(tmp_path):
    looped, twin = write(tmp_path, "a", draw(0.6, items=300, stream=1)), write(tmp_path, "b", draw(0.45, items=300, stream=2))
    verdict = judge(looped=looped, twin=twin, unlooped=write(tmp_path, "c", draw(0.5, items=300, stream=3)), bootstrap=QUICK)
    assert verdict.equal_parameters.result == "gain"
    assert verdict.equal_flops is None
    assert "`flops`" in verdict.equal_flops_reason and "--cost-ratio" in verdict.equal_flops_reason
    assert verdict.verdict == "not shown"
    assert {row.other for row in verdict.unjudged_rows} == {"twin", "c"}
    assert "there is no second test" in verdict.sentence


@pytest.mark.parametrize(
    ("keep", "ratio", "measure"),
    [
        (("generated_tokens",), 1.25, "layer-passes"),
        (("flops",), None, "flops"),
        (("generated_tokens", "flops"), 1.25, "layer-passes"),
        (("generated_tokens", "flops"), None, "flops"),
        (("generated_tokens",), None, None),
        (("seconds",), None, None),
        ((), 1.25, None),
    ],
)
def test_the_second_test_needs_flops_or_tokens_with_the_cost_ratio(tmp_path, keep, ratio, measure):
    looped = write(tmp_path, "a", draw(0.6, stream=1, flops=1.25e9), BARE + keep)
    twin = write(tmp_path, "b", draw(0.45, stream=2), BARE + keep)
    verdict = judge(looped=looped, twin=twin, cost_ratio=ratio, bootstrap=QUICK)
    assert verdict.deciding_measure == measure
    assert (verdict.equal_flops is None) == (measure is None)
    assert (verdict.equal_flops_reason is None) == (measure is not None)


def test_no_arm_as_cheap_as_the_loop_is_said(tmp_path):
    looped = write(tmp_path, "a", draw(0.6, stream=1, tokens=30), (*BARE, "generated_tokens"))
    twin = write(tmp_path, "b", draw(0.45, stream=2, tokens=90), (*BARE, "generated_tokens"))
    verdict = judge(looped=looped, twin=twin, cost_ratio=1.25, bootstrap=QUICK)
    assert verdict.equal_flops is None
    assert "no unlooped arm under the loop's decoding rule costs at most as much" in verdict.equal_flops_reason
    (row,) = [row for row in verdict.unjudged_rows if row.role == "costlier"]
    assert row.cost_ratio == pytest.approx(90 / (1.25 * 30), rel=0.05)


def test_files_of_one_side_are_one_arm_and_unlooped_files_one_arm_each(tmp_path):
    first, second = draw(0.6, stream=1), [replace(r, seed=1) for r in draw(0.6, stream=2)]
    arms = gather([Run({}, tuple(first), "x/a.jsonl"), Run({}, tuple(second), "x/b.jsonl")], "looped")
    assert [(one.name, one.seeds) for one in arms] == [("looped", (0, 1))]
    arms = gather([Run({}, tuple(first), "x/a.jsonl"), Run({}, tuple(first), "x/b.jsonl")], "unlooped")
    assert [one.name for one in arms] == ["a", "b"]
    same_stem = [Run({}, tuple(first), "x/a.jsonl"), Run({}, tuple(first), "y/a.jsonl")]
    assert [one.name for one in unique_names(gather(same_stem, "unlooped"))] == ["a", "a (2)"]


def test_lines_may_carry_arm_budget_and_decoding_rule(tmp_path):
    records = [
        replace(r, rule=rule, extra={"budget_tokens": budget})
        for rule in ("plain", "budget-forcing")
        for budget in (64, 128)
        for r in draw(0.5, items=20, stream=budget)
    ]
    arms = gather([run(records, source="a.jsonl")], "looped")
    assert [(one.name, one.rule, one.budget_label) for one in arms] == [
        ("looped budget-forcing 64", "budget-forcing", "64"),
        ("looped budget-forcing 128", "budget-forcing", "128"),
        ("looped plain 64", "plain", "64"),
        ("looped plain 128", "plain", "128"),
    ]
    named = [replace(r, extra={"arm": name, "budget": 64}) for name in ("voted", "long") for r in draw(0.5, items=20)]
    assert [one.name for one in gather([run(named, source="u.jsonl")], "unlooped")] == ["voted 64", "long 64"]


def test_a_grading_rule_is_no_decoding_rule():
    records = [replace(r, rule="number" if n % 2 else "boxed") for n, r in enumerate(draw(0.5, items=20))]
    (one,) = gather([run(records)], "looped")
    assert (one.rule, one.num_items) == (None, 20)


def test_a_budget_that_is_none_is_refused():
    records = [replace(r, extra={"budget": "many"}) for r in draw(0.5, items=5)]
    with pytest.raises(TrialError, match="budget 'many'"):
        gather([run(records, source="a.jsonl")], "twin")


def test_an_unlooped_file_that_lacks_an_item_is_refused(tmp_path):
    looped, twin = write(tmp_path, "a", draw(0.6)), write(tmp_path, "b", draw(0.5))
    with pytest.raises(TrialError, match="item 'ladder-0199' of ladder is missing in c"):
        judge(looped=looped, twin=twin, unlooped=write(tmp_path, "c", draw(0.5)[:-1]))


def test_two_loops_at_once_are_refused():
    looped = [arm(0.5, looped=True), arm(0.6, looped=True, loops="4:8 x2", arm="other")]
    with pytest.raises(TrialError, match=r"several looped arms .*10:16 x2.*4:8 x2.*one loop at a time"):
        judge(looped=looped, twin=arm(0.4, looped=False))


def test_choices_that_no_arm_has_are_refused():
    looped, twin = arm(0.5, looped=True), arm(0.4, looped=False)
    with pytest.raises(TrialError, match="no looped arm covers ladder at 64 tokens"):
        judge(looped=looped, twin=twin, deciding_budget_tokens=64)
    with pytest.raises(TrialError, match="no looped arm covers ladder under budget-forcing"):
        judge(looped=looped, twin=twin, deciding_rule="budget-forcing")
    for wrong in ({"alpha": 1.5}, {"cost_ratio": 0.8}, {"measure": "joules"}):
        with pytest.raises(TrialError):
            judge(looped=looped, twin=twin, **wrong)


def test_benchmarks_with_budgets_of_their_own_line_up_by_rank():
    """GSM8K at 384 and 768, MATH-500 at 1,024 and 2,048: the trial's budgets are 0.5x and 1x."""

    def side(looped, low, high):
        runs = []
        for task, budgets in (("gsm8k", (384, 768)), ("math500", (1024, 2048))):
            for budget, accuracy in zip(budgets, (low, high), strict=True):
                head = header(looped=looped, task=task, budget=budget, arm=f"{looped} {budget / budgets[1]}x")
                runs.append(run(draw(accuracy, task=task, tokens=budget / 4, items=200, stream=budget + looped), head))
        return runs

    verdict = judge(looped=side(True, 0.5, 0.6), twin=side(False, 0.3, 0.4), bootstrap=QUICK)
    assert verdict.deciding_budget_label == "768/2048"
    assert [row.comparison.num_items for row in verdict.equal_parameters.rows] == [400, 400]
    assert verdict.equal_parameters.delta_points == pytest.approx(20)
    assert judge(looped=side(True, 0.5, 0.6), twin=side(False, 0.3, 0.4), deciding_budget_tokens=384).deciding_budget_label == "384/1024"


# --- cost ------------------------------------------------------------------------------------------------------------------


def test_costs_are_those_of_the_records():
    (looped,) = gather([arm(0.5, looped=True, tokens=60, items=50, seeds=2)], "looped")
    (twin,) = gather([arm(0.5, looped=False, tokens=60, items=50, seeds=2)], "twin")
    tokens = sum(r.generated_tokens for r in arm(0.5, looped=True, tokens=60, items=50, seeds=2).records) / 100
    assert cost_per_answer(looped, "layer-passes") == pytest.approx(1.2 * tokens)
    assert cost_per_answer(looped, "flops") == pytest.approx(1.2e9 * tokens)
    assert cost_per_answer(looped, "seconds") == pytest.approx(0.01 * tokens)
    assert cost_ratio(twin, looped, "flops") == pytest.approx(1 / 1.2, rel=0.03)


def test_a_missing_cost_is_not_zero():
    head = header(looped=False)
    records = draw(0.5, items=10)
    (one,) = gather([run([replace(records[0], generated_tokens=None), *records[1:]], head)], "twin")
    assert cost_per_answer(one, "layer-passes") is None
    assert cost_per_answer(one, "flops") is not None


def test_a_verdict_that_flips_under_another_measure_says_so():
    """By layer passes the better unlooped arm is too dear; by FLOPs (short prompts, say) it is not."""
    looped, twin = arm(0.60, looped=True, tokens=80, items=400, seeds=3), arm(0.45, looped=False, tokens=80, items=400, seeds=3)
    rich = run(draw(0.75, tokens=120, items=400, seeds=3, flops=0.5e9, stream=5), header(looped=False, budget=256))
    verdict = judge(looped=looped, twin=[twin, rich], bootstrap=QUICK)
    outcomes = {one.measure: one for one in verdict.equal_flops.measures}
    assert verdict.verdict == "pays" == outcomes["layer-passes"].verdict
    assert (outcomes["flops"].verdict, outcomes["flops"].flips) == ("does not pay", True)
    assert any("flips" in note and "flops" in note for note in verdict.notes)
    assert judge(looped=looped, twin=[twin, rich], measure="flops", bootstrap=QUICK).verdict == "does not pay"


def test_a_smaller_models_layer_passes_are_not_compared():
    small = arm(0.9, looped=False, num_parameters=10_000_000, model="tiny", arm="tiny", tokens=10)
    verdict = judge(looped=arm(0.6, looped=True), twin=arm(0.5, looped=False), unlooped=small, bootstrap=QUICK)
    (row,) = [row for row in verdict.equal_flops.rows if row.other == "tiny"]
    assert (row.eligible, row.reason) == (False, "cost not comparable: layer passes of another model")


# --- votes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        (["7", "8", "8"], 1),
        (["7", "8"], 0),
        (["8", "7", "7", "8"], 0),
        ([None, "3", None], 1),
        ([None, None], 0),
        (["1,000", "5", "1000.0", "5 "], 0),
        (["x", "12", " 12", "$12$"], 1),
    ],
)
def test_majority_vote(answers, chosen):
    assert majority(answers) == chosen


def test_answers_are_normalised_but_not_confused():
    assert normalise_answer("1,234.50") == normalise_answer("1234.5")
    assert normalise_answer("(1,2)") != normalise_answer("12")
    assert normalise_answer("10") != normalise_answer("1")
    assert normalise_answer("+3") == normalise_answer("3.0")


def test_a_vote_is_as_right_as_its_answer_and_pays_for_all_samples():
    answers = {"a": ["1", "2", "2", "3"], "b": ["4", "5", "6", "6"]}
    right = {"a": "2", "b": "4"}
    records = [
        Record(task="t", item=i, seed=0, sample=k, correct=a == right[i], answer=a, generated_tokens=10 * (k + 1), flops=1.0, seconds=1.0)
        for i, of in answers.items()
        for k, a in enumerate(of)
    ]
    (sampled,) = gather([run(records, source="s.jsonl")], "unlooped")
    votes = {one.votes: one for one in vote_arms(sampled)}
    assert sorted(votes) == [2, 4]
    assert votes[4].name == "s, vote of 4"
    assert votes[4].tables["t"].correct[0, :, 0].tolist() == [1.0, 0.0]
    assert votes[2].tables["t"].correct[0, :, 0].tolist() == [0.0, 1.0]
    assert cost_per_answer(votes[4], "layer-passes") == 100
    assert cost_per_answer(votes[2], "layer-passes") == 30
    assert cost_per_answer(sampled, "layer-passes") == 25


def test_repeated_sampling_is_an_unlooped_arm():
    looped, twin = arm(0.6, looped=True, tokens=100, items=300), arm(0.5, looped=False, tokens=100, items=300)
    head = header(looped=False, budget=32, decoding={"temperature": 0.7}, samples=5, arm="twin-sampled")
    sampled = run(draw(0.35, samples=5, tokens=20, items=300, stream=3), head)
    verdict = judge(looped=looped, twin=[twin, sampled], bootstrap=QUICK)
    rows = {row.other: row for row in verdict.equal_flops.rows if row.role in ("candidate", "costlier")}
    assert set(rows) == {"twin-plain-128", "twin-sampled", "twin-sampled, vote of 2", "twin-sampled, vote of 4", "twin-sampled, vote of 5"}
    assert rows["twin-sampled, vote of 5"].cost_ratio == pytest.approx(5 * 20 / 120, rel=0.03)
    (summary,) = [one for one in verdict.arms if one.votes == 5]
    assert (summary.samples, summary.side) == (5, "twin")


def test_samples_without_answers_cannot_vote_and_that_is_said():
    looped, twin = arm(0.6, looped=True), arm(0.5, looped=False)
    records = [replace(r, answer=None) for r in draw(0.4, samples=3, stream=3)]
    sampled = run(records, header(looped=False, budget=32, decoding={"temperature": 0.7}, arm="twin-sampled"))
    verdict = judge(looped=looped, twin=[twin, sampled], bootstrap=QUICK)
    assert not [one for one in verdict.arms if one.votes]
    assert any("no majority vote" in note for note in verdict.notes)


# --- plan ------------------------------------------------------------------------------------------------------------------


def task(**more):
    return PlannedTask(**({"name": "ladder", "version": "1", "budgets_tokens": (32, 64, 128), "reserve_tokens": 8} | more))


def plan(**more) -> Plan:
    return make_plan(**({"model": "m", "loops": "10:16 x2", "layer_pass_ratio": 1.2, "tasks": [task()]} | more))


def test_the_default_plan_decides_by_budget_forcing_at_the_largest_budget():
    made = plan()
    assert (made.deciding_rule, made.deciding_budgets_tokens(), made.alpha) == ("budget-forcing", {"ladder": 128}, 0.05)
    assert plan(rules=("repetition-stop", "plain")).deciding_rule == "plain"
    assert plan(deciding=("plain", 64)).deciding_budgets_tokens() == {"ladder": 64}
    tight = plan(tasks=[task(reserve_tokens=512)])
    assert tight.deciding_rule == "plain"
    assert not any(one.applicable for one in tight.arms() if one.rule == "budget-forcing")


def test_a_plans_arms():
    arms = plan(longer_twin_ratio=1.25, vote_samples=4).arms()
    names = [one.name for one in arms]
    assert len(names) == len(set(names)) == 2 * 2 * 3 + 1 + 3
    assert "twin-budget-forcing-160" in names and "looped-budget-forcing-160" not in names
    assert "twin-budget-forcing-32-sampled4" in names
    two = plan(tasks=[task(), task(name="math", budgets_tokens=(512, 1024, 2048), reserve_tokens=512)], longer_twin_ratio=None)
    reasons = {one.name: one.reason for one in two.arms() if not one.applicable}
    assert reasons == {
        f"{side}-budget-forcing-32-512": "math: a budget of 512 tokens cannot hold the reserve of 512" for side in ("looped", "twin")
    }


def test_a_plan_survives_json():
    made = plan(vote_samples=4, limit=48, seeds=(0, 1))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(made)))) == made


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"rules": ("greedy",)}, "unknown decoding rule 'greedy'"),
        ({"rules": ()}, "no rule"),
        ({"seeds": (0, 0)}, "seeds are"),
        ({"samples": 4}, "all alike"),
        ({"vote_samples": 1}, "at least 2"),
        ({"layer_pass_ratio": 0.9}, "at least 1"),
        ({"deciding": ("plain", 65)}, "no benchmark has the deciding budget of 65"),
        ({"deciding": ("repetition-stop", None)}, "not among its rules"),
        ({"limit": 0}, "limit is 0"),
        ({"resamples": 10}, "resamples is 10"),
        ({"measure": "joules"}, "unknown measure"),
    ],
)
def test_plans_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(TrialError, match=message):
        plan(**wrong)


def test_budgets_are_checked():
    for wrong in ((), (64, 32), (0, 32), (32, 32)):
        with pytest.raises(TrialError, match="ascending"):
            task(budgets_tokens=wrong)
    with pytest.raises(TrialError, match="give as many"):
        plan(tasks=[task(), task(name="b", budgets_tokens=(32,))])
