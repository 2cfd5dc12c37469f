"""What searches agree on: centres, ranks, the front, and what the text cannot tell apart."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

import placement_studies as studies
from loopwise.loops import parse_loops
from loopwise.placement.space import PlacementError
from loopwise.placement.stability import (
    best_of,
    centre_of,
    near_best,
    pareto_front,
    spreads_of,
    summarise,
    winners_of,
    write_summary,
)
from loopwise.records import CandidateResult, StepOfSearch, StudyError, StudyWriter, read_study


def scored(loops: str, loss: float, ratio: float = 1.2, **more: object) -> CandidateResult:
    values = {"loss_nats": loss, "plain_loss_nats": 3.0 - loss}
    return CandidateResult(**{"loops": loops, "layer_pass_ratio": ratio, "status": "scored", "values": values} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loops", "centre"),
    [
        ("12:18 x2", 0.5),
        ("0:2 x2 + 10:16 x2", (2 * 1 + 6 * 13) / 8 / 30),
        ("10:18 x2 + 10.mlp x3 in pass 1", 14 / 30),
        ("10:18 x2 + 12:14 x3", 14 / 30),
        ("4.mlp x2 + 9.mlp x3", 7 / 30),
    ],
)
def test_centre(loops: str, centre: float) -> None:
    assert centre_of(parse_loops(loops), 30) == pytest.approx(centre)


def test_no_loop_has_no_centre() -> None:
    with pytest.raises(PlacementError, match="unlooped"):
        centre_of((), 30)


def test_best_by_each_objective(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, studies.header())
    writer.append(
        [
            scored("", 1.0),
            scored("10:12 x2", 2.0),
            scored("12:14 x2", 1.9),
            scored("14:16 x2", 1.5, status="dropped", share=0.25),
            scored("16:18 x2", 1.4, share=0.5),
            scored("10:12 x2", 0.0, measure="accuracy:ladder", values={"accuracy": 0.3}),
            scored("12:14 x2", 0.0, measure="accuracy:ladder", values={"accuracy": 0.2}),
        ]
    )
    study = read_study(tmp_path)
    found = {objective: best_of(study, objective) for objective in ("ppl_t", "ppl", "accuracy:ladder", "accuracy:other", "kl")}
    assert {name: best and best.loops for name, best in found.items()} == {
        "ppl_t": "12:14 x2",
        "ppl": "10:12 x2",
        "accuracy:ladder": "10:12 x2",
        "accuracy:other": None,
        "kl": None,
    }


def test_front_keeps_what_no_cheaper_one_beats_and_the_unlooped_model() -> None:
    results = [scored("", 2.0, 1.0), scored("a", 2.1, 1.1), scored("b", 1.9, 1.2), scored("c", 1.95, 1.2), scored("d", 1.9, 1.3)]
    results += [scored("e", 1.7, 1.4), scored("f", 1.0, 1.05, share=0.5), scored("g", 1.0, 1.05, status="dropped", share=0.5)]
    assert [one.loops for one in pareto_front(results)] == ["", "b", "e"]
    assert pareto_front([]) == ()


def test_near_best_is_by_paired_losses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base, noise = rng.gamma(2, 1, 400), rng.standard_normal(400) * 0.1
    noise -= noise.mean()
    error = noise.std(ddof=1) / math.sqrt(400)
    losses = {"10:12 x2": base, "11:13 x2": base + noise + 0.5 * error, "12:14 x2": base + noise + 1.5 * error, "13:15 x2": base + 0.001}
    writer = StudyWriter(tmp_path, studies.header())
    results = [scored(loops, float(array.mean())) for loops, array in losses.items()]
    writer.append([*results, scored("14:16 x2", 9.0)], {loops: array.astype(np.float32) for loops, array in losses.items()})
    near, compared = near_best(read_study(tmp_path))
    # A difference that is the same at every position is sure, however small; one as large as its error is not.
    assert [one.loops for one in near] == ["10:12 x2", "11:13 x2"] and compared == 4
    assert near[1].standard_error_nats == pytest.approx(error, rel=1e-3)


def test_rank_is_the_grids_once_it_ended(tmp_path: Path) -> None:
    grid = studies.windows(passes=(2,), betas=(0.25,))
    writer = studies.write_study(tmp_path, grid)
    ordered = sorted(
        (one for one in writer.results.values() if one.loops and one.status == "scored"), key=lambda one: one.values["loss_nats"]
    )
    third = ordered[2].loops
    studies.search(writer, "local", [third, ordered[-1].loops])
    (before,) = winners_of(read_study(tmp_path))
    assert (before.loops, before.rank, before.num_ranked, before.basis) == (third, 3, len(ordered), "scored")
    half = [one for one in grid if one != ordered[0].loops]
    studies.search(writer, "part", half, algorithm="grid", space={"num_candidates": len(grid)})
    assert {one.basis for one in winners_of(read_study(tmp_path))} == {"scored"}
    studies.search(writer, "smaller", half, algorithm="grid", space={"num_candidates": len(half)})
    after = {one.search: one for one in winners_of(read_study(tmp_path))}["local"]
    assert (after.rank, after.num_ranked, after.basis) == (2, len(ordered) - 1, "grid")
    assert after.num_ranked + after.num_behind == len(half)


def test_depth_rule_ranks_by_place_alone(tmp_path: Path) -> None:
    loops = ("0:4 x2", "14:17 x2", "20:24 x2")
    trace = StudyWriter(tmp_path, studies.header()).search("rule", {"algorithm": "random", "objective": "depth_rule"})
    trace.append(StepOfSearch(number=0, loops=loops, share=1.0, scores=(0.4, 0.008, 0.2), evaluations=3, best=loops[2], best_score=0.2))
    trace.close()
    (winner,) = winners_of(read_study(tmp_path))
    assert (winner.rank, winner.num_ranked, winner.seed, winner.centre) == (2, 3, None, pytest.approx(22 / 30))


def test_spreads_by_seed_text_and_model(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    grid = studies.windows(passes=(2,), betas=(0.25,))
    studies.full_study(folders[0], candidates=grid)
    studies.full_study(folders[1], candidates=grid, shift=0.06, seeds=(0,), mixture_sha256="b" * 64)
    summary = write_summary(folders[0], [folders[1]])
    assert json.loads((folders[0] / "summary.json").read_text()) == json.loads(json.dumps(summary.to_json()))
    spreads = {(one.group, one.value): one for one in summary.spreads}
    centres = [one.centre for one in summary.winners]
    assert len(centres) == 5 + 3 and spreads["all", "all"].mean == pytest.approx(statistics.fmean(centres))
    assert spreads["all", "all"].standard_deviation == pytest.approx(statistics.stdev(centres))
    assert spreads["seed", "1"].num_searches == 2 and spreads["seed", "0"].num_searches == 6
    texts = [one for one in summary.spreads if one.group == "text"]
    assert sorted(one.num_searches for one in texts) == [3, 5]
    assert spreads["text", "b" * 64].mean > min(one.mean for one in texts)
    assert spreads_of(summary.winners[:1])[0].standard_deviation is None


def test_a_study_without_results_has_an_empty_summary(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, studies.header())
    writer.search("tpe", {"algorithm": "tpe", "seed": 0, "objective": "ppl_t", "space": {"num_candidates": 9}}).close()
    summary = summarise(read_study(tmp_path))
    assert (summary.best, summary.near_best, summary.pareto, summary.winners, summary.spreads) == (None, (), (), (), ())
    with pytest.raises(StudyError, match="holds no study"):
        write_summary(tmp_path / "nowhere")
