"""Measuring what a search asks for, in waves of groups: shared over ranks, raced against the leader, told as it comes.

Of many candidates one of each structure races first, for its siblings: those that differ from it in passes and anchors alone. They
get a peek, half of a first look, and are judged with its longer reading. Of those that are left the most promising of each structure
race on; with what was read of these the others are judged again, and what is left then races last.

How candidates are grouped, which leader a wave races against and whose losses it is judged with follows from what this search has
asked for so far: not from the number of ranks, nor from where it was killed. So several processes, and a search that goes on, get
the same results. What others are judged with and no record holds is read again when a search goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from loopwise.loops import format_loops
from loopwise.records import CandidateResult

from .nearness import representatives, spread, structure
from .racing import Losses
from .ranks import Ranks
from .runners import NOTHING_READ, KnownLosses, Readings, Runner, Scored
from .scorer import TextScorer
from .space import Candidate

HEAT = 16
"""From so many candidates on, one of each structure is read on the first look before any goes on: it finds a leader among them."""
TRIED_AS_LEADER = 3
"""Of the heat's best, so many are scored on the whole text before anything is dropped."""
ONE_KNOWN_IN = 256
"""Of so many structures one more is, wherever it ranks: spread over what is left, they are the others' neighbours."""
FIRST_WAVE, MOST_IN_A_WAVE = 32, 512
"""Candidates; the leader changes between waves."""
Tell = Callable[[Sequence[Scored]], None]
"""Called on every rank with new results, as they come."""
Looked = Callable[[float, float], None]
"""Called on every rank with how many candidates the first look has read, and of how many."""
Found = TypeVar("Found")
Known = Callable[[str], CandidateResult | None]
"""The result of a candidate on that part of the text, if it was measured before."""
Recorded = Callable[[str], Losses | None]
"""The losses of a candidate that was scored on the whole text, if they are on record; asked on every rank."""


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

    def __init__(self, scorer: TextScorer, ranks: Ranks, *, looked: Looked | None = None, recorded: Recorded | None = None) -> None:
        self.scorer, self.ranks, self.looked, self.recorded = scorer, ranks, looked, recorded
        self.measure = scorer.measure
        self._best: tuple[float, Candidate] = (math.inf, ())
        self._leader: KnownLosses | None = None

    def __call__(self, candidates: Sequence[Candidate], share: float, known: Known, tell: Tell) -> None:
        if all(known(format_loops(candidate)) is not None for candidate in candidates):
            self.replay(candidates, known)
        elif self.scorer.race is None or share < 1.0:
            self._measure(self._missing(candidates, known), share, tell)
        elif len(candidates) < HEAT:
            self._waves(candidates, known, tell)
        else:
            self._race(candidates, known, tell)
            self._leader = None  # whoever leads later is scored alone, as after a resume

    def _race(self, candidates: Sequence[Candidate], known: Known, tell: Tell) -> None:
        """One candidate of each structure; a peek at the others; of what is left the best of each structure; the rest."""
        first = representatives(candidates)
        siblings = [candidate for candidate in candidates if candidate not in set(first)]
        runners, readings = self._heat(first, len(candidates), known, tell)
        readings = self._waves(list(runners), known, tell, readings, runners, for_others=True)
        readings = replace(readings, are_siblings=True)
        runners = self._look_at_siblings(siblings, len(candidates), known, tell, readings)
        best = set({structure(candidate): candidate for candidate in reversed(runners)}.values())
        readings = self._waves([candidate for candidate in runners if candidate in best], known, tell, readings, runners, for_others=True)
        rest = self._judge([runner for candidate, runner in runners.items() if candidate not in best], readings, tell)
        self._waves(list(rest), known, tell, readings, rest)

    def _heat(self, candidates: Sequence[Candidate], num_all: int, known: Known, tell: Tell) -> tuple[dict[Candidate, Runner], Readings]:
        """The candidates that the first look leaves, best first, and what was read of a few to the end; the best of them leads."""
        runners: list[Runner] = []
        for found in self._shared(self.scorer.computer.groups(candidates), self.scorer.heat):
            runners += found
            if self.looked:
                self.looked(len(runners), num_all)
        tell([runner.ended for runner in runners if runner.ended is not None])
        living = {runner.candidate: runner for runner in runners if runner.ended is None}
        estimates = {candidate: self.scorer.estimate(runner) for candidate, runner in living.items()}
        order = sorted(living, key=lambda candidate: estimates[candidate])
        first_read = order[:TRIED_AS_LEADER] + spread(order, order[:TRIED_AS_LEADER], len(candidates) // ONE_KNOWN_IN)
        readings = Readings(partial={structure(candidate): runner.losses() for candidate, runner in living.items()})
        readings = readings.with_more(self._read(first_read, known, tell, for_others=True))
        return self._judge([living[candidate] for candidate in order if candidate not in first_read], readings, tell), readings

    def _look_at_siblings(
        self, candidates: Sequence[Candidate], num_all: int, known: Known, tell: Tell, readings: Readings
    ) -> dict[Candidate, Runner]:
        """The candidates that a peek leaves, best first; those that it dropped before a resume are not looked at again."""
        leader = self._current_leader(readings)

        def has_ended(candidate: Candidate) -> bool:
            result = known(format_loops(candidate))
            return result is not None and result.status == "dropped" and result.share <= self.scorer.peek_part + 1e-9

        def judged(group: Sequence[Candidate]) -> list[Runner]:
            found = self.scorer.heat(group, peek=True)
            for runner in found:
                if runner.ended is None and leader is not None:
                    self.scorer.compare(runner, leader, readings)
            return found

        groups = [group for group in self.scorer.computer.groups(candidates) if not all(map(has_ended, group))]
        living: dict[Candidate, Runner] = {}
        done = num_all - sum(map(len, groups))
        for found in self._shared(groups, judged):
            tell([runner.ended for runner in found if runner.ended is not None])
            living |= {runner.candidate: runner for runner in found if runner.ended is None}
            done += len(found)
            if self.looked:
                self.looked(done, num_all)
        estimates = {candidate: self.scorer.estimate(runner, leader, readings) for candidate, runner in living.items()}
        return {candidate: living[candidate] for candidate in sorted(living, key=lambda candidate: estimates[candidate])}

    def _judge(self, runners: Sequence[Runner], readings: Readings, tell: Tell) -> dict[Candidate, Runner]:
        """The runners that are not dropped by what was read so far, of themselves and of others."""
        leader = self._current_leader(readings)
        for runner in runners:
            if leader is not None:
                self.scorer.compare(runner, leader, readings)
        tell([runner.ended for runner in runners if runner.ended is not None])
        return {runner.candidate: runner for runner in runners if runner.ended is None}

    def _waves(
        self,
        candidates: Sequence[Candidate],
        known: Known,
        tell: Tell,
        readings: Readings = NOTHING_READ,
        runners: Mapping[Candidate, Runner] | None = None,
        for_others: bool = False,
    ) -> Readings:
        """Candidates to their ends, in their order, in waves.

        Args:
            runners: of the candidates, what a first look or a peek left.
            for_others: whether later ones are judged with what is read here.
        """
        at, size = 0, FIRST_WAVE
        while at < len(candidates):
            wave = candidates[at : at + size]
            if runners and at and not readings.are_siblings:  # more is known than when they were looked at
                wave = list(self._judge([runners[candidate] for candidate in wave], readings, tell))
            at, size = at + size, min(2 * size, MOST_IN_A_WAVE)
            found = self._read(wave, known, tell, readings, runners, for_others=for_others)
            readings = readings.with_more(found) if for_others else readings
        return readings

    def _read(
        self,
        candidates: Sequence[Candidate],
        known: Known,
        tell: Tell,
        readings: Readings | None = None,
        runners: Mapping[Candidate, Runner] | None = None,
        *,
        for_others: bool,
    ) -> dict[Candidate, Scored]:
        """Candidates to their ends, in their order, those on record only where others need what was read; the best leads from then on.

        Args:
            readings: None: every one is read to the text's end.
        """
        recorded = self._recorded(candidates, known) if for_others else None
        found = self._measure(self._missing(candidates, known, recorded), 1.0, tell, readings, runners)
        self.replay(candidates, known)
        found |= recorded or {}
        return {candidate: found[candidate] for candidate in candidates if candidate in found}

    def _recorded(self, candidates: Sequence[Candidate], known: Known) -> dict[Candidate, Scored]:
        """Those that were scored before, with their losses, where these are on record."""
        found: dict[Candidate, Scored] = {}
        if self.recorded is None:
            return found
        for candidate in candidates:
            result = known(format_loops(candidate))
            if result is not None and result.status == "scored":
                losses = self.recorded(result.loops)
                if losses is not None and losses.shape == self.scorer.unlooped().losses.shape:
                    found[candidate] = Scored(result=result, losses=losses)
        return found

    def _missing(
        self, candidates: Sequence[Candidate], known: Known, recorded: Mapping[Candidate, Scored] | None = None
    ) -> list[tuple[Candidate, ...]]:
        """Groups with somebody in them that is not known; with ``recorded``, nor is what others need of it."""

        def is_missing(candidate: Candidate) -> bool:
            result = known(format_loops(candidate))
            if result is None or recorded is None:
                return result is None
            return result.status in ("scored", "dropped") and candidate not in recorded

        return [group for group in self.scorer.computer.groups(candidates) if any(map(is_missing, group))]

    def _measure(
        self,
        groups: Sequence[tuple[Candidate, ...]],
        share: float,
        tell: Tell,
        readings: Readings | None = None,
        runners: Mapping[Candidate, Runner] | None = None,
    ) -> dict[Candidate, Scored]:
        """Every candidate of the groups; in a race where there are readings, even empty ones, and a leader."""

        def scored(group: tuple[Candidate, ...]) -> list[Scored]:
            leader = None if readings is None else self._current_leader(readings)
            if leader is None or readings is None:
                return self.scorer.score(group, share)
            return self.scorer.race_group(group, leader, readings, runners)

        every: list[Scored] = []
        for found in self._shared(groups, scored):
            tell(found)
            every += found
        return dict(zip((candidate for group in groups for candidate in group), every, strict=True))

    def _shared(
        self, groups: Sequence[tuple[Candidate, ...]], work: Callable[[tuple[Candidate, ...]], list[Found]]
    ) -> Iterator[list[Found]]:
        """What the work on each group finds, shared out over ranks, round after round."""
        for first in range(0, len(groups), self.ranks.size):
            mine = first + self.ranks.rank
            found = work(groups[mine]) if mine < len(groups) else []
            yield [one for part in self.ranks.gather(found) for one in part]

    def replay(self, candidates: Sequence[Candidate], known: Known) -> None:
        for candidate in candidates:
            result = known(format_loops(candidate))
            if result is not None and result.status == "scored" and result.share == 1.0 and result.values["loss_nats"] < self._best[0]:
                self._best = (result.values["loss_nats"], candidate)

    def _current_leader(self, readings: Readings) -> KnownLosses | None:
        """The best so far with its losses: as they were read, else computed alone, so that they are the same at every call."""
        candidate = self._best[1]
        if candidate and (self._leader is None or self._leader.candidate != candidate):
            losses = readings.whole[candidate] if candidate in readings.whole else self.scorer.score([candidate])[0].losses
            assert losses is not None
            self._leader = KnownLosses(candidate=candidate, losses=losses)
        return self._leader
