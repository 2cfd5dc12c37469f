"""The exchange rate on curves whose rate is known, its intervals over many draws, its lines, and what it refuses to say."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import exchange_curves as curves
from exchange_curves import PAPER, PAPER_LINES, TWIN_TOKENS, law, looped, paper_rate, twin
from loopwise.analysis import AnalysisError, CostLine, PairedCurves, exchange_rate, line_words, threshold_words, thresholds
from loopwise.analysis.crossings import Bounds, crossing, draws_interval, student_interval
from loopwise.analysis.interpolation import interpolate, nonincreasing, places_of, slopes
from loopwise.stats import Bootstrap

LINES = [CostLine(name=name, ratio=ratio, source="given") for name, ratio in PAPER_LINES.items()]


def pair(ours, theirs, **more):
    return PairedCurves(looped=(ours,), twin=(theirs,), **more)


def test_pchip_equals_scipys():
    from scipy.interpolate import PchipInterpolator

    rng = np.random.default_rng(0)
    for num in (2, 3, 4, 9):
        x = np.cumsum(rng.uniform(0.1, 2, num))
        y = rng.normal(size=(5, num))
        y[0], y[1, 1:] = -x, y[1, 1]  # falling, and flat
        at = np.linspace(x[0], x[-1], 41)
        for row in range(5):
            assert interpolate(x, y, at)[row] == pytest.approx(PchipInterpolator(x, y[row])(at), abs=1e-12)
        assert np.isnan(interpolate(x, y, np.array([x[0] - 1e-9, x[-1] + 1e-9]))).all()
        assert (interpolate(x, y, x) == y).all()
    assert slopes(np.array([0.0, 1.0]), np.array([[3.0, 1.0]])).tolist() == [[-2.0, -2.0]]


def test_places_of_inverts_the_interpolation():
    rng = np.random.default_rng(1)
    x = np.cumsum(rng.uniform(0.2, 1, 8))
    y = -np.cumsum(rng.uniform(0.0, 1, (6, 8)), axis=1)
    targets = rng.uniform(y[:, -1:], y[:, :1], (6, 20))
    low, high = places_of(x, y, targets, np.zeros(20))
    assert (low == high).all()
    for row in range(6):
        assert interpolate(x, y[row], low[row]) == pytest.approx(targets[row], abs=1e-12)


def test_flat_places_give_the_nearest_and_ends_give_bounds():
    x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([[4.0, 2.0, 2.0, 1.0]])
    low, high = places_of(x, y, np.array([[2.0, 2.0, 2.0, 5.0, 0.5, 4.0, 1.0]]), np.array([0.0, 1.4, 9.0, 0.0, 0.0, 7.0, 0.0]))
    assert low[0].tolist() == [1.0, 1.4, 2.0, -math.inf, 3.0, 0.0, 3.0]
    assert high[0].tolist() == [1.0, 1.4, 2.0, 0.0, math.inf, 0.0, 3.0]


def test_rising_losses_are_pooled_and_falling_ones_left_alone():
    falling, rising = [5.0, 4.0, 3.5, 3.0], [5.0, 3.0, 4.0, 3.5]
    found = nonincreasing(np.array([falling, rising]))
    assert found.tolist() == [falling, [5.0, 3.5, 3.5, 3.5]]


@pytest.mark.parametrize("rate", [0.7, 0.9, 1.0, 1.1, 1.18, 1.6])
def test_a_known_rate_comes_back(rate):
    """At checkpoints a factor of two apart; the interpolation's error is far below the 3 % between the paper's lines."""
    found = exchange_rate(pair(looped(rate), twin()))
    assert [point.rate for point in found.points] == pytest.approx([rate] * len(found.points), rel=1.5e-3)
    assert found.largest_correction_nats == 0.0 and found.interval_over is None


def test_straight_lines_would_overstate_it():
    """Why the interpolation is not piecewise linear: the chords of a convex curve lie above it."""
    worst = 0.0
    for rate in np.linspace(1.0, 2.0, 21)[1:-1]:
        x, y, targets = np.log(TWIN_TOKENS), law(TWIN_TOKENS), np.array(looped(rate).losses)
        straight = np.interp(-targets, -y, x) - np.log(looped(rate).tokens)
        assert (np.exp(straight) >= rate - 1e-12).all()
        worst = max(worst, float(np.exp(straight).max() / rate))
    assert 1.012 < worst < 1.02


def test_a_model_against_itself_has_rate_one_exactly_whatever_its_noise():
    rng = np.random.default_rng(2)
    noisy = looped(1.0, TWIN_TOKENS, noise=rng.normal(0, 0.05, len(TWIN_TOKENS)))
    assert nonincreasing(np.array(noisy.losses)).tolist() != list(noisy.losses)
    found = exchange_rate(pair(noisy, replace(noisy, source="twin")))
    assert [point.rate for point in found.points] == [1.0] * len(TWIN_TOKENS)
    (line,) = found.lines
    assert line.crossing.status == "never" and "r does not exceed 1" in line_words(line, found)
    (threshold,) = thresholds(pair(noisy, noisy), None)
    assert {point.difference_millinats for point in threshold.points} == {0.0}


def test_the_papers_numbers_come_back_with_the_crossing_between_their_points():
    found = exchange_rate(pair(looped(paper_rate, sorted(PAPER)), twin()), LINES)
    assert [point.rate for point in found.points] == pytest.approx(list(PAPER.values()), abs=0.003)
    by_name = {one.line.name: one for one in found.lines}
    for name, between in {"twin": (150e6, 1.5e9), "FLOPs": (1.5e9, 5e9)}.items():
        assert by_name[name].crossing.status == "from"
        assert (by_name[name].crossing.after_tokens, by_name[name].crossing.before_tokens) == between
    assert by_name["FLOPs"].crossing.at_tokens == pytest.approx(math.exp(np.interp(1.16, [1.10, 1.18], np.log([1.5e9, 5e9]))), rel=0.06)
    assert "between 1.50B and 5.00B tokens" in line_words(by_name["FLOPs"], found)
    for name in ("layers", "time"):
        assert by_name[name].crossing.status == "never" and by_name[name].position == "below"
        assert "does not exceed" in line_words(by_name[name], found) and "1.18" in line_words(by_name[name], found)


def test_beyond_the_twins_curve_there_is_a_bound_and_no_rate():
    short = twin(TWIN_TOKENS[2:6])
    found = exchange_rate(pair(looped(1.1, TWIN_TOKENS[1:7]), short), LINES)
    first, *inside, at_end, beyond = found.points
    assert (first.rate, first.at_least) == (None, None) and first.at_most == pytest.approx(2.0)
    assert [point.rate for point in inside] == pytest.approx([1.1] * 3, rel=3e-3)
    assert (at_end.rate, at_end.at_most) == (None, None) and at_end.at_least == pytest.approx(1.0)
    assert beyond.at_least == pytest.approx(0.5)
    by_name = {one.line.name: one for one in found.lines}
    place = by_name["FLOPs"].crossing
    assert place.status == "never" and place.last_tokens == inside[-1].tokens
    assert place.undecided_tokens == (first.tokens, at_end.tokens, beyond.tokens)
    assert "At 100M, 1.60B, 3.20B tokens it cannot be told" in line_words(by_name["FLOPs"], found)
    assert by_name["twin"].crossing.status == "from" and by_name["twin"].crossing.after_tokens is None


def test_a_loop_that_falls_back_is_not_said_to_pass():
    found = exchange_rate(pair(looped(lambda at: np.where(at < 1e9, 1.3, 1.05)), twin()), LINES)
    by_name = {one.line.name: one for one in found.lines}
    assert by_name["twin"].crossing.status == "always" and by_name["FLOPs"].crossing.status == "fell"
    assert "r does not exceed 1.16 (training cost by FLOPs) at 6.40B tokens, though it did before" in line_words(by_name["FLOPs"], found)


def test_a_bound_decides_where_it_can():
    """The twin's curve ends, but at twice the looped model's tokens: r is above every line, though not known."""
    found = exchange_rate(pair(looped(2.5, TWIN_TOKENS[1:7]), twin(TWIN_TOKENS[:8])), LINES)
    assert found.points[-1].rate is None and found.points[-1].at_least == pytest.approx(2.0)
    assert {one.crossing.status for one in found.lines} == {"always"} and {one.position for one in found.lines} == {"above"}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], (0.0, 1.0, 0.5)),
        ([2, 2, 3], [2, 2, 3], (-math.inf, 0.0, None)),
        ([0, 1, 1], [0, 1, 1], (2.0, math.inf, None)),
        ([2, 1, 2], [2, 1, 2], (1.0, 2.0, 1.5)),
        ([2, 2, 1], [2, 2, 1], (2.0, math.inf, None)),
        ([0, 1, 1.4], [0, 1, math.inf], (1.0, math.inf, None)),
        ([0, 1, 2.5], [0, 1, math.inf], (1.0, 2.0, None)),
        ([0, -math.inf, 2], [0, 9, 2], (0.0, 2.0, None)),
        ([-math.inf, 2, 2], [9, 2, 2], (-math.inf, 1.0, None)),
    ],
)
def test_a_crossing_is_where_it_comes_to_stay_above(low, high, expected):
    assert crossing(np.arange(3.0), Bounds(np.array(low, dtype=float), np.array(high, dtype=float)), 1.5) == expected


def test_intervals_keep_unknown_ends_open():
    draws = np.arange(1000.0)
    (found,) = draws_interval(Bounds(draws[:, None], np.where(draws > 950, math.inf, draws)[:, None]))
    assert found[0] == pytest.approx(25, abs=1) and found[1] is None
    assert student_interval([1.0]) is None
    assert student_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)


def test_an_interval_of_a_crossing_ends_with_the_checkpoints():
    """Two seeds that cross at 1.7B and 4.6B: Student's t would reach far beyond both ends."""
    rates = [lambda at, shift=shift: paper_rate(at) + shift for shift in (0.0, 0.045)]
    pairs = PairedCurves(looped=tuple(looped(rate, sorted(PAPER)) for rate in rates), twin=(twin(), twin()))
    place = next(one for one in exchange_rate(pairs, LINES).lines if one.line.name == "FLOPs").crossing
    assert place.status == "from" and place.num_seeds_crossing == 2 and place.ci95_tokens == (None, None)


