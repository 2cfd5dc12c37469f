"""Runs compared and judged: what is refused, what the numbers are, what the verdict says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from loopwise import stats
from loopwise.cli.summary import summary
from loopwise.protocol import (
    Bootstrap,
    LargerModel,
    PlannedTask,
    TrialError,
    compare,
    judge,
    make_plan,
    threshold_effect_points,
    verdict_from_json,
    verdict_to_json,
)
from loopwise.protocol.decide import final_word, result_of
from loopwise.records import Record, Run
from trial_runs import arm, draw, header, run

QUICK = Bootstrap(resamples=2000)


def pair(looped=0.55, twin=0.45, **more):
    return arm(looped, looped=True, **more), arm(twin, looped=False, **more)


def changed(a_run: Run, at: int, **fields) -> Run:
    """The run with one record altered."""
    records = list(a_run.records)
    records[at] = replace(records[at], **fields)
    return Run(a_run.header, tuple(records), a_run.source)


def without(a_run: Run, at: int) -> Run:
    return Run(a_run.header, a_run.records[:at] + a_run.records[at + 1 :], a_run.source)


# --- compare -------------------------------------------------------------------------------------------------------------


def test_compare_gives_the_numbers_of_the_records():
    looped, twin = pair(seeds=2)
    found = compare(looped, twin)
    assert (found.looped_percent, found.other_percent, found.delta_points) == pytest.approx((55, 45, 10))
    by_key = {record.key: record.correct for record in twin.records}
    difference = np.array([record.correct - by_key[record.key] for record in looped.records], dtype=float).reshape(2, 200)
    expected = stats.macro_bootstrap([difference])
    assert found.ci95 == pytest.approx([100 * x for x in expected.ci95], abs=0.3)
    assert found.num_differing_items == int((difference.mean(axis=0) != 0).sum())
    assert [one.points for one in found.seed_deltas] == pytest.approx([10, 10])
    assert found.seeds_favouring == 2
    assert found.ci95_items_and_seeds is not None


def test_the_order_of_records_does_not_matter():
    looped, twin = pair()
    shuffled = Run(twin.header, tuple(np.random.default_rng(0).permutation(np.array(twin.records, dtype=object))), twin.source)
    assert compare(looped, twin) == compare(looped, shuffled)


def test_pairing_is_by_item_not_by_place():
    """Arms that are right on the same items differ nowhere, in whatever order they wrote them."""
    looped, _ = pair()
    twin = Run(header(looped=False), looped.records[::-1], "twin")
    found = compare(looped, twin)
    assert (found.delta_points, found.p_value, found.num_differing_items) == (0, 1, 0)


def test_macro_average_weighs_benchmarks_equally():
    looped = [arm(0.8, looped=True, items=100), run(draw(0.5, task="other", items=20), header(looped=True, task="other"))]
    twin = [arm(0.7, looped=False, items=100), run(draw(0.2, task="other", items=20), header(looped=False, task="other"))]
    found = compare(looped, twin)
    assert found.delta_points == pytest.approx((10 + 30) / 2)
    assert {row.task: round(row.delta_points) for row in found.tasks} == {"ladder": 10, "other": 30}
    assert [row.holm_p for row in found.tasks] == pytest.approx(stats.holm([row.p_value for row in found.tasks]))


def test_one_seed_gives_exact_mcnemar_beside_the_bootstrap():
    looped, twin = pair()
    (row,) = compare(looped, twin).tasks
    by_item = {record.item: record.correct for record in twin.records}
    gained = sum(record.correct and not by_item[record.item] for record in looped.records)
    lost = sum(by_item[record.item] and not record.correct for record in looped.records)
    assert row.discordant == (gained, lost)
    assert row.mcnemar_p == stats.mcnemar_exact(gained, lost)
    assert compare(*pair(seeds=2)).tasks[0].mcnemar_p is None


def test_sampled_answers_are_averaged_per_item_first():
    looped = run(draw(0.6, samples=4, stream=1), header(looped=True))
    twin = run(draw(0.5, samples=4, stream=2), header(looped=False))
    found = compare(looped, twin)
    assert found.delta_points == pytest.approx(10)
    single = compare(run(draw(0.6, stream=1), header(looped=True)), run(draw(0.5, stream=2), header(looped=False)))
    assert found.standard_error_points < 0.75 * single.standard_error_points


def test_five_items_cannot_be_significant():
    """A bootstrap of five items that all improved has no resample below zero; five heads in a row are p = 0.06."""
    looped = run(draw(1.0, items=5), header(looped=True))
    twin = run(draw(0.0, items=5), header(looped=False))
    assert compare(looped, twin).p_value == 0.0625
    assert judge(looped=looped, twin=twin).verdict == "not shown"


def test_accuracy_on_the_answers_that_both_arms_finish():
    """Twin: right on what it finishes, as the looped model is; the looped one only finishes more."""
    looped = [Record(task="t", item=str(n), seed=0, sample=0, correct=n % 2 == 0, finished=True) for n in range(100)]
    twin = [replace(r, correct=r.correct and int(r.item) < 60, finished=int(r.item) < 60) for r in looped]
    found = compare(run(looped), run(twin))
    assert found.delta_points == pytest.approx(20)
    both = found.both_finished
    assert (both.num_answers, both.share_percent, both.looped_percent, both.other_percent) == (60, 60, 50, 50)
    assert (both.delta_points, both.p_value) == (0, 1)
    assert (found.tasks[0].looped_finished_percent, found.tasks[0].other_finished_percent) == (100, 60)


def test_both_finished_needs_to_be_known_for_every_answer():
    looped, twin = pair()
    assert compare(looped, changed(twin, 3, finished=None)).both_finished is None


def test_both_finished_interval_is_that_of_the_subset():
    looped, twin = pair(items=400)
    kept = {r.item for r in looped.records if r.finished} & {r.item for r in twin.records if r.finished}
    subset = [Run(one.header, tuple(r for r in one.records if r.item in kept), "subset") for one in (looped, twin)]
    both, expected = compare(looped, twin).both_finished, compare(*subset)
    assert both.delta_points == pytest.approx(expected.delta_points)
    assert both.ci95 == pytest.approx(expected.ci95, abs=0.8)


REFUSED = [
    (lambda a, b: (a, without(b, 7)), r"item 'ladder-0007' of ladder is missing in twin-plain-128"),
    (lambda a, b: (without(a, 7), b), r"item 'ladder-0007' of ladder is missing in looped-plain-128"),
    (
        lambda a, b: (a, Run(b.header, (*b.records, b.records[3]), "x")),
        r"item 'ladder-0003' of ladder \(seed 0, sample 0\) is there twice",
    ),
    (lambda a, b: (a, [b, b]), r"item 'ladder-0000' of ladder \(seed 0, sample 0\) is there twice"),
    (
        lambda a, b: (a, Run(b.header, tuple(replace(r, task="other") for r in b.records), "x")),
        r"different tasks: looped-plain-128 has ladder",
    ),
    (lambda a, b: (a, Run(b.header | {"budget_tokens": 64}, b.records, "x")), r"budget_tokens of ladder is 128 .*, 64 in"),
    (lambda a, b: (a, Run(b.header | {"rule": "budget-forcing"}, b.records, "x")), r"decoding rules differ: .*plain.*budget-forcing"),
    (lambda a, b: (a, Run(b.header | {"decoding": {"temperature": 0.7}}, b.records, "x")), r"temperature is 0.0 .* 0.7"),
    (lambda a, b: (a, Run(b.header | {"reserve_tokens": 16}, b.records, "x")), None),
    (lambda a, b: (a, Run(b.header | {"num_parameters": 9}, b.records, "x")), r"134515008 parameters.* 9: not twins"),
    (lambda a, b: (a, Run(b.header | {"task_version": "2"}, b.records, "x")), r"ladder is version 1 .* 2 in"),
    (lambda a, b: (a, changed(b, 5, gold="other")), r"item 'ladder-0005' of ladder has the reference answer"),
    (lambda a, b: (a, changed(b, 5, seed=1)), r"item 'ladder-0005' of ladder is missing \(seed 0, sample 0\)"),
    (
        lambda a, b: (a, Run(b.header, b.records + tuple(replace(r, sample=1) for r in b.records), "x")),
        r"samples of ladder differ: .* 1 .* 2 .*sample 1",
    ),
    (lambda a, b: (a, Run(b.header, tuple(replace(r, seed=1) for r in b.records), "x")), r"seed 0 of ladder is missing in twin-plain-128"),
    (lambda a, b: (b, a), r"given as looped, but its header says unlooped"),
    (lambda a, b: (a, a), r"given as twin, but its header says looped"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_pairs_that_are_no_pairs_are_refused_and_the_first_offender_named(change, message):
    looped, twin = change(*pair(items=20))
    if message is None:  # the twin's reserve is not known to the looped arm: nothing to compare
        assert compare(looped, twin).num_items == 20
        return
    with pytest.raises(TrialError, match=message) as caught:
        compare(looped, twin)
    assert "\n" not in str(caught.value)


def test_reserves_must_match_under_budget_forcing():
    looped, twin = pair(rule="budget-forcing", items=20)
    with pytest.raises(TrialError, match=r"reserve_tokens of ladder is 8 .* 16"):
        compare(looped, Run(twin.header | {"reserve_tokens": 16}, twin.records, "x"))


def test_table_8_row_from_its_counts():
    """The 9B model on GSM8K (1,319 items, one seed): 93.7 -> 92.6, [-2.0, -0.1], equivalent; 0.34 by Holm is some 0.035 alone.

    The interval's width asks for about 40 discordant items; 13 and 27 of them give the difference.
    """
    right = [(True, True)] * 1209 + [(True, False)] * 13 + [(False, True)] * 27 + [(False, False)] * 70
    looped, twin = (
        run([Record(task="gsm8k", item=str(n), seed=0, sample=0, correct=r[side]) for n, r in enumerate(right)]) for side in (0, 1)
    )
    (row,) = compare(looped, twin).tasks
    assert (round(row.other_percent, 1), round(row.looped_percent, 1)) == (93.7, 92.6)
    assert row.ci95 == pytest.approx((-2.0, -0.1), abs=0.1)
    assert row.equivalent
    assert 0.02 < row.p_value < 0.045
    assert row.mcnemar_p == pytest.approx(0.038, abs=0.005)


# --- the two tests --------------------------------------------------------------------------------------------------------


def grid(looped, twin, rules=("plain",), tokens=None, **more):
    """Looped and twin runs at 32, 64 and 128 tokens; accuracies by budget."""
    tokens = tokens or {32: 20, 64: 40, 128: 80}
    runs = [
        [arm(values[budget] + (0.1 if rule != "plain" else 0), looped=side, rule=rule, budget=budget, tokens=tokens[budget], **more)]
        for side, values in ((True, looped), (False, twin))
        for rule in rules
        for budget in values
    ]
    flat = [one for group in runs for one in group]
    return [one for one in flat if one.header["looped"]], [one for one in flat if not one.header["looped"]]


def test_a_loop_that_beats_its_twin_and_the_best_cheaper_arm_pays():
    looped, twin = grid({32: 0.35, 64: 0.45, 128: 0.60}, {32: 0.3, 64: 0.4, 128: 0.5}, seeds=4, items=300)
    verdict = judge(looped=looped, twin=twin, bootstrap=QUICK)
    assert verdict.verdict == "pays"
    assert verdict.equal_parameters.delta_points == pytest.approx(10)
    flops = verdict.equal_flops
    assert (flops.comparator, flops.num_eligible, flops.measure) == ("twin-plain-128", 3, "layer-passes")
    assert verdict.deciding_budget_label == "128"
    assert (verdict.few_seeds, verdict.training_free) == (False, True)
    for part in ("pays", "60.0 %", "50.0 %", "+10.0 points", "134.5M", "1.20x", "10:16 x2"):
        assert part in verdict.sentence


def test_the_best_cheaper_arm_may_be_a_longer_one_and_then_the_loop_does_not_pay():
    """The twin at 160 tokens costs what the loop costs at 128, and scores better."""
    looped, twin = pair(0.55, 0.45, items=400, seeds=4, tokens=80)
    longer = arm(0.65, looped=False, budget=160, tokens=95, items=400, seeds=4)
    verdict = judge(looped=[looped], twin=[twin, longer], bootstrap=QUICK)
    assert verdict.equal_parameters.result == "gain"
    assert (verdict.equal_flops.comparator, verdict.equal_flops.result) == ("twin-plain-160", "loss")
    assert verdict.verdict == "does not pay"
    assert verdict.equal_flops.p_value_loss == min(1, 2 * verdict.equal_flops.comparison.p_value)
    assert verdict.equal_flops.deciding_p == verdict.equal_flops.p_value_loss < verdict.alpha
    row = next(row for row in verdict.equal_flops.rows if row.role == "best cheaper" and row.decides)
    assert row.p_value == verdict.equal_flops.deciding_p  # and not the largest over the arms, which says nothing of a loss


def test_a_loss_is_printed_with_the_p_value_that_it_rests_on():
    """The loop beats one eligible arm clearly, not at all the other, and loses to the third: the largest p says nothing of that."""
    looped, twin = pair(0.55, 0.45, items=400, seeds=4, tokens=80)
    even = arm(0.55, looped=False, budget=136, tokens=84, items=400, seeds=4)
    longer = arm(0.70, looped=False, budget=160, tokens=95, items=400, seeds=4)
    verdict = judge(looped=[looped], twin=[twin, even, longer], bootstrap=QUICK)
    second = verdict.equal_flops
    assert second.result == "loss" and second.p_value > 0.1 > verdict.alpha > second.deciding_p
    printed = summary(verdict, None)
    assert f"p = {second.deciding_p:.3g}" in printed and f"p = {second.p_value:.3g}" not in printed.split("test 2")[1]
    assert verdict.sentence.count("p <") + verdict.sentence.count("p =") == 2


def test_a_costlier_arm_is_shown_and_never_decides():
    looped, twin = pair(0.60, 0.45, items=400, seeds=4, tokens=80)
    longer = arm(0.75, looped=False, budget=256, tokens=120, items=400, seeds=4)
    verdict = judge(looped=[looped], twin=[twin, longer], bootstrap=QUICK)
    assert verdict.verdict == "pays"
    (row,) = [row for row in verdict.equal_flops.rows if row.role == "costlier"]
    assert (row.other, row.eligible, row.decides) == ("twin-plain-256", False, False)
    assert row.comparison.delta_points == pytest.approx(-15)
    assert row.cost_ratio == pytest.approx(1.25, abs=0.02)


def test_p_value_of_a_gain_is_the_largest_over_the_eligible_arms():
    """The better arm is like the loop and surely behind; the other one is worse and differs on many items, so less surely behind."""

    def answers(looped, right):
        records = [Record(task="t", item=f"{n:03d}", seed=0, sample=0, correct=r, generated_tokens=50) for n, r in enumerate(right)]
        return run(records, source="looped" if looped else f"arm {sum(right)}")

    good = [n < 200 for n in range(300)]
    like = [n < 190 for n in range(300)]
    unlike = [60 <= n < 248 for n in range(300)]
    verdict = judge(looped=answers(True, good), twin=answers(False, like), unlooped=answers(False, unlike), cost_ratio=1.2, bootstrap=QUICK)
    p_values = {row.other: row.p_value for row in verdict.equal_flops.rows if row.role == "candidate" and row.eligible}
    assert p_values["twin"] < 0.01 and p_values["arm 188"] > 0.1
    assert verdict.equal_flops.comparator == "twin"
    assert verdict.equal_flops.p_value == p_values["arm 188"]
    assert (verdict.equal_parameters.result, verdict.verdict) == ("gain", "not shown")


def test_another_decoding_rule_is_listed_and_never_decides():
    """Budget forcing on the twin alone would hide the loop's gain (Table 4)."""
    looped, twin = pair(0.55, 0.45, items=400, seeds=4)
    forced = arm(0.70, looped=False, rule="budget-forcing", items=400, seeds=4)
    verdict = judge(looped=[looped], twin=[twin, forced], deciding_rule="plain", bootstrap=QUICK)
    assert verdict.verdict == "pays"
    (row,) = [row for row in verdict.equal_flops.rows if row.role == "other rule"]
    assert not row.eligible and "another decoding rule" in row.reason


