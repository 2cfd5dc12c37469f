"""How much of a text a race has to read, looked up in the stored losses of a study whose candidates were all read to the end.

The race's own test is applied, look by look, against the best candidate as leader: with nothing but the leader's losses, with the
unlooped model's as covariate, and with those of neighbours that were read to the end; and with every n-th of the scored
positions. Nothing is run.

    python benchmarks/placement.py --study studies/reference
    python benchmarks/race_reading.py studies/reference
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopwise.loops import parse_loops
from loopwise.placement import Candidate, Race
from loopwise.placement.nearness import nearest, spread
from loopwise.placement.racing import look
from loopwise.placement.scorer import NEIGHBOURS
from loopwise.placement.waves import ONE_KNOWN_IN, TRIED_AS_LEADER
from loopwise.records import read_losses, read_study

WINDOWS = (1, 1, 1, 1, 2, 2, 2, 2)
"""Windows of each look, of the twelve of 3,072 tokens."""
Losses = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--error", type=float, nargs="+", default=[0.02, 0.05])
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