def test_intervals_over_seeds_cover():
    """Of 300 draws of three noisy pairs, the interval over seeds holds the true rate in about 95 %, resampled seeds would in 77 %."""
    rng, rate, held, drawn = np.random.default_rng(3), 1.1, 0, 0
    for _ in range(300):
        # What a seed does to both models alike cancels; what it does to each does not.
        shared, own = rng.normal(0, 0.01, (3, 1)), rng.normal(0, 0.001, (2, 3, 1))
        noise = rng.normal(0, 0.0005, (2, 3, 9))
        pairs = PairedCurves(
            looped=tuple(looped(rate, noise=(shared + own[0])[seed] + noise[0, seed, 1:-1]) for seed in range(3)),
            twin=tuple(twin(noise=(shared + own[1])[seed] + noise[1, seed]) for seed in range(3)),
        )
        point = exchange_rate(pairs).points[2]
        low, high = point.ci95_seeds
        held += low <= rate <= high
        again = np.exp(np.log(point.per_seed)[rng.integers(3, size=(400, 3))].mean(axis=1))
        drawn += np.quantile(again, 0.025) <= rate <= np.quantile(again, 0.975)
    assert 0.92 * 300 <= held <= 0.98 * 300
    assert drawn < 0.85 * 300


def document_pair(rng, rate, num=200):
    effects = rng.normal(0, 0.3, num)
    noise = rng.normal(0, 0.02, (2, 9, num)).cumsum(axis=1)  # a document's own way of being learned
    ours = curves.on_documents("looped", TWIN_TOKENS[1:-1], looped(rate).losses, effects, noise[0, 1:-1])
    return pair(ours, curves.on_documents("twin", TWIN_TOKENS, law(TWIN_TOKENS), effects, noise[1]))


