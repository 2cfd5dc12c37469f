"""Measuring what a search asks for, in waves of groups: shared over ranks, raced against the leader, told as it comes.

How candidates are grouped and which leader a wave races against follows from what this search has asked for so far: not from
the number of ranks, nor from where it was killed. So several processes, and a search that goes on, get the same results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopwise.loops import format_loops
from loopwise.records import CandidateResult

from .nearness import spread
from .ranks import Ranks
from .runners import KnownLosses, Runner, Scored
from .scorer import TextScorer
from .space import Candidate

HEAT = 16
"""From so many candidates on, all are read on the first look before any goes on: it finds a leader among all of them."""
TRIED_AS_LEADER = 3
"""Of the heat's best, so many are scored on the whole text before anything is dropped."""
ONE_KNOWN_IN = 256
"""Of so many candidates one more is, wherever it ranks: spread over what is left, they are the others' neighbours."""
FIRST_WAVE, MOST_IN_A_WAVE = 32, 512
"""Candidates; the leader changes between waves."""
Tell = Callable[[Sequence[Scored]], None]
"""Called on every rank with new results, as they come."""
Looked = Callable[[float, float], None]
"""Called on every rank with how many candidates the first look has read, and of how many."""
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


@dataclass(frozen=True, slots=True)
class _Heat:
    """What the first look at all candidates leaves."""

    known: tuple[KnownLosses, ...] = ()
    """Those that were read to the end."""
    runners: Mapping[Candidate, Runner] = field(default_factory=dict)
    """The others that are still in the race, best first."""


class TextMeasurer:
    """Measures by a text."""

    def __init__(self, scorer: TextScorer, ranks: Ranks, *, looked: Looked | None = None) -> None:
        self.scorer, self.ranks, self.looked = scorer, ranks, looked
        self.measure = scorer.measure
        self._best: tuple[float, Candidate] = (math.inf, ())
        self._leader: KnownLosses | None = None

    def __call__(self, candidates: Sequence[Candidate], share: float, known: Known, tell: Tell) -> None:
        if all(known(format_loops(candidate)) is not None for candidate in candidates):
            self.replay(candidates, known)
        elif self.scorer.race is None or share < 1.0:
            self._measure(self.scorer.computer.groups(candidates), share, known, tell)
        else:
            self._race(candidates, known, tell)

    def _race(self, candidates: Sequence[Candidate], known: Known, tell: Tell) -> None:
        """All candidates on the first look, then those that it leaves, the promising ones first, in waves."""
        heat = self._heat(candidates, tell) if len(candidates) >= HEAT else None
        candidates = candidates if heat is None else list(heat.runners)
        at, size = 0, FIRST_WAVE
        while at < len(candidates):
            wave = candidates[at : at + size]
            at, size = at + size, min(2 * size, MOST_IN_A_WAVE)
            self._measure(self.scorer.computer.groups(wave), 1.0, known, tell, race=heat or _Heat())
            self.replay(wave, known)
        if heat:
            self._leader = None  # whoever leads later is scored alone, as after a resume

    def _heat(self, candidates: Sequence[Candidate], tell: Tell) -> _Heat:
        """The candidates that the first look leaves, best first; the best of them lead from then on."""
        runners: list[Runner] = []
        groups = self.scorer.computer.groups(candidates)
        for first in range(0, len(groups), self.ranks.size):
            mine = first + self.ranks.rank
            found = self.scorer.heat(groups[mine]) if mine < len(groups) else []
            runners += [runner for part in self.ranks.gather(found) for runner in part]
            if self.looked:
                self.looked(len(runners), len(candidates))
        tell([runner.ended for runner in runners if runner.ended is not None])
        living = [runner for runner in runners if runner.ended is None]
        estimates = {runner.candidate: self.scorer.estimate(runner) for runner in living}
        living.sort(key=lambda runner: estimates[runner.candidate])
        order = [runner.candidate for runner in living]
        first_read = order[:TRIED_AS_LEADER] + spread(order, order[:TRIED_AS_LEADER], len(candidates) // ONE_KNOWN_IN)
        known = tuple(self._read_to_the_end(first_read, tell))
        leader = self._leader = next((one for one in known if one.candidate == self._best[1]), None) or self._current_leader()
        rest = [runner for runner in living if runner.candidate not in first_read]
        for runner in rest:
            if leader is not None:
                self.scorer.compare(runner, leader, known)
        tell([runner.ended for runner in rest if runner.ended is not None])
        return _Heat(known, {runner.candidate: runner for runner in rest if runner.ended is None})

    def _read_to_the_end(self, candidates: Sequence[Candidate], tell: Tell) -> list[KnownLosses]:
        """Score candidates on the whole text, shared out over ranks; the best of them leads from then on."""
        groups = self.scorer.computer.groups(candidates)
        known: list[KnownLosses] = []
        for first in range(0, len(groups), self.ranks.size):
            mine = first + self.ranks.rank
            found = self.scorer.score(groups[mine]) if mine < len(groups) else []
            every = [scored for part in self.ranks.gather(found) for scored in part]
            tell(every)
            members = [candidate for group in groups[first : first + self.ranks.size] for candidate in group]
            for candidate, scored in zip(members, every, strict=True):
                self._observe(candidate, scored.result)
                if scored.losses is not None:
                    known.append(KnownLosses(candidate=candidate, losses=scored.losses))
        return known

    def _measure(self, groups: Sequence[tuple[Candidate, ...]], share: float, known: Known, tell: Tell, race: _Heat | None = None) -> None:
        """Groups with somebody in them that is not known yet, shared out over ranks."""
        missing = [group for group in groups if any(known(format_loops(candidate)) is None for candidate in group)]
        for first in range(0, len(missing), self.ranks.size):
            mine = first + self.ranks.rank
            found: list[Scored] = []
            if mine < len(missing):
                if race and (leader := self._current_leader()):
                    found = self.scorer.race_group(missing[mine], leader, race.known, race.runners)
                else:
                    found = self.scorer.score(missing[mine], share)
            tell([scored for part in self.ranks.gather(found) for scored in part])

    def replay(self, candidates: Sequence[Candidate], known: Known) -> None:
        for candidate in candidates:
            self._observe(candidate, known(format_loops(candidate)))

    def _observe(self, candidate: Candidate, result: CandidateResult | None) -> None:
        """Take a result into account for who leads the next wave."""
        if result is not None and result.status == "scored" and result.share == 1.0 and result.values["loss_nats"] < self._best[0]:
            self._best = (result.values["loss_nats"], candidate)

    def _current_leader(self) -> KnownLosses | None:
        """The best so far with its losses, always computed alone, so that they are the same at every call."""
        candidate = self._best[1]
        if candidate and (self._leader is None or self._leader.candidate != candidate):
            losses = self.scorer.score([candidate])[0].losses
            assert losses is not None
            self._leader = KnownLosses(candidate=candidate, losses=losses)
        return self._leader