def test_one_sided_budget_forcing_is_a_labelled_diagnostic():
    looped, twin = grid({64: 0.45, 128: 0.55}, {64: 0.4, 128: 0.48}, rules=("plain", "budget-forcing"), seeds=3)
    verdict = judge(looped=looped, twin=twin, bootstrap=QUICK)
    rows = [row for row in verdict.equal_flops.rows if row.role == "one-sided budget forcing"]
    assert {(row.looped, row.other) for row in rows} == {(f"looped-plain-{b}", f"twin-budget-forcing-{b}") for b in (64, 128)}
    assert all("unfair" in row.label and not row.eligible and not row.decides for row in rows)
    assert verdict.deciding_rule == "budget-forcing"


def test_rows_beside_are_holm_adjusted_over_budgets():
    looped, twin = grid({32: 0.33, 64: 0.43, 128: 0.53}, {32: 0.3, 64: 0.4, 128: 0.5}, items=300)
    verdict = judge(looped=looped, twin=twin, bootstrap=QUICK)
    for role in ("same budget", "best cheaper"):
        rows = [row for row in verdict.equal_flops.rows if row.role == role]
        assert len(rows) == 3
        assert [row.holm_p for row in rows] == pytest.approx(stats.holm([row.p_value for row in rows]))
    assert sum(row.decides for row in verdict.equal_flops.rows) == 1
    assert [row.decides for row in verdict.equal_parameters.rows].count(True) == 1


