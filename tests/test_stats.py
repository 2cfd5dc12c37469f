"""Statistics against naive references, statsmodels and scipy, and against the paper's tables."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from loopwise import stats
from loopwise.stats import Bootstrap, StatsError


def naive_macro(differences, resamples, rng):
    """The paired bootstrap as one would write it on a blackboard."""
    draws = []
    for _ in range(resamples):
        means = []
        for array in differences:
            num_items = array.shape[1]
            items = rng.integers(num_items, size=num_items)
            means.append(np.mean([array[seed][items].mean() for seed in range(array.shape[0])]))
        draws.append(np.mean(means))
    draws = np.array(draws)
    below, above = np.sum(draws <= 1e-12), np.sum(draws >= -1e-12)
    p = min(1.0, 2 * (1 + min(below, above)) / (resamples + 1))
    return draws, np.percentile(draws, [2.5, 97.5]), np.percentile(draws, [5, 95]), p


def answers(rng, seeds, items, gain=0.0):
    """Differences of two arms' right answers, items of unequal difficulty."""
    level = rng.beta(1, 1, size=items)
    looped, twin = (rng.random((seeds, items)) < np.clip(level + shift, 0, 1) for shift in (gain, 0.0))
    return looped.astype(float) - twin.astype(float)


@pytest.mark.parametrize("seeds", [1, 4])
def test_macro_bootstrap_equals_the_naive_one(seeds):
    rng = np.random.default_rng(3)
    differences = [answers(rng, seeds, 300, 0.02), answers(rng, seeds, 60, 0.05), answers(rng, seeds, 30)]
    draws, ci95, ci90, p = naive_macro(differences, 3000, rng)
    found = stats.macro_bootstrap(differences, Bootstrap(resamples=20_000))
    assert found.value == pytest.approx(np.mean([d.mean() for d in differences]), abs=1e-12)
    error = draws.std()
    assert found.standard_error == pytest.approx(error, rel=0.05)
    assert found.ci95 == pytest.approx(ci95, abs=0.15 * error)
    assert found.ci90 == pytest.approx(ci90, abs=0.12 * error)
    assert found.p_value == pytest.approx(p, abs=0.03)


def test_standard_error_is_the_closed_form():
    rng = np.random.default_rng(4)
    differences = [answers(rng, 4, 500), answers(rng, 4, 100)]
    exact = np.sqrt(sum(d.mean(axis=0).var() / d.shape[1] for d in differences)) / 2
    assert stats.macro_bootstrap(differences, Bootstrap(resamples=20_000)).standard_error == pytest.approx(exact, rel=0.02)


def test_few_distinct_values_and_many_draw_from_the_same_distribution():
    rng = np.random.default_rng(5)
    plain = answers(rng, 2, 400, 0.03)
    jittered = plain + 1e-7 * rng.normal(size=plain.shape)  # every item distinct: indices are drawn
    few, many = (stats.macro_bootstrap([d], Bootstrap(resamples=20_000)) for d in (plain, jittered))
    assert few.ci95 == pytest.approx(many.ci95, abs=0.1 * few.standard_error)
    assert few.standard_error == pytest.approx(many.standard_error, rel=0.02)


def test_benchmarks_weigh_the_same_whatever_their_size():
    large, small = np.full((1, 1000), 0.0), np.full((1, 10), 1.0)
    assert stats.macro_bootstrap([large, small]).value == 0.5


def test_the_same_draw_serves_all_seeds():
    """Two seeds that agree on every item tell no more than one: the interval must not shrink."""
    one = answers(np.random.default_rng(6), 1, 300)
    both = np.concatenate([one, one])
    assert stats.macro_bootstrap([both]).ci95 == stats.macro_bootstrap([one]).ci95


def test_p_value_has_a_floor_and_a_ceiling():
    sure = stats.macro_bootstrap([np.ones((1, 50))], Bootstrap(resamples=999))
    assert sure.p_value == 2 / 1000
    assert stats.macro_bootstrap([np.zeros((2, 50))]).p_value == 1.0
    assert stats.macro_bootstrap([np.zeros((2, 50))]).ci95 == (0.0, 0.0)


