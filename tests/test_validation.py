"""Validating a study's score on a task: the right placements, the right correlation, and no item that the study has read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import loopwise.recipes.validation as validation_module
from loopwise.cli import main
from loopwise.data import Document, hash_documents, write_text_hashes
from loopwise.loops import format_loops
from loopwise.models import load, loops_of, model_hash
from loopwise.placement import PlacementError
from loopwise.protocol import TrialError
from loopwise.recipes.validation import ValidationSettings, validate
from loopwise.records import CandidateResult, Record, Run, StudyError, StudyWriter, write_json
from loopwise.stats import Bootstrap, StatsError, score_accuracy_rho
from loopwise.tasks import LADDER
from tiny import tiny_model, tiny_tokenizer

WIDTH2 = ValidationSettings(width=2, step=1, limit=6, budget_tokens=12, batch_size=6)
LOOPS = [f"{start}:{start + 2} x2 damped beta=0.25" for start in range(5)]
LOSSES = [2.9, 2.3, 2.0, 2.1, 2.2]
UNLOOPED = 2.15


# --- the correlation -----------------------------------------------------------------------------------------------------


def test_rho_is_scipys_with_the_sign_of_good_scores_and_its_interval_that_of_a_plain_bootstrap() -> None:
    rng = np.random.default_rng(0)
    scores = [0.3, 0.1, 0.2, 0.9, 0.5, 0.4]
    rates = 0.6 - 0.4 * np.array(scores)
    correct = [(rng.random((6, 80)) < rates[:, None]).astype(float), (rng.random((6, 50)) < rates[:, None]).astype(float)]
    found = score_accuracy_rho(scores, correct, Bootstrap(resamples=4000))
    accuracies = (correct[0].mean(axis=1) + correct[1].mean(axis=1)) / 2
    assert found.rho == pytest.approx(spearmanr([-score for score in scores], accuracies).statistic)
    slow = []
    for _ in range(1500):
        drawn = [array[:, rng.integers(array.shape[1], size=array.shape[1])].mean(axis=1) for array in correct]
        slow.append(spearmanr([-score for score in scores], (drawn[0] + drawn[1]) / 2).statistic)
    assert found.ci95 is not None
    assert found.ci95 == pytest.approx(tuple(np.nanquantile(slow, [0.025, 0.975])), abs=0.06)
    assert found.ci95[0] < found.ci95[1]


def test_ruined_arms_rank_last_and_what_is_not_defined_is_none() -> None:
    correct = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=float)
    assert score_accuracy_rho([1.0, 2.0, 3.0, math.inf], [correct]).rho == pytest.approx(1.0)
    assert score_accuracy_rho([math.inf, 3.0, 2.0, 1.0], [correct]).rho == pytest.approx(-1.0)
    assert score_accuracy_rho([1.0, 2.0], [correct[:2]]) == (None, None)
    assert score_accuracy_rho([1.0, 2.0, 3.0], [np.ones((3, 4))]) == (None, None)
    few = np.array([[1.0] + [0.0] * 3, [0.0] * 4, [0.0] * 4])
    found = score_accuracy_rho([1.0, 2.0, 3.0], [few])  # a third of the resamples miss the only right answer
    assert found.rho is not None and found.ci95 is None
    with pytest.raises(StatsError, match="not a number"):
        score_accuracy_rho([1.0, math.nan, 3.0], [few])
    with pytest.raises(StatsError, match="3 scores"):
        score_accuracy_rho([1.0, 2.0, 3.0], [few[:2]])


# --- a study and its model -----------------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def result(loops: str, loss: float, **more: Any) -> CandidateResult:
    values = {"loss_nats": loss, "plain_loss_nats": 4 - loss, "difference_nats": loss - UNLOOPED, "standard_error_nats": 0.01}
    values |= {"temperature": 1.1, "calibrated_perplexity": math.exp(loss), "perplexity": math.exp(4 - loss)}
    values |= {"num_fit_positions": 64.0, "num_score_positions": 128.0}
    return CandidateResult(loops=loops, layer_pass_ratio=8 / 6 if loops else 1.0, **{"status": "scored", "values": values, **more})


def study(base: Path, results: list[CandidateResult] | None = None, *, text: str = "Some page of prose about nothing.") -> Path:
    folder = base.parent / "study"
    header = {"model": str(base), "model_hash": model_hash(load(base).model), "dtype": "float32", "num_layers": 6, "mixture_sha256": "ab"}
    writer = StudyWriter(folder, header)
    scored = [result(loops, loss) for loops, loss in zip(LOOPS, LOSSES, strict=True)]
    writer.append([result("", UNLOOPED), *(scored if results is None else results)])
    write_text_hashes(folder, hash_documents([Document(name="page", domain="web", text=text)]))
    return folder


def answering(monkeypatch: pytest.MonkeyPatch, right: dict[str, int]) -> list[str]:
    """In place of the model: so many right answers of six with each placement, and the order in which they were asked for."""
    asked: list[str] = []

    def evaluate(model: Any, tokenizer: Any, task: Any, *, items: Any, arm: str, **more: Any) -> Run:
        assert format_loops(loops_of(model)) == (arm if arm != "unlooped" else format_loops(()))
        asked.append(arm)
        records = [
            Record(task=task.name, item=item.name, seed=0, sample=0, correct=n < right[arm], gold=item.gold, finished=n < 5)
            for n, item in enumerate(items)
        ]
        return Run({}, tuple(records), "made-up")

    monkeypatch.setattr(validation_module, "evaluate", evaluate)
    return asked


def test_the_result_correlates_ranks_counts_the_destroyed_and_reaches_the_report(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"unlooped": 4} | dict(zip(LOOPS, [0, 2, 5, 4, 3], strict=True))
    asked = answering(monkeypatch, right)
    folder = study(base)
    found = validate(folder, tasks=["ladder"], settings=WIDTH2)
    assert asked == ["unlooped", *LOOPS]
    saved = json.loads((folder / "validation.json").read_text())
    assert saved == json.loads((folder / "validation" / "validation.json").read_text()) == json.loads(json.dumps(found.to_json()))
    assert (
        saved["rho"] == pytest.approx(1.0)
        and saved["rho_plain"] == pytest.approx(-1.0)
        and saved["rho_non_destructive"] == pytest.approx(1.0)
    )
    assert saved["rho_ci95"][0] <= saved["rho_ci95"][1] <= 1.0
    assert [one["destroyed"] for one in saved["placements"]] == [True, False, False, False, False]
    assert saved["num_non_destructive"] == 4 and saved["num_items"] == {"ladder": 6} and saved["unlooped_accuracy"] == pytest.approx(4 / 6)
    assert [one["accuracy"] for one in saved["placements"]] == pytest.approx([0, 2 / 6, 5 / 6, 4 / 6, 3 / 6])
    assert saved["placements"][1]["standard_error_points"] == pytest.approx(100 * math.sqrt(2 / 6 * 4 / 6 / 6))
    assert saved["placements"][1]["finished"] == pytest.approx(5 / 6)
    assert "test items" in saved["notes"][0] and "few" in saved["notes"][1]
    report = (folder / "report.md").read_text()
    assert "Accuracy against score" in report and "Of plain perplexity: −1.00" in report and "chosen on test items" in report


def test_a_ruined_placement_counts_as_destroyed_and_last(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ruined = result(LOOPS[0], 0.0, status="ruined", values={}, reason="its losses are not finite")
    folder = study(base, [ruined, *(result(loops, loss) for loops, loss in zip(LOOPS[1:], LOSSES[1:], strict=True))])
    answering(monkeypatch, {"unlooped": 4} | dict(zip(LOOPS, [0, 2, 5, 4, 3], strict=True)))
    saved = validate(folder, tasks=["ladder:0", "ladder:1"], settings=WIDTH2).to_json()
    assert saved["task"] == "ladder:0 + ladder:1" and saved["rho"] == pytest.approx(1.0) and saved["rho_ladder:1"] == pytest.approx(1.0)
    assert saved["placements"][0]["destroyed"] and saved["placements"][0]["difference_nats"] is None
    assert saved["placements"][1]["standard_error_points"] == pytest.approx(100 * math.sqrt(2 / 6 * 4 / 6 / 6 / 2))


def test_real_answers_are_kept_and_a_cut_run_goes_on(base: Path) -> None:
    folder = study(base)
    shares: list[float] = []
    first = validate(folder, tasks=["ladder"], settings=WIDTH2, progress=lambda label, done, total: shares.append(done / total)).to_json()
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    runs = {file: file.read_bytes() for file in folder.glob("validation/ladder/*/records.jsonl")}
    assert len(runs) == 6 and all(content.count(b"\n") == 6 for content in runs.values())
    arms = {json.loads(file.with_name("header.json").read_text())["arm"] for file in runs}
    assert arms == {"unlooped", *LOOPS}
    cut, gone, *_ = runs
    cut.write_bytes(runs[cut][:-40])
    gone.unlink()
    (folder / "validation.json").unlink()
    assert validate(folder, tasks=["ladder"], settings=WIDTH2).to_json() == first
    again = {file: sorted(json.loads(line)["text"] for line in file.read_text().splitlines()) for file in runs}
    assert again == {file: sorted(json.loads(line)["text"] for line in content.decode().splitlines()) for file, content in runs.items()}
    with pytest.raises(ValueError, match=r"another .*give a new --out"):
        validate(folder, tasks=["ladder"], settings=ValidationSettings(width=2, step=1, limit=4, budget_tokens=12, batch_size=6))


# --- what is refused -----------------------------------------------------------------------------------------------------


def test_placements_without_a_whole_score_are_refused_with_the_command_that_scores_them(base: Path) -> None:
    dropped = result(LOOPS[3], 2.6, status="dropped", share=0.5, reason="loses")
    folder = study(base, [*(result(loops, 2.0) for loops in LOOPS[:3]), dropped, result(LOOPS[4], 2.2, measure="text+kl")])
    with pytest.raises(
        PlacementError, match=rf"1 of 5 placements .* first is {LOOPS[3]}; first run: loopwise place .* --widths 2 .*--no-race"
    ):
        validate(folder, tasks=["ladder"], settings=WIDTH2)
    config = {"text": ["web=a.jsonl", "code=b.jsonl"], "stride": 8, "fit_tokens": 1024, "dtype": "auto", "algorithm": "random"}
    write_json(folder / "config.json", {"command": "place", "config": config})
    with pytest.raises(PlacementError, match=r"--name windows-2-x2-0.25 --text web=a.jsonl code=b.jsonl --stride 8$"):
        validate(folder, tasks=["ladder"], settings=WIDTH2)


def test_the_remedy_names_the_anchor_exactly(base: Path) -> None:
    exact = ValidationSettings(width=2, step=1, limit=6, beta=1 / 3)
    with pytest.raises(PlacementError, match=r"--betas 0.3333333333333333 --no-race --name windows-2-x2-0.3333333333333333 "):
        validate(study(base), tasks=["ladder"], settings=exact)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget_tokens": 8}, "reserve_tokens .* takes the whole budget of 8"),
        ({"budget_tokens": 0}, "budget_tokens is 0"),
        ({"budget_tokens": 10**6}, "positions"),
        ({"batch_size": 0}, "batch_size is 0; give at least 1"),
        ({"limit": 0}, "limit is 0; give at least 1"),
        ({"destroyed_nats": math.nan}, "destroyed_nats is nan"),
    ],
)
def test_what_cannot_be_answered_leaves_no_folder_behind(base: Path, changes: dict[str, Any], message: str) -> None:
    folder = study(base)
    with pytest.raises(ValueError, match=message):
        validate(
            folder, tasks=["ladder"], settings=ValidationSettings(**{"width": 2, "step": 1, "limit": 6, "budget_tokens": 12} | changes)
        )
    assert not (folder / "validation").exists()
    validate(folder, tasks=["ladder"], settings=WIDTH2)


def test_a_study_without_its_models_hash_is_one_line(base: Path) -> None:
    folder = study(base)
    header = json.loads((folder / "study.json").read_text())
    del header["model_hash"]
    write_json(folder / "study.json", header)
    with pytest.raises(StudyError, match=r"study\.json: has no 'model_hash'"):
        validate(folder, tasks=["ladder"], settings=WIDTH2)


def test_items_that_the_study_read_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {})
    folder = study(base, text=LADDER.load(None, 6, "train")[3].prompt)
    train = ValidationSettings(width=2, step=1, limit=6, budget_tokens=12, split="train")
    with pytest.raises(TrialError, match="text of 1 items is in the text"):
        validate(folder, tasks=["ladder"], settings=train)
    with pytest.raises(KeyError):  # the test items are others: they would be answered
        validate(folder, tasks=["ladder"], settings=WIDTH2)


def test_another_model_and_settings_that_cannot_be_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {})
    folder = study(base)
    with pytest.raises(PlacementError, match="2 placements of 2 layers have no rank correlation"):
        validate(folder, tasks=["ladder"], settings=ValidationSettings(width=2, num_placements=2))
    with pytest.raises(PlacementError, match="give one or more different"):
        validate(folder, tasks=["ladder", "ladder"], settings=WIDTH2)
    with pytest.raises(ValueError, match="no split 'x'"):
        validate(folder, tasks=["ladder"], settings=ValidationSettings(split="x"))
    tiny_model("llama", seed=1).save_pretrained(base)
    with pytest.raises(PlacementError, match="is not the model of"):
        validate(folder, tasks=["ladder"], settings=WIDTH2)


@pytest.mark.parametrize(("num", "starts"), [(3, [0, 2, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_a_number_of_placements_is_spread_over_the_depth(base: Path, monkeypatch: pytest.MonkeyPatch, num: int, starts: list[int]) -> None:
    asked = answering(monkeypatch, {"unlooped": 4} | dict(zip(LOOPS, [0, 2, 5, 4, 3], strict=True)))
    validate(study(base), tasks=["ladder"], settings=ValidationSettings(width=2, num_placements=num, limit=6, budget_tokens=12))
    assert asked[1:] == [LOOPS[start] for start in starts]


def test_the_command_prints_the_table_and_one_line_for_what_is_wrong(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(base)
    answering(monkeypatch, {"unlooped": 4} | dict(zip(LOOPS, [0, 2, 5, 4, 3], strict=True)))
    args = ["--task", "ladder", "--width", "2", "--step", "1", "--limit", "6", "--budget", "12"]
    main(["place", "validate", str(folder), *args])
    out = capsys.readouterr().out
    assert "Spearman's rho of PPL_T: 1.00" in out and "among the 4 that do not destroy the model" in out and "report.html" in out
    assert "chosen on test items" in " ".join(out.split())
    main(["place", "validate", "--config", str(folder / "validation" / "config.json"), "--json"])
    assert json.loads(capsys.readouterr().out)["num_placements"] == 5
    for wrong, message in ((["--width", "9"], "width"), (["--task", "nothing"], "nothing"), (["--budget", "8"], "budget")):
        with pytest.raises(SystemExit):
            main(["place", "validate", str(folder), *args, *wrong])
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and message in err