def test_the_second_test_decides_only_if_the_first_passes():
    """No gain over the twin, whose longer answers make it too dear for the second test: beating a weak arm does not help."""
    looped, twin = arm(0.50, looped=True, items=400, seeds=4, tokens=50), arm(0.50, looped=False, items=400, seeds=4, tokens=90)
    weak = arm(0.2, looped=False, budget=32, tokens=20, items=400, seeds=4)
    verdict = judge(looped=[looped], twin=[twin, weak], bootstrap=QUICK)
    assert (verdict.equal_parameters.passed, verdict.equal_flops.result) == (False, "gain")
    assert verdict.verdict in ("does not pay", "not shown")
    assert len(verdict.equal_flops.rows) >= 4


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("gain", "gain", "pays"),
        ("gain", "loss", "does not pay"),
        ("gain", "equivalent", "does not pay"),
        ("gain", "not shown", "not shown"),
        ("gain", None, "not shown"),
        ("loss", "gain", "does not pay"),
        ("equivalent", "gain", "does not pay"),
        ("not shown", "gain", "not shown"),
        ("not shown", "loss", "not shown"),
    ],
)
def test_the_verdict_from_both_results(first, second, word):
    assert final_word(first, second) == word


def test_equivalence_is_a_verdict_only_with_enough_items():
    same = draw(0.5, items=400, stream=1)
    many = judge(looped=run(same, header(looped=True)), twin=run(same, header(looped=False)))
    assert (many.verdict, many.equal_parameters.result) == ("does not pay", "equivalent")
    same = draw(0.5, items=48, stream=1)
    few = judge(looped=run(same, header(looped=True)), twin=run(same, header(looped=False)))
    assert few.equal_parameters.equivalent
    assert (few.verdict, few.equal_parameters.result) == ("not shown", "not shown")
    assert any("48 items cannot show equivalence: it takes 150" in note for note in few.notes)


