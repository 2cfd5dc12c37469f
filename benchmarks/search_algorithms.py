"""The nine search algorithms on a study whose whole grid is known: best score so far against evaluations, several seeds.

The scores are looked up in the study, so that every algorithm meets the same landscape and nothing is run. A part of the
text, as successive halving asks for it, is the stored losses of that part; of a candidate that the grid's race dropped it is
the race's estimate, which comes from a part of the text itself.

    loopwise place smollm2 --dtype bf16 --out studies/smollm2
    python benchmarks/search_algorithms.py studies/smollm2 --evaluations 256 --out searches
    python benchmarks/placement.py --study studies/reference        # or the 182 windows with two passes and one beta
    python benchmarks/search_algorithms.py studies/reference --passes 2 --betas 0.25 --evaluations 64 --out searches
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loopwise.cost import read_shape
from loopwise.loops import format_loops
from loopwise.models import resolve
from loopwise.placement import ALGORITHMS, ENDS_BY_ITSELF, Candidate, Known, Ledger, Ranks, Scored, Space, Tell, objective_named, search
from loopwise.placement import write_summary as summarise_folder
from loopwise.records import CandidateResult, Status, StepOfSearch, Study, StudyWriter, read_losses, read_study
from loopwise.report import render_study

SLOW = {"gp": 64.0}
"""Evaluations of an algorithm whose own time grows with the cube of their number."""


class Recorded:
    """Measures by looking up."""

    measure = "text"

    def __init__(self, study: Study) -> None:
        assert study.unlooped is not None
        self.study = study
        self.results = {one.loops: one for one in study.results if one.measure == "text" and (one.share == 1.0 or one.status == "dropped")}
        self.plain = read_losses(study.folder, "")

    def __call__(self, candidates: Sequence[Candidate], share: float, known: Known, tell: Tell) -> None:
        tell([self.scored(format_loops(candidate), share) for candidate in candidates if known(format_loops(candidate)) is None])

    def replay(self, candidates: Sequence[Candidate], known: Known) -> None:
        """Nothing is carried from one step to the next."""

    def scored(self, loops: str, share: float) -> Scored:
        found = self.results[loops]
        values: dict[str, float] = {name: found.values[name] for name in ("loss_nats", "difference_nats") if name in found.values}
        losses = read_losses(self.study.folder, loops) if share < 1.0 and found.status == "scored" else None
        if losses is not None and self.plain is not None:
            part = slice(0, max(1, round(share * len(losses))))
            difference = float(np.mean(losses[part].astype(float) - self.plain[part]))
            values = {"loss_nats": float(np.mean(self.plain, dtype=float)) + difference, "difference_nats": difference}
        status: Status = "ruined" if found.status == "ruined" else "scored"
        ratio = found.layer_pass_ratio
        return Scored(result=CandidateResult(loops=loops, layer_pass_ratio=ratio, status=status, share=share, values=values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--evaluations", type=float, default=256)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--betas", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--out", type=Path, required=True, help="a study of the searches alone, with the figure")
    args = parser.parse_args()
    study = read_study(args.study)
    assert study.unlooped is not None
    shape = read_shape(resolve(study.header["model"]).folder)
    space = Space(shape=shape, passes=tuple(args.passes), betas=tuple(args.betas))
    measurer = Recorded(study)
    missing = [one for one in map(format_loops, space) if one not in measurer.results]
    if missing:
        raise SystemExit(f"{args.study} lacks {len(missing)} of {len(space)} candidates of its grid, the first is {missing[0]}")
    losses = {loops: one.values.get("loss_nats", math.inf) for loops, one in measurer.results.items() if loops}
    best = min(losses.values())
    writer = StudyWriter(args.out, study.header)
    plain = read_losses(study.folder, "")
    writer.append([study.unlooped], None if plain is None else {"": plain})
    winner = min(losses, key=lambda one: losses[one])
    print(f"{len(space):,} candidates; the grid's best is {winner}; nats above it, median of {args.seeds} seeds")
    at = [count for count in (8, 16, 32, 64, 128, 256) if count <= args.evaluations]
    print("algorithm   " + "".join(f"{f'after {count}':>12}" for count in at) + "   worst seed at the end")
    for name in ALGORITHMS:
        traces = [run(writer, space, measurer, name, seed, args.evaluations) for seed in range(1 if name in ENDS_BY_ITSELF else args.seeds)]
        rows = [[best_after(trace, count) - best for trace in traces] for count in at]
        cells = "".join(f"{statistics.median(row):>12.4f}" if all(map(math.isfinite, row)) else f"{'-':>12}" for row in rows)
        print(f"{name:12}{cells}   {max(best_after(trace, math.inf) - best for trace in traces):.4f}")
    summarise_folder(args.out)
    print(f"figure: {args.out / 'figures' / 'search-traces-ppl-t.svg'}, report {render_study(args.out)}")


def run(writer: StudyWriter, space: Space, measurer: Recorded, name: str, seed: int, evaluations: float) -> tuple[StepOfSearch, ...]:
    limit = min(evaluations, SLOW.get(name, math.inf))
    return search(Ledger(writer, Ranks()), space, objective_named("ppl_t"), measurer, algorithm=name, seed=seed, evaluations=limit)


def best_after(trace: Sequence[StepOfSearch], evaluations: float) -> float:
    """The best score of the whole text after so many evaluations; a step that ends later does not count."""
    reached = [step.best_score for step in trace if step.evaluations <= evaluations + 1e-9 and step.best_score is not None]
    return min(reached, default=math.inf)


if __name__ == "__main__":
    main()
