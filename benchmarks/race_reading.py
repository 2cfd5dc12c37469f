"""How much of a text a race has to read, looked up in the stored losses of a study whose candidates were all read to the end.

The race's own test is applied, look by look, against the best candidate as leader: with the unlooped model's losses as
covariate and without, and with every n-th of the scored positions. Nothing is run.

    python benchmarks/placement.py --study studies/reference
    python benchmarks/race_reading.py studies/reference
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loopwise.placement import Race
from loopwise.placement.racing import look
from loopwise.records import read_losses, read_study

WINDOWS = (1, 1, 2, 2, 2, 2, 2)
"""Windows of each look, of the twelve of 3,072 tokens."""
Losses = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--error", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    args = parser.parse_args()
    found = {one.loops: read_losses(args.study, one.loops) for one in read_study(args.study).results if one.status == "scored"}
    losses = {loops: array for loops, array in found.items() if array is not None}
    plain = losses.pop("")
    best = min(losses.values(), key=lambda array: float(array.mean(dtype=float)))
    others = [array.astype(float) - best for array in losses.values() if array is not best]
    known = plain.astype(float) - best
    neighbours = [np.corrcoef(d[:-1], d[1:])[0, 1] for d in others]
    print(f"correlation of neighbouring positions' differences, median: {np.median(neighbours):.3f}")
    print(f"R2 of the unlooped model's differences, median: {np.median([np.corrcoef(d, known)[0, 1] ** 2 for d in others]):.2f}")
    print("every n-th  error  read  read without covariate  within one standard error  dropped of these")
    for step in (4, 2, 1):
        for error in args.error:
            part = [array[::step] for array in losses.values()]
            read, lost, near = race(part, plain[::step], error)
            without, _, _ = race(part, None, error)
            print(f"{step:10}  {error:5g}  {read:4.0%}  {without:22.0%}  {near:25}  {lost:16}")


def race(losses: Sequence[Losses], plain: Losses | None, error: float) -> tuple[float, int, int]:
    """The part that is read on average, how many near the best are dropped, and how many there are; ``plain`` None: no covariate."""
    leader = min(losses, key=lambda array: float(array.mean(dtype=float)))
    reference = leader if plain is None else plain
    behind = float(reference.mean(dtype=float) - leader.mean(dtype=float))
    ends = [round(len(leader) * end / sum(WINDOWS)) for end in np.cumsum(WINDOWS)[:-1]]
    total, lost, near = 0.0, 0, 0
    for own in losses:
        differences = own.astype(float) - leader
        is_near = float(differences.mean()) <= float(differences.std(ddof=1)) / math.sqrt(len(own))
        near += is_near and own is not leader
        for end in ends if own is not leader else ():
            part = end / len(own)
            if look(Race(error=error), own[:end], leader[:end], reference[:end], behind, part=part, num_looks=len(ends)).dropped:
                total, lost = total + part, lost + is_near
                break
        else:
            total += 1.0
    return total / len(losses), lost, near


if __name__ == "__main__":
    main()
