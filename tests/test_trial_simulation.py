"""The two tests on simulated trials whose truth is known: false verdicts, coverage, power (the full figures: docs/two-tests.md).

Bounds are three binomial standard errors from the rate that theory or docs/two-tests.md gives.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest


def _load():
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "simulate_trials.py"
    spec = importlib.util.spec_from_file_location("simulate_trials", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate_trials"] = module
    spec.loader.exec_module(module)
    return module


simulations = _load()
QUICK = {"resamples": 500}


def error(rate: float, trials: int) -> float:
    """Three standard errors of a share."""
    return 3 * math.sqrt(rate * (1 - rate) / trials)


@pytest.mark.parametrize("world", ["BOTH_NULL", "ONE_AS_GOOD", "ALL_AS_GOOD"])
def test_null_trials_rarely_say_pays(world):
    """A two-sided test at 5 % wrongly finds a gain in 2.5 %; the largest p-value over several arms in fewer."""
    trials = 150
    rates = simulations.verdict_rates(getattr(simulations, world), trials=trials, **QUICK)
    assert rates["pays"] <= 0.025 + error(0.025, trials)
    if world == "BOTH_NULL":
        assert rates["first"] <= 0.025 + error(0.025, trials)
    else:
        assert rates["first"] > 0.95


def test_training_noise_is_what_resampling_seeds_is_for():
    """With noise between training runs, a first test that ignores it finds gains that are luck; the other interval does not."""
    world, trials = replace(simulations.BOTH_NULL, items=(1500,), unlooped=(), seed_sd=0.02), 100
    ignoring, counting = (simulations.verdict_rates(world, trials=trials, resampling=kind, **QUICK)["first"] for kind in simulations.KINDS)
    assert ignoring > 0.025 + error(0.025, trials)
    assert counting < ignoring
    assert counting <= 0.06 + error(0.06, trials)


@pytest.mark.parametrize("gain", [0.0, 0.04])
def test_intervals_of_named_contrasts_cover(gain):
    """Conditional on the trained models, whose own noise is part of the truth here."""
    world, trials = simulations.World(looped=0.5 + gain, twin=0.5, seed_sd=0.01), 500
    assert simulations.coverage(world, trials=trials) == pytest.approx(0.95, abs=error(0.95, trials))


def test_intervals_over_all_training_runs_cover_only_when_seeds_are_resampled():
    trials = 250
    items, both = (
        simulations.coverage(simulations.TRAINED, trials=trials, resampling=kind, of_runs=False, **QUICK) for kind in simulations.KINDS
    )
    assert items < 0.95 - error(0.95, trials)
    assert both == pytest.approx(0.95, abs=error(0.95, trials))


def test_a_comparator_chosen_on_the_items_is_covered_too_rarely_and_always_against_the_loop():
    trials = 300
    held, below = simulations.chosen_coverage(12, trials=trials, **QUICK)
    assert held < 0.95 - error(0.95, trials)
    assert held + below > 0.98


def test_a_gain_of_four_points_is_found():
    rates = simulations.verdict_rates(simulations.GAIN, trials=30, **QUICK)
    assert rates["first"] >= 0.8
    assert rates["does not pay"] <= 0.1


def test_the_simulated_accuracies_are_the_named_ones():
    world = simulations.World(looped=0.7, twin=0.3, items=(20_000,), seeds=2)
    trial = simulations.simulate(world, np.random.default_rng(0))
    assert trial.answers[0].mean(axis=(1, 2)) == pytest.approx([0.7, 0.3], abs=0.01)
    assert trial.levels == pytest.approx([0.7, 0.3])
    by_item = trial.answers[0].mean(axis=1)
    assert np.corrcoef(by_item)[0, 1] > 0.3  # the same items are hard for both
