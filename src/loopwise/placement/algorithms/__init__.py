"""Search algorithms: generators that yield candidates and are sent their scores. A new one is a file and a line below."""

from __future__ import annotations

from loopwise.placement.space import PlacementError

from .annealing import simulated_annealing
from .evolution import regularised_evolution
from .gp import gaussian_process
from .greedy import greedy_growth
from .grid import exhaustive_grid
from .halving import successive_halving
from .local import local_search
from .random_search import random_search
from .tpe import parzen_estimator
from .values import Algorithm, Ask

ALGORITHMS: dict[str, Algorithm] = {
    "grid": exhaustive_grid,
    "random": random_search,
    "local": local_search,
    "evolution": regularised_evolution,
    "annealing": simulated_annealing,
    "tpe": parzen_estimator,
    "gp": gaussian_process,
    "greedy": greedy_growth,
    "halving": successive_halving,
}

__all__ = ["ALGORITHMS", "Algorithm", "Ask", "algorithm_named"]


def algorithm_named(name: str) -> Algorithm:
    """The search algorithm of that name.

    Raises:
        PlacementError: no such algorithm; lists the names.
    """
    if name not in ALGORITHMS:
        raise PlacementError(f"unknown search algorithm {name!r}; use one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