def test_intervals_over_documents_cover():
    rng, rate, held, places = np.random.default_rng(4), 1.1, 0, 0
    for _ in range(100):
        found = exchange_rate(document_pair(rng, rate), LINES[:1], bootstrap=Bootstrap(resamples=300))
        low, high = found.points[1].ci95_documents
        held += low <= rate <= high
        places += found.interval_over == "documents"
    assert 88 <= held <= 100 and places == 100


def test_documents_pair_the_models():
    """Documents differ by 300 milli-nats, the models by 10: paired, the interval is that of the difference."""
    rng = np.random.default_rng(5)
    effects, noise = rng.normal(0, 0.3, 400), rng.normal(0, 0.01, (2, 3, 400))
    theirs = curves.on_documents("twin", TWIN_TOKENS[:3], law(TWIN_TOKENS[:3]), effects, noise[0])
    ours = curves.on_documents("looped", TWIN_TOKENS[:3], law(TWIN_TOKENS[:3]) - 0.01, effects, noise[1])
    (found,) = thresholds(pair(ours, theirs), None)
    for place, point in enumerate(found.points):
        low, high = point.ci95_documents
        differences = 1000 * (theirs.document_losses[place] - ours.document_losses[place])
        assert point.difference_millinats == pytest.approx(differences.mean(), abs=1e-9)
        assert high - low == pytest.approx(2 * 1.96 * differences.std() / 20, rel=0.15) and high - low < 5
    assert found.crossing.status == "always"


def test_document_weights_are_tokens():
    losses = np.array([[3.0, 1.0], [2.0, 1.0]])
    weights = np.array([1.0, 3.0])
    ours = curves.curve("looped", (10, 20), [1.5, 1.25], document_losses=losses, document_tokens=weights)
    theirs = curves.curve("twin", (10, 20), [1.6, 1.35], document_losses=losses + 0.1, document_tokens=weights)
    (found,) = thresholds(pair(ours, theirs), None)
    assert [point.difference_millinats for point in found.points] == pytest.approx([100, 100])
    assert found.points[0].ci95_documents == pytest.approx((100, 100))


