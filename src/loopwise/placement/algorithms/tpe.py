"""Tree-structured Parzen estimator (Bergstra et al. 2011), Optuna's."""

from __future__ import annotations

from typing import Any

from loopwise.placement.space import Space

from .optuna_search import START_SIZE, optuna_search
from .values import Search

BATCH_SIZE = 4


def parzen_estimator(space: Space, seed: int) -> Search:
    """Optuna's TPESampler over all parameters jointly; candidates of one batch keep apart by its constant liar."""

    def sampler(samplers: Any) -> Any:
        return samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=START_SIZE)

    return optuna_search(space, seed, sampler, batch_size=BATCH_SIZE)
