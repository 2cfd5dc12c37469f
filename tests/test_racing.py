"""Races: the sequential test keeps its stated error, and what it lets through is what the exhaustive grid finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loopwise.loops import format_loops, parse_loops
from loopwise.placement import Race, Ranks, Scored, Space, TextMeasurer, TextScorer, text_computer
from loopwise.placement.racing import Losses, look
from loopwise.placement.runners import KnownLosses
from loopwise.records import CandidateResult
from loopwise.scoring import expansion, losses_of
from placement_text import NUM_LAYERS, drawn_text, shape_of, sure_model

NUM_LOOKS, LOOK_POSITIONS = 8, 64
POSITIONS = NUM_LOOKS * LOOK_POSITIONS
Array = NDArray[np.float64]


def _dropped_at(race: Race, text: tuple[Array, Array], differences: Array) -> int | None:
    """The look at which a candidate with these differences to the leader is dropped."""
    leader, unlooped = (losses.astype(np.float32) for losses in text)
    candidate = (text[0] + differences).astype(np.float32)
    for number in range(1, NUM_LOOKS):
        end = number * LOOK_POSITIONS
        if look(race, candidate[:end], leader, unlooped[None], num_looks=NUM_LOOKS - 1).dropped:
            return number
    return None


def _text(draws: np.random.Generator) -> tuple[Array, Array]:
    """Losses of a leader and of the unlooped model, with heavy tails, in an order that means nothing."""
    leader = draws.gamma(0.8, 2.5, POSITIONS)
    return leader, leader + 0.1 * draws.standard_t(4, POSITIONS)


def _candidates(errors: float, count: int) -> list[tuple[tuple[Array, Array], Array]]:
    """Texts, and differences whose mean over the whole of it is ``errors`` paired standard errors; partly the unlooped model's."""
    draws = np.random.default_rng(0)
    found = []
    for _ in range(count):
        text = _text(draws)
        noise = 0.7 * (text[1] - text[0]) + 0.1 * draws.standard_t(4, POSITIONS)
        found.append((text, noise - noise.mean() + errors * noise.std(ddof=1) / np.sqrt(POSITIONS)))
    return found


def test_one_standard_error_behind_is_dropped_no_more_often_than_stated() -> None:
    race, count = Race(error=0.05), 2000
    dropped = sum(_dropped_at(race, *candidate) is not None for candidate in _candidates(1.0, count))
    assert dropped <= count * race.error + 3 * np.sqrt(count * race.error)
    assert dropped > 0, "a test that never drops proves nothing"


def test_one_that_is_better_by_the_tolerance_is_dropped_no_more_often_than_stated() -> None:
    count, dropped, strict = 2000, 0, 0
    for text, differences in _candidates(0.0, count):
        tolerance = differences.std(ddof=1) / np.sqrt(POSITIONS)  # one standard error, this time ahead of the leader
        dropped += _dropped_at(Race(tolerance_nats=tolerance), text, differences - tolerance) is not None
        strict += _dropped_at(Race(), text, differences - tolerance) is not None
    error = Race().error
    assert strict < dropped <= count * error + 3 * np.sqrt(count * error)


def test_with_a_tolerance_equals_go_before_the_end() -> None:
    ahead = [(text, differences) for text, differences in _candidates(0.0, 200)]
    race = Race(tolerance_nats=2 * float(np.mean([differences.std() for _, differences in ahead])) / np.sqrt(POSITIONS))
    gone = sum(_dropped_at(race, *candidate) is not None for candidate in ahead)
    assert gone > 50 and sum(_dropped_at(Race(), *candidate) is not None for candidate in ahead) < 10


def test_ones_far_behind_go_at_the_first_looks_and_equal_ones_stay() -> None:
    race = Race(error=0.001)
    far = [_dropped_at(race, *candidate) for candidate in _candidates(25.0, 200)]
    assert all(number is not None and number <= 2 for number in far)
    nearer = [_dropped_at(race, *candidate) for candidate in _candidates(8.0, 200)]
    assert sum(number is not None for number in nearer) > 190
    assert sum(_dropped_at(race, *candidate) is not None for candidate in _candidates(0.0, 1000)) <= 1
    assert all(_dropped_at(race, *candidate) is None for candidate in _candidates(-3.0, 200))