def test_the_three_thresholds_come_at_their_tokens():
    """The second pass helps from 100M on, the twin is beaten from where r passes 1, equal compute where r passes its cost."""
    tokens = [*sorted(PAPER), 2_500_000_000, 400_000_000, 800_000_000]
    ours = looped(paper_rate, sorted(tokens))
    own = curves.curve("one pass", ours.tokens, np.array(ours.losses) + 0.01 * np.log(np.array(ours.tokens) / 3e8))
    first, second, third = thresholds(pair(ours, twin(), first_pass=(own,)), replace(LINES[0], ratio=1.16))
    assert first.crossing.at_tokens == pytest.approx(3e8, rel=0.01)
    at_one, at_cost = (math.exp(np.interp(level, list(PAPER.values()), np.log(list(PAPER)))) for level in (1.0, 1.16))
    assert second.crossing.at_tokens == pytest.approx(at_one, rel=0.05)
    assert third.crossing.at_tokens == pytest.approx(at_cost, rel=0.1)
    assert "between 400M and 800M tokens" in threshold_words(second, None)
    exact = 1000 * (law(5e9) - law(5e9 * 1.18))
    assert second.points[-1].difference_millinats == pytest.approx(exact, abs=0.1)


def test_equal_compute_stops_where_the_twin_was_not_trained_on():
    (_, third) = thresholds(pair(looped(1.1, TWIN_TOKENS), twin()), replace(LINES[0], ratio=2.0))
    assert [point.tokens for point in third.points] == list(TWIN_TOKENS[:-1])  # exactly twice the tokens is a checkpoint of the twin's
    exact = 1000 * (law(2 * TWIN_TOKENS[0]) - law(1.1 * TWIN_TOKENS[0]))
    assert third.points[0].difference_millinats == pytest.approx(exact, abs=1e-9)
    (_, none) = thresholds(pair(looped(1.1, TWIN_TOKENS[-2:]), twin()), replace(LINES[0], ratio=5.0))
    assert none.points == () and none.crossing is None and "not trained long enough" in threshold_words(none, None)


def test_the_bootstrap_of_documents_is_the_plain_one():
    """Drawing documents and making the whole curves anew, one resample after the other, gives the same interval."""
    pairs = document_pair(np.random.default_rng(6), 1.1)
    rng, rates = np.random.default_rng(7), []
    for _ in range(600):
        rows = rng.integers(200, size=200)
        again = [replace(one, losses=tuple(one.document_losses[:, rows].mean(axis=1)), document_losses=None) for one in pairs.all]
        rates.append(exchange_rate(pair(*again)).points[2].rate)
    found = exchange_rate(pairs, bootstrap=Bootstrap(resamples=2000)).points[2]
    assert found.ci95_documents == pytest.approx(np.quantile(rates, [0.025, 0.975]), abs=0.4 * np.std(rates))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pair(looped(1.0, [10, 20]), twin(TWIN_TOKENS)), "do not overlap: looped has losses from .* evaluate the twin earlier"),
        (lambda: pair(looped(2.5, TWIN_TOKENS[-2:]), twin(TWIN_TOKENS[:3])), "do not overlap: .* train the twin longer"),
        (lambda: PairedCurves(looped=(looped(1.0), looped(1.0)), twin=(twin(),)), "2 looped and 1 twin curves; give one of each"),
        (lambda: PairedCurves(looped=(looped(1.0, [1, 2]), looped(1.0, [1, 3])), twin=(twin(), twin())), "1 checkpoints at the same"),
    ],
)
def test_curves_that_do_not_belong_together_are_refused(make, message):
    with pytest.raises(AnalysisError, match=message):
        exchange_rate(make())


def test_intervals_that_there_is_nothing_for_are_refused():
    with pytest.raises(AnalysisError, match="need losses of documents"):
        exchange_rate(pair(looped(1.0), twin()), interval="documents")
    with pytest.raises(AnalysisError, match="need at least 2 pairs"):
        exchange_rate(pair(looped(1.0), twin()), interval="seeds")
    for ratio in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(AnalysisError, match="give a ratio"):
            CostLine(name="layers", ratio=ratio, source="given")
    ours = curves.curve("looped", (10, 20), [2.0, 1.0], document_losses=np.array([[2.0, 2.0], [1.0, 1.0]]))
    with pytest.raises(AnalysisError, match="have 2 and 3 documents"):
        pair(ours, curves.curve("twin", (10, 20), [2.0, 1.0], document_losses=np.array([[2.0] * 3, [1.0] * 3])))


def test_it_needs_no_torch():
    code = "import sys, loopwise.recipes.exchange_rate; assert not {'torch', 'transformers', 'altair', 'scipy'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
