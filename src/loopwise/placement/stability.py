"""What a study's searches agree on: where their winners lie, how far these spread, and how much of the ranking is noise.

Pure functions of studies (no-free-loop, D.1): nothing here runs a model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..loops import parse_loops
from ..records import CandidateResult, SearchTrace, Study, read_losses, read_study, write_json
from .objectives import Objective, centre_of, objective_named

Basis = Literal["grid", "scored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """One search's best candidate."""

    study: str
    """The folder's name."""
    search: str
    algorithm: str
    seed: int | None
    objective: str
    model: str
    text: str
    """Hash of the text's tokens."""
    evaluations: float
    """Spent by the search so far."""
    loops: str
    score: float
    """By the search's objective; lower is better."""
    centre: float
    """Of the window, as a part of depth; see `centre_of`."""
    rank: int
    """1 is the best; candidates of equal score share a rank."""
    num_ranked: int
    """How many candidates the rank is among: those with a score on the whole text (or task)."""
    num_behind: int
    """Candidates without such a score that count as behind: dropped by a race, or ruined."""
    basis: Basis
    """``grid``: among the candidates of an exhaustive grid that ended; ``scored``: among all that the study scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Window centres of a group of searches' winners."""

    group: str
    """``all``, ``seed``, ``objective``, ``text``, ``model`` or ``algorithm``."""
    value: str
    """Which seed, objective and so on."""
    num_searches: int
    mean: float
    """As a part of depth."""
    standard_deviation: float | None
    """Between searches; None for a single one."""
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NearBest:
    """A candidate that the text cannot tell from the best one."""

    loops: str
    difference_nats: float
    """Mean loss minus the best one's, position by position."""
    standard_error_nats: float
    """Of that difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """What a study shows beyond its single results."""

    study: str
    studies: tuple[str, ...]
    """All whose searches count in ``winners`` and ``spreads``."""
    num_results: int
    """Results of the study when this was computed."""
    best: str | None
    """The candidate of the lowest calibrated loss on the whole text."""
    near_best: tuple[NearBest, ...]
    """Within one paired standard error of the best, which comes first; among them the rank is noise."""
    num_compared: int
    """Candidates whose losses by position could be compared with the best one's, itself among them."""
    pareto: tuple[str, ...]
    """Candidates than which no cheaper or equally cheap one is better, cheapest first; an empty text is the unlooped model."""
    winners: tuple[Winner, ...]
    spreads: tuple[Spread, ...]

    def to_json(self) -> dict[str, Any]:
        """As `summary.json` keeps it."""
        return asdict(self)


def best_of(study: Study, objective: str = "ppl_t") -> CandidateResult | None:
    """The candidate that scores best on the whole text or task; None where none was scored."""
    named = objective_named(objective)
    scores = _scores(study, named)
    best = min(scores, key=lambda loops: (scores[loops], loops), default=None)
    return None if best is None else _scored(study, named.measure or "text").get(best)


def pareto_front(results: Iterable[CandidateResult]) -> tuple[CandidateResult, ...]:
    """The results of lower calibrated loss than any that costs no more, cheapest first; the unlooped model takes part."""
    whole = [one for one in results if one.status == "scored" and one.share == 1.0 and "loss_nats" in one.values]
    front: list[CandidateResult] = []
    for result in sorted(whole, key=lambda one: (one.layer_pass_ratio, one.values["loss_nats"], one.loops)):
        if not front or result.values["loss_nats"] < front[-1].values["loss_nats"]:
            front.append(result)
    return tuple(front)


def near_best(study: Study) -> tuple[tuple[NearBest, ...], int]:
    """The candidates within one paired standard error of the best, and how many had losses to compare."""
    best = best_of(study)
    reference = read_losses(study.folder, best.loops) if best else None
    if best is None or reference is None:
        return (), 0
    near, compared = [NearBest(loops=best.loops, difference_nats=0.0, standard_error_nats=0.0)], 1
    for loops in _scored(study, "text").keys() - {best.loops}:
        losses = read_losses(study.folder, loops)
        if losses is None or losses.shape != reference.shape:
            continue
        compared += 1
        difference = losses.astype(np.float64) - reference
        mean, error = float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(difference.size)
        if mean <= error:
            near.append(NearBest(loops=loops, difference_nats=mean, standard_error_nats=error))
    return tuple(sorted(near, key=lambda one: (one.loops != best.loops, one.difference_nats, one.loops))), compared


def winners_of(study: Study) -> Iterator[Winner]:
    """The best candidate of each search that has one yet."""
    num_layers = int(study.header["num_layers"])
    grids = [search for search in study.searches if _ended_grid(search)]
    for search in study.searches:
        best = search.steps[-1].best if search.steps else None
        if best is None or search.steps[-1].best_score is None:
            continue
        header, objective = search.header, str(search.header["objective"])
        rank, ranked, behind, basis = _rank(study, best, search.steps[-1].best_score, objective_named(objective), grids)
        yield Winner(
            study=study.folder.name,
            search=search.name,
            algorithm=str(header["algorithm"]),
            seed=header.get("seed"),
            objective=objective,
            model=str(study.header.get("model")),
            text=str(study.header.get("mixture_sha256")),
            evaluations=search.steps[-1].evaluations,
            loops=best,
            score=search.steps[-1].best_score,
            centre=centre_of(parse_loops(best), num_layers),
            rank=rank,
            num_ranked=ranked,
            num_behind=behind,
            basis=basis,
        )


