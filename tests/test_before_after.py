"""The difference of differences before and after post-training: known effects are recovered, and only like is compared with like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwise.cli import main
from loopwise.protocol import BeforeAfter, Bootstrap, TrialError, before_after, compare, judge_before_after
from loopwise.protocol.arms import Arm, TaskTable
from loopwise.protocol.post_training import corrected
from loopwise.protocol.words import p_text
from loopwise.records import Record, Run
from trial_runs import header

QUICK = Bootstrap(resamples=400)
PAPER = {"looped before": 58.65, "control before": 59.2, "looped after": 51.0, "control after": 60.25}
"""No-free-loop, Table 9, test depth 2: the macro accuracies of A1, A1c, A2 and A2c, means of two seeds."""
PAPER_EFFECT = -8.7
NAMES = tuple(PAPER)


def drawn(
    accuracies: dict[str, float], rng: np.random.Generator, *, items: int = 300, seeds: int = 2, tasks: Sequence[str] = ("ladder",)
) -> dict[str, Arm]:
    """Four arms whose answers are right with the item's own chance, moved by each arm's accuracy; an item's luck is shared in part."""
    tables: dict[str, dict[str, TaskTable]] = {name: {} for name in accuracies}
    for task in tasks:
        chance = rng.uniform(-0.35, 0.35, size=items)
        chance -= chance.mean()
        luck = rng.uniform(size=(seeds, items))
        for name, percent in accuracies.items():
            own = np.where(rng.uniform(size=(seeds, items)) < 0.5, luck, rng.uniform(size=(seeds, items)))
            right = (own < percent / 100 + chance[None]).astype(float)[:, :, None]
            tables[name][task] = table(task, right)
    return {name: arm(name, tables[name]) for name in accuracies}


def table(task: str, right: np.ndarray) -> TaskTable:
    seeds, items, _ = right.shape
    names = tuple(f"{n:04d}" for n in range(items))
    nothing: dict[str, Any] = dict.fromkeys(("finished", "generated_tokens", "flops", "seconds", "answers", "reserve_tokens"))
    known: dict[str, Any] = dict(task=task, items=names, seeds=tuple(range(seeds)), samples=(0,), golds=(None,) * items)
    return TaskTable(correct=right, budget_tokens=64, version="1", **known, **nothing)


def arm(name: str, tables: dict[str, TaskTable]) -> Arm:
    looped = name.startswith("looped")
    return Arm(
        name=name,
        side="looped" if looped else "twin",
        loops="2:4 x2" if looped else "none",
        rule="plain",
        decoding=None,
        layer_pass_ratio=1.25 if looped else 1.0,
        model=None,
        num_parameters=1000,
        headers=(),
        tables=tables,
    )


def judged(arms: dict[str, Arm], bootstrap: Bootstrap = QUICK) -> BeforeAfter:
    looped_before, control_before, looped_after, control_after = (arms[name] for name in NAMES)
    return before_after((looped_before, control_before), (looped_after, control_after), bootstrap)


def test_the_papers_effect_is_recovered() -> None:
    found = judged(drawn(PAPER, np.random.default_rng(0), items=1500, tasks=("gsm8k", "math500")), Bootstrap(resamples=2000))
    assert found.delta_points == pytest.approx(PAPER_EFFECT, abs=3 * found.standard_error_points) and found.standard_error_points < 1.5
    assert found.ci95[0] < PAPER_EFFECT < found.ci95[1] < 0 and found.p_value < 0.001 and found.result == "loss"
    assert found.delta_points == pytest.approx(found.looped_change_points - found.control_change_points)
    assert found.delta_points == pytest.approx(found.after.delta_points - found.before.delta_points)
    assert found.delta_points == pytest.approx(np.mean([task.delta_points for task in found.tasks]))
    assert found.delta_points == pytest.approx(np.mean([one.points for one in found.seed_deltas])) and len(found.seed_deltas) == 2
    assert found.ci95_items_and_seeds is not None and found.p_items_and_seeds is not None
    assert "the loop is worth less after" in found.statement and f"{abs(found.delta_points):.1f} points" in found.statement


@pytest.mark.parametrize(
    ("accuracies", "effect"),
    [
        (PAPER, PAPER_EFFECT),
        # The loop helps by 6 points at both times and post-training helps both models by 15: nothing of that is an effect.
        (dict(zip(NAMES, (46.0, 40.0, 61.0, 55.0), strict=True)), 0.0),
    ],
)
def test_the_interval_covers_the_truth_as_often_as_it_says(accuracies: dict[str, float], effect: float) -> None:
    rng = np.random.default_rng(1)
    covered, significant, values = 0, 0, []
    for _ in range(120):
        found = judged(drawn(accuracies, rng))
        covered += found.ci95[0] <= effect <= found.ci95[1]
        significant += found.p_value < 0.05
        values.append(found.delta_points)
    assert 106 <= covered <= 119
    assert np.mean(values) == pytest.approx(effect, abs=4 * np.std(values) / np.sqrt(120))
    assert significant <= 13 if effect == 0 else significant >= 65


