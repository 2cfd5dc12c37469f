"""Siblings in a race: one candidate of each structure speaks for the others, and what is promised of a drop holds for them as well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from loopwise.loops import format_loops
from loopwise.placement import Candidate, Race, Ranks, Scored, Space, TextMeasurer, TextScorer, text_computer, waves
from loopwise.placement.nearness import representatives
from loopwise.placement.racing import Losses, look
from loopwise.placement.scorer import TextScorer as Scorer
from placement_text import drawn_text, shape_of, sure_model
from test_racing import LOOK_POSITIONS, NUM_LOOKS, POSITIONS, RACE, Notes

ENDS = [number * LOOK_POSITIONS for number in range(1, NUM_LOOKS)]
LOOKS = 4 * NUM_LOOKS
"""More than a candidate's end can rest on, its own and its siblings'."""


def _family(draws: np.random.Generator, behind: float, sibling_behind: float, explained: float) -> tuple[Losses, Losses, Losses, Losses]:
    """Losses of a leader, of the unlooped model, and of two siblings so many paired standard errors behind; heavy tails."""
    leader = draws.gamma(0.8, 2.5, POSITIONS)
    unlooped = leader + 0.1 * draws.standard_t(4, POSITIONS)
    shared = 0.7 * (unlooped - leader) + 0.1 * draws.standard_t(4, POSITIONS)
    own = draws.standard_t(4, POSITIONS)
    candidate = 0.6 * shared + 0.6 * shared.std() * np.sqrt(1 / explained - 1) * own / own.std()
    ends = []
    for differences, errors in ((shared, sibling_behind), (candidate, behind)):
        errors *= differences.std(ddof=1) / np.sqrt(POSITIONS)
        ends.append((leader + differences - differences.mean() + errors).astype(np.float32))
    return leader.astype(np.float32), unlooped.astype(np.float32), ends[0], ends[1]


def _ended(one: Losses, leader: Losses, unlooped: Losses, race: Race, sibling: Losses | None = None) -> int:
    """How many positions are read of a candidate."""
    for end in ENDS:
        if look(race, one[:end], leader, unlooped[None], num_looks=len(ENDS) if sibling is None else LOOKS, sibling=sibling).dropped:
            return end
    return POSITIONS


@pytest.mark.parametrize(("sibling_behind", "explained"), [(0.0, 0.95), (1.0, 0.95), (1.0, 0.995), (3.0, 0.95), (3.0, 0.6)])
def test_one_standard_error_behind_is_dropped_no_more_often_than_stated(sibling_behind: float, explained: float) -> None:
    """However the sibling does, although where its reading ends is for its own race to say."""
    race, count, draws = Race(error=0.1), 250, np.random.default_rng(1)
    dropped = 0
    for _ in range(count):
        leader, unlooped, sibling, candidate = _family(draws, 1.0, sibling_behind, explained)
        read = _ended(sibling, leader, unlooped, race)
        dropped += _ended(candidate, leader, unlooped, race, sibling[:read]) < POSITIONS
    assert dropped <= count * race.error + 2 * np.sqrt(count * race.error)


def test_siblings_of_one_that_was_read_further_need_a_fraction_of_what_they_would_read_alone() -> None:
    race, draws = Race(), np.random.default_rng(2)
    alone = spoken_for = 0
    for _ in range(60):
        leader, unlooped, sibling, candidate = _family(draws, 5.0, 3.0, 0.97)  # the gentler of two is less clearly behind
        alone += _ended(candidate, leader, unlooped, race)
        spoken_for += _ended(candidate, leader, unlooped, race, sibling[: _ended(sibling, leader, unlooped, race)])
    assert spoken_for < 0.7 * alone


def test_a_longer_reading_of_a_sibling_tells_what_the_candidates_own_part_cannot() -> None:
    draws = np.random.default_rng(3)
    leader, unlooped, sibling, candidate = _family(draws, 6.0, 6.0, 0.99)
    true, first = float((candidate - leader).mean(dtype=float)), LOOK_POSITIONS
    alone = look(Race(), candidate[:first], leader, unlooped[None], num_looks=7)
    further = look(Race(), candidate[:first], leader, unlooped[None], num_looks=7, sibling=sibling[: 6 * first])
    whole = look(Race(), candidate[:first], leader, unlooped[None], num_looks=7, sibling=sibling)
    assert whole.standard_error_nats < further.standard_error_nats < alone.standard_error_nats / 2
    for evidence in (further, whole):
        assert abs(evidence.difference_nats - true) < 3 * evidence.standard_error_nats
    known = look(Race(), candidate[:first], leader, np.stack([sibling, unlooped]), num_looks=7)
    assert whole.difference_nats == pytest.approx(known.difference_nats), "one that is read to the end is a neighbour like others"
    assert whole.standard_error_nats == pytest.approx(known.standard_error_nats)
    no_further = look(Race(), candidate[:first], leader, unlooped[None], num_looks=7, sibling=sibling[:first])
    assert no_further == alone


def test_identical_siblings_are_as_far_behind_as_each_other() -> None:
    leader, unlooped, sibling, _ = _family(np.random.default_rng(4), 9.0, 9.0, 0.9)
    evidence = look(Race(), sibling[:64], leader, unlooped[None], num_looks=7, sibling=sibling[:256])
    reference = look(Race(), sibling[:256], leader, unlooped[None], num_looks=7)
    assert evidence.difference_nats == pytest.approx(reference.difference_nats, abs=1e-6)
    assert evidence.standard_error_nats == pytest.approx(reference.standard_error_nats, rel=1e-3)
    assert not look(Race(), leader[:64], leader, leader[None], num_looks=7, sibling=leader[:256]).dropped


GRID = tuple(
    Space(
        shape=shape_of(),
        widths=(1, 3),
        passes=(2, 3, 4),
        betas=(0.25, 0.75),
        structures=("window", "mlp"),
        max_windows=1,
        mlp_passes=(2, 3),
    )
)


@pytest.fixture(scope="module")
def text() -> Any:
    model = sure_model()
    return model, drawn_text(model, num=32, length=48, fit=10)


def _measurer(text: Any, *, race: Race | None = RACE, max_group: int | None = 4, ranks: Any = None) -> TextMeasurer:
    model, mixture = text
    computer = text_computer(model, mixture, stride=2, batch_windows=4, max_group=max_group)
    return TextMeasurer(TextScorer(computer, shape_of(), race=race), ranks or Ranks())


def _measured(measurer: TextMeasurer, grid: Sequence[Candidate] = GRID) -> Notes:
    notes = Notes()
    measurer(grid, 1.0, notes.known, notes.tell)
    assert set(notes.scored) == {format_loops(candidate) for candidate in grid}
    return notes


@pytest.fixture(scope="module")
def exhaustive(text: Any) -> Notes:
    return _measured(_measurer(text, race=None))


@pytest.fixture(scope="module")
def raced(text: Any) -> Notes:
    return _measured(_measurer(text))


def _check_against(exhaustive: Notes, raced: Notes) -> None:
    """Survivors have the exhaustive scores, the best is among them, and nothing was dropped within one paired standard error of it."""
    scored = {loops: one for loops, one in exhaustive.scored.items() if one.losses is not None}
    best = min(scored.values(), key=lambda one: one.result.values["loss_nats"])
    assert raced.scored[best.result.loops].result.status == "scored" and best.losses is not None
    for loops, one in raced.scored.items():
        reference = exhaustive.scored[loops]
        if one.result.status == "scored":
            assert one.result.values == pytest.approx(reference.result.values, abs=1e-6, rel=1e-6)
        elif one.result.status == "dropped" and reference.losses is not None:
            difference = reference.losses.astype(float) - best.losses
            assert difference.mean() > difference.std(ddof=1) / np.sqrt(len(difference))
            assert one.read is not None and len(one.read) == one.result.values["num_score_positions"]


def test_survivors_have_the_exhaustive_scores_and_the_best_survives(exhaustive: Notes, raced: Notes) -> None:
    _check_against(exhaustive, raced)
    assert sum(one.result.status == "dropped" for one in raced.scored.values()) > len(GRID) / 4, "a race that drops nothing proves nothing"


def test_one_of_each_structure_races_before_its_siblings_are_looked_at(text: Any) -> None:
    measurer = _measurer(text)
    looked: list[Candidate] = []
    heat, compare = measurer.scorer.heat, measurer.scorer.compare
    siblings: list[tuple[Candidate, bool]] = []
    measurer.scorer.heat = lambda group, **peek: looked.extend(group) or heat(group, **peek)  # type: ignore[method-assign,func-returns-value]

    def noted(runner: Any, leader: Any, readings: Any) -> None:
        siblings.append((runner.candidate, readings.are_siblings))
        compare(runner, leader, readings)

    measurer.scorer.compare = noted  # type: ignore[method-assign]
    _measured(measurer)
    first = representatives(GRID)
    assert len(first) <= len(GRID) / 4 and set(looked[: len(first)]) == set(first) and len(looked) == len(set(looked)) == len(GRID)
    assert all(is_sibling == (candidate not in first) for candidate, is_sibling in siblings)


def test_a_peek_is_the_first_half_of_a_first_look(text: Any) -> None:
    scorer = _measurer(text).scorer
    for candidate in GRID[::9]:
        [runner], [peeked] = scorer.heat([candidate]), scorer.heat([candidate], peek=True)
        half, whole = peeked.expanded[0], runner.expanded[0]
        windows = len(scorer.computer.score[0].input_ids)
        assert half.size * 1.8 < whole.size < half.size * 2.2 and peeked.peeked and not runner.peeked
        if peeked.inverse == runner.inverse:
            expected = whole.reshape(3, windows, -1)[:, :, : half.shape[1] // windows]
            assert np.allclose(half.reshape(3, windows, -1), expected, atol=1e-5)
    short = text_computer(text[0], text[1], stride=2, batch_windows=2)
    assert short.peek is short.score[0], "too little to halve"


def test_a_grid_without_siblings_races_as_a_whole(text: Any) -> None:
    grid = tuple(Space(shape=shape_of(), widths=(1, 2, 3, 4), passes=(2,), betas=(0.5,)))
    measurer = _measurer(text)
    seen: list[bool] = []
    compare = measurer.scorer.compare
    measurer.scorer.compare = lambda runner, leader, readings: seen.append(readings.are_siblings) or compare(runner, leader, readings)  # type: ignore[method-assign,func-returns-value]
    _check_against(_measured(_measurer(text, race=None), grid), _measured(measurer, grid))
    assert len(grid) >= waves.HEAT and seen and not any(seen)


def test_one_structure_alone_is_raced_by_its_members(text: Any) -> None:
    betas = tuple(np.linspace(0, 0.95, 8).round(3))
    grid = tuple(one for one in Space(shape=shape_of(), widths=(5,), passes=(2, 3, 4), betas=betas) if one[0].start == 1)
    assert len(grid) >= waves.HEAT and len(representatives(grid)) == 1
    _check_against(_measured(_measurer(text, race=None), grid), _measured(_measurer(text), grid))


def test_ruined_representatives_leave_their_siblings_to_themselves(text: Any, exhaustive: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    ruined = {candidate for candidate in representatives(GRID) if candidate[0].start != 2}
    own = Scorer._look

    def look_at(self: Scorer, runners: Any, batch: Any) -> None:
        own(self, runners, batch)
        for runner in runners:
            if runner.candidate in ruined:
                runner.ended = self._ruined(runner.candidate, 1.0, "its losses are not finite")

    monkeypatch.setattr(Scorer, "_look", look_at)
    notes = _measured(_measurer(text))
    for candidate in ruined:
        assert notes.scored.pop(format_loops(candidate)).result.status == "ruined"
    others = Notes([one for loops, one in exhaustive.scored.items() if loops in notes.scored])
    _check_against(others, notes)


@pytest.mark.parametrize("ruin", [True, False])
def test_where_every_representative_is_ruined_a_sibling_leads(text: Any, monkeypatch: pytest.MonkeyPatch, ruin: bool) -> None:
    own, first = Scorer._look, set(representatives(GRID))

    def look_at(self: Scorer, runners: Any, batch: Any) -> None:
        own(self, runners, batch)
        for runner in runners:
            if ruin and runner.candidate in first:
                runner.ended = self._ruined(runner.candidate, 1.0, "its losses are not finite")

    monkeypatch.setattr(Scorer, "_look", look_at)
    notes = _measured(_measurer(text))
    assert sum(one.result.status == "ruined" for one in notes.scored.values()) == (len(first) if ruin else 0)
    assert any(one.result.status == "scored" for one in notes.scored.values())


def _facts(notes: Notes) -> dict[str, Any]:
    return {loops: (one.result.status, one.result.share, one.result.values, one.result.reason) for loops, one in notes.scored.items()}


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("has_record", [True, False])
def test_a_race_that_was_killed_anywhere_ends_as_if_it_had_not_been(text: Any, raced: Notes, has_record: bool) -> None:
    calls = 0
    for after in (3, 9, 18):
        notes = Notes()

        def tell(scored: Sequence[Scored], notes: Notes = notes, after: int = after) -> None:
            nonlocal calls
            if calls == after:
                raise Killed
            calls += 1
            notes.tell(scored)

        calls = 0
        with pytest.raises(Killed):
            _measurer(text)(GRID, 1.0, notes.known, tell)
        again = _measurer(text)
        again.recorded = notes.losses if has_record else None
        again(GRID, 1.0, notes.known, notes.tell)
        assert _facts(notes) == _facts(raced)


def test_what_a_peek_dropped_is_not_looked_at_again_when_a_search_goes_on(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first_ones, evidence_of = set(representatives(GRID)), Scorer._evidence
    gone = {format_loops(one) for one in GRID if one not in first_ones and one[0].start > 1}

    def evidence(self: Scorer, runner: Any, *more: Any) -> Any:
        found, part = evidence_of(self, runner, *more)
        return replace(found, dropped=found.dropped or format_loops(runner.candidate) in gone), part

    monkeypatch.setattr(Scorer, "_evidence", evidence)  # tiny models' candidates lie too near each other for a peek
    first, measurer = _measured(_measurer(text)), _measurer(text)
    assert all(first.scored[loops].result.share == pytest.approx(measurer.scorer.peek_part) for loops in gone)
    last = next(loops for loops in reversed(first.scored) if loops not in gone)
    notes = Notes([one for loops, one in first.scored.items() if loops != last])
    measurer.recorded = notes.losses
    looked: list[Candidate] = []
    heat, score = measurer.scorer.heat, measurer.scorer.score
    measurer.scorer.heat = lambda group, **peek: looked.extend(group) or heat(group, **peek)  # type: ignore[method-assign,func-returns-value]
    scored: list[Candidate] = []
    measurer.scorer.score = lambda group, share=1.0: scored.extend(group) or score(group, share)  # type: ignore[method-assign,func-returns-value]
    measurer(GRID, 1.0, notes.known, notes.tell)
    assert _facts(notes) == _facts(first) and scored == [], "whole losses come from the record"
    again = {format_loops(candidate) for candidate in looked}
    assert set(map(format_loops, first_ones)) <= again and len(again) == len(looked) < len(GRID) - len(gone) / 2


@dataclass
class Side:
    """One of two ranks, in threads."""

    rank: int
    barrier: threading.Barrier
    values: list[Any]
    size: int = 2

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(timeout=60)
        found = list(self.values)
        self.barrier.wait(timeout=60)
        return found


def test_two_ranks_find_what_one_finds(text: Any, raced: Notes) -> None:
    barrier, values, ends = threading.Barrier(2), [None, None], [Notes(), Notes()]

    def work(rank: int) -> Callable[[], None]:
        measurer = _measurer((deepcopy(text[0]), text[1]), ranks=Side(rank, barrier, values))

        def go() -> None:
            try:
                measurer(GRID, 1.0, ends[rank].known, ends[rank].tell)
            except BaseException:
                barrier.abort()
                raise

        return go

    threads = [threading.Thread(target=work(rank)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _facts(ends[0]) == _facts(ends[1]) == _facts(raced)
