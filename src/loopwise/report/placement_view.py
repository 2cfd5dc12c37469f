"""A study as a report sees it: one `Spot` a candidate, counts, and what summary.json and validation.json add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..loops import LoopError, parse_loops
from ..records import CandidateResult, SearchTrace, Study, read_json, read_study
from .numbers import known_number

Fate = Literal["scored", "part", "dropped", "ruined", "failed"]
FATES: tuple[Fate, ...] = ("scored", "part", "dropped", "ruined", "failed")
"""``part``: scored on a part of the text, because no search asked for more."""
TEXT = ("text", "text+kl")
"""Measures of a text: its losses, and these with the divergence from the unlooped model."""
SEVERAL, HALVES = "several windows", "MLP halves only"
"""Structures that are no single window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A candidate, and the most that is known of it on the text."""

    result: CandidateResult
    fate: Fate
    start: int
    """First looped layer."""
    width: int | None
    """Of its only window; None for other structures."""
    structure: str
    """``window``, or `SEVERAL`, or `HALVES`."""
    difference: float | None
    """Calibrated loss minus the unlooped model's, in nats, on the text that both read."""
    plain_difference: float | None
    """The same without calibration; None unless the whole text was read."""

    @property
    def loops(self) -> str:
        """In the loop notation."""
        return self.result.loops

    @property
    def hides(self) -> bool:
        """Better than the unlooped model on plain loss, and not once both are calibrated."""
        return self.plain_difference is not None and self.difference is not None and self.plain_difference < 0 < self.difference


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that a report of one study reads."""

    study: Study
    unlooped: CandidateResult | None
    spots: tuple[Spot, ...]
    """Best first; those without a difference last."""
    summary: Mapping[str, Any]
    """summary.json; empty where it is not there."""
    validation: Mapping[str, Any]
    """validation.json; empty where it is not there."""

    @property
    def num_layers(self) -> int | None:
        """Of the model, as far as the header says."""
        number = known_number(self.study.header.get("num_layers"))
        return None if number is None else int(number)

    @property
    def scored(self) -> list[Spot]:
        """Those scored on the whole text, best first."""
        return [spot for spot in self.spots if spot.fate == "scored" and spot.difference is not None]

    @property
    def near(self) -> dict[str, Mapping[str, Any]]:
        """Those within one paired standard error of the best, by loops."""
        return {str(one["loops"]): one for one in self.summary.get("near_best", ())}

    @property
    def has_ended(self) -> bool:
        """Whether every search is known to have ended: a grid that asked for all its candidates, or one that spent its evaluations."""
        return bool(self.study.searches) and all(map(_has_ended, self.study.searches))

    @property
    def all_ruined(self) -> bool:
        """Whether there are candidates and each of them is ruined."""
        return bool(self.spots) and self.count("ruined") == len(self.spots)

    def count(self, fate: Fate) -> int:
        """How many candidates met it."""
        return sum(spot.fate == fate for spot in self.spots)

    def dropped_at(self) -> list[tuple[float, int]]:
        """The shares of the text at which races dropped candidates, and how many each."""
        return sorted(Counter(spot.result.share for spot in self.spots if spot.fate == "dropped").items())


def view_study(folder: str | Path) -> View:
    """Read a study's folder, also while it runs.

    Raises:
        StudyError: it holds no study, or a damaged one.
        RecordsError: a damaged summary.json or validation.json.
    """
    study = read_study(folder)
    return View(
        study=study,
        unlooped=unlooped_of(study),
        spots=spots_of(study),
        summary=_read_if_there(study.folder / "summary.json"),
        validation=_read_if_there(study.folder / "validation.json"),
    )


def _has_ended(search: SearchTrace) -> bool:
    if not search.steps:
        return False
    limit = known_number(search.header.get("evaluations"))
    if limit is not None and search.steps[-1].evaluations >= limit - 1e-9:
        return True
    if search.header["algorithm"] != "grid":
        return False
    asked = {loops for step in search.steps for loops in step.loops}
    return len(asked) >= int(search.header["space"]["num_candidates"])


def spots_of(study: Study) -> tuple[Spot, ...]:
    """One spot a candidate, best first."""
    unlooped, most = unlooped_of(study), dict[str, CandidateResult]()
    for result in study.results:
        if result.measure in TEXT and result.loops and (result.loops not in most or _knows_more(result, most[result.loops])):
            most[result.loops] = result
    spots = (spot for result in most.values() if (spot := _spot(result, unlooped)) is not None)
    return tuple(sorted(spots, key=lambda one: (one.fate != "scored", one.difference is None, one.difference or 0.0, one.loops)))


def unlooped_of(study: Study) -> CandidateResult | None:
    """The unlooped model's result on the whole text, under whatever measure of it."""
    whole = (one for one in study.results if not one.loops and one.measure in TEXT and one.share == 1.0)
    return study.unlooped or next(whole, None)