def spreads_of(winners: Sequence[Winner]) -> tuple[Spread, ...]:
    """Mean and spread of the window centres: of all searches, and by seed, objective, text, model and algorithm."""
    groups: dict[tuple[str, str], list[float]] = {}
    for winner in winners:
        groups.setdefault(("all", "all"), []).append(winner.centre)
    for group in ("seed", "objective", "text", "model", "algorithm"):
        for winner in sorted(winners, key=lambda one: _natural(getattr(one, group))):
            groups.setdefault((group, str(getattr(winner, group))), []).append(winner.centre)
    return tuple(
        Spread(
            group=group,
            value=value,
            num_searches=len(centres),
            mean=statistics.fmean(centres),
            standard_deviation=statistics.stdev(centres) if len(centres) > 1 else None,
            lowest=min(centres),
            highest=max(centres),
        )
        for (group, value), centres in groups.items()
    )


def summarise(study: Study, others: Sequence[Study] = ()) -> StudySummary:
    """Everything above, the searches of other studies (texts, models) counted in the stability."""
    winners = tuple(winner for one in (study, *others) for winner in winners_of(one))
    near, compared = near_best(study)
    best = best_of(study)
    return StudySummary(
        study=study.folder.name,
        studies=tuple(one.folder.name for one in (study, *others)),
        num_results=len(study.results),
        best=best.loops if best else None,
        near_best=near,
        num_compared=compared,
        pareto=tuple(result.loops for result in pareto_front(study.results)),
        winners=winners,
        spreads=spreads_of(winners),
    )


def write_summary(folder: str | Path, others: Sequence[str | Path] = ()) -> StudySummary:
    """Summarise a study's folder into its ``summary.json``, which a report reads.

    Raises:
        StudyError: a folder that holds no study, or a damaged one.
        OSError: the folder cannot be written.
    """
    summary = summarise(read_study(folder), [read_study(other) for other in others])
    write_json(Path(folder) / "summary.json", summary.to_json())
    return summary


def _alike(measure: str | None) -> tuple[str | None, ...]:
    """The measures that hold what this one holds."""
    return ("text", "text+kl") if measure == "text" else (measure,)


def _scored(study: Study, measure: str) -> dict[str, CandidateResult]:
    """Candidates scored on the whole text or task, by loops."""
    whole = (one for one in study.results if one.loops and one.measure in _alike(measure) and one.status == "scored" and one.share == 1.0)
    return {one.loops: one for one in whole}


def _scores(study: Study, objective: Objective) -> dict[str, float]:
    """The finite scores of a study's candidates; where the place alone decides, of all that it knows."""
    num_layers = int(study.header["num_layers"])
    if objective.measure is None:
        proposed = {loops for search in study.searches for step in search.steps for loops in step.loops}
        known = {loops: CandidateResult(loops=loops, layer_pass_ratio=1.0, status="scored") for loops in proposed}
    else:
        known = _scored(study, objective.measure)
    scores = {loops: objective.score(result, num_layers) for loops, result in known.items()}
    return {loops: score for loops, score in scores.items() if math.isfinite(score)}


def _ended_grid(search: SearchTrace) -> bool:
    """Whether a search is a grid that proposed every candidate of its space; its header says how many these are."""
    proposed = {loops for step in search.steps for loops in step.loops if step.share == 1.0}
    return bool(search.header["algorithm"] == "grid" and len(proposed) == search.header["space"]["num_candidates"])


def _rank(study: Study, best: str, score: float, objective: Objective, grids: Sequence[SearchTrace]) -> tuple[int, int, int, Basis]:
    """Rank, how many are ranked, how many stand behind without a score, and among what: a grid's candidates if it holds the winner."""
    scores = _scores(study, objective)
    fallen = {
        one.loops for one in study.results if one.measure in _alike(objective.measure) and one.status in ("dropped", "ruined")
    } - scores.keys()
    basis: Basis = "scored"
    for grid in grids:
        proposed = {loops for step in grid.steps for loops in step.loops}
        if best in proposed:
            scores, fallen, basis = {name: scores[name] for name in scores.keys() & proposed}, fallen & proposed, "grid"
            break
    ranked = scores | {best: score}
    return 1 + sum(other < score for name, other in ranked.items() if name != best), len(ranked), len(fallen - {best}), basis


def _natural(value: Any) -> tuple[bool, float, str]:
    """Sorts numbers as numbers and before words."""
    number = isinstance(value, int)
    return (not number, value if number else 0.0, str(value))
