"""The contract of the nine search algorithms, on landscapes whose scores are known."""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from loopwise.loops import format_loops
from loopwise.placement.algorithms import ALGORITHMS, Ask, algorithm_named
from loopwise.placement.algorithms.optuna_search import build_candidate, choices_of
from loopwise.placement.space import Candidate, PlacementError, Space
from test_placement_space import SMALL, shape_of

WINDOWS = Space(shape=shape_of(24), passes=(2, 3))
MIXED = Space(shape=shape_of(16), widths=(2, 3, 4), passes=(2, 3), structures=("windows", "window+mlp", "mlp"), max_cost=1.25)
SPACES = {"windows": WINDOWS, "mixed": MIXED}
EVALUATIONS = {"gp": 13, "tpe": 30}
Score = Callable[[Space, Candidate], float]


def unimodal(space: Space, candidate: Candidate) -> float:
    """One valley over centre, width, passes, beta and the number of loops."""
    outer = candidate[0]
    centre = (outer.start + outer.stop) / 2 / space.shape.num_layers
    beta = 1.0 if outer.beta is None else outer.beta
    score = 3 + 8 * (centre - 0.47) ** 2 + 0.02 * (outer.stop - outer.start - 5) ** 2 + 0.05 * (outer.passes - 2) + (beta - 0.25) ** 2
    return score + 0.1 * (len(candidate) - 1) + 0.1 * (outer.part == "mlp")


def multimodal(space: Space, candidate: Candidate) -> float:
    """Three valleys along depth, the middle one lowest."""
    centre = (candidate[0].start + candidate[0].stop) / 2 / space.shape.num_layers
    return unimodal(space, candidate) + 0.2 * math.cos(6 * math.pi * (centre - 1 / 3))


def partly_ruined(space: Space, candidate: Candidate) -> float:
    """Loops at the first layers, and all of odd width, ruin the model."""
    ruined = candidate[0].start < 4 or (candidate[0].stop - candidate[0].start) % 2
    return math.inf if ruined else unimodal(space, candidate)


def all_ruined(space: Space, candidate: Candidate) -> float:
    """Nothing can be calibrated."""
    return math.inf


@dataclass
class Trace:
    """What a search asked and was told."""

    asks: list[Ask] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)
    evaluations: float = 0.0
    best: float = math.inf
    ended: bool = False


def search(name: str, space: Space, seed: int, score: Score, evaluations: float, replay: Sequence[list[float]] = ()) -> Trace:
    """Drive an algorithm, first with recorded scores. A part of the text counts as that part, and its scores are noisy."""
    trace = Trace()
    running = ALGORITHMS[name](space, seed)
    send: Any = None
    while trace.evaluations < evaluations:
        try:
            ask = running.send(send)
        except StopIteration:
            trace.ended = True
            break
        trace.asks.append(ask)
        send = list(replay[len(trace.scores)]) if len(trace.scores) < len(replay) else _scores(space, ask, score)
        for candidate, told in zip(ask.candidates, send, strict=True):
            trace.evaluations += ask.share
            if ask.share == 1.0 and trace.evaluations <= evaluations:
                trace.best = min(trace.best, told)
            assert candidate in space, format_loops(candidate)
        assert ask.candidates and len(set(ask.candidates)) == len(ask.candidates)
        trace.scores.append(send)
    return trace


def _scores(space: Space, ask: Ask, score: Score) -> list[float]:
    noise = 0.02 * math.sqrt(1 / ask.share - 1)
    return [score(space, candidate) + random.Random(format_loops(candidate)).gauss(0, noise) for candidate in ask.candidates]


