"""A set's trial beside the trial of the set that it was chained to: the difference of differences, by members."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learning_sets import LOOPS, chat_model, chats, tiny_set
from loopwise.cli import main
from loopwise.protocol import TrialError, plan_from_json
from loopwise.recipes.learning import learn
from loopwise.recipes.learning_members import Controls
from loopwise.recipes.set_before_after import check_before
from loopwise.recipes.set_trial import set_trial
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import read_records

TRIAL: dict[str, Any] = dict(tasks=("ladder",), budgets=(4,), depths=(1,), settings=TrialSettings(rules=("plain",), limit=3, dtype="fp32"))
NAMES = ("looped", "twin", "equal-flops")


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, the second on the first one's models, and the first one's trial."""
    folder = tmp_path_factory.mktemp("chained")
    model, data = chat_model(folder / "model"), chats(folder / "chats.jsonl")
    controls = Controls(names=("equal-flops",))
    learn(tiny_set(model, data, folder / "first", recipe="anchored", seeds=(0, 1), tokens=96, controls=controls))
    learn(tiny_set(None, data, folder / "second", begins=folder / "first", seeds=(0, 1), tokens=96, controls=controls))
    set_trial(folder / "first", out=folder / "before", **TRIAL)
    return folder


def give_answers(trial: Path, right: dict[str, int]) -> None:
    """Have a member be right on its first items, in each seed."""
    for name, count in right.items():
        for file in (trial / "runs" / name).rglob("records.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            lines = [line | {"correct": place < count} for place, line in enumerate(sorted(lines, key=lambda line: line["item"]))]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def share_right(trial: Path, name: str) -> float:
    files = [file for file in (trial / "runs" / name).rglob("records.jsonl") if "plain-4/" in str(file)]
    records = [record for file in files for record in read_records(file)]
    assert len(records) == 6
    return sum(record.correct for record in records) / len(records)


def test_the_trial_judges_what_post_training_changed(chained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, before = chained / "after", chained / "before"
    set_trial(chained / "second", out=out, before=before, **TRIAL)
    give_answers(before, {"looped": 3, "twin": 1, "equal-flops": 2, "looped-k1": 1})
    give_answers(out, {"looped": 1, "twin": 2, "equal-flops": 2, "looped-k1": 1})
    main(["report", str(out)])
    rows = json.loads((out / "set_verdict.json").read_text())["before_after"]
    assert [(row["looped"], row["control"]) for row in rows] == [("looped", "twin"), ("looped", "equal-flops"), ("looped-k1", "twin")]
    for row in rows:
        gaps = [share_right(trial, row["looped"]) - share_right(trial, row["control"]) for trial in (before, out)]
        assert row["contrast"]["delta_points"] == pytest.approx(100 * (gaps[1] - gaps[0]))
        assert [one["seed"] for one in row["contrast"]["seed_deltas"]] == [0, 1]
    assert rows[0]["contrast"]["delta_points"] == pytest.approx(-100)
    text = (out / "set_report.md").read_text()
    assert "was named when this one had begun" not in text
    assert "## Before and after" in text and "from 100.0 to 33.3 % (−66.7), its control from 33.3 to 66.7 % (+33.3)" in text
    assert "| looped | twin | +66.7 | −33.3 | −100.0 [" in text


def test_a_trial_before_can_be_named_when_the_trial_is_finished(chained: Path, tmp_path: Path) -> None:
    out, before, other = tmp_path / "out", chained / "before", tmp_path / "other"
    set_trial(chained / "second", out=out, **TRIAL)
    answers = {file: file.read_bytes() for file in (out / "runs").rglob("records.jsonl")}
    verdict, plan = (json.loads((out / name).read_text()) for name in ("verdict.json", "set_plan.json"))
    assert plan["before"] is None and "before_added" not in plan
    with pytest.raises(TrialError, match="holds no trial of a set"):
        set_trial(chained / "second", out=out, before=chained / "first", **TRIAL)
    assert json.loads((out / "set_plan.json").read_text()) == plan
    for _ in range(2):  # the same command again finds the same plan
        set_trial(chained / "second", out=out, before=before, **TRIAL)
        assert json.loads((out / "set_plan.json").read_text())["before_added"]
    assert {file: file.read_bytes() for file in (out / "runs").rglob("records.jsonl")} == answers
    assert json.loads((out / "verdict.json").read_text()) == verdict
    assert len(json.loads((out / "set_verdict.json").read_text())["before_after"]) == 3
    assert "the trial before was named when this one had begun" in (out / "set_report.md").read_text()
    plan, judged = ((out / name).read_text() for name in ("set_plan.json", "set_verdict.json"))
    set_trial(chained / "second", out=out, **TRIAL)  # the first command again
    assert ((out / "set_plan.json").read_text(), (out / "set_verdict.json").read_text()) == (plan, judged)
    shutil.copytree(before, other)
    set_trial(chained / "second", out=out, before=other, **TRIAL)
    found = json.loads((out / "set_plan.json").read_text())
    assert (out / found["before"]).resolve() == other and found["before_added"]


def test_a_trial_before_that_was_named_at_first_stays_and_the_report_says_when_it_is_replaced(chained: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    shutil.copytree(chained / "before", other)
    set_trial(chained / "second", out=out, before=other, **TRIAL)
    plan, words = (out / "set_plan.json").read_text(), "the trial before was named when this one had begun"
    set_trial(chained / "second", out=out, **TRIAL)
    assert (out / "set_plan.json").read_text() == plan and words not in (out / "set_report.md").read_text()
    set_trial(chained / "second", out=out, before=chained / "before", **TRIAL)
    assert words in (out / "set_report.md").read_text()


def test_other_draws_before_are_refused_before_anything_is_evaluated(chained: Path, tmp_path: Path) -> None:
    plan = plan_from_json(json.loads(next((chained / "before").rglob("plan.json")).read_text()))
    check_before(plan, plan, tmp_path)
    drawn = replace(plan, tasks=tuple(replace(task, samples=4, temperature=0.7) for task in plan.tasks))
    for other, words in (
        (replace(plan, samples=4, temperature=0.7), "samples of 4, this one of 1"),
        (drawn, "samples, temperature and thinking by task"),
    ):
        with pytest.raises(TrialError, match=words):
            check_before(plan, other, tmp_path)


def test_the_trial_before_must_be_finished_and_of_the_same_items(chained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second, before = chained / "second", chained / "before"
    for changes, words in (
        ({"before": chained / "first"}, "holds no trial of a set"),
        ({"before": tmp_path / "x"}, "cannot be its own before"),
        ({"before": before, "budgets": (8,)}, r"deciding budgets of \{'ladder': 4\}, this one of \{'ladder': 8\}"),
        ({"before": before, "tasks": ("ladder:1",)}, "the trial before has tasks of"),
        ({"before": before, "settings": replace(TRIAL["settings"], limit=2)}, "a limit of 3, this one of 2"),
    ):
        with pytest.raises(TrialError, match=words) as raised:
            set_trial(second, out=tmp_path / "x", **TRIAL | changes)
        assert "\n" not in str(raised.value) and not (tmp_path / "x").exists()
    verdict = before / "set_verdict.json"
    kept = verdict.read_text()
    verdict.unlink()
    try:
        with pytest.raises(TrialError, match="the trial before is not finished"):
            set_trial(second, out=tmp_path / "x", before=before, **TRIAL)
    finally:
        verdict.write_text(kept)
    with pytest.raises(SystemExit):
        main(["trial", "smollm2", "--out", str(tmp_path / "y"), "--before", str(before)])
    assert "--before is for the folder of a set" in capsys.readouterr().err


def gsm8k(file: Path, question: str, shift: int = 0) -> Path:
    rows = [{"question": question.format(n), "answer": f"x #### {(n + shift) % 4}"} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def on_gsm8k(chained: Path) -> dict[str, Any]:
    """How the trial before was made, on problems that are named by their places alone."""
    settings = replace(TRIAL["settings"], data=gsm8k(chained / "gsm8k.jsonl", "What is {} and one more?"))
    trial: dict[str, Any] = dict(tasks=("gsm8k",), budgets=(4,), depths=(2,), settings=settings)
    set_trial(chained / "first", out=chained / "before-gsm8k", **trial)
    return trial


@pytest.mark.parametrize(
    ("question", "shift", "words"),
    [
        ("How many cats sit, {0} or {0}?", 1, "has the reference answer"),
        (
            "How many birds fly, {0} or {0}?",
            0,
            "gsm8k was asked otherwise in this trial than in .* by questions",
        ),
    ],
)
def test_other_questions_are_refused_before_any_is_asked(
    chained: Path, on_gsm8k: dict[str, Any], tmp_path: Path, question: str, shift: int, words: str
) -> None:
    other = replace(on_gsm8k["settings"], data=gsm8k(tmp_path / "gsm8k.jsonl", question, shift))
    with pytest.raises(TrialError, match=words) as raised:
        set_trial(chained / "second", out=tmp_path / "x", before=chained / "before-gsm8k", **on_gsm8k | {"settings": other})
    assert "\n" not in str(raised.value) and "leave --before out" in str(raised.value)
    assert not (tmp_path / "x").exists()


def test_another_template_is_refused_before_it_is_asked(chained: Path, on_gsm8k: dict[str, Any], tmp_path: Path) -> None:
    changed = []
    for file in (chained / "second").rglob("chat_template.jinja"):
        changed.append((file, file.read_text()))
        file.write_text("Hello. " + file.read_text())
    assert changed
    try:
        with pytest.raises(TrialError, match="asked otherwise"):
            set_trial(chained / "second", out=tmp_path / "x", before=chained / "before-gsm8k", **on_gsm8k)
    finally:
        for file, text in changed:
            file.write_text(text)
    assert not (tmp_path / "x").exists()


def test_other_precision_is_noted_and_a_changed_trial_before_leaves_all_else(
    chained: Path, on_gsm8k: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, before = tmp_path / "after", tmp_path / "before"
    shutil.copytree(chained / "before-gsm8k", before)
    otherwise = replace(on_gsm8k["settings"], dtype="bf16")
    set_trial(chained / "second", out=out, before=before, **on_gsm8k | {"settings": otherwise})
    rows = json.loads((out / "set_verdict.json").read_text())["before_after"]
    note = "before and after ran with different dtype (float32, then bfloat16)"
    assert all(note in row["contrast"]["notes"][0] for row in rows)
    assert (out / "set_report.md").read_text().count(note) == 1
    for header in (before / "runs").rglob("header.json"):
        header.write_text(json.dumps(json.loads(header.read_text()) | {"items_hash": "changed"}))
    for written in ("set_report.md", "set_verdict.json", "verdict.json"):
        (out / written).unlink()
    with pytest.raises(SystemExit):
        main(["report", str(out)])
    assert "before and after were not judged" in capsys.readouterr().err
    assert "Not judged: gsm8k was asked otherwise" in (out / "set_report.md").read_text() and (out / "verdict.json").exists()
    values = json.loads((out / "set_verdict.json").read_text())
    assert values["before_after"] == [] and "asked otherwise" in values["before_after_fault"]


def test_a_twin_with_another_template_is_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    model, twin = chat_model(tmp_path / "model"), chat_model(tmp_path / "twin")
    template = next(twin.rglob("chat_template.jinja"))
    template.write_text("Hello. " + template.read_text())
    with pytest.raises(TrialError, match="ladder: the twin's tokenizer or chat template is not the looped model's"):
        trial(model, out=tmp_path / "x", loops=LOOPS, twin=twin, tasks=("ladder",), budgets=(4,), settings=TRIAL["settings"])
    assert not list((tmp_path / "x").rglob("records.jsonl"))