def test_p_value_and_interval_agree():
    rng = np.random.default_rng(8)
    outside = 0
    for n in range(60):
        found = stats.macro_bootstrap([answers(rng, 2, 120, 0.06)], Bootstrap(resamples=2000, seed=n))
        if abs(found.p_value - 0.05) > 0.003:
            excluded = found.ci95[0] > 0 or found.ci95[1] < 0
            outside += excluded
            assert excluded == (found.p_value < 0.05)
    assert 5 < outside < 55


def test_swapping_the_arms_turns_the_interval_round():
    differences = [answers(np.random.default_rng(9), 2, 200, 0.05)]
    ahead, behind = stats.macro_bootstrap(differences), stats.macro_bootstrap([-differences[0]])
    assert ahead.value == -behind.value
    assert ahead.ci95 == pytest.approx((-behind.ci95[1], -behind.ci95[0]), abs=0.004)
    assert ahead.p_value == pytest.approx(behind.p_value, abs=0.01)


def test_numbers_repeat_and_another_seed_gives_others():
    differences = [answers(np.random.default_rng(10), 2, 200, 0.02)]
    assert stats.macro_bootstrap(differences) == stats.macro_bootstrap(differences)
    assert stats.macro_bootstrap(differences) != stats.macro_bootstrap(differences, Bootstrap(seed=1))
    both = Bootstrap(resampling="items and seeds")
    assert stats.macro_bootstrap(differences, both) == stats.macro_bootstrap(differences, both)


def test_ten_thousand_resamples_of_five_benchmarks_in_three_seconds():
    rng = np.random.default_rng(11)
    differences = [answers(rng, 4, 2000, 0.01) for _ in range(5)]
    for one in (differences, [d + 1e-6 * rng.normal(size=d.shape) for d in differences]):
        started = time.process_time()
        stats.macro_bootstrap(one)
        assert time.process_time() - started < 3


def test_resampling_seeds_adds_their_variance():
    rng = np.random.default_rng(12)
    shifts = np.array([0.08, -0.06, 0.02, -0.03])
    noisy = answers(rng, 4, 2000) + shifts[:, None]
    items, both = (stats.macro_bootstrap([noisy], Bootstrap(resampling=kind)) for kind in ("items", "items and seeds"))
    of_seeds = noisy.mean(axis=1).var(ddof=1) / 4
    assert both.standard_error == pytest.approx(np.sqrt(items.standard_error**2 + of_seeds), rel=0.02)
    assert both.value == items.value


def test_seeds_are_drawn_once_for_all_benchmarks():
    """Opposite training luck on two benchmarks cancels in the macro mean."""
    luck = np.array([[0.1], [-0.1]]) * np.ones((2, 50))
    both = Bootstrap(resampling="items and seeds")
    assert stats.macro_bootstrap([luck, -luck], both).standard_error == pytest.approx(0, abs=1e-12)
    assert stats.macro_bootstrap([luck, luck], both).standard_error == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize(
    ("arrays", "resampling", "message"),
    [
        ([], "items", "no benchmark"),
        ([np.zeros(5)], "items", "shape"),
        ([np.zeros((1, 0))], "items", "shape"),
        ([np.array([[0.0, np.nan]])], "items", "not finite"),
        ([np.zeros((1, 5))], "items and seeds", "at least 2"),
        ([np.zeros((2, 5)), np.zeros((3, 5))], "items and seeds", "equally many"),
    ],
)
def test_arrays_that_cannot_be_resampled_are_refused(arrays, resampling, message):
    with pytest.raises(StatsError, match=message):
        stats.macro_bootstrap(arrays, Bootstrap(resampling=resampling))


def test_bootstrap_settings_are_checked():
    with pytest.raises(StatsError, match="at least 100"):
        Bootstrap(resamples=10)
    with pytest.raises(StatsError, match="unknown resampling"):
        Bootstrap(resampling="seeds")  # type: ignore[arg-type]


def test_ratios_equal_the_naive_ones():
    rng = np.random.default_rng(13)
    counts = rng.integers(0, 5, size=200).astype(float)
    wins = rng.binomial(counts.astype(int), 0.6).astype(float)
    draws = stats.resample_ratios([wins], [counts], Bootstrap(resamples=20_000))[0]
    naive = []
    for _ in range(3000):
        items = rng.integers(200, size=200)
        naive.append(wins[items].sum() / counts[items].sum())
    assert draws.mean() == pytest.approx(np.mean(naive), abs=0.003)
    assert draws.std() == pytest.approx(np.std(naive), rel=0.06)


