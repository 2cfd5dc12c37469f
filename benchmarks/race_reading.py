"""How much of a text a race has to read, looked up in the stored losses of a study whose candidates were all read to the end.

The race's own test is applied, look by look, against the best candidate as leader: with nothing but the leader's losses, with the
unlooped model's as covariate, and with those of neighbours that were read to the end; and with every n-th of the scored
positions. Then the race itself, waves, leaders, siblings and all, is run on the stored losses in place of a model's: with one candidate of
each structure ahead of its siblings; with every candidate for itself; and so with 256 candidates at once in place of all.

    python benchmarks/placement.py --study studies/reference
    python benchmarks/race_reading.py studies/reference
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from loopwise.loops import format_loops, parse_loops
from loopwise.placement import Candidate, Race, Ranks, Scored, TextMeasurer, TextScorer, waves
from loopwise.placement.nearness import nearest, representatives, spread
from loopwise.placement.racing import look
from loopwise.placement.runners import Runner
from loopwise.placement.scorer import NEIGHBOURS
from loopwise.placement.waves import ONE_KNOWN_IN, TRIED_AS_LEADER
from loopwise.records import CandidateResult, read_losses, read_study

WINDOWS = (1, 1, 1, 1, 2, 2, 2, 2)
"""Windows of each look, of the twelve of 3,072 tokens."""
Losses = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--error", type=float, nargs="+", default=[0.02, 0.05])
    parser.add_argument("--tolerance", type=float, nargs="*", default=[0.002], help="nats; the race is also run with each of these")
    args = parser.parse_args()
    found = {one.loops: read_losses(args.study, one.loops) for one in read_study(args.study).results if one.status == "scored"}
    losses = {parse_loops(loops) if loops else (): array for loops, array in found.items() if array is not None}
    plain = losses.pop(())
    order = sorted(losses, key=lambda one: float(losses[one].mean(dtype=float)))
    differences = {one: losses[one].astype(float) - losses[order[0]] for one in order[1:]}
    by_unlooped = [_explained(own, plain.astype(float) - losses[order[0]]) for own in differences.values()]
    by_nearest = [_explained(own, nearest(one, differences, 1)[0]) for one, own in differences.items()]
    print(f"variance of a difference explained by the unlooped model's, median: {np.median(by_unlooped):.0%}")
    print(f"by the nearest candidate's: {np.median(by_nearest):.0%}")
    print("every n-th  error  covariates            read  within one standard error  dropped of these")
    for step in (4, 2, 1):
        part = {one: losses[one][::step] for one in order}
        few = TRIED_AS_LEADER + len(order) // ONE_KNOWN_IN
        for error in args.error:
            ways = {"none": (None, 0), "unlooped": (plain, 0), "and neighbours": (plain, few), "and 4 times as many": (plain, 4 * few)}
            for label, (covariate, number) in ways.items():
                read, lost, near = race(part, None if covariate is None else covariate[::step], error, number)
                print(f"{step:10}  {error:5g}  {label:20}  {read:4.0%}  {near:25}  {lost:16}")
    print("error  tolerance  race                  read, in whole texts  regret  within one standard error  dropped of these")
    for error, tolerance in ((error, tolerance) for error in args.error for tolerance in (None, *args.tolerance)):
        for label, first, ask in (
            ("siblings", representatives, len(losses)),
            ("each for itself", list, len(losses)),
            ("by 256", list, 256),
        ):
            texts, regret, lost, near = replay(losses, plain, Race(error=error, tolerance_nats=tolerance), first, ask)
            print(f"{error:5g}  {tolerance or 'none':>9}  {label:20}  {texts:20.1f}  {regret:6.4f}  {near:25}  {lost:16}")


class StoredScorer(TextScorer):
    """Reads stored losses where a scorer would run a model, and counts the positions."""

    def __init__(self, losses: Mapping[Candidate, Losses], plain: Losses, race: Race) -> None:
        self.stored, self.plain, self.race, self.measure = losses, plain, race, "text"
        ends = [round(len(plain) * end / sum(WINDOWS)) for end in np.cumsum((0, *WINDOWS))]
        batches = [SimpleNamespace(at=slice(*ends[at : at + 2]), targets=np.zeros(ends[at + 1] - ends[at])) for at in range(len(WINDOWS))]
        half = SimpleNamespace(at=slice(0, ends[1] // 2), targets=np.zeros(ends[1] // 2))
        self.computer: Any = SimpleNamespace(score=batches, peek=half, groups=_one_by_one)
        self.start_temperature = 1.0
        self.positions_read = 0

    def unlooped(self, share: float = 1.0) -> Any:
        return SimpleNamespace(losses=self.plain, loss_nats=float(self.plain.mean(dtype=float)))

    def score(self, group: Sequence[Candidate], share: float = 1.0) -> list[Scored]:
        self.positions_read += len(group) * len(self.plain)
        return [self._scored(candidate) for candidate in group]

    def _look(self, runners: Sequence[Runner], batch: Any) -> None:
        for runner in runners:
            read = self.stored[runner.candidate][batch.at]
            runner.expanded.append(np.stack([read, 0 * read, 0 * read]))
            self.positions_read += len(read)

    def _finish(self, runners: Sequence[Runner]) -> None:
        for runner in runners:
            runner.ended = self._scored(runner.candidate)

    def _scored(self, candidate: Candidate) -> Scored:
        losses = self.stored[candidate]
        return Scored(result=self._result(candidate, "scored", 1.0, {"loss_nats": float(losses.mean(dtype=float))}, None), losses=losses)

    def _result(self, candidate: Candidate, status: Any, share: float, values: Any, seconds: Any, reason: Any = None) -> CandidateResult:
        return CandidateResult(
            loops=format_loops(candidate), layer_pass_ratio=1.0, status=status, share=share, values=values, reason=reason
        )


def _one_by_one(candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
    return [(candidate,) for candidate in candidates]


def replay(
    losses: Mapping[Candidate, Losses], plain: Losses, race: Race, first: Callable[[Sequence[Candidate]], list[Candidate]], ask: int
) -> tuple[float, float, int, int]:
    """Whole texts that the race reads, its winner's regret in nats, how many near the best it drops, and how many there are.

    Args:
        first: the candidates that race before the others.
        ask: how many candidates race at once, in their order along the depth.
    """
    scorer, found = StoredScorer(losses, plain, race), dict[str, CandidateResult]()

    def tell(scored: Sequence[Scored]) -> None:
        for one in scored:
            found.setdefault(one.result.loops, one.result)

    order = sorted(losses, key=lambda one: [(loop.start, loop.stop, loop.passes, loop.beta or 0.0) for loop in one])
    with patch.object(waves, "representatives", first):
        measurer = TextMeasurer(scorer, Ranks())
        for at in range(0, len(order), ask):
            measurer(order[at : at + ask], 1.0, found.get, tell)
    means = {one: float(own.mean(dtype=float)) for one, own in losses.items()}
    best = min(means, key=lambda one: means[one])
    near = []
    for one, own in losses.items():
        differences = own.astype(float) - losses[best]
        if float(differences.mean()) <= float(differences.std(ddof=1)) / math.sqrt(len(own)):
            near.append(found[format_loops(one)].status)
    winner = min(means[one] for one in losses if found[format_loops(one)].status == "scored")
    return scorer.positions_read / len(plain), winner - means[best], near.count("dropped"), len(near)


def _explained(differences: NDArray[Any], by: NDArray[Any]) -> float:
    return float(np.corrcoef(differences, by)[0, 1] ** 2)


def race(losses: Mapping[Candidate, Losses], plain: Losses | None, error: float, num_known: int) -> tuple[float, int, int]:
    """The part that is read on average, how many near the best are dropped, and how many there are.

    Args:
        losses: of all candidates, the best first.
        plain: the unlooped model's; None: no covariate.
        num_known: candidates that are read to the end first.
    """
    best, *others = losses
    leader = losses[best]
    tried = others[: min(TRIED_AS_LEADER, num_known)]
    known = {one: losses[one] for one in tried + spread(others, tried, num_known - len(tried))}
    ends = [round(len(leader) * end / sum(WINDOWS)) for end in np.cumsum(WINDOWS)[:-1]]
    total, lost, near = 1.0, 0, 0
    for one in others:
        own = losses[one]
        differences = own.astype(float) - leader
        is_near = float(differences.mean()) <= float(differences.std(ddof=1)) / math.sqrt(len(own))
        near += is_near
        covariates = np.stack([leader if plain is None else plain, *nearest(one, known, NEIGHBOURS)])
        for end in ends if one not in known else ():
            if look(Race(error=error), own[:end], leader, covariates, num_looks=len(ends)).dropped:
                total, lost = total + end / len(own), lost + is_near
                break
        else:
            total += 1.0
    return total / len(losses), lost, near


if __name__ == "__main__":
    main()
