"""Random search: what every other algorithm must beat."""

from __future__ import annotations

import itertools
import random

from loopwise.placement.space import Space

from .values import Ask, Search

BATCH_SIZE = 16


def random_search(space: Space, seed: int) -> Search:
    """Candidates at random without replacement, each form of the space as likely as the others, until none is left."""
    order = space.shuffled(random.Random(seed))
    while batch := tuple(itertools.islice(order, BATCH_SIZE)):
        yield Ask(candidates=batch)
