"""``loopwise place`` from a model's folder and files of text to a study: as a recipe, as a command, killed, and in two processes."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from loopwise.cli import main
from loopwise.cost import read_shape
from loopwise.evaluation import ParityError
from loopwise.loops import format_loops, parse_loops
from loopwise.models import insert_on_disk, load, loops_of
from loopwise.placement import PlacementError, Ranks, TextScorer, objective_named, sharing, text_computer
from loopwise.recipes import placement as recipe
from loopwise.recipes import training_accuracy
from loopwise.recipes.placement import PlaceSettings, SpaceSettings, TextSettings, place
from loopwise.recipes.selection import check_apart
from loopwise.recipes.training_accuracy import AccuracyMeasurer
from loopwise.records import CandidateResult, StepOfSearch, Study, StudyWriter, read_losses, read_study
from loopwise.report import render_study
from loopwise.tasks import task_named
from tiny import tiny_model, tiny_tokenizer

transformers.utils.logging.disable_progress_bar()  # the command does so itself, where transformers is not imported yet

WIDTHS, PASSES, BETAS = (1, 2), (2, 3), (0.25, 0.75)
NUM_CANDIDATES = (6 + 5) * 2 * 2
TEXT = dict(fit_tokens=240, score_tokens=720, window_tokens=40, stride=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, and two files of text drawn from it."""
    folder = tmp_path_factory.mktemp("place")
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0 / model(input_ids=torch.arange(3, 100)[None]).logits.std())
    model.save_pretrained(folder / "base")
    tiny_tokenizer().save_pretrained(folder / "base")
    torch.manual_seed(1)
    rows = model.generate(torch.tensor([[5]] * 24), do_sample=True, max_new_tokens=79, min_new_tokens=79).tolist()
    for name, part in (("a", rows[:12]), ("b", rows[12:])):
        lines = [json.dumps({"text": " ".join(f"w{token}" for token in row)}) for row in part]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def settings(made: Path, **more: Any) -> PlaceSettings:
    text = TextSettings(sources=(f"a={made / 'a.jsonl'}", f"b={made / 'b.jsonl'}"), **TEXT)  # type: ignore[arg-type]
    space = SpaceSettings(widths=WIDTHS, passes=PASSES, betas=BETAS)
    return PlaceSettings(**({"text": text, "space": space, "memory_gb": 0.004, "race_error": 0.05} | more))


