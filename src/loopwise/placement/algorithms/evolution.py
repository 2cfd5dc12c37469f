"""Regularised evolution (Real et al. 2019, "Regularized Evolution for Image Classifier Architecture Search", algorithm 1)."""

from __future__ import annotations

import math
import random
from collections import deque

from loopwise.placement.space import Candidate, Space

from .values import Search, ask_new, take_new

POPULATION_SIZE = 24
TOURNAMENT_SIZE = 8
CHILDREN = 4
"""Children scored at a time, all of one population, as with as many parallel workers."""
TRIES = 20
"""Mutations to find a child whose score is not known yet, before a random candidate stands in for it."""


def regularised_evolution(space: Space, seed: int) -> Search:
    """The best of a random part of the population is mutated, the child joins, and the oldest, not the worst, dies."""
    rng = random.Random(seed)
    order = space.shuffled(rng)
    known: dict[Candidate, float] = {}
    population: deque[Candidate] = deque(take_new(order, POPULATION_SIZE, known), maxlen=POPULATION_SIZE)
    yield from ask_new(population, known)
    while True:
        children: list[Candidate] = []
        taken = dict(known)
        while len(children) < CHILDREN:
            new = _child(space, population, taken, rng) or take_new(order, 1, taken)
            if not new:
                break
            children += new
            taken.update(dict.fromkeys(new, math.inf))
        if not children:
            return
        yield from ask_new(children, known)
        population.extend(children)


def _child(space: Space, population: deque[Candidate], known: dict[Candidate, float], rng: random.Random) -> list[Candidate]:
    """One child of which nothing is known, or none."""
    for _ in range(TRIES):
        tournament = rng.sample(list(population), min(TOURNAMENT_SIZE, len(population)))
        child = space.mutate(min(tournament, key=known.__getitem__), rng)
        if child not in known:
            return [child]
    return []
