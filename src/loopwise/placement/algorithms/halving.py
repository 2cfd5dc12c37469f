"""Successive halving (Jamieson and Talwalkar 2016): many candidates on a part of the text, the better of them on more of it."""

from __future__ import annotations

import itertools
import math
import random

from loopwise.placement.space import Space

from .values import Ask, Search

ETA = 3
"""From rung to rung the text grows by this factor and the candidates shrink by it."""
RUNGS = 3
BRACKET_SIZE = 27
"""A bracket costs as much as scoring nine candidates on the whole text."""


def successive_halving(space: Space, seed: int) -> Search:
    """Brackets of new random candidates until none is left; each ends on the whole text, or where all of it are ruined."""
    order = space.shuffled(random.Random(seed))
    while candidates := tuple(itertools.islice(order, BRACKET_SIZE)):
        for rung in reversed(range(RUNGS)):
            scores = yield Ask(candidates=candidates, share=1 / ETA**rung)
            ranked = sorted(zip(scores, candidates, strict=True), key=lambda pair: pair[0])
            alive = [candidate for score, candidate in ranked if math.isfinite(score)]
            candidates = tuple(alive[: math.ceil(len(candidates) / ETA)])
            if not candidates:
                break
