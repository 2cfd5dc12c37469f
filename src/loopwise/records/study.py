"""Studies: where a loop could go in one model, scored on one text. Append-only, readable while they run.

A study is a folder::

    study.json            what every result in it depends on: model, text, positions, dtype, versions
    results.jsonl         one `CandidateResult` a line, as they come; the unlooped model is the one without loops
    losses/HASH.npy       fp32 losses in nats of a scored candidate at its fitted temperature, position after position
    searches/NAME/        search.json (algorithm, seed, objective, space) and trace.jsonl, one `StepOfSearch` a line

Several searches write into one study, also at the same time; each line is appended under a lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .runs import RecordsError, read_json

Key = tuple[str, str, float, str]
"""Measure, loops, share, and for a dropped candidate the search."""
Status = Literal["scored", "dropped", "ruined", "failed"]
_KINDS: dict[type, str] = {str: "a text", int: "a whole number", dict: "an object"}
STATUSES = ("scored", "dropped", "ruined", "failed")


class StudyError(RecordsError):
    """A study's folder that cannot be used: names the folder, the fault and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """What was measured of one candidate. Objectives are functions of it, so that searches share results."""

    loops: str
    """In the loop notation; empty for the unlooped model."""
    layer_pass_ratio: float
    """(N + m)/N."""
    status: Status
    """``scored``; ``dropped`` by a race before the text's end, so that its values are of the part that was read; ``ruined``,
    with losses that are not finite or that no temperature can calibrate; ``failed``, for a reason outside the candidate."""
    measure: str = "text"
    """What was measured: ``text``, ``text+kl`` or ``accuracy:TASK``."""
    share: float = 1.0
    """The part of the text that was read."""
    values: dict[str, float] = field(default_factory=dict)
    """Of a text: temperature, perplexity, calibrated_perplexity, plain_loss_nats, loss_nats (calibrated), difference_nats and
    standard_error_nats (calibrated, against the unlooped model, paired by position), num_fit_positions, num_score_positions; with
    ``text+kl`` also kl_nats. What a race dropped has an estimate of loss_nats, from the part that was read. Of a task: accuracy,
    num_items."""
    reason: str | None = None
    """Why it was dropped, is ruined or failed."""
    seconds: float | None = None
    """This candidate's share of the time."""
    search: str | None = None
    """The search whose race dropped it: the leader there may be none that another search could propose."""

    @property
    def key(self) -> Key:
        """What makes a result unique within a study."""
        return (self.measure, self.loops, self.share, self.search or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOfSearch:
    """One batch that an algorithm proposed, and the scores that it was sent."""

    number: int
    """From 0."""
    loops: tuple[str, ...]
    share: float
    """The part of the text that the algorithm asked for."""
    scores: tuple[float | None, ...]
    """Lower is better; None for a ruined candidate, which ranks last."""
    evaluations: float
    """Whole evaluations so far: a part of the text counts as that part, a candidate asked for again not at all."""
    best: str | None
    """The best candidate so far that was scored on the whole text."""
    best_score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTrace:
    """One search: what it was, and what it did."""

    name: str
    header: dict[str, Any]
    """algorithm, seed, objective, space, evaluations."""
    steps: tuple[StepOfSearch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study as it was when it was read."""

    folder: Path
    header: dict[str, Any]
    results: tuple[CandidateResult, ...]
    """In the order in which they came, one for each key."""
    searches: tuple[SearchTrace, ...]

    def needed(self, name: str) -> Any:
        """A field of the header.

        Raises:
            StudyError: the header lacks it.
        """
        if name not in self.header:
            raise _missing(self.folder / "study.json", name)
        return self.header[name]

    @property
    def unlooped(self) -> CandidateResult | None:
        """The unlooped model's result on the whole text, once it is there."""
        return next((result for result in self.results if not result.loops and result.measure == "text" and result.share == 1.0), None)


def read_study(folder: str | Path) -> Study:
    """A study's folder, also while searches write into it (a line that is being written is left out).

    Raises:
        StudyError: no study there, a damaged line, or a header without a field that readers need.
    """
    folder = Path(folder)
    if not (folder / "study.json").is_file():
        raise StudyError(f"{folder}: holds no study (no study.json); give the folder that loopwise place wrote")
    results = {result.key: result for result in reversed([*read_lines(folder / "results.jsonl", parse_result)])}
    searches = []
    for header in sorted(folder.glob("searches/*/search.json")):
        steps = tuple(read_lines(header.with_name("trace.jsonl"), parse_step))
        searches.append(SearchTrace(name=header.parent.name, header=read_search_header(header), steps=steps))
    ordered = tuple(reversed(_without_overtaken(results).values()))
    return Study(folder=folder, header=read_study_header(folder / "study.json"), results=ordered, searches=tuple(searches))


def check_search_name(name: str) -> None:
    """Refuse what is no name for a search's folder.

    Raises:
        StudyError: it is empty, leads elsewhere, or has separators.
    """
    if not name.strip() or name in (".", "..") or any(sign in name for sign in "/\\\0"):
        raise StudyError(f"{name!r} is no name for a search's folder; give --name some letters, without slashes")


def _without_overtaken(results: dict[Key, CandidateResult]) -> dict[Key, CandidateResult]:
    """Results less those of races whose candidate was read further by another search."""
    furthest: dict[tuple[str, str], CandidateResult] = {}
    for result in results.values():
        if result.status == "dropped" or result.share == 1.0:
            other = furthest.get((result.measure, result.loops))
            if other is None or result.share > other.share:
                furthest[result.measure, result.loops] = result
    return {key: one for key, one in results.items() if one.status != "dropped" or furthest[one.measure, one.loops] is one}


def read_losses(folder: str | Path, loops: str) -> NDArray[np.float32] | None:
    """The losses in nats, by position, of a candidate scored on the whole text; None where there are none."""
    try:
        with open(losses_file(Path(folder), loops), "rb") as file:
            losses: NDArray[np.float32] = np.load(file, allow_pickle=False)
            return losses
    except (FileNotFoundError, ValueError, EOFError):
        return None


def read_study_header(file: Path) -> dict[str, Any]:
    """study.json, with the fields that every reader needs."""
    header = read_json(file)
    _check_field(file, header, "model", str)
    _check_field(file, header, "num_layers", int)
    return header


def read_search_header(file: Path) -> dict[str, Any]:
    """search.json, likewise."""
    header = read_json(file)
    _check_field(file, header, "algorithm", str)
    _check_field(file, header, "objective", str)
    if header["algorithm"] == "grid":  # whether it ended is in how many candidates it had
        _check_field(file, header, "space", dict)
        _check_field(file, header["space"], "num_candidates", int, "space.")
    return header


def _check_field(file: Path, header: Mapping[str, Any], name: str, kind: type, prefix: str = "") -> None:
    if name not in header:
        raise _missing(file, prefix + name)
    if not isinstance(header[name], kind) or isinstance(header[name], bool):
        raise StudyError(
            f"{file}: {prefix}{name} is {shortened(header[name])}, not {_KINDS[kind]}; put back a copy, or make the study again"
        )


def _missing(file: Path, name: str) -> StudyError:
    return StudyError(f"{file}: has no {name!r}; put back a copy, or make the study again with loopwise place")


def read_lines(file: Path, parse: Any) -> Iterator[Any]:
    """Whole lines only: the last one may be half written."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n"), 1):
        if line.strip():
            try:
                yield parse(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise StudyError(f"{file}, line {number}: damaged ({type(error).__name__}: {error}); remove that line to go on") from None


def parse_result(values: dict[str, Any]) -> CandidateResult:
    """One line of results.jsonl."""
    result = CandidateResult(**values)
    if result.status not in STATUSES:
        raise ValueError(f"status is {result.status!r}")
    return result


def parse_step(values: dict[str, Any]) -> StepOfSearch:
    """One line of trace.jsonl."""
    return StepOfSearch(**values | {"loops": tuple(values["loops"]), "scores": tuple(values["scores"])})


def losses_file(folder: Path, loops: str) -> Path:
    """Where a candidate's losses lie."""
    return folder / "losses" / (hashlib.sha256(loops.encode()).hexdigest()[:24] + ".npy")


def shortened(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