def test_a_loss_at_equal_parameters_does_not_pay():
    verdict = judge(looped=arm(0.40, looped=True, items=400), twin=arm(0.55, looped=False, items=400), bootstrap=QUICK)
    assert (verdict.verdict, verdict.equal_parameters.result) == ("does not pay", "loss")
    assert "significantly worse" in verdict.sentence
    assert "Leave the loop out" in verdict.advice


def test_not_shown_names_the_smallest_effect_that_could_have_been():
    verdict = judge(looped=arm(0.50, looped=True, items=48), twin=arm(0.4584, looped=False, items=48))
    assert verdict.verdict == "not shown"
    first = verdict.equal_parameters
    assert first.smallest_detectable_points == pytest.approx(
        max(stats.detectable_effect(first.comparison.standard_error_points), 100 * 6 / 48)
    )
    assert f"at least {first.smallest_detectable_points:.1f} points" in verdict.sentence
    assert "48 items and 1 seed" in verdict.sentence


def test_arms_that_never_differ_are_not_compared_with_perfect_precision():
    same = draw(0.5, items=48, stream=1)
    verdict = judge(looped=run(same, header(looped=True)), twin=run(same, header(looped=False)), bootstrap=QUICK)
    assert verdict.equal_parameters.comparison.standard_error_points == 0
    assert verdict.equal_parameters.smallest_detectable_points == 12.5  # six items of 48