def test_what_the_unlooped_model_says_of_the_unread_part_is_taken_as_read() -> None:
    """A difference that is the unlooped model's own is known exactly after one look, however hard the rest of the text is."""
    draws = np.random.default_rng(3)
    leader, unlooped = _text(draws)
    unlooped = unlooped + np.linspace(0, 0.4, POSITIONS)  # the text's end is where loops matter
    true = 0.5 * float((unlooped - leader).mean())
    candidate = leader + 0.5 * (unlooped - leader)
    end = LOOK_POSITIONS
    candidate, leader, unlooped = (losses.astype(np.float32) for losses in (candidate, leader, unlooped))
    evidence = look(Race(), candidate[:end], leader, unlooped[None], num_looks=7)
    assert evidence.difference_nats == pytest.approx(true, abs=1e-4) and evidence.standard_error_nats < 1e-4 and evidence.dropped
    assert abs(float((candidate - leader)[:end].mean()) - true) > 0.02


def test_few_positions_and_identical_losses_decide_nothing() -> None:
    losses = np.linspace(1, 3, 48, dtype=np.float32)
    more = losses + np.float32(9) + np.sin(losses)
    losses, more = np.tile(losses, 10), np.tile(more, 10)
    assert not look(Race(), more[:20], losses, losses[None], num_looks=7).dropped
    assert look(Race(), more[:48], losses, losses[None], num_looks=7).dropped
    assert not look(Race(), losses[:48], losses, losses[None], num_looks=7).dropped
    assert not look(Race(), losses[:48], losses, more[None], num_looks=7).dropped
    assert look(Race(), more[:48], losses, np.stack([losses, more, more]), num_looks=7).dropped, "two that say the same"


@pytest.mark.parametrize("error", [0.0, 0.6, -1.0])
def test_an_error_that_means_nothing_is_refused(error: float) -> None:
    with pytest.raises(ValueError, match=f"race error {error}"):
        Race(error=error)


@pytest.mark.parametrize("tolerance", [-0.001, float("nan"), float("inf")])
def test_a_tolerance_that_means_nothing_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="race tolerance"):
        Race(tolerance_nats=tolerance)


RACE = Race(error=0.01)
GRID = tuple(Space(shape=shape_of(), widths=(1, 3), passes=(2, 3), betas=(0.25, 0.75)))


@pytest.fixture(scope="module")
def text() -> Any:
    model = sure_model()
    return model, drawn_text(model, num=60, length=48, fit=14)


def _measurer(text: Any, *, race: Race | None, max_group: int | None = None) -> TextMeasurer:
    model, mixture = text
    computer = text_computer(model, mixture, stride=2, batch_windows=2, max_group=max_group)
    return TextMeasurer(TextScorer(computer, shape_of(), race=race), Ranks())


class Notes:
    """Results as a ledger would keep them: the first of each candidate."""

    def __init__(self, known: Sequence[Scored] = ()) -> None:
        self.scored = {one.result.loops: one for one in known}
        self.told: list[str] = []

    def losses(self, loops: str) -> Losses | None:
        return self.scored[loops].losses if loops in self.scored else None

    def known(self, loops: str) -> CandidateResult | None:
        return self.scored[loops].result if loops in self.scored else None

    def tell(self, scored: Sequence[Scored]) -> None:
        for one in scored:
            self.told.append(one.result.loops)
            self.scored.setdefault(one.result.loops, one)


def _grid(measurer: TextMeasurer, known: Sequence[Scored] = ()) -> Notes:
    notes = Notes(known)
    measurer(GRID, 1.0, notes.known, notes.tell)
    assert {format_loops(candidate) for candidate in GRID} <= set(notes.scored)
    return notes


@pytest.fixture(scope="module")
def exhaustive(text: Any) -> Notes:
    return _grid(_measurer(text, race=None, max_group=1))


@pytest.fixture(scope="module")
def raced_by_four(text: Any) -> Notes:
    return _grid(_measurer(text, race=RACE, max_group=4))


def _order(notes: Notes) -> list[str]:
    scored = [one.result for one in notes.scored.values() if one.result.status == "scored"]
    return [result.loops for result in sorted(scored, key=lambda result: result.values["loss_nats"])]