def test_a_resample_without_any_answer_of_the_subset_keeps_the_observed_ratio():
    draws = stats.resample_ratios([np.array([1.0, 0.0])], [np.array([1.0, 0.0])], Bootstrap(resamples=200))
    assert (draws == 1.0).all()
    with pytest.raises(StatsError, match="no answer in the subset"):
        stats.resample_ratios([np.zeros(3)], [np.zeros(3)], Bootstrap())


def test_difference_of_differences():
    rng = np.random.default_rng(14)
    before, after = [answers(rng, 2, 300)], [answers(rng, 3, 300, -0.2)]
    found = stats.difference_of_differences(after, before)
    assert found.value == pytest.approx(after[0].mean() - before[0].mean())
    per_item = after[0].mean(axis=0) - before[0].mean(axis=0)
    assert found.standard_error == pytest.approx(per_item.std() / np.sqrt(300), rel=0.03)
    assert found.ci95[1] < 0 and found.p_value < 0.001
    same = stats.difference_of_differences(before, before)
    assert (same.value, same.p_value) == (0.0, 1.0)
    with pytest.raises(StatsError, match="items per benchmark differ"):
        stats.difference_of_differences([np.zeros((1, 4))], [np.zeros((1, 5))])
    with pytest.raises(StatsError, match="same seeds"):
        stats.difference_of_differences(after, before, Bootstrap(resampling="items and seeds"))


@pytest.mark.parametrize(
    ("only_first", "only_second"), [(0, 0), (1, 0), (5, 0), (0, 6), (3, 3), (10, 4), (57, 31), (500, 430), (2000, 1999)]
)
def test_mcnemar_equals_statsmodels(only_first, only_second):
    from statsmodels.stats.contingency_tables import mcnemar

    expected = mcnemar([[10, only_first], [only_second, 10]], exact=True).pvalue
    assert stats.mcnemar_exact(only_first, only_second) == pytest.approx(min(1.0, expected), rel=1e-9)


def test_mcnemar_without_discordant_pairs_is_one_and_negative_counts_are_refused():
    assert stats.mcnemar_exact(0, 0) == 1.0
    with pytest.raises(StatsError):
        stats.mcnemar_exact(-1, 2)


def test_holm_equals_statsmodels():
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(15)
    for size in (1, 2, 4, 10):
        for _ in range(5):
            p = rng.random(size) ** 3
            assert stats.holm(list(p)) == pytest.approx(multipletests(p, method="holm")[1])
    assert stats.holm([0.04, 0.04, 0.04, 0.04]) == pytest.approx((0.16,) * 4)
    assert stats.holm([]) == ()
    with pytest.raises(StatsError):
        stats.holm([0.5, 1.2])


def test_sign_floor_is_the_sign_tests_smallest_p_value():
    assert [stats.sign_floor(n) for n in (0, 1, 5, 6)] == [1.0, 1.0, 0.0625, 0.03125]
    assert stats.sign_floor(12) == pytest.approx(stats.mcnemar_exact(12, 0))


TABLE_8 = [  # no-free-loop, Table 8: 95 % interval, equivalent
    ((-1.9, 0.8), True),
    ((-1.7, 2.7), False),
    ((-3.0, 4.2), False),
    ((-3.4, 2.9), False),
    ((-0.7, 0.8), True),
    ((-1.1, 1.1), True),
    ((-3.2, 1.6), False),
    ((-7.9, 3.8), False),
    ((-8.8, -0.4), False),
    ((-3.0, 7.1), False),
    ((-2.0, -0.1), True),
    ((-3.1, 0.5), False),
]


@pytest.mark.parametrize(("ci95", "expected"), TABLE_8)
def test_equivalence_gives_table_8(ci95, expected):
    centre, half = sum(ci95) / 2, (ci95[1] - ci95[0]) / 2 * 1.645 / 1.960
    assert stats.equivalent((centre - half, centre + half), 2.0) is expected


def test_equivalence_excludes_the_margin_itself():
    assert not stats.equivalent((-2.0, 1.0), 2.0)
    assert stats.items_for_equivalence(0.02) == 150