def test_equivalence_with_a_chosen_comparator_takes_a_wider_interval():
    comparison = replace(compare(*pair(items=400)), delta_points=0.0, p_value=1.0)
    draws = np.random.default_rng(0).normal(0, 1.1, size=20_000)  # 90 %: within 1.8 points, 95 %: within 2.2
    results = [result_of(comparison, draws, p_gain=1.0, p_loss=1.0, chosen_among=k, alpha=0.05) for k in (1, 2)]
    assert results == ["equivalent", "not shown"]


@pytest.mark.parametrize(("seeds", "mark"), [(1, "△‡"), (2, "△‡"), (3, "‡")])
def test_fewer_than_three_seeds_are_marked(seeds, mark):
    verdict = judge(looped=arm(0.5, looped=True, seeds=seeds), twin=arm(0.4, looped=False, seeds=seeds), bootstrap=QUICK)
    assert verdict.marks == mark
    assert verdict.sentence.endswith(mark)


def test_trained_twins_are_told_from_a_training_free_loop():
    looped, twin = arm(0.5, looped=True, model_hash="a"), arm(0.4, looped=False, model_hash="b")
    verdict = judge(looped=looped, twin=twin, bootstrap=QUICK)
    assert (verdict.training_free, verdict.marks) == (False, "△")
    assert "identically trained twin" in verdict.sentence


