"""Counting and numbering candidates without listing them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from .blocks import Block


class Ways:
    """In how many ways blocks can be placed, by the layer passes that they add together."""

    __slots__ = ("_costs", "_totals", "counts")

    def __init__(self, counts: dict[float, int]) -> None:
        self.counts = counts
        self._costs = sorted(counts)
        self._totals = [0]
        for cost in self._costs:
            self._totals.append(self._totals[-1] + counts[cost])

    def within(self, budget: float) -> int:
        """The ways that add at most ``budget`` layer passes."""
        return self._totals[bisect_right(self._costs, budget)]


def count_ways(blocks: Sequence[Block], max_blocks: int, num_layers: int, budget: float) -> list[list[Ways]]:
    """``ways[k][layer]``: placing k of the blocks, apart from each other, in the layers from ``layer`` on.

    Without a cap every block counts as free, which keeps the table small.
    """
    starting: list[Counter[tuple[int, float]]] = [Counter() for _ in range(num_layers)]
    for block in blocks:
        starting[block.start][min(block.end, num_layers), block.extra_passes if budget < float("inf") else 0.0] += 1
    ways = [[Ways({0.0: 1})] * (num_layers + 1)]
    for _ in range(max_blocks):
        shorter, row = ways[-1], [Ways({})] * (num_layers + 1)
        for layer in reversed(range(num_layers)):
            counts = Counter(row[layer + 1].counts)
            for (end, extra), number in starting[layer].items():
                for cost, rest in shorter[end].counts.items():
                    if (total := round(cost + extra, 9)) <= budget:
                        counts[total] += number * rest
            row[layer] = Ways(dict(counts))
        ways.append(row)
    return ways


def shuffled_range(size: int, rng: random.Random) -> Iterator[int]:
    """0 .. size-1 in random order, drawn one by one (Fisher and Yates), so that a large range costs what is taken of it."""
    moved: dict[int, int] = {}
    for last in reversed(range(size)):
        pick = rng.randint(0, last)
        yield moved.get(pick, pick)
        moved[pick] = moved.pop(last, last)