def test_detectable_effect_is_found_four_times_in_five():
    """A gain of the size that smallest_detectable names, in trials of that kind."""
    rng = np.random.default_rng(16)
    items, discordance, found, trials = 500, 0.2, 0, 400
    gain = stats.smallest_detectable([items], 1, discordance)
    for n in range(trials):
        kinds = rng.choice([1.0, -1.0, 0.0], p=[(discordance + gain) / 2, (discordance - gain) / 2, 1 - discordance], size=(1, items))
        found += stats.macro_bootstrap([kinds], Bootstrap(resamples=500, seed=n)).p_value < 0.05
    assert found / trials == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / trials))


def test_detectable_effect_by_formula():
    assert stats.detectable_effect(1.0) == pytest.approx(2.8016, abs=1e-3)
    one, four = (stats.planned_standard_error([1319, 500], seeds, 0.25) for seeds in (1, 4))
    assert one == pytest.approx(np.sqrt(0.25 / 1319 + 0.25 / 500) / 2)
    assert one / four == pytest.approx(2)
    assert stats.planned_standard_error([500], 4, 0.25, seed_correlation=1.0) == stats.planned_standard_error([500], 1, 0.25)
    with pytest.raises(StatsError):
        stats.planned_standard_error([], 1, 0.2)
    with pytest.raises(StatsError):
        stats.planned_standard_error([10], 1, 1.2)


def test_per_seed_differences():
    first = np.array([[1.0, 0.0], [0.0, 0.0]])
    second = np.array([[0.0, 0.0, 0.0], [-1.0, 0.0, -1.0]])
    assert stats.per_seed([first, second]) == pytest.approx((0.25, -1 / 3))
    with pytest.raises(StatsError, match="same seeds"):
        stats.per_seed([first, second[:1]])


def test_spearman():
    found = stats.spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    assert found.rho == pytest.approx(0.8)
    assert found.p_value == pytest.approx(0.104, abs=1e-3)
    with pytest.raises(StatsError, match="equal"):
        stats.spearman([1, 1, 1], [1, 2, 3])
    with pytest.raises(StatsError, match="at least 3"):
        stats.spearman([1, 2], [1, 2])


def test_importing_the_rooms_needs_numpy_only():
    code = "import sys, loopwise.stats, loopwise.protocol; print([m for m in ('torch', 'transformers', 'scipy') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_student_over_training_runs_is_the_closed_form_and_covers_where_a_bootstrap_of_three_seeds_does_not() -> None:
    draws = np.random.default_rng(0)
    held = {"t": 0, "bootstrap": 0}
    for _ in range(400):
        seeds, items = draws.normal(size=(3, 1)), 2 * draws.normal(size=(1, 40))
        array = seeds + items + 4 * draws.normal(size=(3, 40))
        ours, theirs = (
            stats.over_training_runs(array),
            stats.macro_bootstrap([array], Bootstrap(resamples=300, resampling="items and seeds")),
        )
        held["t"] += ours.ci95[0] <= 0 <= ours.ci95[1]
        held["bootstrap"] += theirs.ci95[0] <= 0 <= theirs.ci95[1]
        assert (ours.p_value < 0.05) == (not ours.ci95[0] <= 0 <= ours.ci95[1])
    assert held["t"] >= 376 > held["bootstrap"]  # 94 %
    error = math.sqrt(array.mean(axis=1).var(ddof=1) / 3 + array.mean(axis=0).var(ddof=1) / 40)
    assert ours.standard_error == pytest.approx(error) and ours.value == pytest.approx(array.mean())
    assert ours.ci95[1] - ours.value == pytest.approx(4.302653 * error, rel=1e-6)  # t(0.975, 2)
    assert ours.ci90[1] - ours.value == pytest.approx(2.919986 * error, rel=1e-6)
    assert stats.mean_half_width([1.0, 2.0]) == pytest.approx(12.7062 * 0.5, rel=1e-4) and stats.mean_half_width([1.0]) is None


@pytest.mark.parametrize("shape", [(1, 5), (3, 1)])
def test_student_needs_two_seeds_and_two_items(shape: tuple[int, int]) -> None:
    with pytest.raises(StatsError, match="needs at least two of each"):
        stats.over_training_runs(np.zeros(shape))


def test_runs_that_never_differ_show_nothing_and_ones_that_always_differ_alike_do() -> None:
    assert stats.over_training_runs(np.zeros((2, 4))).p_value == 1.0
    assert stats.over_training_runs(np.ones((2, 4))).p_value == 0.0
