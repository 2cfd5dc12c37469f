"""Local search with random restarts: from the better of a few random candidates down to a local optimum, again and again."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence

from loopwise.placement.space import Candidate, Space

from .values import Ask, Search, ask_new, take_new

START_SIZE = 8
"""Random candidates of which a descent begins at the best."""
BATCH_SIZE = 8
"""Neighbours scored at a time: the best of them is taken if it is better, so that a step rarely costs a whole neighbourhood."""


def local_search(space: Space, seed: int) -> Search:
    """Descents until the whole space is scored."""
    rng = random.Random(seed)
    order = space.shuffled(rng)
    known: dict[Candidate, float] = {}
    while starts := take_new(order, START_SIZE, known):
        yield from ask_new(starts, known)
        here = min(starts, key=known.__getitem__)
        while True:
            better = yield from _step(space, here, known, rng)
            if better is None:
                break
            here = better


def _step(
    space: Space, here: Candidate, known: dict[Candidate, float], rng: random.Random
) -> Generator[Ask, Sequence[float], Candidate | None]:
    """A better neighbour: the best of the first batch, in random order, that has one."""
    neighbours = list(space.neighbours(here))
    rng.shuffle(neighbours)
    for first in range(0, len(neighbours), BATCH_SIZE):
        batch = neighbours[first : first + BATCH_SIZE]
        yield from ask_new(batch, known)
        best = min(batch, key=known.__getitem__)
        if known[best] < known[here]:
            return best
    return None
