"""What a placement study prints on the console."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence

from ..records import CandidateResult, Study
from .console import table

FILTER = (
    "The score is a filter: it rules out loops that harm the model and promises no gain. Whether a loop pays is for loopwise "
    "trial to say, against the twin."
)
PART = "read in part"
FATES = ("scored", "ruined", "failed", "dropped", PART)
"""From the whole text to less of it."""


def ranked(study: Study, objective: str, searches: Sequence[str]) -> list[CandidateResult]:
    """The candidates that these searches asked for and that were measured to the end, best first.

    A study may hold results of other searches, in other spaces.
    """
    from ..placement import objective_named

    chosen = objective_named(objective)
    num_layers = int(study.header["num_layers"])
    if chosen.measure is None:
        return _by_place(study, searches)
    asked = _asked(study, searches)
    results = [r for r in study.results if r.loops in asked and r.measure == chosen.measure and r.share == 1.0 and r.status == "scored"]
    return sorted(results, key=lambda result: chosen.score(result, num_layers))


def _asked(study: Study, searches: Sequence[str]) -> set[str]:
    """Every candidate that one of these searches proposed."""
    return {loops for one in study.searches if one.name in searches for step in one.steps for loops in step.loops}


def _by_place(study: Study, searches: Sequence[str]) -> list[CandidateResult]:
    """Candidates that were not measured: their place is their score."""
    scores: dict[str, float] = {}
    for one in study.searches:
        if one.name in searches:
            for step in one.steps:
                scores |= {loops: score for loops, score in zip(step.loops, step.scores, strict=True) if score is not None}
    best = sorted(scores, key=lambda loops: scores[loops])
    return [CandidateResult(loops=loops, layer_pass_ratio=math.nan, status="scored", measure="place") for loops in best]


def placement_summary(study: Study, objective: str, searches: Sequence[str], best: Sequence[CandidateResult]) -> str:
    """How many of the candidates that these searches asked for came how far, and the best few."""
    fates = Counter(_fates(study, objective, searches).values())
    counts = ", ".join(f"{fates[fate]:,} {fate}" for fate in FATES if fates[fate])
    lines = [f"candidates: {counts}"] if counts else []
    if best and "calibrated_perplexity" in best[0].values:
        plain = study.unlooped
        if plain:
            values = plain.values
            lines.append(
                f"unlooped: PPL_T {values['calibrated_perplexity']:.4g} at T = {values['temperature']:.4f}, "
                f"plain {values['perplexity']:.4g}; fitted on {values['num_fit_positions']:.0f} positions, "
                f"scored on {values['num_score_positions']:.0f}"
            )
        rows = [_text_row(result) for result in best]
        lines += ["", table(rows, ("loops", "cost", "PPL_T", "nats against unlooped", "se", "T", "plain PPL"))]
    elif best and best[0].values:
        rows = [[result.loops, *(f"{value:.4g}" for value in result.values.values())] for result in best]
        lines += ["", table(rows, ("loops", *best[0].values))]
    elif best:
        lines += ["best by their place:", *(f"  {result.loops}" for result in best)]
    elif fates and fates["ruined"] == fates.total():
        lines.append("every candidate ruins the model: try other places, fewer passes or a larger beta")
    else:
        lines.append("no candidate has a score on the whole text" if _reads_text(objective) else "no candidate has a score")
    return "\n".join([*lines, "", *textwrap.wrap(FILTER, 110)])


def _reads_text(objective: str) -> bool:
    return objective in ("ppl_t", "ppl", "kl")


def _fates(study: Study, objective: str, searches: Sequence[str]) -> dict[str, str]:
    """What became of each candidate of these searches under an objective: the furthest that any search brought it."""
    from ..placement import objective_named

    measure, asked = objective_named(objective).measure, _asked(study, searches)
    fates: dict[str, str] = {}
    for result in study.results:
        if result.loops in asked and result.measure == measure:
            fate = PART if result.share < 1.0 and result.status != "dropped" else result.status
            fates[result.loops] = min(fate, fates.get(result.loops, fate), key=FATES.index)
    return fates


def _text_row(result: CandidateResult) -> list[str]:
    values = result.values
    return [
        result.loops,
        f"{result.layer_pass_ratio:.3f}",
        f"{values['calibrated_perplexity']:.4f}",
        f"{values['difference_nats']:+.4f}",
        f"{values['standard_error_nats']:.4f}",
        f"{values['temperature']:.4f}",
        f"{values['perplexity']:.4f}",
    ]
