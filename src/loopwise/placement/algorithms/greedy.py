"""Greedy growth: the best single loop, then the best loop to add to it, until none improves (as G-best was made, no-free-loop D.1)."""

from __future__ import annotations

import itertools

from loopwise.placement.space import Candidate, Space

from .values import Ask, Search

BATCH_SIZE = 256


def greedy_growth(space: Space, seed: int) -> Search:
    """Every single loop, then every addition to the best, and so on. Ends by itself; the seed plays no part."""
    best: Candidate = ()
    best_score = float("inf")
    grown = True
    while grown:
        grown = False
        additions = space.additions(best)
        while batch := tuple(itertools.islice(additions, BATCH_SIZE)):
            scores = yield Ask(candidates=batch)
            score, candidate = min(zip(scores, batch, strict=True), key=lambda pair: pair[0])
            if score < best_score:
                best, best_score, grown = candidate, score, True
