"""A search: an algorithm proposes, candidates are measured, their scores go back, and every step is on record.

The algorithm is a generator (see `algorithms`); the space, the objective, the measuring and the stopping rule are its
caller's. A search that was killed is replayed: the generator is sent the recorded scores and goes on where they end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loopwise.cost import cost_of
from loopwise.loops import format_loops
from loopwise.records import CandidateResult, StepOfSearch, StudyWriter, TraceWriter, read_losses
from loopwise.records.study import Key

from .algorithms import Ask, algorithm_named
from .objectives import Objective
from .racing import Losses
from .ranks import Ranks
from .runners import Scored
from .space import Candidate, PlacementError, Space
from .waves import Measurer

Progress = Callable[[float, float], None]
"""Called with the evaluations done and all of them."""


class Ledger:
    """What is known of candidates, on every rank; the first one writes it down."""

    def __init__(self, study: StudyWriter | None, ranks: Ranks) -> None:
        self.study, self.ranks = study, ranks
        self.results: dict[Key, CandidateResult] = ranks.from_first(dict(study.results) if study else {})
        dropped = (result for result in self.results.values() if result.status == "dropped")
        self._dropped = {(result.measure, result.loops, result.search): result for result in dropped}

    def known(self, measure: str, loops: str, share: float = 1.0, *, search: str | None = None) -> CandidateResult | None:
        """The result of a candidate on that part of the text; one that the race of ``search`` dropped counts for the whole text."""
        found = self.results.get((measure, loops, share, ""))
        if found is None and share == 1.0 and search is not None:
            found = self._dropped.get((measure, loops, search))
        return found

    def losses(self, loops: str) -> Losses | None:
        """The losses on record of a candidate that was scored on the whole text; every rank must ask, and gets them."""
        found: Losses | None = self.ranks.from_first(read_losses(self.study.folder, loops) if self.study else None)
        return found

    def add(self, scored: Sequence[Scored], search: str | None = None) -> None:
        """Take results in, and write them down; what is known already, or is less than what is known, is left out.

        Raises:
            OSError: the disk is full; what was written before is safe.
        """
        found = [replace(one.result, search=search) if one.result.status == "dropped" else one.result for one in scored]
        new = [result for result in found if self._is_news(result)]
        if self.study:
            self.study.append(new, {one.result.loops: one.losses for one in scored if one.losses is not None})
        for result in new:
            self.results[result.key] = result
            if result.status == "dropped":
                self._dropped[result.measure, result.loops, result.search] = result

    def _is_news(self, result: CandidateResult) -> bool:
        """A candidate is measured again beside others of its group that are not known; a race may then drop what was scored."""
        if result.status == "dropped" and (result.measure, result.loops, 1.0, "") in self.results:
            return False
        return result.key not in self.results


def search(
    ledger: Ledger,
    space: Space,
    objective: Objective,
    measurer: Measurer | None,
    *,
    algorithm: str = "grid",
    seed: int = 0,
    evaluations: float | None = None,
    dropped_counts: bool = False,
    name: str | None = None,
    extra: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[StepOfSearch, ...]:
    """Run one search to its end and return its steps.

    Args:
        measurer: None for an objective that needs no measuring.
        evaluations: stop after so many; a part of the text counts as that part. None: until the algorithm ends by itself.
        dropped_counts: whether a candidate that this search's own race dropped counts as measured.
        name: the search's folder in the study.
        extra: more of what makes this search what it is, for its header.

    Raises:
        PlacementError: as `check_search`, or a trace that the algorithm does not reproduce.
        StudyError: as `TraceWriter`.
    """
    check_search(algorithm, evaluations, space)
    header = {
        "algorithm": algorithm,
        "seed": seed,
        "objective": objective.name,
        "evaluations": evaluations,
        "space": space.to_json() | {"num_candidates": len(space)},
    }
    name = name or search_name(algorithm, objective, seed)
    trace = ledger.study.search(name, {**header, **(extra or {})}) if ledger.study else None
    try:
        run = _Search(ledger, space, objective, measurer, name, dropped_counts, evaluations, trace, progress)
        return run.go(algorithm_named(algorithm)(space, seed))
    finally:
        if trace:
            trace.close()


ENDS_BY_ITSELF = ("grid", "greedy")
"""Algorithms without chance; the others try the whole space in an order of their own if nobody stops them."""


def search_name(algorithm: str, objective: Objective, seed: int) -> str:
    """The folder of a search that has no name of its own."""
    return f"{algorithm}-{objective.name}-{seed}".replace(":", "-")


def check_search(algorithm: str, evaluations: float | None, space: Space) -> None:
    """Refuse a search that cannot be, before anything is measured.

    Raises:
        PlacementError: an unknown algorithm, or one that never ends without a number of evaluations.
    """
    algorithm_named(algorithm)
    if evaluations is not None and not evaluations > 0:
        raise PlacementError(f"evaluations is {evaluations:g}; give at least 1")
    if evaluations is None and algorithm not in ENDS_BY_ITSELF:
        raise PlacementError(f"{algorithm} goes on for ever; say how many --evaluations, of {len(space):,} candidates")


class _Search:
    def __init__(
        self,
        ledger: Ledger,
        space: Space,
        objective: Objective,
        measurer: Measurer | None,
        name: str,
        dropped_counts: bool,
        evaluations: float | None,
        trace: TraceWriter | None,
        progress: Progress | None,
    ) -> None:
        self.ledger, self.space, self.objective, self.measurer = ledger, space, objective, measurer
        self.name, self.dropped_counts, self.trace, self.progress = name, dropped_counts, trace, progress
        self.limit = math.inf if evaluations is None else evaluations
        self.recorded: tuple[StepOfSearch, ...] = ledger.ranks.from_first(trace.steps if trace else ())
        self.steps: list[StepOfSearch] = []
        self.spent = 0.0
        self.asked: dict[str, float] = {}  # the largest part of the text on which each candidate was asked for
        self.best: tuple[float, str | None] = (math.inf, None)

    def go(self, proposals: Any) -> tuple[StepOfSearch, ...]:
        try:
            ask = next(proposals)
            while True:
                candidates = self._affordable(ask)
                if not candidates:
                    break
                scores = self.step(candidates, ask.share)
                if self.spent >= self.limit - 1e-9 or len(scores) < len(ask.candidates):
                    break
                ask = proposals.send(scores)
        except StopIteration:
            pass
        finally:
            proposals.close()
        return tuple(self.steps)

    def step(self, candidates: Sequence[Candidate], share: float) -> tuple[float, ...]:
        """The scores of candidates, as recorded or measured now."""
        number = len(self.steps)
        if number < len(self.recorded):
            step = self._replayed(self.recorded[number], candidates, share)
        else:
            step = self._measured(number, candidates, share)
            if self.trace:
                self.trace.append(step)
        self.steps.append(step)
        if self.progress:
            self.progress(self.spent, self._total())
        return tuple(math.inf if score is None else score for score in step.scores)

    def _affordable(self, ask: Ask) -> tuple[Candidate, ...]:
        """The candidates up to the limit of evaluations; what was asked for before is free."""
        chosen = []
        for candidate in ask.candidates:
            loops = format_loops(candidate)
            price = max(0.0, ask.share - self.asked.get(loops, 0.0))
            if self.spent + price > self.limit + 1e-9:
                break
            chosen.append(candidate)
            self.spent += price
            self.asked[loops] = max(ask.share, self.asked.get(loops, 0.0))
        return tuple(chosen)

    def _replayed(self, step: StepOfSearch, candidates: Sequence[Candidate], share: float) -> StepOfSearch:
        if step.loops != tuple(map(format_loops, candidates)) or step.share != share:
            raise PlacementError(
                f"step {step.number} of the recorded search is not what the algorithm proposes now (another version or seed); "
                "give the search another --name, results are kept"
            )
        self.best = (math.inf if step.best_score is None else step.best_score, step.best)
        if self.measurer and all(self._known(loops, share) for loops in step.loops):
            self.measurer.replay(candidates, lambda loops: self._known(loops, share))
        elif self.measurer:  # somebody removed a damaged result
            self._measure(candidates, share)
        return step

    def _measure(self, candidates: Sequence[Candidate], share: float) -> None:
        """Let the measurer see to it that every candidate has a result."""
        assert self.measurer is not None
        done = self.spent - len(candidates) * share

        def tell(scored: Sequence[Scored]) -> None:
            nonlocal done
            self.ledger.add(scored, self.name)
            done += len(scored) * share
            if self.progress:
                self.progress(min(done, self.spent), self._total())

        self.measurer(candidates, share, lambda loops: self._known(loops, share), tell)

    def _measured(self, number: int, candidates: Sequence[Candidate], share: float) -> StepOfSearch:
        if self.measurer:
            self._measure(candidates, share)
        loops = tuple(map(format_loops, candidates))
        scores = tuple(self._score(candidate, one, share) for candidate, one in zip(candidates, loops, strict=True))
        self._account(loops, scores, share)
        return StepOfSearch(
            number=number,
            loops=loops,
            share=share,
            scores=scores,
            evaluations=self.spent,
            best=self.best[1],
            best_score=None if self.best[1] is None else self.best[0],
        )

    def _known(self, loops: str, share: float) -> CandidateResult | None:
        assert self.objective.measure is not None
        return self.ledger.known(self.objective.measure, loops, share, search=self.name if self.dropped_counts else None)

    def _score(self, candidate: Candidate, loops: str, share: float) -> float | None:
        if self.objective.measure is None:
            ratio = cost_of(self.space.shape, candidate).layer_pass_ratio
            result: CandidateResult | None = CandidateResult(loops=loops, layer_pass_ratio=ratio, status="scored", measure="place")
        else:
            result = self._known(loops, share)
        if result is None:
            raise PlacementError(f"{loops} was asked for and not measured")
        score = self.objective.score(result, self.space.shape.num_layers)
        return score if math.isfinite(score) else None

    def _account(self, loops: Sequence[str], scores: Sequence[float | None], share: float) -> None:
        """The best so far, of those scored on the whole text."""
        for one, score in zip(loops, scores, strict=True):
            if score is None or share < 1.0 or score >= self.best[0]:
                continue
            if self.objective.measure is not None:
                result = self._known(one, share)
                if result is None or result.status != "scored":
                    continue
            self.best = (score, one)

    def _total(self) -> float:
        return self.limit if math.isfinite(self.limit) else max(float(len(self.space)), self.spent)