def test_the_difference_is_taken_item_by_item() -> None:
    arms = drawn(PAPER, np.random.default_rng(2))
    found = judged(arms, Bootstrap(resamples=10_000))
    one, two, three, four = (arms[name].tables["ladder"].correct[:, :, 0] for name in NAMES)
    each = ((three - one) - (four - two)).mean(axis=0)
    assert found.delta_points == pytest.approx(100 * each.mean())
    assert found.standard_error_points == pytest.approx(100 * each.std() / np.sqrt(len(each)), rel=0.03)
    apart = 100 * np.sqrt(sum(one.mean(axis=0).var() for one in (one, two, three, four)) / len(each))
    assert found.standard_error_points < 0.8 * apart  # what unpaired arms would have
    assert found.num_differing_items == int((np.abs(each) > 1e-9).sum())


def test_seeds_may_be_others_before_and_then_are_averaged() -> None:
    arms = drawn(PAPER, np.random.default_rng(3), seeds=3)
    fewer = {name: replace(arms[name], tables={"ladder": _of_seeds(arms[name].tables["ladder"], (1, 2))}) for name in NAMES[:2]}
    found = judged(arms | fewer)
    each = [arms[name].tables["ladder"].correct for name in NAMES]
    expected = (each[2].mean() - each[0][1:].mean()) - (each[3].mean() - each[1][1:].mean())
    assert found.delta_points == pytest.approx(100 * expected)
    assert found.seed_deltas == () and found.ci95_items_and_seeds is None
    with pytest.raises(TrialError, match="seeds 1/2 and seeds 0/1/2; use 'items'"):
        judged(arms | fewer, replace(QUICK, resampling="items and seeds"))
    same = judged(arms, replace(QUICK, resampling="items and seeds"))
    assert same.ci95 == same.ci95_items_and_seeds and same.ci95 != judged(arms).ci95


def _of_seeds(one: TaskTable, seeds: tuple[int, ...]) -> TaskTable:
    return replace(one, seeds=seeds, correct=one.correct[list(seeds)])


def test_one_of_several_comparisons_goes_by_its_adjusted_p_value() -> None:
    right = np.zeros((1, 8, 1))
    found = judged({name: arm(name, {"ladder": table("ladder", right + (name == "looped after"))}) for name in NAMES})
    assert found.result == "gain" and f"{p_text(found.p_value)}: the loop is worth more after" in found.statement
    several = corrected(found, 0.2, 3, 0.05)
    assert (several.result, several.p_value) == ("not shown", found.p_value)
    assert f"{p_text(0.2)} after Holm's correction for 3 comparisons: no change of its worth is shown" in several.statement


def test_five_items_that_all_moved_prove_nothing() -> None:
    right = np.zeros((1, 5, 1))
    arms = {name: arm(name, {"ladder": table("ladder", right + (name == "looped after"))}) for name in NAMES}
    found = judged(arms)
    assert found.delta_points == 100 and found.p_value == found.p_floor == 0.0625 and found.result == "not shown"
    unmoved = judged(dict.fromkeys(NAMES, arms["looped before"]))
    assert (unmoved.delta_points, unmoved.p_value) == (0, 1) and unmoved.result == "not shown"  # too few items for equivalence


def test_other_models_items_or_decoding_are_refused() -> None:
    arms = drawn(PAPER, np.random.default_rng(4), items=20)
    ladder = arms["looped before"].tables["ladder"]

    def with_both(**changes: Any) -> dict[str, Arm]:
        return arms | {name: replace(arms[name], **changes) for name in NAMES[:2]}

    def with_table(**changes: Any) -> dict[str, Arm]:
        return arms | {n: replace(arms[n], tables={"ladder": replace(arms[n].tables["ladder"], **changes)}) for n in NAMES[:2]}

    for bad, words in (
        (with_both(num_parameters=2000), "before and after are one model"),
        (with_both(rule="budget-forcing"), "decoding rule is 'budget-forcing' in looped before"),
        (with_table(budget_tokens=128), "budget_tokens of ladder is 128 in looped before"),
        (with_table(items=(*ladder.items[:-1], "x")), "item '0019' of ladder is missing in looped before"),
        (with_table(version="2"), "version 1 in looped after"),
        (arms | {"looped before": replace(arms["looped before"], rule="budget-forcing")}, "decoding rules differ"),
    ):
        with pytest.raises(TrialError, match=words) as raised:
            judged(bad)
        assert "\n" not in str(raised.value)


def _runs(arms: dict[str, Arm], name: str, *, headers: bool = True) -> list[Run]:
    """An arm as runs, one for each seed."""
    found = arms[name].tables["ladder"]
    looped = name.startswith("looped")
    return [
        Run(
            header(looped=looped, budget=64) if headers else {},
            tuple(
                Record(task="ladder", item=item, seed=seed, sample=0, correct=bool(right))
                for item, right in zip(found.items, found.correct[place, :, 0], strict=True)
            ),
            f"{name}, seed {seed}",
        )
        for place, seed in enumerate(found.seeds)
    ]