@pytest.mark.parametrize("score", [unimodal, multimodal, partly_ruined, all_ruined])
@pytest.mark.parametrize("where", SPACES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_seed_gives_one_trace_inside_the_space_and_nothing_is_asked_twice(name: str, where: str, score: Score) -> None:
    evaluations = EVALUATIONS.get(name, 150)
    space = SPACES[where]
    trace = search(name, space, 5, score, evaluations)
    assert trace.evaluations >= evaluations or trace.ended
    asked = [(candidate, ask.share) for ask in trace.asks for candidate in ask.candidates]
    assert len(set(asked)) == len(asked)
    assert all(space.cost(candidate) <= (space.max_cost or math.inf) + 1e-9 for candidate, _ in asked)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    again = search(name, space, 5, score, evaluations)
    assert again.asks == trace.asks
    if name not in ("grid", "greedy"):
        assert search(name, space, 6, score, 4).asks[0] != trace.asks[0], "another seed, another search"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_replaying_a_cut_log_goes_on_as_if_it_had_not_been_cut(name: str) -> None:
    evaluations = EVALUATIONS.get(name, 90)
    whole = search(name, MIXED, 3, partly_ruined, evaluations)
    for cut in sorted({0, 1, len(whole.asks) // 2, len(whole.asks) - 1}):
        resumed = search(name, MIXED, 3, partly_ruined, evaluations, replay=whole.scores[:cut])
        assert resumed.asks == whole.asks and resumed.scores == whole.scores


def test_what_is_replayed_is_what_counts() -> None:
    whole = search("local", WINDOWS, 3, unimodal, 60)
    other = [[-score for score in scores] for scores in whole.scores[:1]]
    assert search("local", WINDOWS, 3, unimodal, 60, replay=other).asks != whole.asks


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("grid", "random", "greedy")])
def test_beats_random_at_equal_evaluations_where_there_is_one_valley(name: str) -> None:
    evaluations, seeds = {"gp": (24, range(2)), "tpe": (50, range(6))}.get(name, (50, range(20)))
    mine = [search(name, WINDOWS, seed, unimodal, evaluations).best for seed in seeds]
    randoms = [search("random", WINDOWS, seed, unimodal, evaluations).best for seed in range(100, 130)]
    assert statistics.mean(mine) < statistics.mean(randoms) - statistics.stdev(randoms) / math.sqrt(len(mine))


def test_greedy_growth_beats_random_at_equal_evaluations() -> None:
    def score(space: Space, candidate: Candidate) -> float:
        return unimodal(space, candidate) - 0.2 * (len(candidate) == 2 and candidate[1].part == "mlp" and candidate[1].in_pass == 1)

    space = Space(shape=shape_of(16), widths=(2, 3, 4, 5), passes=(2, 3), structures=("windows", "window+mlp"))
    greedy = search("greedy", space, 0, score, math.inf)
    assert greedy.ended and greedy.evaluations < len(space) / 20
    randoms = [search("random", space, seed, score, greedy.evaluations).best for seed in range(10)]
    assert greedy.best < statistics.mean(randoms)
    assert greedy.best == min(score(space, candidate) for candidate in space), "one valley: growth ends at the best of all"


def test_the_grid_is_the_space_and_ends_with_the_best() -> None:
    trace = search("grid", MIXED, 0, multimodal, math.inf)
    assert trace.ended and [candidate for ask in trace.asks for candidate in ask.candidates] == list(MIXED)
    assert trace.best == min(multimodal(MIXED, candidate) for candidate in MIXED)


@pytest.mark.parametrize("score", [unimodal, all_ruined])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "greedy"])
def test_a_small_space_is_asked_whole_and_the_search_ends(name: str, score: Score) -> None:
    space = Space(
        shape=shape_of(4), widths=(2, 3), passes=(2,), betas=(0.25, 0.5), structures=("window", "mlp"), mlp_passes=(2,), max_cost=1.5
    )
    trace = search(name, space, 0, score, 10 * len(space))
    assert trace.ended, "nothing is left to ask"
    asked = {candidate for ask in trace.asks for candidate in ask.candidates}
    assert asked == set(space)
    if name != "halving":
        assert trace.best == min(score(space, candidate) for candidate in space)


def test_halving_keeps_the_best_third_and_ends_on_the_whole_text() -> None:
    trace = search("halving", WINDOWS, 0, unimodal, 30)
    assert [(len(ask.candidates), ask.share) for ask in trace.asks[:6]] == [(27, 1 / 9), (9, 1 / 3), (3, 1.0)] * 2
    for ask, scores, kept in zip(trace.asks, trace.scores, trace.asks[1:], strict=False):
        if ask.share < 1.0:
            ranked = sorted(zip(scores, ask.candidates, strict=True), key=lambda pair: pair[0])
            assert kept.candidates == tuple(candidate for _, candidate in ranked[: len(kept.candidates)])
    assert not set(trace.asks[0].candidates) & set(trace.asks[3].candidates), "a bracket has new candidates"


@pytest.mark.parametrize("space", [WINDOWS, MIXED, Space(shape=shape_of(6), **SMALL)], ids=["windows", "mixed", "small"])
def test_every_point_of_the_cube_is_a_candidate_and_every_candidate_a_point(space: Space) -> None:
    rng = random.Random(0)
    for _ in range(60):
        drawn = build_candidate(space, lambda name, options: rng.randrange(len(options)))
        assert drawn in space
        wanted = space.sample(rng)
        choices = choices_of(space, wanted)

        def choose(name: str, options: Sequence[Any], choices: dict[str, Any] = choices) -> int:
            return options.index(choices[name]) if name == "form" else int(choices[name] * len(options))

        assert build_candidate(space, choose) == wanted


def test_optuna_keeps_quiet_and_its_log_level(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    for name in ("tpe", "gp"):
        search(name, MIXED, 0, unimodal, 12)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "") and not recwarn.list


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_without_optuna_one_line_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = r"^the algorithms tpe and gp need Optuna: pip install loopwise\[search\], or take another algorithm$"
    with pytest.raises(PlacementError, match=message):
        next(ALGORITHMS[name](WINDOWS, 0))


def test_the_table_of_algorithms() -> None:
    assert list(ALGORITHMS) == ["grid", "random", "local", "evolution", "annealing", "tpe", "gp", "greedy", "halving"]
    assert algorithm_named("tpe") is ALGORITHMS["tpe"]
    with pytest.raises(PlacementError, match=r"^unknown search algorithm 'anealing'; use one of grid, random, .*, halving$"):
        algorithm_named("anealing")
