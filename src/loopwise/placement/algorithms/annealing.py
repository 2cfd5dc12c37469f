"""Simulated annealing (Kirkpatrick et al. 1983): random steps, uphill ones the rarer the steeper they are and the later it is."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

from loopwise.placement.space import Candidate, Space

from .values import Search, ask_new, take_new

START_SIZE = 12
"""Random candidates that come first: their differences set the temperature's scale, and the best is where the chain starts."""
COOLING_STEPS = 120
"""Steps from the first temperature, a fifth of the scale, to the last, a thousandth of it, by a constant factor. Then the chain
starts anew from the best of as many fresh random candidates."""
FIRST, LAST = 0.2, 0.001
KNOWN_STEPS = 50
"""Steps in a row over candidates whose scores are known after which the chain has nothing to find where it is, and starts anew."""


def simulated_annealing(space: Space, seed: int) -> Search:
    """Chains until the whole space is scored.

    The scale is the median difference of two finite scores among the random candidates so far; it is 1 where there are none.
    """
    rng = random.Random(seed)
    order = space.shuffled(rng)
    known: dict[Candidate, float] = {}
    drawn: list[float] = []
    while starts := take_new(order, START_SIZE, known):
        yield from ask_new(starts, known)
        drawn += [known[candidate] for candidate in starts]
        scale = _scale(drawn)
        here = min(starts, key=known.__getitem__)
        stale = 0
        for step in range(COOLING_STEPS):
            proposal = space.mutate(here, rng)
            stale = stale + 1 if proposal in known else 0
            if stale == KNOWN_STEPS:
                break
            yield from ask_new([proposal], known)
            temperature = scale * FIRST * (LAST / FIRST) ** (step / (COOLING_STEPS - 1))
            if _accepts(known[here], known[proposal], temperature, rng):
                here = proposal


def _scale(scores: Sequence[float]) -> float:
    finite = [score for score in scores if math.isfinite(score)]
    differences = [abs(first - second) for first, second in itertools.combinations(finite, 2)]
    return (statistics.median(differences) if differences else 0.0) or 1.0


def _accepts(here: float, proposal: float, temperature: float, rng: random.Random) -> bool:
    """Metropolis's rule; a ruined candidate is never worse than another ruined one."""
    if proposal <= here:
        return True
    return math.isfinite(proposal) and rng.random() < math.exp((here - proposal) / temperature)