def best_by_start(spots: Iterable[Spot]) -> dict[int, Spot]:
    """The best spot at each start: what was scored whole before what was not, whatever is known before what is ruined."""
    best: dict[int, Spot] = {}
    for spot in spots:
        if spot.fate != "failed" and (spot.start not in best or _order(spot) < _order(best[spot.start])):
            best[spot.start] = spot
    return dict(sorted(best.items()))


def series_of(spots: Sequence[Spot], most: int = 7) -> dict[str, list[Spot]]:
    """Spots by width, several widths together where there are more than ``most`` series, and by structure."""
    others = [name for name in (SEVERAL, HALVES) if any(spot.structure == name for spot in spots)]
    widths = sorted({spot.width for spot in spots if spot.width is not None})
    groups = max(1, min(len(widths), most - len(others)))
    series: dict[str, list[Spot]] = {}
    for n in range(groups if widths else 0):
        inside = widths[n * len(widths) // groups : (n + 1) * len(widths) // groups]
        name = f"width {inside[0]}" if len(inside) == 1 else f"widths {inside[0]}–{inside[-1]}"
        series[name] = [spot for spot in spots if spot.width in inside]
    return series | {name: [spot for spot in spots if spot.structure == name] for name in others}


def _order(spot: Spot) -> tuple[int, float]:
    rank = 0 if spot.fate == "scored" and spot.difference is not None else 1 if spot.difference is not None else 2
    return rank, spot.difference or 0.0


def _knows_more(one: CandidateResult, other: CandidateResult) -> bool:
    """A result on the whole text says more than one on a part, and any says more than a failure."""
    return (one.status != "failed", one.share) > (other.status != "failed", other.share)


def _spot(result: CandidateResult, unlooped: CandidateResult | None) -> Spot | None:
    try:
        loops = parse_loops(result.loops)
    except LoopError:  # a results.jsonl that somebody edited: nothing can be drawn of it
        return None
    if not loops:
        return None
    windows = [loop for loop in loops if loop.part == "layer"]
    fate: Fate = "part" if result.status == "scored" and result.share < 1 else result.status
    measured = fate in ("scored", "part", "dropped")
    whole = unlooped is not None and fate == "scored"
    return Spot(
        result=result,
        fate=fate,
        start=min(loop.start for loop in windows or loops),
        width=windows[0].stop - windows[0].start if len(windows) == 1 else None,
        structure="window" if len(windows) == 1 else SEVERAL if windows else HALVES,
        difference=known_number(result.values.get("difference_nats")) if measured else None,
        plain_difference=_difference(result, unlooped, "plain_loss_nats") if whole else None,
    )


def _difference(result: CandidateResult, unlooped: CandidateResult | None, name: str) -> float | None:
    ours, theirs = known_number(result.values.get(name)), known_number(unlooped.values.get(name)) if unlooped else None
    return None if ours is None or theirs is None else ours - theirs


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}
