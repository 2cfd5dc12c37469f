"""How alike candidates are, and who speaks for whom in a race."""

from __future__ import annotations

import numpy as np
import pytest

from loopwise.loops import parse_loops
from loopwise.placement import Race
from loopwise.placement.nearness import distance, nearest, representatives, spread, structure
from loopwise.placement.racing import look

WINDOW = "10:15 x2 damped beta=0.5"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (WINDOW, 0),
        ("10:15 x2 damped beta=0.25", 0.25),
        ("10:15 x3 damped beta=0.5", 0.5),
        ("11:15 x2 damped beta=0.5", 2),
        ("11:16 x2 damped beta=0.5", 4),
        ("20:22 x2 damped beta=0.5", 14),
        ("10:15 x2 damped beta=0.5 + 11.mlp x2", 1 + 1),
    ],
)
def test_distance_counts_half_layers_that_run_further(other: str, expected: float) -> None:
    ours, theirs = parse_loops(WINDOW), parse_loops(other)
    assert distance(ours, theirs) == distance(theirs, ours) == pytest.approx(expected)


def test_repeated_passes_reach_further_and_damped_ones_do_not() -> None:
    twice, thrice = parse_loops("10:15 x2"), parse_loops("10:15 x3")
    assert distance(twice, thrice) == 10 + 0.5


def test_the_nearest_others_speak_for_a_candidate() -> None:
    known = {parse_loops(f"{at}:{at + 3} x2"): at for at in (1, 5, 8, 20)}
    assert nearest(parse_loops("6:9 x2"), known, 2) == [5, 8]
    assert nearest(parse_loops("8:11 x2"), known, 1) == [1], "not by itself, and of windows as far apart the first"
    assert nearest(parse_loops("6:9 x2"), {}, 2) == []


def test_what_is_spread_lies_far_from_what_was_chosen_and_from_each_other() -> None:
    candidates = [parse_loops(f"{at}:{at + 2} x2") for at in range(0, 40, 2)]
    found = spread(candidates, candidates[:1], 3)
    assert len(set(found)) == 3 and candidates[0] not in found
    assert spread(candidates[:2], candidates[:1], 5) == [candidates[1]], "no more than there are"
    close = parse_loops("0:3 x2")
    assert close not in spread([close, *candidates], candidates[:1], 10)


def test_a_neighbour_that_is_known_decides_sooner_and_says_the_truth() -> None:
    draws = np.random.default_rng(5)
    leader = draws.gamma(1.0, 2.0, 3000)
    shape = draws.standard_normal(3000)
    neighbour = leader + 0.03 + 0.5 * shape
    candidate = leader + 0.02 + 0.45 * shape + 0.05 * draws.standard_normal(3000)
    unlooped = leader + 0.2 * draws.standard_normal(3000)
    candidate, leader, unlooped, neighbour = (one.astype(np.float32) for one in (candidate, leader, unlooped, neighbour))
    alone = look(Race(), candidate[:300], leader, unlooped[None], num_looks=6)
    both = look(Race(), candidate[:300], leader, np.stack([unlooped, neighbour]), num_looks=6)
    true = float((candidate - leader).mean())
    assert both.standard_error_nats < alone.standard_error_nats / 4
    assert abs(both.difference_nats - true) < 3 * both.standard_error_nats


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        ("3:5 x2 damped beta=0.25", "3:5 x4 damped beta=0.75", True),
        ("3:5 x2 damped beta=0.25", "3:6 x2 damped beta=0.25", False),
        ("3:5 x2 damped beta=0.25", "3:5 x2", False),
        ("3:5 x2", "3:5 x3", True),
        ("3:5.mlp x2", "3:5 x2", False),
        ("3:5.mlp x2", "3:5.mlp x3", True),
        ("3:5 x2 damped beta=0.25 + 9.mlp x2", "3:5 x4 damped beta=0.5 + 9.mlp x3", True),
        ("3:5 x2 damped beta=0.25 + 9.mlp x2", "3:5 x2 damped beta=0.25", False),
    ],
)
def test_siblings_differ_in_passes_and_anchors_alone(one: str, other: str, are: bool) -> None:
    assert (structure(parse_loops(one)) == structure(parse_loops(other))) is are


def test_the_gentlest_speaks_for_its_siblings() -> None:
    grid = [parse_loops(f"{at}:9 x{k} damped beta={beta}") for at in (3, 5) for k in (2, 3, 4) for beta in (0.25, 0.5, 0.75)]
    assert representatives(grid) == [parse_loops(f"{at}:9 x2 damped beta=0.75") for at in (3, 5)]
    undamped = [parse_loops(f"{at}:9 x{k}") for at in (3, 5) for k in (4, 2, 3)]
    assert representatives(undamped) == [parse_loops(f"{at}:9 x2") for at in (3, 5)]
    alone = [parse_loops(f"{at}:9 x2") for at in range(5)]
    assert representatives(alone) == alone and representatives([]) == []
