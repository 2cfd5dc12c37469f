"""The two tests on held-out loss, on runs whose truth is known: sign, size, coverage, order, who is compared, what is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwise.protocol import Bootstrap, TrialError, judge_losses, loss_verdict_from_json, loss_verdict_to_json
from loopwise.records import LossRun
from loopwise.report import render_losses
from loss_runs import World, loss_run

QUICK = Bootstrap(resamples=500)
SEEDS = Bootstrap(resamples=500, resampling="items and seeds")


def paper(**options: Any) -> Any:
    """Table 6 in small: loop 3.289, twin 3.308, a dense model of the same training FLOPs 3.250, one of 16 layers 3.268."""
    world = World(400)
    runs = dict(
        looped=world.run("looped", 0.289, looped=True, flops=2.44, training_flops=1.22e18),
        twin=world.run("twin", 0.308, training_flops=1.0e18),
        unlooped=[
            world.run("matched", 0.250, training_flops=1.22e18),
            world.run("16 layers", 0.268, flops=2.44, training_flops=1.22e18),
            world.run("larger", 0.1, flops=3.0, training_flops=2e18),
        ],
    )
    return judge_losses(**runs | {"bootstrap": QUICK} | options)


def test_a_loop_that_beats_its_twin_and_not_the_same_compute_does_not_pay() -> None:
    verdict = paper()
    first, second = verdict.equal_parameters, verdict.equal_flops
    assert verdict.verdict == "does not pay" and first.passed and first.result == "gain" and second.result == "loss" and second.reached
    assert first.comparison.delta_millinats == pytest.approx(19, abs=4)
    assert first.comparison.ci95[0] < first.comparison.delta_millinats < first.comparison.ci95[1]
    assert second.comparison.other == "matched" and second.comparison.delta_millinats == pytest.approx(-39, abs=4)
    assert second.num_eligible == 3 and second.p_value_loss == pytest.approx(3 * second.comparison.p_value)
    assert [row.comparison.other for row in second.rows if not row.eligible] == ["larger"]
    assert verdict.equal_training.comparison.other == "matched" and not verdict.equal_training.reached
    assert re.search(r"−3\d\.\d milli-nats against the best unlooped model of the same compute \(matched:", verdict.sentence)
    assert "does not decide" in verdict.equal_training.statement and "△" in verdict.marks
    assert loss_verdict_from_json(loss_verdict_to_json(verdict)) == verdict


def test_the_difference_is_weighted_by_tokens() -> None:
    targets = [10, 1000]
    looped = loss_run("looped", [1.0, 2.0], targets, looped=True)
    twin = loss_run("twin", [9.0, 2.001], targets)
    found = judge_losses(looped=looped, twin=twin, bootstrap=QUICK).equal_parameters.comparison
    assert found.delta_millinats == pytest.approx(1000 * (8.0 * 10 + 0.001 * 1000) / 1010)
    assert found.p_value >= 0.5  # two documents are two coins
    verdict = judge_losses(looped=looped, twin=twin, bootstrap=QUICK)
    assert any("differ on 2 documents only" in note for note in verdict.notes)
    assert verdict.models[0].loss_nats == pytest.approx(2010 / 1010)
    assert verdict.models[0].perplexity == pytest.approx(math.exp(2010 / 1010))
    assert verdict.models[0].bits_per_byte == pytest.approx(2010 / math.log(2) / 4040)


def test_a_loop_that_beats_both_pays_and_one_without_a_second_test_is_not_shown() -> None:
    world = World(200)
    looped, twin = world.run("looped", 0.0, looped=True, flops=3.0), world.run("twin", 0.05)
    wide = world.run("wide", 0.03, flops=3.0)
    assert judge_losses(looped=looped, twin=twin, unlooped=[wide], bootstrap=QUICK).verdict == "pays"
    alone = judge_losses(looped=looped, twin=twin, bootstrap=QUICK)
    assert alone.verdict == "not shown" and "there is no second test: no unlooped model besides the twin is given" in alone.sentence
    dear = judge_losses(looped=looped, twin=twin, unlooped=[replace_header(wide, flops_per_token=3.1)], bootstrap=QUICK)
    assert dear.verdict == "not shown" and "no unlooped model besides the twin is known to spend at most" in dear.equal_flops_reason


def test_a_gain_has_to_hold_against_every_model_that_spends_no_more() -> None:
    world = World(200)
    looped, twin = world.run("l", 0.0, looped=True, flops=3.0), world.run("t", 0.05)
    noisy = world.run("noisy", 0.02, noise=0.4, flops=3.0)
    steady = world.run("steady", max(0.001, noisy.totals.nats_per_token - looped.totals.nats_per_token - 0.005), flops=3.0)
    second = judge_losses(looped=looped, twin=twin, unlooped=[noisy, steady], bootstrap=QUICK).equal_flops
    assert second is not None
    p_values = {row.comparison.other: row.comparison.p_value for row in second.rows}
    assert second.comparison.other == "steady" and second.p_value == p_values["noisy"] > p_values["steady"]


def test_a_second_test_is_not_reached_without_the_first() -> None:
    world = World(200)
    looped, twin = world.run("looped", 0.05, looped=True, flops=3.0), world.run("twin", 0.0)
    verdict = judge_losses(looped=looped, twin=twin, unlooped=[world.run("wide", 0.2, flops=3.0)], bootstrap=QUICK)
    assert verdict.verdict == "does not pay" and verdict.equal_parameters.result == "loss"
    assert verdict.equal_flops is not None and not verdict.equal_flops.reached
    assert "It is not reached: the first test was not passed" in verdict.equal_flops.statement
    assert "significantly worse" in verdict.sentence


def test_equal_losses_are_equivalent_or_not_shown_by_their_documents() -> None:
    for documents, result, word in ((400, "equivalent", "does not pay"), (8, "not shown", "not shown")):
        world = World(documents, seed=4)
        verdict = judge_losses(looped=world.run("l", 0.0, looped=True), twin=world.run("t", 0.0), bootstrap=Bootstrap(resamples=2000))
        assert (verdict.equal_parameters.result, verdict.verdict) == (result, word)
    assert any("8 documents are few" in note for note in verdict.notes)


def test_unknown_training_flops_do_not_make_a_comparator() -> None:
    world = World(100)
    looped = world.run("l", 0.0, looped=True, flops=3.0, training_flops=2e18)
    twin = world.run("t", 0.05, training_flops=1e18)
    good, bad = world.run("good", -0.1), world.run("bad", 0.2)
    known = world.run("known", 0.1, training_flops=2.01e18)  # whole steps
    verdict = judge_losses(looped=looped, twin=twin, unlooped=[known, bad], bootstrap=QUICK)
    assert verdict.equal_training is not None and verdict.equal_training.num_eligible == 2
    verdict = judge_losses(looped=looped, twin=twin, unlooped=[known, good], bootstrap=QUICK)
    assert verdict.equal_training is None and "its training FLOPs are not known" in verdict.equal_training_reason
    verdict = judge_losses(looped=replace_header(looped, training_flops=None), twin=twin, unlooped=[known], bootstrap=QUICK)
    assert verdict.equal_training is None and "has no training_flops" in verdict.equal_training_reason


def test_the_verdict_says_where_training_flops_would_turn_it() -> None:
    world = World(300)
    looped = world.run("l", 0.0, looped=True, flops=3.0, training_flops=2e18)
    twin = world.run("t", 0.05, training_flops=1e18)
    cheap = world.run("more tokens", -0.05, flops=3.5, training_flops=2e18)  # trains at the same price, and is dearer to run
    verdict = judge_losses(looped=looped, twin=twin, unlooped=[world.run("wide", 0.04, flops=3.0), cheap], bootstrap=QUICK)
    assert verdict.verdict == "pays" and verdict.notes[0].startswith(
        "The verdict flips: with training FLOPs held equal it would be 'does not"
    )


def test_intervals_cover_the_difference_of_these_models() -> None:
    """The truth is the mean over all documents that could have been drawn; 95 % of the intervals, within three standard errors."""
    trials, inside, first = 120, 0, 0
    for trial in range(trials):
        world = World(80, seed=trial)
        verdict = judge_losses(looped=world.run("l", 0.0, looped=True), twin=world.run("t", 0.004), bootstrap=QUICK)
        low, high = verdict.equal_parameters.comparison.ci95
        inside += low <= 4.0 <= high
        first += verdict.equal_parameters.passed
    assert inside / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials) and inside < trials
    assert 0.05 * trials < first < 0.95 * trials


def test_null_trials_rarely_gain() -> None:
    trials, gains = 120, 0
    for trial in range(trials):
        world = World(80, seed=1000 + trial)
        gains += judge_losses(looped=world.run("l", 0.0, looped=True), twin=world.run("t", 0.0), bootstrap=QUICK).equal_parameters.passed
    assert gains / trials <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / trials)


def test_seeds_drawn_again_cover_all_training_runs_and_documents_alone_do_not() -> None:
    trials, seeds, noise = 60, 4, 0.004
    inside = {"items": 0, "items and seeds": 0}
    for trial in range(trials):
        world = World(200, seed=trial)
        luck = world.rng.normal(size=(2, seeds)) * noise
        looped = [world.run(f"l{n}", luck[0, n], looped=True, noise=0.005) for n in range(seeds)]
        twin = [world.run(f"t{n}", 0.01 + luck[1, n], noise=0.005) for n in range(seeds)]
        found = judge_losses(looped=looped, twin=twin, bootstrap=SEEDS).equal_parameters.comparison
        inside["items and seeds"] += found.ci95[0] <= 10 <= found.ci95[1]
        inside["items"] += found.ci95_items[0] <= 10 <= found.ci95_items[1]
    assert inside["items"] < 0.5 * trials < 0.85 * trials < inside["items and seeds"]


def test_seeds_are_paired_in_order_and_drawn_again_by_default() -> None:
    world = World(50)
    looped = [world.run(f"l{n}", 0.1 * n, looped=True) for n in range(3)]
    twin = [world.run(f"t{n}", 0.1 * n + 0.02) for n in range(3)]
    found = judge_losses(looped=looped, twin=twin).equal_parameters.comparison
    assert found.resampling == "items and seeds" and found.seeds_favouring == 3
    assert found.seed_deltas == pytest.approx([20] * 3, abs=9)
    verdict = judge_losses(looped=looped, twin=twin, bootstrap=QUICK)
    assert verdict.resampling == "items" and not verdict.few_seeds and verdict.models[0].name == "l0 and 2 more"


def replace_header(run: LossRun, **changes: Any) -> LossRun:
    return replace(run, header=run.header | changes)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"text_hash": "other"}, r"text_hash is 't' in l, 'other' in t: evaluate all models on the same text"),
        ({"context_tokens": 128}, r"context_tokens is 64 in l, 128 in t"),
        ({"stride_tokens": 64}, r"stride_tokens is 32 in l, 64 in t"),
        ({"tokens_hash": "x"}, r"tokenizers differ, and losses per token cannot be compared: compare the bits per byte"),
        ({"num_documents": 31}, r"t has 30 of 31 documents; finish the run"),
        ({"looped": True}, r"t has the loops none and was given as the twin model"),
        ({"num_parameters": 1200}, r"l has 1000 parameters, t 1200: not twins"),
        ({"flops_per_token": None}, r"its header's flops_per_token is None"),
        ({"flops_per_token": float("nan")}, r"its header's flops_per_token is nan"),
        ({"training_flops": "much"}, r"its header's training_flops is much"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    world = World(30)
    with pytest.raises(TrialError, match=words):
        judge_losses(looped=world.run("l", 0, looped=True), twin=replace_header(world.run("t", 0), **changes), bootstrap=QUICK)


def test_documents_and_seeds_that_differ_are_refused_by_name() -> None:
    world = World(30)
    looped, twin = world.run("l", 0, looped=True), world.run("t", 0)
    renamed = replace(twin, records=(replace(twin.records[0], document="x"), *twin.records[1:]))
    with pytest.raises(TrialError, match="document 'd0000' is missing in t but not in l"):
        judge_losses(looped=looped, twin=renamed)
    longer = replace(twin, records=(replace(twin.records[0], num_targets=1), *twin.records[1:]))
    with pytest.raises(TrialError, match="document 'd0000' has num_targets"):
        judge_losses(looped=looped, twin=longer)
    with pytest.raises(TrialError, match="l has 1 training seeds, t and 1 more 2"):
        judge_losses(looped=looped, twin=[twin, world.run("t1", 0)])
    with pytest.raises(TrialError, match="no run of the twin model"):
        judge_losses(looped=looped, twin=[])
    with pytest.raises(TrialError, match="alpha is 1"):
        judge_losses(looped=looped, twin=twin, alpha=1)
    with pytest.raises(TrialError, match="resampling training seeds needs at least two"):
        judge_losses(looped=looped, twin=twin, bootstrap=SEEDS)


def test_the_report_says_what_the_verdict_says(tmp_path: Path) -> None:
    verdict = paper()
    hostile = replace(verdict, model='<script>alert("x")</script>')
    files = render_losses(hostile, tmp_path, headers=[{"model": "m", "dtype": "float32"}])
    page, text = files.html.read_text(), files.markdown.read_text()
    assert "<script" not in page and "does not pay by held-out loss" in page and "http://" not in re.sub(r'xmlns[^"]*"[^"]*"', "", page)
    for model in verdict.models:
        assert f"{model.loss_nats:.4f}" in page and f"{model.loss_nats:.4f}" in text
    assert "Equal training FLOPs" in text and "1.00×" in text and files.figures[0].read_text().startswith("<svg")
    delta = f"{verdict.equal_flops.comparison.delta_millinats:+.1f}".replace("-", "−")
    assert delta in page and delta in text and delta in files.figures[0].read_text()


def test_numbers_are_arrays_of_the_records() -> None:
    world = World(20)
    looped, twin = world.run("l", 0, looped=True), world.run("t", 0.1)
    shuffled = replace(twin, records=tuple(reversed(twin.records)))
    assert judge_losses(looped=looped, twin=shuffled, bootstrap=QUICK) == judge_losses(looped=looped, twin=twin, bootstrap=QUICK)
    expected = sum(b.loss_nats - a.loss_nats for a, b in zip(looped.records, twin.records, strict=True)) / np.sum(world.targets)
    found = judge_losses(looped=looped, twin=twin, bootstrap=QUICK).equal_parameters.comparison.delta_millinats
    assert found == pytest.approx(1000 * expected)