def test_training_seeds_from_several_models_are_one_arm():
    def seeds(side, accuracy):
        runs = []
        for seed in (0, 1, 2):
            records = [replace(r, seed=seed) for r in draw(accuracy, stream=seed)]
            runs.append(run(records, header(looped=side, model=f"run{seed}", model_hash=f"{side}{seed}"), f"run{seed}"))
        return runs

    verdict = judge(looped=seeds(True, 0.6), twin=seeds(False, 0.5), bootstrap=QUICK)
    assert verdict.seeds == (0, 1, 2)
    assert verdict.marks == ""


def test_a_gain_that_may_be_luck_of_the_training_runs_is_noted():
    """One of three seeds carries the whole gain."""

    def seeds(side, accuracies):
        records = [replace(r, seed=n) for n, accuracy in enumerate(accuracies) for r in draw(accuracy, stream=n, items=400)]
        return run(records, header(looped=side, model_hash=str(side)))

    lucky = judge(looped=seeds(True, (0.50, 0.51, 0.65)), twin=seeds(False, (0.50, 0.50, 0.50)), bootstrap=QUICK)
    assert lucky.equal_parameters.result == "gain"
    assert any("luck of these training runs" in note for note in lucky.notes)
    steady = judge(looped=seeds(True, (0.60, 0.61, 0.62)), twin=seeds(False, (0.50, 0.50, 0.50)), bootstrap=QUICK)
    assert not any("luck" in note for note in steady.notes)


# --- larger models ----------------------------------------------------------------------------------------------------------


def test_threshold_effect_of_the_paper():
    assert threshold_effect_points(1.29, 2.25, 7.9) == pytest.approx(2.5, abs=0.05)


def test_a_larger_model_is_shown_beside_and_gives_the_threshold():
    looped, twin = pair(0.60, 0.50, items=400, seeds=4)
    larger = arm(0.70, looped=False, items=400, model="SmolLM2-360M", num_parameters=361_821_120, arm="larger-plain-128", tokens=10)
    verdict = judge(looped=looped, twin=twin, unlooped=larger, bootstrap=QUICK)
    assert verdict.verdict == "pays"  # although the larger model is better and cheap: it is not the same model
    (row,) = [row for row in verdict.equal_flops.rows if row.role == "larger model"]
    assert (row.eligible, row.cost_ratio) == (False, None)
    assert verdict.larger.num_parameters == 361_821_120
    expected = threshold_effect_points(1.2, 361_821_120 / 134_515_008, 20)
    assert verdict.threshold.points == pytest.approx(expected)
    assert verdict.threshold.reached
    for part in ("SmolLM2-360M", "361.8M", "2.7 times", "0.72 GB", "70.0 %"):
        assert part in verdict.advice
    assert "only where parameters cannot grow" in verdict.advice