def command(made: Path, *more: object, base: str = "base") -> list[str]:
    numbers = [part for name, value in TEXT.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    space = ["--widths", *map(str, WIDTHS), "--passes", *map(str, PASSES), "--betas", *map(str, BETAS)]
    texts = ["--text", f"a={made / 'a.jsonl'}", f"b={made / 'b.jsonl'}"]
    return ["place", str(made / base), *texts, *numbers, *space, "--memory-gb", "0.004", "--race-error", "0.05", *map(str, more)]


@pytest.fixture(scope="module")
def whole(made: Path) -> Study:
    """An uninterrupted raced grid."""
    return place(made / "base", out=made / "whole", settings=settings(made))


def facts(study: Study) -> dict[Any, Any]:
    """What was found, without how long it took."""
    return {result.key: replace(result, seconds=None) for result in study.results}


def assert_same(ours: Study, theirs: Study) -> None:
    """The same results; values to the last bits, in which threads may differ."""
    found, wanted = facts(ours), facts(theirs)
    assert found.keys() == wanted.keys() and len(ours.results) == len(found)
    for key, result in wanted.items():
        assert (found[key].status, found[key].layer_pass_ratio) == (result.status, result.layer_pass_ratio)
        assert found[key].values == pytest.approx(result.values, abs=1e-6, rel=1e-5)
    assert [step.loops for step in ours.searches[0].steps] == [step.loops for step in theirs.searches[0].steps]
    assert [step.best for step in ours.searches[0].steps] == [step.best for step in theirs.searches[0].steps]


def test_a_study_says_what_it_depends_on_and_what_was_found(made: Path, whole: Study) -> None:
    assert whole.header["model"].endswith("base") and whole.header["num_layers"] == 6 and whole.header["dtype"] == "float32"
    assert whole.header["fit_tokens"] == {"a": 120, "b": 120} and whole.header["score_tokens"] == {"a": 360, "b": 360}
    assert len(whole.header["mixture_sha256"]) == 64 and whole.header["stride"] == 2
    assert whole.unlooped is not None and whole.unlooped.values["num_score_positions"] > 300
    assert len(whole.results) == NUM_CANDIDATES + 1
    assert {result.status for result in whole.results} == {"scored", "dropped"}
    [search] = whole.searches
    assert search.header["race_error"] == 0.05 and search.steps[-1].evaluations == NUM_CANDIDATES
    assert search.steps[-1].best_score == min(r.values["loss_nats"] for r in whole.results if r.status == "scored" and r.loops)
    hashes = json.loads((whole.folder / "text_hashes.json").read_text())
    assert hashes and (whole.folder / "summary.json").is_file()
    losses = read_losses(whole.folder, str(search.steps[-1].best))
    assert losses is not None and float(losses.mean(dtype=float)) == pytest.approx(search.steps[-1].best_score)


def test_the_grid_without_a_race_is_the_reference_and_has_the_same_best(made: Path, whole: Study) -> None:
    reference = place(made / "base", out=made / "reference", settings=settings(made, race=False))
    assert {result.status for result in reference.results} == {"scored"}
    assert reference.searches[0].steps[-1].best == whole.searches[0].steps[-1].best
    for key, result in facts(whole).items():
        if result.status == "scored":
            assert facts(reference)[key].values == pytest.approx(result.values, abs=1e-6, rel=1e-6)


def test_a_tolerance_reaches_the_race_and_drops_more(made: Path, whole: Study) -> None:
    found = place(made / "base", out=made / "tolerant", settings=settings(made, race_tolerance=0.5))
    scored = [sum(result.status == "scored" for result in study.results) for study in (found, whole)]
    assert scored[0] < scored[1] and found.searches[0].header["race_tolerance_nats"] == 0.5
    assert "A race sought the best alone, to 0.5 nats" in render_study(found.folder).read_text()


def test_the_same_call_again_measures_nothing_and_other_searches_share(made: Path, whole: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made / "shared"
    shutil.copytree(whole.folder, folder)
    before = (folder / "results.jsonl").read_bytes()
    measured: list[int] = []
    own, own_race = TextScorer.score, TextScorer.race_group
    monkeypatch.setattr(TextScorer, "score", lambda self, group, share=1.0: measured.append(len(group)) or own(self, group, share))
    monkeypatch.setattr(TextScorer, "race_group", lambda self, group, *more: measured.append(len(group)) or own_race(self, group, *more))
    assert_same(place(made / "base", out=folder, settings=settings(made)), whole)
    assert measured == [] and (folder / "results.jsonl").read_bytes() == before
    place(made / "base", out=folder, settings=settings(made, race=False, algorithms=("random",), evaluations=10))
    dropped = {result.loops for result in whole.results if result.status == "dropped"}
    new = {result.loops for result in read_study(folder).results if result.status == "scored"} - {
        result.loops for result in whole.results if result.status == "scored"
    }
    assert new and new <= dropped, "of the ten, only what the race of the other search had dropped"
    measured.clear()
    place(made / "base", out=folder, settings=settings(made, objective="depth_rule"))
    assert measured == []
    study = place(made / "base", out=folder, settings=settings(made, objective="ppl", algorithms=("local",), evaluations=9))
    assert sum(measured) < 9 and [one.name for one in study.searches] == [
        "grid-depth_rule-0",
        "grid-ppl_t-0",
        "local-ppl-0",
        "random-ppl_t-0",
    ]
    narrow = SpaceSettings(widths=(2,), passes=(2,), betas=(0.25,))
    study = place(made / "base", out=folder, settings=settings(made, objective="kl", space=narrow))
    assert {result.loops for result in study.results if result.measure == "text+kl" and result.loops} == {"2:4 x2 damped beta=0.25"}


def test_ruined_candidates_are_recorded_and_rank_last(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Computer:
        def __init__(self, computer: Any) -> None:
            self.computer = computer
            self.fit, self.score, self.max_group, self.groups = computer.fit, computer.score, computer.max_group, computer.groups
            self.logits, self.peek = computer.logits, computer.peek

        def kept(self, group: Any, batch: Any) -> Any:
            found = self.computer.kept(group, batch)
            return [
                kept * math.nan if candidate and candidate[0].start == 3 else kept for candidate, kept in zip(group, found, strict=True)
            ]

    monkeypatch.setattr(recipe, "text_computer", lambda *args, **kwargs: Computer(text_computer(*args, **kwargs)))
    main([*command(made, "--out", made / "ruined", "--top", 50, "--algorithm", "local", "--evaluations", 30)])
    study = read_study(made / "ruined")
    ruined = {result.loops for result in study.results if result.status == "ruined"}
    assert ruined and all(loops.startswith("3:") for loops in ruined)
    assert all("not finite" in (result.reason or "") for result in study.results if result.status == "ruined")
    assert {
        loops for step in study.searches[0].steps for loops, score in zip(step.loops, step.scores, strict=True) if score is None
    } == ruined
    out = capsys.readouterr().out
    assert f"{len(ruined)} ruined" in out and "\n3:" not in out


def test_a_command_ends_with_the_best_and_the_words_that_it_is_a_filter(
    made: Path, whole: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made / "told"
    shutil.copytree(whole.folder, folder)
    main(command(made, "--out", folder, "--top", 3))
    out = capsys.readouterr().out
    best = sorted((r for r in whole.results if r.loops and r.status == "scored"), key=lambda r: r.values["loss_nats"])
    dropped = sum(result.status == "dropped" for result in whole.results)
    assert f"candidates: {len(best)} scored, {dropped} dropped" in out
    assert out.index(best[0].loops) < out.index(best[1].loops) < out.index(best[2].loops) and best[3].loops not in out
    assert "promises no gain" in out and f'loopwise trial {made / "base"} --loops "{best[0].loops}" --placement {folder}' in out
    assert (folder / "report.html").is_file() and json.loads((folder / "config.json").read_text())["command"] == "place"
    main(command(made, "--out", folder, "--top", 2, "--json"))
    printed, err = capsys.readouterr()
    assert json.loads(printed)["best"] == [result.loops for result in best[:2]] and err == ""


def test_counts_are_of_candidates_not_of_results(tmp_path: Path) -> None:
    from loopwise.cli.studies import placement_summary

    writer = StudyWriter(tmp_path, {"model": "tiny", "num_layers": 6})
    for loops, share, status, measure in (
        ("1:3 x2", 0.25, "dropped", "text"), ("1:3 x2", 1.0, "scored", "text"), ("1:3 x2", 0.1, "scored", "text"),
        ("2:4 x2", 0.1, "scored", "text"), ("3:5 x2", 0.5, "dropped", "text"), ("3:5 x2", 1.0, "scored", "text+kl"),
        ("4:6 x2", 1.0, "ruined", "text"),
    ):  # fmt: skip
        writer.append([CandidateResult(loops=loops, layer_pass_ratio=1.3, status=status, share=share, measure=measure)])  # type: ignore[arg-type]
    for name, asked in (("wide", ("1:3 x2", "2:4 x2", "3:5 x2", "4:6 x2")), ("narrow", ("2:4 x2", "4:6 x2")), ("ruins", ("4:6 x2",))):
        trace = writer.search(name, {"algorithm": "local", "objective": "ppl_t"})
        scores = (None,) * len(asked)
        trace.append(StepOfSearch(number=0, loops=asked, share=1.0, scores=scores, evaluations=1.0, best=None, best_score=None))
    study = read_study(tmp_path)
    assert "candidates: 1 scored, 1 ruined, 1 dropped, 1 read in part" in placement_summary(study, "ppl_t", ("wide",), ())
    assert "candidates: 1 scored\n" in placement_summary(study, "kl", ("wide", "narrow"), ())
    part = placement_summary(study, "ppl_t", ("narrow",), ())
    assert "candidates: 1 ruined, 1 read in part" in part and "no candidate has a score on the whole text" in part
    assert "every candidate ruins the model" in placement_summary(study, "ppl_t", ("ruins",), ())


def test_what_is_recommended_lies_in_the_space_of_this_search(made: Path, whole: Study, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made / "narrow"
    shutil.copytree(whole.folder, folder)
    best = min((r for r in whole.results if r.loops and r.status == "scored"), key=lambda r: r.values["loss_nats"])
    width = 3 - (parse_loops(best.loops, 6)[0].stop - parse_loops(best.loops, 6)[0].start)  # the best is not of this one
    narrow = ["--out", folder, "--widths", width, "--no-race", "--name", "narrow", "--top", 99]
    main(command(made, *narrow, "--json"))
    recommended = json.loads(capsys.readouterr().out)["best"]
    starts = 7 - width
    assert len(recommended) == starts * 4 and all(loops.count(":") == 1 for loops in recommended)
    assert {parse_loops(loops, 6)[0].stop - parse_loops(loops, 6)[0].start for loops in recommended} == {width}
    main(command(made, *narrow))
    out = capsys.readouterr().out
    assert f"candidates: {starts * 4} scored\n" in out and best.loops not in out and f'--loops "{recommended[0]}"' in out
    main(command(made, "--out", folder, "--algorithm", "random", "local", "--evaluations", 3, "--name", "few", "--top", 99, "--json"))
    asked = {
        loops for one in read_study(folder).searches if one.name in ("few-random-ppl_t-0", "few-local-ppl_t-0")
        for step in one.steps for loops in step.loops
    }  # fmt: skip
    found = json.loads(capsys.readouterr().out)["best"]
    assert found and set(found) <= asked and len(asked) <= 6
    main(command(made, "--out", folder, "--widths", width, "--objective", "depth_rule", "--name", "rule", "--top", 99, "--json"))
    assert {parse_loops(loops, 6)[0].stop - parse_loops(loops, 6)[0].start for loops in json.loads(capsys.readouterr().out)["best"]} == {
        width
    }


def test_a_rule_that_reads_no_text_resumes_shares_and_can_be_tried(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made / "rule"
    for _ in range(2):
        study = place(made / "base", out=folder, settings=settings(made, objective="depth_rule"))
    check_apart(folder, [task_named("ladder")], data=None, limit=4)
    assert len(study.searches[0].steps[-1].loops) and json.loads((folder / "text_hashes.json").read_text())["hashes"] == []
    narrow = SpaceSettings(widths=(2,), passes=(2,), betas=(0.25,))
    place(made / "base", out=folder, settings=settings(made, space=narrow))
    assert json.loads((folder / "text_hashes.json").read_text())["hashes"]


def test_the_divergence_chooses_among_windows_of_one_width_at_mid_depth(made: Path) -> None:
    one = SpaceSettings(widths=(2,))
    assert settings(made, objective="kl", space=one).space.centre == (0.45, 0.6)
    assert settings(made, objective="kl", space=replace(one, centre=(0.3, 0.7))).space.centre == (0.3, 0.7)
    for space, message in (
        (SpaceSettings(widths=(2, 3)), "kl over several widths favours loops that do little; give one width"),
        (replace(one, structures=("windows",)), "kl over windows favours loops that do little"),
        (replace(one, structures=("window", "mlp")), "kl over window, mlp favours"),
        (replace(one, centre=(0.0, 1.0)), "kl over the band 0 to 1 favours .* keep the centre within 0.25 to 0.75"),
    ):
        with pytest.raises(PlacementError, match=message):
            place(made / "base", out=made / "kl", settings=settings(made, objective="kl", space=space))
    assert not (made / "kl").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluations": -1.0}, "evaluations is -1; give at least 1"),
        ({"evaluations": math.nan}, "evaluations is nan"),
        ({"memory_gb": math.inf}, "memory_gb is inf; give the GB"),
        ({"memory_gb": math.nan}, "memory_gb is nan"),
        ({"memory_gb": -2.0}, "memory_gb is -2"),
        ({"items": 0}, "items is 0; give a whole number of at least 1"),
        ({"algorithms": ()}, "algorithms is empty"),
        ({"seeds": ()}, "seeds is empty"),
        ({"algorithms": ("best",)}, "unknown search algorithm 'best'"),
        ({"objective": "luck"}, "unknown objective 'luck'"),
        ({"name": ".."}, "'..' is no name for a search's folder"),
        ({"race_error": 2.0}, "race error 2.0"),
        ({"race_tolerance": -1.0}, "race tolerance -1.0"),
        ({"race_tolerance": 0.1, "race": False}, "race_tolerance is 0.1, and nothing races here"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_birth(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlaceSettings(**changes)


@pytest.mark.parametrize("name", ["fit_tokens", "score_tokens", "window_tokens", "stride", "fit_stride", "batch_windows"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True])
def test_text_settings_are_whole_numbers_from_one(name: str, value: Any) -> None:
    if name == "window_tokens" or value is not True:
        with pytest.raises(PlacementError, match=f"{name} is {value!r}; give a whole number of at least"):
            TextSettings(**{name: value})
    assert getattr(TextSettings(**{name: 2}), name) == 2


def _config(folder: Path, layers: int) -> Path:
    shape = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=1000)
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": layers, "tie_word_embeddings": True, **shape}))
    return file


def test_the_count_for_36_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _config(tmp_path, 36)
    main(["place", str(tmp_path), "--count"])
    out = capsys.readouterr().out
    assert out.startswith("2,016 candidates, ") and "4,096 tokens take about " in out and "on this machine" in out
    main(["place", str(tmp_path), "--count", "--json", "--max-cost", "1.25"])
    found = json.loads(capsys.readouterr().out)
    capped = sum(36 - width + 1 for width in range(2, 9) for k in (2, 3, 4) if width * (k - 1) <= 9) * 3
    assert found["num_candidates"] == capped == found["num_cheap"] and found["seconds_exhaustive"] > 0
    main(["place", str(tmp_path), "--count", "--json", "--algorithm", "tpe", "--evaluations", "50"])
    found = json.loads(capsys.readouterr().out)
    assert found["num_candidates"] == 2016 and found["num_evaluations"] == 50 and found["num_tokens"] == 4096
    assert not [file for file in tmp_path.iterdir() if file.name != "config.json"]


def test_the_count_says_of_time_what_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _config(tmp_path, 12)

    def count(*more: str) -> str:
        main(["place", str(tmp_path), "--count", *more])
        return capsys.readouterr().out

    assert "a race takes less" in count()
    for more in (["--no-race"], ["--objective", "ppl"], ["--objective", "kl", "--widths", "2"]):
        assert "on this machine\n" in count(*more)
    assert "evaluations by the place alone: no candidate is scored on text" in count("--objective", "depth_rule")
    assert "evaluations by answers to training problems: no candidate is scored on text" in count("--objective", "accuracy:ladder")
    found = json.loads(count("--objective", "accuracy:ladder", "--json"))
    assert found["seconds_exhaustive"] is None and found["num_tokens"] is None and found["num_candidates"] > 50


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--stride", "0"], "stride is 0; give a whole number of at least 1"),
        (["--fit-stride", "0"], "fit_stride is 0"),
        (["--fit-tokens", "-1"], "fit_tokens is -1"),
        (["--evaluations", "-4"], "evaluations is -4"),
        (["--objective", "luck"], "unknown objective 'luck'"),
        (["--objective", "kl"], "kl over several widths"),
        (["--objective", "accuracy:math500"], "no training problems"),
        (["--algorithm", "best"], "unknown search algorithm 'best'"),
        (["--algorithm", "random"], "say how many --evaluations"),
        (["--text", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--memory-gb", "nan"], "memory_gb is nan"),
        (["--top", "0"], "--top 0: give at least 1"),
    ],
)
def test_a_count_checks_what_the_search_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    _config(tmp_path, 12)
    assert message in fails(capsys, ["place", str(tmp_path), "--count", *more])
    assert message in fails(capsys, ["place", str(tmp_path), "--out", str(tmp_path / "study"), *more])
    assert not (tmp_path / "study").exists()


BAD = {
    "no folder": ([], "give --out"),
    "too wide": (["--out", "OUT", "--widths", "99"], "99"),
    "kl over widths": (["--out", "OUT", "--objective", "kl"], "kl over several widths"),
    "objective": (["--out", "OUT", "--objective", "luck"], "unknown objective 'luck'; use ppl_t"),
    "algorithm": (["--out", "OUT", "--algorithm", "best"], "unknown search algorithm 'best'; use one of grid, random"),
    "endless": (["--out", "OUT", "--algorithm", "annealing"], "say how many --evaluations"),
    "short text": (["--out", "OUT", "--fit-tokens", "7200"], "3600 were asked for; give more text or ask for fewer"),
    "no text": (["--out", "OUT", "--text", "nowhere.jsonl"], "nowhere.jsonl"),
    "memory": (["--out", "OUT", "--memory-gb", "0.00001"], "give --memory-gb more"),
    "task": (["--out", "OUT", "--objective", "accuracy:nothing"], "nothing"),
    "no training problems": (["--out", "OUT", "--objective", "accuracy:math500"], "no training problems"),
    "race error": (["--out", "OUT", "--race-error", "2"], "race error 2.0"),
    "stride": (["--out", "OUT", "--stride", "0"], "stride is 0"),
    "name": (["--out", "OUT", "--name", ".."], "'..' is no name for a search's folder"),
    "no name": (["--out", "OUT", "--name", ""], "'' is no name for a search's folder"),
    "name with a slash": (["--out", "OUT", "--name", "a/b"], "'a/b' is no name for a search's folder"),
    "endless memory": (["--out", "OUT", "--memory-gb", "inf"], "memory_gb is inf"),
    "cost": (["--out", "OUT", "--max-cost", "1.01"], "1.01"),
}


def fails(capsys: pytest.CaptureFixture[str], args: list[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(args)
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "100%" not in line]
    assert stop.value.code not in (0, None) and out == "" and len(lines) == 1 and lines[0].startswith("loopwise place: "), err
    return lines[0]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    args, error = BAD[name]
    assert error in fails(capsys, command(made, *(str(tmp_path / "study") if arg == "OUT" else arg for arg in args)))
    assert not (tmp_path / "study" / "study.json").exists(), "what is refused binds no folder"


def test_a_tokenizer_that_does_not_fit_and_a_model_with_loops_are_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model("llama", vocab_size=64).save_pretrained(made / "small")
    tiny_tokenizer().save_pretrained(made / "small")
    assert "the tokenizer does not fit the model" in fails(capsys, command(made, "--out", tmp_path / "study", base="small"))
    insert_on_disk(made / "base", "1:3 x2", made / "looped")
    assert "has loops already; give the plain model" in fails(capsys, command(made, "--out", tmp_path / "study", base="looped"))


def test_a_model_that_cannot_be_scored_binds_no_folder(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tiny_model("llama")
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    broken.save_pretrained(made / "broken")
    tiny_tokenizer().save_pretrained(made / "broken")
    assert "finite" in fails(capsys, command(made, "--out", tmp_path / "study", base="broken"))
    assert not (tmp_path / "study" / "study.json").exists()
    narrow = SpaceSettings(widths=(2,), passes=(2,), betas=(0.25,))
    assert place(made / "base", out=tmp_path / "study", settings=settings(made, space=narrow)).results


def test_an_anchor_of_minus_zero_is_zero(made: Path, whole: Study) -> None:
    space = SpaceSettings(widths=(2,), passes=(2,), betas=(-0.0, 0.0)).space(read_shape(made / "base"))
    assert [format_loops(candidate) for candidate in space] == [f"{start}:{start + 2} x2 damped beta=0" for start in range(5)]
    assert format_loops(parse_loops("1:3 x2 damped beta=-0.0", 6)) == "1:3 x2 damped beta=0"


def test_a_study_of_another_model_or_text_is_one_line(made: Path, whole: Study, capsys: pytest.CaptureFixture[str]) -> None:
    before = (whole.folder / "results.jsonl").read_bytes()
    other = made / "other" / "base"
    tiny_model("llama", seed=1).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    error = fails(capsys, command(made, "--out", whole.folder, base="other/base"))
    assert "was made with another model_hash" in error and "give a new --out" in error
    assert "was made with another mixture_sha256" in fails(capsys, command(made, "--out", whole.folder, "--text-seed", 1))
    assert "was made with another stride" in fails(capsys, command(made, "--out", whole.folder, "--stride", 4))
    assert "was made with another race_error" in fails(capsys, [*command(made, "--out", whole.folder), "--race-error", "0.01"])
    assert "was made with another race_tolerance_nats" in fails(capsys, [*command(made, "--out", whole.folder), "--race-tolerance", "0.1"])
    assert (whole.folder / "results.jsonl").read_bytes() == before


def test_a_disk_that_fills_up_in_the_middle_loses_nothing(made: Path, whole: Study, capsys: pytest.CaptureFixture[str]) -> None:
    own, written = os.write, [0]

    def full(handle: int, content: bytes) -> int:
        written[0] += len(content)
        if written[0] > 5000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return own(handle, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        error = fails(capsys, command(made, "--out", made / "full"))
    assert "No space left on device" in error and "the same command goes on when there is room" in error
    assert 1 < len(read_study(made / "full").results) < NUM_CANDIDATES
    assert_same(place(made / "base", out=made / "full", settings=settings(made)), whole)


def test_kept_states_lie_in_no_file_that_a_kill_would_leave(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen = sharing._SpilledStates.keep, list[list[str]]()

    def keep(self: Any, states: Any) -> Any:
        kept = own(self, states)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept, states, strict=True))
        seen.append([file.name for file in tmp_path.iterdir()])
        return kept

    monkeypatch.setattr(sharing._SpilledStates, "keep", keep)
    narrow = SpaceSettings(widths=(2,), passes=(2,), betas=(0.25,))
    study = place(made / "base", out=tmp_path, settings=settings(made, memory_gb=0.0013, space=narrow))
    assert len(seen) > 5 and not any(seen) and len(study.results) == 6


def test_no_room_for_kept_states_is_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def full(handle: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        error = fails(capsys, [*command(made, "--out", tmp_path), "--memory-gb", "0.0013"])
    assert "No space left on device: 0.0 GB are needed for kept states" in error
    assert not list(tmp_path.glob("states-*"))


def _environment() -> dict[str, str]:
    source = Path(__file__).parent.parent / "src"
    keep = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}
    return keep | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


RUN = "import sys; from loopwise.cli import main; main(sys.argv[1:])"


def test_accuracy_on_training_problems_survives_ruined_and_inexact_candidates(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(made / "base")
    task = task_named("ladder")
    items = task.load(None, 3, "train")
    measurer = AccuracyMeasurer(loaded, task, items, made / "accuracy", Ranks())
    inexact = parse_loops("2:4 x2", 6)

    def evaluated(model: Any, tokenizer: Any, task: Any, *, items: Any, **more: Any) -> Any:
        if loops_of(model) == inexact:
            raise ParityError("cached decoding differs from full recompute by 0.3 in logits")
        return SimpleNamespace(records=[SimpleNamespace(correct=number == 0) for number in range(len(items))])

    monkeypatch.setattr(training_accuracy, "evaluate", evaluated)
    loaded.model.model.layers[5].mlp.register_forward_hook(
        lambda module, args, output: output * math.nan if loops_of(loaded.model)[:1] == parse_loops("5:6 x2", 6) else None
    )
    found: list[CandidateResult] = []
    candidates = [parse_loops("1:3 x2", 6), inexact, parse_loops("5:6 x2", 6)]
    measurer(candidates, 1.0, lambda loops: None, lambda scored: found.extend(one.result for one in scored))
    assert [(one.status, one.values) for one in found] == [
        ("scored", {"accuracy": 1 / 3, "num_items": 3.0}),
        ("failed", {}),
        ("ruined", {}),
    ]
    assert "0.3 in logits" in (found[1].reason or "") and "not finite" in (found[2].reason or "")
    assert [objective_named("accuracy:ladder").score(one, 6) for one in found] == [pytest.approx(2 / 3), math.inf, math.inf]
    assert loops_of(loaded.model) == ()
    [half] = [measurer.answered(candidates[0], 0.34).result]
    assert half.values["num_items"] == 1 and half.share == 0.34


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_same_results(made: Path, whole: Study) -> None:
    out = made / "killed"
    running = subprocess.Popen([sys.executable, "-c", RUN, *command(made, "--out", out)], env=_environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.poll() is None:
        if (out / "results.jsonl").exists() and len(read_study(out).results) >= 10:  # also readable while it runs
            break
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    _, err = running.communicate()
    assert running.returncode == -signal.SIGKILL, err
    assert 10 <= len(read_study(out).results) <= NUM_CANDIDATES and not read_study(out).searches[0].steps
    assert_same(place(made / "base", out=out, settings=settings(made)), whole)


@pytest.mark.slow
def test_two_processes_find_what_one_does(made: Path, whole: Study) -> None:
    out = made / "ranks"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    args = [*command(made, "--out", out), "--json"]
    running = subprocess.Popen(
        [*torchrun, sys.executable, "-c", RUN, *args],
        env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, err = running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        raise
    assert running.returncode == 0, err
    assert json.loads(printed)["best"][0] == whole.searches[0].steps[-1].best, "one process prints"
    study = read_study(out)
    assert_same(study, whole)
    assert [result.loops for result in study.results] == [result.loops for result in whole.results]
