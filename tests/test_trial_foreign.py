"""Foreign records that could mislead a verdict: names that collide, costs and decoding that differ or lack, numbers that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loopwise.protocol import Bootstrap, LargerModel, TrialError, judge
from loopwise.protocol.contrast import Contrasts
from loopwise.protocol.gather import gather, unique_names
from loopwise.protocol.words import ratio_text
from loopwise.records import Record, Run
from trial_runs import arm, header, run

QUICK = Bootstrap(resamples=1000)

# --- names ----------------------------------------------------------------------------------------------------------------


def answers(right, source, *, samples=1, **fields):
    """A foreign run: the first ``right`` of 300 items are solved."""
    records = [
        Record(
            task="t", item=f"{n:03d}", seed=0, sample=k, correct=n < right, **{"generated_tokens": 50, "answer": str(n < right)} | fields
        )
        for n in range(300)
        for k in range(samples)
    ]
    return run(records, source=source)


def test_no_number_makes_a_name_that_another_arm_was_given():
    sources = ("x/a.jsonl", "y/a.jsonl", "a (2).jsonl", "z/a.jsonl")
    arms = [gather([answers(9, source)], "unlooped")[0] for source in sources]
    assert [one.name for one in unique_names(arms)] == ["a", "a (3)", "a (2)", "a (4)"]
    assert [one.name for one in unique_names(arms[:1], {"a", "a (2)"})] == ["a (3)"]


@pytest.mark.parametrize(
    ("beside", "name"),
    [
        ([("a/base.jsonl", 90, 1), ("b/base.jsonl", 105, 1)], "base (2)"),
        ([("s.jsonl", 90, 2)], "s, vote of 2"),
    ],
)
def test_an_arm_never_gets_another_ones_p_value(beside, name):
    """Looped 180 of 300, the strong arm 179: one item of difference is p = 1 by its sign floor, whatever else is called alike."""
    unlooped = [answers(right, source, samples=samples, generated_tokens=20) for source, right, samples in beside]
    verdict = judge(
        looped=answers(180, "looped.jsonl"),
        twin=answers(120, "twin.jsonl"),
        unlooped=[*unlooped, answers(179, f"{name}.jsonl")],
        cost_ratio=1.25,
        bootstrap=QUICK,
    )
    assert (verdict.equal_flops.comparator, verdict.equal_flops.p_value, verdict.equal_flops.result) == (name, 1.0, "equivalent")
    assert verdict.verdict == "does not pay"
    names = [one.name for one in verdict.arms]
    assert len(names) == len(set(names))
    rows = {row.other: row.comparison.other_percent for row in verdict.equal_flops.rows if row.role == "candidate"}
    assert rows == {one.name: pytest.approx(one.accuracy_percent) for one in verdict.arms if one.side != "looped"}


def test_contrasts_are_kept_by_arm_not_by_name():
    (looped,), (weak,), (strong,) = (gather([answers(n, "a.jsonl")], side) for n, side in ((180, "looped"), (90, "twin"), (150, "twin")))
    contrasts = Contrasts(QUICK)
    assert weak.name == strong.name
    assert [contrasts.of(looped, one).comparison.delta_points for one in (weak, strong)] == pytest.approx([30, 10])
    assert contrasts.of(looped, weak) is contrasts.of(looped, weak)


# --- arms of unknown cost -------------------------------------------------------------------------------------------------


def cost_free(right, source, **fields):
    return answers(right, source, generated_tokens=None, **fields)


@pytest.mark.parametrize("right", [100, 150, 179, 299])
def test_an_accurate_arm_of_unknown_cost_leaves_no_second_test(right):
    """The known comparator has 100 of 300: an arm as accurate, whose cost nobody knows, may be the best use of the compute."""
    verdict = judge(
        looped=cost_free(180, "l", flops=100.0),
        twin=cost_free(90, "t", flops=80.0),
        unlooped=[cost_free(100, "weak", flops=50.0), cost_free(right, "strong")],
        bootstrap=QUICK,
    )
    assert (verdict.equal_parameters.result, verdict.equal_flops, verdict.verdict) == ("gain", None, "not shown")
    assert f"strong ({right / 3:.1f} %)" in verdict.equal_flops_reason and "give `flops`" in verdict.equal_flops_reason
    assert verdict.equal_flops_reason in verdict.sentence
    assert not any(row.role == "best cheaper" for row in verdict.unjudged_rows)


def test_a_twin_of_unknown_cost_counts_too():
    verdict = judge(looped=answers(180, "l"), twin=cost_free(120, "t"), unlooped=answers(90, "weak"), cost_ratio=1.2, bootstrap=QUICK)
    assert (verdict.equal_flops, verdict.verdict) == (None, "not shown")
    assert "twin (40.0 %)" in verdict.equal_flops_reason and "give `generated_tokens`" in verdict.equal_flops_reason
    alone = judge(looped=answers(180, "l"), twin=cost_free(120, "t"), cost_ratio=1.2, bootstrap=QUICK)
    assert "twin (40.0 %) may cost no more than the loop" in alone.equal_flops_reason


def test_less_accurate_arms_of_unknown_cost_are_named_in_a_note():
    verdict = judge(
        looped=answers(180, "l"),
        twin=answers(120, "t"),
        unlooped=[cost_free(119, "u"), cost_free(60, "v")],
        cost_ratio=1.2,
        bootstrap=QUICK,
    )
    assert (verdict.verdict, verdict.equal_flops.comparator, verdict.equal_flops.num_eligible) == ("pays", "twin", 1)
    (note,) = [note for note in verdict.notes if "No cost is known" in note]
    assert "u and v" in note and "`generated_tokens`" in note


def test_an_arm_of_unknown_cost_under_another_rule_changes_nothing():
    def by(right, source, rule, **fields):
        return answers(right, source, extra={"decoding_rule": rule}, **fields)

    looped, twin = by(180, "l", "greedy"), by(120, "t", "greedy")
    verdict = judge(looped=looped, twin=twin, unlooped=by(290, "u", "beam", generated_tokens=None), cost_ratio=1.2, bootstrap=QUICK)
    assert verdict.verdict == "pays"
    assert not any("No cost is known" in note for note in verdict.notes)


def test_another_measure_that_leaves_an_accurate_arm_unknown_is_not_shown():
    """By FLOPs nobody knows what the arm of 150 costs; by layer passes it is the comparator."""
    verdict = judge(
        looped=answers(180, "l", flops=100.0),
        twin=answers(90, "t", flops=80.0),
        unlooped=answers(150, "u"),
        cost_ratio=1.2,
        bootstrap=QUICK,
    )
    found = {one.measure: (one.comparator, one.result, one.verdict) for one in verdict.equal_flops.measures}
    assert found == {"layer-passes": ("u", "gain", "pays"), "flops": (None, None, "not shown")}


# --- foreign decoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ({"decoding_rule": "greedy+forcing"}, {"decoding_rule": "greedy"}, r"decoding rules differ: .*greedy\+forcing.*greedy"),
        ({"decoding_rule": "plain"}, {"decoding_rule": "no_forcing"}, r"decoding rules differ: .*plain.*no_forcing"),
        ({"temperature": 1.0}, {"temperature": 0.0}, r"temperature is 1.0 in looped, 0.0 in twin"),
        ({"top_p": 0.9, "top_k": 5}, {"top_p": 1, "top_k": 7}, r"top_p is 0.9 in looped, 1 in twin"),
        ({"top_k": 5}, {"top_k": 7}, r"top_k is 5 in looped, 7 in twin"),
        ({"reserve_tokens": 64}, {"reserve_tokens": 32}, r"reserve_tokens is 64 in looped, 32 in twin"),
        ({"thinking": True}, {"thinking": False}, r"thinking is True in looped, False in twin"),
        ({"decoding_rule": ["x"]}, {}, r"item '000' has the decoding_rule \['x'\]"),
        ({}, {"temperature": {"a": 1}}, r"item '000' has temperature \{'a': 1\}"),
        ({}, {"top_p": float("nan")}, r"item '000' has top_p nan"),
    ],
)
@pytest.mark.parametrize("budgets", [(64,), (64, 128)])
def test_foreign_decoding_that_differs_is_refused(ours, theirs, message, budgets):
    def side(fields):
        return [answers(120, "x.jsonl", extra=fields | {"budget": budget}) for budget in budgets]

    words = message.replace(" in looped", " in looped 64").replace(" in twin", " in twin 64")
    with pytest.raises(TrialError, match=words) as caught:
        judge(looped=side(ours), twin=side(theirs), cost_ratio=1.2, bootstrap=QUICK)
    assert "\n" not in str(caught.value)


def test_equal_foreign_decoding_and_what_is_not_said_are_accepted():
    said = {"decoding_rule": "mine", "temperature": 0, "reserve_tokens": 8, "thinking": None}
    looped, twin = answers(180, "l", extra=said), answers(120, "t", extra=said | {"temperature": 0.0, "top_p": 1.0})
    verdict = judge(looped=looped, twin=twin, cost_ratio=1.2, bootstrap=QUICK)
    assert (verdict.verdict, verdict.deciding_rule) == ("pays", "mine")
    own = run([replace(r, gold=None) for r in twin.records], header(looped=False, task="t", budget=None, reserve_tokens=16, decoding={}))
    with pytest.raises(TrialError, match=r"reserve_tokens of t is 8 .*, 16 in"):
        judge(looped=answers(180, "l", extra={"reserve_tokens": 8, "decoding_rule": "plain"}), twin=own, bootstrap=QUICK)


# --- nonsense numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [float("inf"), float("nan"), 10**400, -(10**400), 0, 1.5, True])
def test_a_budget_that_is_no_number_of_tokens_is_refused(budget):
    with pytest.raises(TrialError, match=r"a.jsonl: item '000' has the budget .*; give a whole number of tokens") as caught:
        gather([answers(9, "a.jsonl", extra={"budget": budget})], "twin")
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("name", ["layer_pass_ratio", "num_parameters", "budget_tokens"])
@pytest.mark.parametrize("value", ["much", float("nan"), float("inf"), 0, [1]])
def test_header_numbers_that_are_none_are_refused(name, value):
    looped = arm(0.6, looped=True)
    with pytest.raises(TrialError, match=rf"^made-up: {name} in its header is "):
        judge(looped=Run(looped.header | {name: value}, looped.records, looped.source), twin=arm(0.5, looped=False))


@pytest.mark.parametrize("ratio", [float("inf"), float("nan"), 0.99, 10**400])
def test_a_cost_ratio_must_be_finite_and_at_least_one(ratio):
    with pytest.raises(TrialError, match="give a finite number from 1"):
        judge(looped=answers(180, "l"), twin=answers(120, "t"), cost_ratio=ratio)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"num_parameters": value}, "parameters; give a number from 1") for value in (-5, 0, float("nan"), float("inf"), 10**400, "8B")]
    + [({"accuracy_percent": value}, "give percent, from 0 to 100") for value in (-0.1, 100.1, float("nan"), None)]
    + [({"weight_bytes": value}, "bytes; give a number from 1") for value in (0, -1, float("nan"), float("inf"))],
)
def test_a_larger_model_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(TrialError, match=f"larger model big: .*{message}"):
        LargerModel(**{"name": "big", "num_parameters": 1e9, "accuracy_percent": 60.0} | wrong)


# --- seeds, files, ratios ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [(0,), (0, 2)])
def test_seeds_that_differ_between_benchmarks_are_said(second):
    def side(right, source):
        records = [
            replace(r, task=task, seed=s)
            for task, seeds in (("a", (0, 1)), ("b", second))
            for s in seeds
            for r in answers(right, "x").records
        ]
        return run(records, source=source)

    seeds = "/".join(map(str, second))
    with pytest.raises(TrialError, match=rf"seeds differ between benchmarks \(a has 0/1, b has {seeds}\); use 'items'"):
        judge(looped=side(180, "l"), twin=side(120, "t"), bootstrap=Bootstrap(resamples=1000, resampling="items and seeds"))
    found = judge(looped=side(180, "l"), twin=side(120, "t"), bootstrap=QUICK).equal_parameters.comparison
    assert (found.delta_points, found.seed_deltas, found.ci95_items_and_seeds) == (pytest.approx(20), (), None)


def test_one_seed_cannot_be_resampled_and_that_is_said():
    with pytest.raises(TrialError, match="but there is only seed 0; use 'items'"):
        judge(looped=answers(180, "l"), twin=answers(120, "t"), bootstrap=Bootstrap(resamples=1000, resampling="items and seeds"))


def test_unlooped_files_of_one_benchmark_each_are_joined_by_arm():
    def of(right, task, **fields):
        return run([replace(r, task=task, extra=fields) for r in answers(right, "x").records], source=f"{right} {task}")

    looped, twin = [of(180, "a"), of(180, "b")], [of(120, "a"), of(120, "b")]
    with pytest.raises(
        TrialError, match=r"different tasks: looped has b, 150 a has a; .*an equal `arm` field on the lines of several joins"
    ):
        judge(looped=looped, twin=twin, unlooped=[of(150, "a"), of(150, "b")], cost_ratio=1.2)
    joined = [of(150, task, arm="mine") for task in ("a", "b")]
    assert judge(looped=looped, twin=twin, unlooped=joined, cost_ratio=1.2, bootstrap=QUICK).equal_flops.comparator == "mine"


def test_a_ratio_near_one_is_told_from_one(tmp_path):
    assert [ratio_text(x) for x in (1.25, 1.0, 1.001, 0.99996, 1 + 1e-12)] == ["1.25", "1.00", "1.001", "0.99996", "1.00"]
    verdict = judge(
        looped=answers(180, "l", flops=1000.0),
        twin=answers(120, "t", flops=900.0),
        unlooped=answers(150, "u", flops=1001.0),
        bootstrap=QUICK,
    )
    (row,) = [row for row in verdict.equal_flops.rows if row.role == "costlier"]
    assert row.reason == "costs 1.001x the loop: shown, never deciding"