@pytest.mark.parametrize("max_group", [1, 6])
def test_survivors_have_the_exhaustive_scores_and_the_best_survives(text: Any, exhaustive: Notes, max_group: int) -> None:
    raced = _grid(_measurer(text, race=RACE, max_group=max_group))
    dropped = [one.result for one in raced.scored.values() if one.result.status == "dropped"]
    assert len(dropped) >= len(GRID) / 4, "a race that drops nothing proves nothing"
    assert _order(raced)[0] == _order(exhaustive)[0]
    for loops, one in raced.scored.items():
        reference = exhaustive.scored[loops]
        if one.result.status == "scored":
            assert one.losses is not None and reference.losses is not None
            assert np.allclose(one.losses, reference.losses, atol=1e-5, rtol=0)
            assert one.result.values == pytest.approx(reference.result.values, abs=1e-6, rel=1e-6)
            if max_group == 1:
                assert np.array_equal(one.losses, reference.losses) and one.result.values == reference.result.values
    best = exhaustive.scored[_order(exhaustive)[0]]
    for result in dropped:
        behind = exhaustive.scored[result.loops]
        assert best.losses is not None and behind.losses is not None
        difference = behind.losses.astype(float) - best.losses
        assert difference.mean() > difference.std(ddof=1) / np.sqrt(len(difference)), "within one paired standard error of the best"


def test_what_is_dropped_says_when_and_why_and_has_an_estimate(raced_by_four: Notes, exhaustive: Notes) -> None:
    raced = raced_by_four
    best = exhaustive.scored[_order(exhaustive)[0]]
    assert best.losses is not None
    for result in (one.result for one in raced.scored.values() if one.result.status == "dropped"):
        assert 0 < result.share < 1 and result.reason is not None
        leader = result.reason.removeprefix("loses to ").split(" by ")[0]
        assert parse_loops(leader, NUM_LAYERS) in GRID and raced.scored[leader].result.status == "scored"
        assert result.values["num_score_positions"] == pytest.approx(result.share * len(best.losses))
        assert result.values["leader_difference_nats"] > 0
        true = exhaustive.scored[result.loops].result
        if true.status == "scored":
            assert abs(result.values["loss_nats"] - true.values["loss_nats"]) < 0.5


def test_the_leader_is_the_best_so_far(text: Any) -> None:
    measurer = _measurer(text, race=RACE, max_group=2)
    leaders: list[str] = []
    compare = measurer.scorer.compare
    measurer.scorer.compare = lambda runner, leader, known: leaders.append(format_loops(leader.candidate)) or compare(runner, leader, known)  # type: ignore[method-assign,func-returns-value]
    notes = _grid(measurer)
    losses = [notes.scored[leader].result.values["loss_nats"] for leader in leaders]
    assert losses == sorted(losses, reverse=True) and leaders[-1] in _order(notes)[:2], "the last wave may find a better one"


def test_a_first_look_is_not_read_again_and_neighbours_are_asked(text: Any) -> None:
    measurer = _measurer(text, race=RACE, max_group=4)
    scorer = measurer.scorer
    first: list[str] = []
    asked: list[int] = []
    look_at, compare = scorer._look, scorer.compare

    def counted(runners: Any, batch: Any) -> None:
        first.extend(format_loops(runner.candidate) for runner in runners if batch is scorer.computer.score[0])
        look_at(runners, batch)

    scorer._look = counted  # type: ignore[method-assign]
    scorer.compare = lambda runner, leader, readings: asked.append(len(readings.whole)) or compare(runner, leader, readings)  # type: ignore[method-assign,func-returns-value]
    _grid(measurer)
    assert sorted(first) == sorted(format_loops(candidate) for candidate in GRID)
    assert asked and min(asked) == 3 and asked == sorted(asked) and asked[-1] > 3, "what is read to the end speaks for those of later waves"


def test_the_first_look_says_how_far_it_is(text: Any) -> None:
    said: list[tuple[float, float]] = []
    measurer = _measurer(text, race=RACE, max_group=4)
    measurer.looked = lambda done, total: said.append((done, total))
    notes = Notes()
    measurer(GRID, 1.0, notes.known, notes.tell)
    assert len(said) > 2
    assert [done for done, _ in said] == sorted({done for done, _ in said})
    assert said[-1] == (len(GRID), len(GRID))