@pytest.mark.parametrize("headers", [True, False])
def test_runs_and_plain_records_give_what_arms_give(headers: bool) -> None:
    arms = drawn(PAPER, np.random.default_rng(5), items=60)
    looped_before, twin_before, looped, twin = (_runs(arms, name, headers=headers) for name in NAMES)
    found = judge_before_after(looped=looped, twin=twin, looped_before=looped_before, twin_before=twin_before, bootstrap=QUICK)
    expected = judged(arms)
    assert (found.delta_points, found.ci95, found.p_value) == (expected.delta_points, expected.ci95, expected.p_value)


def _told(runs: Sequence[Run], **facts: Any) -> list[Run]:
    """The same runs whose headers say more, or whose lines do where there is no header."""
    return [
        replace(run, header=run.header | facts)
        if run.header
        else replace(run, records=tuple(replace(record, extra=record.extra | facts) for record in run.records))
        for run in runs
    ]


def _judged_runs(after: tuple[list[Run], list[Run]], before: tuple[list[Run], list[Run]]) -> BeforeAfter:
    return judge_before_after(looped=after[0], twin=after[1], looped_before=before[0], twin_before=before[1], bootstrap=QUICK)


@pytest.mark.parametrize("headers", [True, False])
def test_other_questions_of_the_same_names_are_refused(headers: bool) -> None:
    arms = drawn(PAPER, np.random.default_rng(7), items=20)
    looped_before, twin_before, looped, twin = (_runs(arms, name, headers=headers) for name in NAMES)
    names = ("items_hash",) if headers else ("items_hash", "prompt_hash")
    for name in names:
        one, other = {name: "one"}, {name: "other"}
        after = _told(looped, **one), _told(twin, **one)
        _judged_runs(after, (_told(looped_before, **one), _told(twin_before, **one)))
        _judged_runs(after, (looped_before, twin_before))  # nobody says what these were asked
        for before in (
            (_told(looped_before, **other), _told(twin_before, **other)),
            (_told(looped_before, **one), _told(twin_before, **other)),
        ):
            with pytest.raises(TrialError, match=rf"asked .*\({name} one and other\)") as raised:
                _judged_runs(after, before)
            assert "\n" not in str(raised.value)
    changed = [*_told(looped[:1], items_hash="one"), *_told(looped[1:], items_hash="other")]
    with pytest.raises(TrialError, match="ladder was asked otherwise in looped after, seed 1 than in looped after, seed 0"):
        _judged_runs((changed, twin), (looped_before, twin_before))


def test_twins_that_were_asked_otherwise_are_refused() -> None:
    arms = drawn(PAPER, np.random.default_rng(8), items=20)
    looped, twin = (_runs(arms, name) for name in NAMES[2:])
    compare(_told(looped, items_hash="one"), _told(twin, items_hash="one"))
    with pytest.raises(TrialError, match=r"items_hash one and other.*; equal parameters need the same"):
        compare(_told(looped, items_hash="one"), _told(twin, items_hash="other"))


def test_what_else_differs_between_the_times_is_a_note() -> None:
    arms = drawn(PAPER, np.random.default_rng(9), items=20)
    looped_before, twin_before, looped, twin = (_runs(arms, name) for name in NAMES)
    assert _judged_runs((looped, twin), (looped_before, twin_before)).notes == ()
    after = [_told(runs, dtype="float32", versions={"torch": "2"}, engine="eager") for runs in (looped, twin)]
    before = [_told(runs, dtype="bfloat16", versions={"torch": "1"}) for runs in (looped_before, twin_before)]
    (note,) = _judged_runs((after[0], after[1]), (before[0], before[1])).notes
    assert "dtype (bfloat16, then float32)" in note and "engine" not in note  # the runs before do not say theirs
    only_one_seed = [looped_before[0], *_told(looped_before[1:], batch_size=2)]
    (note,) = _judged_runs((looped, twin), (only_one_seed, twin_before)).notes
    assert "batch_size (16/2, then 16)" in note


def test_judge_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = drawn(PAPER, np.random.default_rng(6), items=200)
    files = {}
    for name in NAMES:
        files[name] = tmp_path / f"{name.replace(' ', '-')}.jsonl"
        files[name].write_text("".join(record.to_json() + "\n" for run in _runs(arms, name) for record in run.records))
    before, now = ["--looped-before", str(files[NAMES[0]])], ["--looped", str(files[NAMES[2]]), "--twin", str(files[NAMES[3]])]
    options = ["judge", *now, *before, "--twin-before", str(files[NAMES[1]])]
    main([*options, "--out", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    expected = judged(arms, Bootstrap())
    assert "BEFORE AND AFTER" in shown and expected.statement in " ".join(shown.split())
    assert json.loads((tmp_path / "out" / "before_after.json").read_text())["delta_points"] == pytest.approx(expected.delta_points)
    main([*options, "--json"])
    assert json.loads(capsys.readouterr().out)["before_after"]["ci95"] == pytest.approx(expected.ci95)
    with pytest.raises(SystemExit):
        main(["judge", *now, *before])
    assert "--looped-before and --twin-before go together" in capsys.readouterr().err
