"""Exhaustive grid: every candidate once. The reference for the others, and enough for single windows (no-free-loop, D.1)."""

from __future__ import annotations

import itertools

from loopwise.placement.space import Space

from .values import Ask, Search

BATCH_SIZE = 4096
"""As many as are raced at once: each batch finds a leader of its own first, and of each candidate a first look is kept. A guess."""


def exhaustive_grid(space: Space, seed: int) -> Search:
    """All candidates in the space's order, which puts those next to each other that share computation; the seed plays no part."""
    candidates = iter(space)
    while batch := tuple(itertools.islice(candidates, BATCH_SIZE)):
        yield Ask(candidates=batch)