def test_a_candidate_is_judged_at_its_best_temperature(text: Any) -> None:
    """At no other temperature would what was read look better, so that a temperature from few tokens drops nobody.

    It looks a little better than it is: what the expansion leaves out is given in its favour.
    """
    measurer = _measurer(text, race=RACE)
    scorer = measurer.scorer
    for candidate in GRID[::7]:
        [runner] = scorer.heat([candidate])
        logits = scorer.computer.logits(scorer.computer.kept([candidate], scorer.computer.score[0])[0], scorer.computer.score[0])
        at_best = float(runner.losses().mean())
        others = [float(losses_of(logits, (1 / (runner.inverse * factor),))[0].mean()) for factor in np.linspace(0.75, 1.3, 12)]
        assert at_best <= min(others) + 1e-5 and at_best == pytest.approx(min(others), abs=2e-2)


def test_an_expansion_follows_the_loss_near_its_place(text: Any) -> None:
    scorer = _measurer(text, race=RACE).scorer
    batch = scorer.computer.score[0]
    logits = scorer.computer.logits(scorer.computer.kept([GRID[5]], batch)[0], batch)
    loss, slope, curvature = expansion(logits, 0.9).numpy()
    assert np.allclose(loss, losses_of(logits, (1 / 0.9,))[0], atol=1e-5)
    near = loss + slope * 0.03 + curvature * 0.03**2 / 2
    assert np.allclose(near, losses_of(logits, (1 / 0.93,))[0], atol=2e-3)


Keep = Callable[[int, str], bool]


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("keep", [lambda at, loops: at % 2 == 0, lambda at, loops: at < 20, lambda at, loops: at > 5])
def test_results_do_not_depend_on_where_a_search_was_killed(text: Any, raced_by_four: Notes, keep: Keep, has_record: bool) -> None:
    whole = raced_by_four
    known = [one for at, (loops, one) in enumerate(whole.scored.items()) if keep(at, loops)]
    measurer = _measurer(text, race=RACE, max_group=4)
    measurer.recorded = whole.losses if has_record else None
    again = _grid(measurer, known)
    assert set(again.scored) == set(whole.scored)
    for loops, one in whole.scored.items():
        other = again.scored[loops].result
        assert (other.status, other.share, other.values, other.reason) == (
            one.result.status, one.result.share, one.result.values, one.result.reason
        )  # fmt: skip


def test_nothing_is_measured_again(text: Any, raced_by_four: Notes) -> None:
    assert _grid(_measurer(text, race=RACE, max_group=4), list(raced_by_four.scored.values())).told == []


def test_a_replayed_search_races_on_against_the_same_leader(text: Any) -> None:
    more = (parse_loops("1:5 x2 damped beta=0.5", NUM_LAYERS), parse_loops("0:5 x2 damped beta=0.5", NUM_LAYERS))
    first, second = (_measurer(text, race=RACE, max_group=6) for _ in range(2))
    whole = _grid(first)
    second.replay(GRID, whole.known)
    ends = []
    for measurer in (first, second):
        notes = Notes(list(whole.scored.values()))
        measurer(more, 1.0, notes.known, notes.tell)
        ends.append([notes.scored[format_loops(one)].result for one in more])
    for ours, theirs in zip(*ends, strict=True):
        assert (ours.status, ours.share, ours.values, ours.reason) == (theirs.status, theirs.share, theirs.values, theirs.reason)


def test_a_ruined_candidate_in_a_race_is_a_result(text: Any) -> None:
    model, _ = text
    measurer = _measurer(text, race=RACE, max_group=3)
    group = [parse_loops(one, NUM_LAYERS) for one in ("4:6 x2 damped beta=0.5", "4:6 x2 damped beta=0.25", "3:6 x2 damped beta=0.5")]
    plain = measurer.scorer.unlooped().losses
    leader = KnownLosses(candidate=group[0], losses=(plain + 9).astype(np.float32))  # so bad that nobody is dropped
    sound = measurer.scorer.race_group(group, leader)
    handle = model.model.layers[3].mlp.register_forward_hook(lambda module, args, output: output * float("inf"))
    try:
        found = measurer.scorer.race_group(group, leader)
    finally:
        handle.remove()
    assert [one.result.status for one in found] == ["scored", "scored", "ruined"] and "not finite" in (found[2].result.reason or "")
    assert [one.result.status for one in sound] == ["scored"] * 3
    for before, after in zip(sound[:2], found[:2], strict=True):
        assert before.losses is not None and after.losses is not None and np.allclose(before.losses, after.losses, atol=1e-6)
