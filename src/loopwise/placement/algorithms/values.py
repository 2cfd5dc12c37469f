"""What a search algorithm says and hears."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from loopwise.placement.space import Candidate, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Candidates whose scores an algorithm wants next."""

    candidates: tuple[Candidate, ...]
    """At least one, each of the space, none twice."""
    share: float = 1.0
    """The part of the text on which to score them."""


Search = Generator[Ask, Sequence[float], None]
Algorithm = Callable[[Space, int], Search]
"""Takes the space and a seed. Scores are sent back in the order of the candidates, lower is better, `math.inf` is ruined.
The generator ends when it has nothing left to try, or goes on until nobody asks; the same scores give the same candidates."""


def ask_new(candidates: Iterable[Candidate], known: dict[Candidate, float]) -> Search:
    """Ask for those whose scores are not known yet, if there are any, and note them."""
    new = tuple(dict.fromkeys(candidate for candidate in candidates if candidate not in known))
    if new:
        scores = yield Ask(candidates=new)
        known.update(zip(new, scores, strict=True))


def take_new(order: Iterator[Candidate], number: int, known: dict[Candidate, float]) -> list[Candidate]:
    """The next candidates of an order whose scores are not known yet; fewer, or none, at its end."""
    found: list[Candidate] = []
    for candidate in order:
        if candidate not in known:
            found.append(candidate)
        if len(found) == number:
            break
    return found
