"""The driver of searches: exact limits, everything on record, a killed search goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwise.cost import cost_of
from loopwise.loops import Loop, format_loops
from loopwise.placement import ALGORITHMS, Ledger, PlacementError, Ranks, Scored, Space, objective_named, search
from loopwise.records import CandidateResult, StepOfSearch, StudyError, StudyWriter, read_losses, read_study
from test_placement_space import shape_of

SPACE = Space(shape=shape_of(12), widths=(2, 3), passes=(2, 3), betas=(0.25, 0.75))
HEADER = {"model": "tiny", "model_hash": "1", "mixture_sha256": "2", "num_layers": 12, "started": "now"}
EVALUATIONS = {"gp": 12.0, "tpe": 24.0}
PPL_T = objective_named("ppl_t")


class Killed(Exception):
    """The process is gone."""


class Synthetic:
    """A valley along depth in groups of three; loops that start at layer 0 are ruined."""

    measure = "text"

    def __init__(self, kill_after: int | None = None, drop: Callable[[str], bool] = lambda loops: False) -> None:
        self.kill_after, self.drop = kill_after, drop
        self.measured: list[tuple[str, float]] = []
        self.replayed: list[str] = []

    def __call__(self, candidates: Sequence[tuple[Loop, ...]], share: float, known: Any, tell: Any) -> None:
        missing = [candidate for candidate in candidates if known(format_loops(candidate)) is None]
        for at in range(0, len(missing), 3):
            scored = [self.scored(candidate, share) for candidate in missing[at : at + 3]]
            if self.kill_after is not None and len(self.measured) >= self.kill_after:
                raise Killed
            self.measured += [(one.result.loops, share) for one in scored]
            tell(scored)

    def replay(self, candidates: Sequence[tuple[Loop, ...]], known: Any) -> None:
        self.replayed += [format_loops(candidate) for candidate in candidates]
        assert all(known(format_loops(candidate)) for candidate in candidates)

    def scored(self, candidate: tuple[Loop, ...], share: float) -> Scored:
        [loop] = candidate
        text = format_loops(candidate)
        ratio = cost_of(SPACE.shape, candidate).layer_pass_ratio
        loss = 3 + 4 * ((loop.start + loop.stop) / 24 - 0.55) ** 2 + 0.1 * (loop.beta or 0) + 0.01 * loop.passes
        loss += random.Random(text).gauss(0, 0.01) / share
        if loop.start == 0:
            return Scored(result=CandidateResult(loops=text, layer_pass_ratio=ratio, status="ruined", share=share, reason="not finite"))
        if share == 1.0 and self.drop(text):
            dropped = CandidateResult(
                loops=text, layer_pass_ratio=ratio, status="dropped", share=0.25, values={"loss_nats": loss}, reason="loses"
            )
            return Scored(result=dropped)
        values = {"loss_nats": loss, "plain_loss_nats": loss + 0.1}
        result = CandidateResult(loops=text, layer_pass_ratio=ratio, status="scored", share=share, values=values)
        return Scored(result=result, losses=np.full(4, loss, np.float32) if share == 1.0 else None)


def run(
    folder: Path | None, measurer: Synthetic | None, *, objective: Any = PPL_T, space: Space = SPACE, **more: Any
) -> tuple[StepOfSearch, ...]:
    ledger = Ledger(StudyWriter(folder, HEADER) if folder else None, Ranks())
    return search(ledger, space, objective, measurer, **more)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_limit_is_exact_and_every_step_is_on_record(tmp_path: Path, algorithm: str) -> None:
    limit, measurer, told = EVALUATIONS.get(algorithm, 40.0), Synthetic(), list[tuple[float, float]]()
    steps = run(tmp_path, measurer, algorithm=algorithm, seed=3, evaluations=limit, progress=lambda *counts: told.append(counts))
    assert steps[-1].evaluations == pytest.approx(limit) or (algorithm in ("greedy", "halving") and steps[-1].evaluations < limit)
    highest: dict[str, float] = {}
    for loops, share in measurer.measured:
        highest[loops] = max(share, highest.get(loops, 0.0))
    assert sum(highest.values()) == pytest.approx(steps[-1].evaluations), "what was paid for was measured, and nothing else"
    study = read_study(tmp_path)
    [trace] = study.searches
    assert trace.steps == steps and trace.name == f"{algorithm}-ppl_t-3"
    assert (trace.header["algorithm"], trace.header["seed"], trace.header["evaluations"]) == (algorithm, 3, limit)
    assert {result.key for result in study.results} == {("text", loops, share, "") for loops, share in measurer.measured}
    best: tuple[float, str | None] = (math.inf, None)
    for number, step in enumerate(steps):
        assert step.number == number and 0 < len(step.loops) == len(step.scores)
        for loops, score in zip(step.loops, step.scores, strict=True):
            assert (score is None) == loops.startswith("0:")
            if score is not None and step.share == 1.0:
                best = min(best, (score, loops))
        assert (step.best_score, step.best) == ((None, None) if best[1] is None else best)
    assert all(before <= after + 1e-9 for (before, _), (after, _) in pairwise(told)) and told[-1][0] == steps[-1].evaluations


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_search_that_was_killed_anywhere_goes_on_as_if_it_had_not_been(tmp_path: Path, algorithm: str) -> None:
    limit = EVALUATIONS.get(algorithm, 40.0)
    settings: dict[str, Any] = dict(algorithm=algorithm, seed=1, evaluations=limit)
    whole = tmp_path / "whole"
    steps = run(whole, everything := Synthetic(), **settings)
    for kill_after in (0, 5) if algorithm == "gp" else (0, 4, 9, 10, int(limit) - 3):
        folder = tmp_path / str(kill_after)
        with pytest.raises(Killed):
            run(folder, before := Synthetic(kill_after), **settings)
        for file in (folder / "results.jsonl", folder / "searches" / f"{algorithm}-ppl_t-1" / "trace.jsonl"):
            with open(file, "a") as half:
                half.write('{"loops": "3:5 x2 dam')
        assert len(read_study(folder).results) == len(before.measured), "readable as it lies"
        assert run(folder, after := Synthetic(), **settings) == steps
        assert before.measured + after.measured == everything.measured
        for name in ("trace.jsonl", "search.json"):
            place = Path("searches", f"{algorithm}-ppl_t-1", name)
            assert (folder / place).read_bytes() == (whole / place).read_bytes()
        assert (folder / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"gp", "tpe"}))
def test_a_trace_cut_at_any_line_is_gone_on_with(tmp_path: Path, algorithm: str) -> None:
    settings: dict[str, Any] = dict(algorithm=algorithm, seed=2, evaluations=30)
    steps = run(tmp_path / "whole", Synthetic(), **settings)
    for kept in range(0, len(steps) + 1, max(1, len(steps) // 4)):
        folder = tmp_path / str(kept)
        shutil.copytree(tmp_path / "whole", folder)
        file = folder / "searches" / f"{algorithm}-ppl_t-2" / "trace.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:kept]) + b"".join(lines[kept : kept + 1])[:-7])
        assert run(folder, again := Synthetic(), **settings) == steps
        assert again.measured == [] and len(again.replayed) == sum(len(step.loops) for step in steps[:kept])
        assert file.read_bytes() == b"".join(lines)


def test_a_result_lost_behind_the_trace_changes_no_later_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(algorithm="local", seed=0, evaluations=30)
    steps = run(tmp_path, Synthetic(), **settings)
    file = tmp_path / "results.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if json.loads(line)["loops"] != steps[-1].best))
    trace = tmp_path / "searches" / "local-ppl_t-0" / "trace.jsonl"
    kept = trace.read_text().splitlines(keepends=True)[:-1]
    trace.write_text("".join(kept))

    class Forgiving(Synthetic):
        def replay(self, candidates: Sequence[tuple[Loop, ...]], known: Any) -> None:
            pass

    again = run(tmp_path, Forgiving(), **settings)
    assert [(step.loops, step.best, step.best_score) for step in again] == [(step.loops, step.best, step.best_score) for step in steps]


def test_searches_share_a_study_and_measure_nothing_twice(tmp_path: Path) -> None:
    run(tmp_path, grid := Synthetic())
    assert len(grid.measured) == len(SPACE) == len(set(grid.measured))
    for algorithm in ("random", "local", "evolution", "annealing", "tpe", "greedy"):
        steps = run(tmp_path, more := Synthetic(), algorithm=algorithm, evaluations=20)
        assert more.measured == [] and steps[-1].evaluations <= 20
    run(tmp_path, halving := Synthetic(), algorithm="halving", evaluations=20)
    assert halving.measured and all(share < 1 for _, share in halving.measured), "parts of the text are other measurements"
    steps = run(tmp_path, plain := Synthetic(), objective=objective_named("ppl"))
    assert plain.measured == [] and steps[-1].best_score == min(score for step in steps for score in step.scores if score is not None)
    study = read_study(tmp_path)
    assert len(study.searches) == 9 and len(study.results) == len(SPACE) + len(halving.measured)
    best = min(
        (result for result in study.results if result.status == "scored" and result.share == 1.0), key=lambda r: r.values["loss_nats"]
    )
    assert read_losses(tmp_path, best.loops) is not None and read_losses(tmp_path, "0:2 x2 damped beta=0.25") is None


def test_another_search_or_study_under_the_same_name_is_refused_and_named(tmp_path: Path) -> None:
    run(tmp_path, Synthetic(), algorithm="random", evaluations=5, name="mine")
    for changed, field in (
        (dict(seed=1), "seed"),
        (dict(algorithm="local"), "algorithm"),
        (dict(evaluations=6), "evaluations"),
        (dict(objective=objective_named("ppl")), "objective"),
        (dict(space=replace(SPACE, widths=(2,))), "space"),
        (dict(extra={"race_error": 0.01}), "race_error"),
    ):
        with pytest.raises(StudyError, match=rf"was made with another {field} .*give it another --name") as caught:
            run(tmp_path, Synthetic(), **(dict(algorithm="random", evaluations=5, name="mine") | changed))
        assert "\n" not in str(caught.value)
    for field in ("model_hash", "mixture_sha256", "num_layers"):
        with pytest.raises(StudyError, match=rf"was made with another {field} \(.*, now 'other'\): another study; give a new --out"):
            StudyWriter(tmp_path, HEADER | {field: "other"})
    StudyWriter(tmp_path, HEADER | {"started": "later", "model": "/the/same/elsewhere"})


def test_a_trace_that_the_algorithm_does_not_reproduce_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(algorithm="random", evaluations=30)
    run(tmp_path, Synthetic(), **settings)
    file = tmp_path / "searches" / "random-ppl_t-0" / "trace.jsonl"
    first = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps(first | {"loops": first["loops"][::-1]}) + "\n")
    with pytest.raises(PlacementError, match=r"step 0 of the recorded search is not what the algorithm proposes now .* another --name"):
        run(tmp_path, Synthetic(), **settings)


def test_one_search_runs_once_at_a_time(tmp_path: Path) -> None:
    ledger = Ledger(StudyWriter(tmp_path, HEADER), Ranks())

    class Meanwhile(Synthetic):
        def __call__(self, *args: Any) -> None:
            with pytest.raises(StudyError, match="another process is running this search; wait for it, or give another --name"):
                run(tmp_path, Synthetic())
            run(tmp_path, Synthetic(), name="beside")
            super().__call__(*args)

    search(ledger, SPACE, PPL_T, Meanwhile())
    study = read_study(tmp_path)
    assert [one.name for one in study.searches] == ["beside", "grid-ppl_t-0"]
    assert len(study.results) == len(SPACE), "one result a candidate, though two searches measured it"


def test_places_need_no_measuring(tmp_path: Path) -> None:
    steps = run(tmp_path, None, objective=objective_named("depth_rule"))
    assert steps[-1].best is not None and steps[-1].evaluations == len(SPACE)
    loop = next(candidate for candidate in SPACE if format_loops(candidate) == steps[-1].best)[0]
    assert 0.45 <= (loop.start + loop.stop) / 24 <= 0.60
    assert read_study(tmp_path).results == ()


def test_what_a_race_dropped_guides_but_never_leads(tmp_path: Path) -> None:
    worst_first = sorted((Synthetic().scored(one, 1.0).result for one in SPACE), key=lambda r: -r.values.get("loss_nats", math.inf))
    best = worst_first[-1].loops
    steps = run(tmp_path, Synthetic(drop=lambda loops: loops == best), dropped_counts=True)
    assert steps[-1].best == worst_first[-2].loops
    scores = dict(zip(sum((step.loops for step in steps), ()), sum((step.scores for step in steps), ()), strict=True))
    assert scores[best] == worst_first[-1].values["loss_nats"]
    again = run(tmp_path, plain := Synthetic(), name="without a race")
    assert plain.measured == [(best, 1.0)] and again[-1].best == best
    run(tmp_path, Synthetic(drop=lambda loops: True), algorithm="random", evaluations=9, dropped_counts=True)
    ledger = Ledger(StudyWriter(tmp_path, HEADER), Ranks())
    ledger.add([Synthetic(drop=lambda loops: True).scored(one, 1.0) for one in SPACE], "random")
    results = read_study(tmp_path).results
    assert not [result for result in results if result.status == "dropped"], "what was scored on the whole text is not called dropped"


def test_what_one_race_dropped_another_search_measures_itself(tmp_path: Path) -> None:
    """The leader of a wide search may be no candidate of a narrower one, which has a best of its own."""
    narrow = Space(shape=SPACE.shape, widths=(3,), passes=(2,), betas=(0.5,))
    run(tmp_path, Synthetic(drop=lambda loops: loops != "5:8 x2 damped beta=0.25"), dropped_counts=True)
    steps = run(tmp_path, measurer := Synthetic(), space=narrow, name="narrow", dropped_counts=True)
    assert len(measurer.measured) == len(narrow) and steps[-1].best is not None


def test_a_result_that_was_removed_is_measured_again(tmp_path: Path) -> None:
    best = run(tmp_path, Synthetic())[-1].best
    assert best is not None
    lines = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(line for line in lines if f'"{best}"' not in line))
    assert run(tmp_path, measurer := Synthetic())[-1].best == best
    assert measurer.measured == [(best, 1.0)] and best in {result.loops for result in read_study(tmp_path).results}


def test_a_space_of_ruined_candidates_has_no_best() -> None:
    class Ruined(Synthetic):
        def scored(self, candidate: tuple[Loop, ...], share: float) -> Scored:
            one = super().scored(candidate, share)
            return Scored(result=replace(one.result, status="ruined", values={}, reason="not finite"))

    for algorithm in sorted(ALGORITHMS.keys() - {"gp"}):
        steps = run(None, Ruined(), algorithm=algorithm, evaluations=20)
        assert {score for step in steps for score in step.scores} == {None} and steps[-1].best is None


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (dict(algorithm="best"), "unknown search algorithm 'best'"),
        (dict(algorithm="tpe"), "say how many --evaluations, of 84 candidates"),
        (dict(evaluations=0), "evaluations is 0; give at least 1"),
        (dict(evaluations=-2), "evaluations is -2"),
        (dict(evaluations=math.nan), "evaluations is nan"),
    ],
)
def test_settings_that_end_nowhere_are_refused(tmp_path: Path, settings: Any, error: str) -> None:
    with pytest.raises(PlacementError, match=error):
        run(tmp_path, Synthetic(), **settings)
    assert not (tmp_path / "searches").exists()


def test_a_measurer_that_leaves_one_out_is_found(tmp_path: Path) -> None:
    class Lazy(Synthetic):
        def __call__(self, candidates: Any, share: float, known: Any, tell: Any) -> None:
            super().__call__(candidates[1:], share, known, tell)

    with pytest.raises(PlacementError, match="was asked for and not measured"):
        run(tmp_path, Lazy())