def test_a_larger_models_published_accuracy_will_do():
    looped, twin = pair(0.60, 0.50)
    larger = LargerModel(name="big", num_parameters=269_030_016, accuracy_percent=60.0)
    verdict = judge(looped=looped, twin=twin, larger=larger, bootstrap=QUICK)
    assert verdict.threshold.points == pytest.approx(np.log(1.2) / np.log(2) * 10)


# --- plan, JSON --------------------------------------------------------------------------------------------------------------


def planned(**more):
    task = PlannedTask(name="ladder", version="1", budgets_tokens=(8, 64, 128), reserve_tokens=8)
    return make_plan(model="m", loops="10:16 x2", layer_pass_ratio=1.2, tasks=[task], longer_twin_ratio=None, resamples=1000, **more)


def test_the_plan_decides_and_its_missing_arms_are_refused():
    plan = planned(rules=("plain",), deciding=("plain", 64))
    runs = [arm(0.5 + 0.1 * side, looped=bool(side), budget=budget) for side in (0, 1) for budget in (8, 64, 128)]
    looped, twin = runs[3:], runs[:3]
    verdict = judge(looped=looped, twin=twin, plan=plan)
    assert (verdict.deciding_by, verdict.deciding_budget_label, verdict.resamples) == ("plan", "64", 1000)
    with pytest.raises(TrialError, match="twin-plain-128 has no complete run"):
        judge(looped=looped, twin=twin[:2], plan=plan)
    with pytest.raises(TrialError, match="written before the runs"):
        judge(looped=looped, twin=twin, plan=plan, deciding_budget_tokens=128)
    with pytest.raises(TrialError, match="plan fixed alpha"):
        judge(looped=looped, twin=twin, plan=plan, alpha=0.1)


def test_arms_that_are_not_applicable_are_listed_with_the_reason():
    plan = planned(rules=("plain", "budget-forcing"))
    runs = [arm(0.5, looped=side, rule=rule, budget=b) for side in (True, False) for rule in plan.rules for b in (8, 64, 128)]
    able = [one for one in runs if (one.header["rule"], one.header["budget_tokens"]) != ("budget-forcing", 8)]
    verdict = judge(looped=[r for r in able if r.header["looped"]], twin=[r for r in able if not r.header["looped"]], plan=plan)
    reasons = {one.name: one.reason for one in verdict.excluded}
    assert reasons["looped-budget-forcing-8"] == "not applicable: ladder: a budget of 8 tokens cannot hold the reserve of 8"


def test_a_verdict_survives_json():
    looped, twin = grid({64: 0.45, 128: 0.55}, {64: 0.4, 128: 0.48}, rules=("plain", "budget-forcing"))
    verdict = judge(looped=looped, twin=twin, larger=LargerModel(name="x", num_parameters=1e9, accuracy_percent=70.0), bootstrap=QUICK)
    text = json.dumps(verdict_to_json(verdict), allow_nan=False)
    assert verdict_from_json(json.loads(text)) == verdict
    values = json.loads(text)
    for test in ("equal_parameters", "equal_flops"):
        assert {"delta_points", "ci95", "p_value", "equivalent"} <= values[test].keys()
        assert len(values[test]["ci95"]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("sentence"), "verdict.sentence is missing"),
        (lambda v: v.update(more=1), "verdict.more is unknown"),
        (lambda v: v.update(format="x"), "format is 'x'"),
        (lambda v: v["equal_parameters"].update(p_value="low"), "verdict.equal_parameters.p_value is 'low'"),
        (lambda v: v.update(verdict="maybe"), "verdict.verdict is 'maybe'"),
    ],
)
def test_a_damaged_verdict_is_refused(change, message):
    values = verdict_to_json(judge(looped=arm(0.5, looped=True), twin=arm(0.4, looped=False), bootstrap=QUICK))
    change(values)
    with pytest.raises(TrialError, match=message):
        verdict_from_json(values)
