"""Measuring what a search asks for, in waves of groups: shared over ranks, raced against the leader, told as it comes.

How candidates are grouped and which leader a wave races against depends on what was asked alone: neither on the number of
ranks nor on what was already known. So several processes, and a search that was killed and goes on, get the same results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from loopwise.loops import format_loops
from loopwise.records import CandidateResult

from .ranks import Ranks
from .scorer import Leader, Scored, TextScorer
from .space import Candidate

FIRST_WAVE_GROUPS = 4
MOST_WAVE_GROUPS = 64
PILOTS = 8
Tell = Callable[[Sequence[Scored]], None]
"""Called on every rank with new results, as they come."""
Known = Callable[[str], CandidateResult | None]
"""The result of a candidate on that part of the text, if it was measured before."""


class Measurer(Protocol):
    """Measures candidates."""

    measure: str
    """``text``, ``text+kl`` or ``accuracy:TASK``."""

    def __call__(self, candidates: Sequence[Candidate], share: float, known: Known, tell: Tell) -> None:
        """Measure the candidates that are not known, on the first ``share`` of the text; results are told on every rank."""
        ...

    def replay(self, candidates: Sequence[Candidate], known: Known) -> None:
        """Come into the state that measuring these candidates left, without measuring."""
        ...


class TextMeasurer:
    """Measures by a text."""

    def __init__(self, scorer: TextScorer, ranks: Ranks) -> None:
        self.scorer, self.ranks = scorer, ranks
        self.measure = scorer.measure
        self._best: tuple[float, Candidate] = (math.inf, ())
        self._leader: Leader | None = None

    def __call__(self, candidates: Sequence[Candidate], share: float, known: Known, tell: Tell) -> None:
        groups = self.scorer.computer.groups(candidates)
        raced = self.scorer.race is not None and share == 1.0
        at, size = 0, FIRST_WAVE_GROUPS
        while at < len(groups):
            if raced and at == 0 and not self._best[1] and len(candidates) >= 2 * PILOTS:
                self._pilot(candidates, tell)
            wave = groups[at : at + size]
            at, size = at + size, min(2 * size, MOST_WAVE_GROUPS)
            missing = [group for group in wave if any(known(format_loops(candidate)) is None for candidate in group)]
            self._measure_groups(missing, share, raced, tell)
            for candidate in (candidate for group in wave for candidate in group):
                self._observe(candidate, known(format_loops(candidate)))

    def replay(self, candidates: Sequence[Candidate], known: Known) -> None:
        for candidate in candidates:
            self._observe(candidate, known(format_loops(candidate)))

    def _observe(self, candidate: Candidate, result: CandidateResult | None) -> None:
        """Take a result into account for who leads the next wave."""
        if result is not None and result.status == "scored" and result.share == 1.0 and result.values["loss_nats"] < self._best[0]:
            self._best = (result.values["loss_nats"], candidate)

    def _measure_groups(self, groups: Sequence[tuple[Candidate, ...]], share: float, raced: bool, tell: Tell) -> None:
        for first in range(0, len(groups), self.ranks.size):
            mine = first + self.ranks.rank
            found: list[Scored] = []
            if mine < len(groups):
                if raced:
                    found, _ = self.scorer.race_group(groups[mine], self._current_leader())
                else:
                    found = self.scorer.score(groups[mine], share)
            tell([scored for part in self.ranks.gather(found) for scored in part])

    def _current_leader(self) -> Leader | None:
        """The best so far with its losses look by look, always computed alone, so that they are the same at every call."""
        candidate = self._best[1]
        if candidate and (self._leader is None or self._leader.candidate != candidate):
            _, looks = self.scorer.race_group([candidate], None)
            self._leader = Leader(candidate=candidate, looks=looks[0])
        return self._leader

    def _pilot(self, candidates: Sequence[Candidate], tell: Tell) -> None:
        """A first leader: of some candidates spread over the depth, the best on the first look, then scored on all of the text."""
        by_place = sorted(candidates, key=lambda candidate: sum(loop.start + loop.stop for loop in candidate) / len(candidate))
        step = len(by_place) / PILOTS
        pilots = [by_place[int((number + 0.5) * step)] for number in range(PILOTS)]
        firsts = [(scored[0].result, pilot) for pilot in pilots for scored in [self.scorer.score([pilot], share=0.0)]]
        losses = [(result.values["loss_nats"], number) for number, (result, _) in enumerate(firsts) if result.status == "scored"]
        if losses:
            pilot = firsts[min(losses)[1]][1]
            scored, looks = self.scorer.race_group([pilot], None)
            self._leader = Leader(candidate=pilot, looks=looks[0])
            tell(scored)
            self._observe(pilot, scored[0].result)
