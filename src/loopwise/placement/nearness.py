"""How alike two candidates are, by their loops alone: for choosing which of them speak for the others in a race.

Nothing that a race promises rests on it: a bad neighbour costs text, not truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from .space import Candidate

Value = TypeVar("Value")


def distance(one: Candidate, other: Candidate) -> float:
    """Half-layers that run further in one and not in the other, each as often as it does.

    Anchors and passes count for little: a damped loop with another of them is nearer than one whose window is shifted by a layer.
    """
    reach, others = _reach(one), _reach(other)
    halves = sum(abs(reach[layer] - others[layer]) for layer in {*reach, *others})
    anchors = sum(loop.beta or 0.0 for loop in one) - sum(loop.beta or 0.0 for loop in other)
    passes = sum(loop.passes for loop in one) - sum(loop.passes for loop in other)
    return halves + abs(anchors) + abs(passes) / 2


@lru_cache(maxsize=1 << 13)
def _reach(candidate: Candidate) -> Counter[int]:
    """Further runs of each layer's halves; a damped loop's steps shrink with their number, so however many count as one."""
    reach: Counter[int] = Counter()
    for loop in candidate:
        runs = 1 if loop.operator == "damped" else loop.passes - 1
        for layer in range(loop.start, loop.stop):
            reach[layer] += runs * (2 if loop.part == "layer" else 1)
    return reach


def nearest(candidate: Candidate, known: Mapping[Candidate, Value], number: int) -> list[Value]:
    """What is known of the ``number`` others that are nearest; of equally near ones the first."""
    others = [one for one in known if one != candidate]
    return [known[one] for one in sorted(others, key=lambda one: distance(candidate, one))[:number]]


def spread(candidates: Sequence[Candidate], chosen: Sequence[Candidate], number: int) -> list[Candidate]:
    """``number`` more of the candidates, each the farthest from all that were chosen before it; of equals the first."""
    rest = [candidate for candidate in candidates if candidate not in set(chosen)]
    gaps = {candidate: min((distance(candidate, one) for one in chosen), default=0.0) for candidate in rest}
    found: list[Candidate] = []
    while gaps and len(found) < number:
        farthest = max(gaps, key=lambda candidate: gaps[candidate])
        del gaps[farthest]
        found.append(farthest)
        gaps = {candidate: min(gap, distance(candidate, farthest)) for candidate, gap in gaps.items()}
    return found


@lru_cache(maxsize=1 << 16)
def structure(candidate: Candidate) -> Candidate:
    """What a candidate has in common with its siblings: all but passes and anchors."""
    return tuple(replace(loop, passes=2, beta=None if loop.beta is None else 0.0) for loop in candidate)


def representatives(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each structure the candidate that races before its siblings, for them: the gentlest; in the candidates' order.

    The fewest passes and, of these, the firmest anchors. It costs least, and a race reads it furthest: mostly its siblings lose by
    more of their standard errors, so that where it is dropped they can be. Of equals the first.
    """
    families: dict[Candidate, Candidate] = {}
    for candidate in candidates:
        own = structure(candidate)
        families[own] = min(families.get(own, candidate), candidate, key=_force)
    return list(families.values())


def _force(candidate: Candidate) -> tuple[int, float]:
    return sum(loop.passes for loop in candidate), -sum(loop.beta or 0.0 for loop in candidate)
