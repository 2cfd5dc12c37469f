"""Bayesian optimisation with a Gaussian process, Optuna's."""

from __future__ import annotations

from typing import Any

from loopwise.placement.space import Space

from .optuna_search import START_SIZE, optuna_search
from .values import Search


def gaussian_process(space: Space, seed: int) -> Search:
    """Optuna's GPSampler, one candidate at a time. It models the parameters that all candidates have, and draws the others."""

    def sampler(samplers: Any) -> Any:
        return samplers.GPSampler(seed=seed, n_startup_trials=START_SIZE, deterministic_objective=True, warn_independent_sampling=False)

    return optuna_search(space, seed, sampler, batch_size=1)
