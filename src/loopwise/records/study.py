"""Studies: where a loop could go in one model, scored on one text. Append-only, readable while they run.

A study is a folder::

    study.json            what every result in it depends on: model, text, positions, dtype, versions
    results.jsonl         one `CandidateResult` a line, as they come; the unlooped model is the one without loops
    losses/HASH.npy       fp32 losses in nats of a scored candidate at its fitted temperature, position after position
    searches/NAME/        search.json (algorithm, seed, objective, space) and trace.jsonl, one `StepOfSearch` a line

Several searches write into one study, also at the same time; each line is appended under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .runs import RecordsError, read_json, write_json

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
    results = {result.key: result for result in reversed([*_read_lines(folder / "results.jsonl", _parse_result)])}
    searches = []
    for header in sorted(folder.glob("searches/*/search.json")):
        steps = tuple(_read_lines(header.with_name("trace.jsonl"), _parse_step))
        searches.append(SearchTrace(name=header.parent.name, header=_read_search_header(header), steps=steps))
    ordered = tuple(reversed(_without_overtaken(results).values()))
    return Study(folder=folder, header=_read_study_header(folder / "study.json"), results=ordered, searches=tuple(searches))


def check_search_name(name: str) -> None:
    """Refuse what is no name for a search's folder.

    Raises:
        StudyError: it is empty, leads elsewhere, or has separators.
    """
    if not name.strip() or name in (".", "..") or any(sign in name for sign in "/\\\0"):
        raise StudyError(f"{name!r} is no name for a search's folder; give --name some letters, without slashes")


def check_study(folder: str | Path, header: Mapping[str, Any]) -> None:
    """Check, without writing anything, that a `StudyWriter` with this header could open the folder.

    Raises:
        StudyError: the folder holds a study whose header differs.
    """
    file = Path(folder) / "study.json"
    if file.exists():
        _check_same(file, read_json(file), _plain(header), StudyWriter.UNBOUND, StudyWriter.REMEDY)


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
        with open(_losses_file(Path(folder), loops), "rb") as file:
            losses: NDArray[np.float32] = np.load(file, allow_pickle=False)
            return losses
    except (FileNotFoundError, ValueError, EOFError):
        return None


class StudyWriter:
    """Opens a study's folder, or makes it, and adds results."""

    UNBOUND = ("started", "model", "sources")
    """Names; the hashes of model and text decide, so that a study goes on from another folder."""
    REMEDY = "another study; give a new --out"

    def __init__(self, folder: str | Path, header: Mapping[str, Any]) -> None:
        """Open ``folder``; ``results`` then holds what is there.

        Raises:
            StudyError: the folder holds a study whose header differs (the first field is named), or is damaged.
            OSError: the folder cannot be written.
        """
        self.folder = Path(folder)
        (self.folder / "losses").mkdir(parents=True, exist_ok=True)
        self.header: dict[str, Any] = _bind_header(self.folder / "study.json", header, self.UNBOUND, self.REMEDY)
        self.file = self.folder / "results.jsonl"
        _drop_cut_tail(self.file)
        self.results: dict[Key, CandidateResult] = {}
        for result in _read_lines(self.file, _parse_result):
            self.results.setdefault(result.key, result)

    def find(self, loops: str, *, measure: str = "text", share: float = 1.0) -> CandidateResult | None:
        """The result of a candidate on that part of the text, if it is there."""
        return self.results.get((measure, loops, share, ""))

    def find_dropped(self, loops: str) -> CandidateResult | None:
        """The result of a candidate that a race dropped, if it did and nobody scored the candidate on the whole text since."""
        if self.find(loops):
            return None
        return next((result for result in self.results.values() if result.loops == loops and result.status == "dropped"), None)

    def append(self, results: Iterable[CandidateResult], losses: Mapping[str, NDArray[np.float32]] | None = None) -> None:
        """Write results and flush them to the disk; losses first, so that a result never stands without them.

        Raises:
            OSError: the disk is full; what was written before stays readable.
        """
        new = [result for result in results if result.key not in self.results]
        for result in new:
            if losses is not None and result.loops in losses:
                _write_array(_losses_file(self.folder, result.loops), losses[result.loops])
        _append_lines(self.file, (_result_line(result) for result in new))
        self.results |= {result.key: result for result in new}

    def search(self, name: str, header: Mapping[str, Any]) -> TraceWriter:
        """The trace of one search, new or to be gone on with.

        Raises:
            StudyError: no name for a folder, or a search of that name has other settings, or runs in another process.
        """
        check_search_name(name)
        return TraceWriter(self.folder / "searches" / name, header)


class TraceWriter:
    """Writes one search's trace; ``steps`` holds what is there, to be replayed. One writer a search."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "trace.jsonl"
        self._lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StudyError(f"{folder}: another process is running this search; wait for it, or give another --name") from None
        try:
            self.header = _bind_header(folder / "search.json", header, ("started",), "another search; give it another --name")
            _drop_cut_tail(self.file)
            self.steps: tuple[StepOfSearch, ...] = tuple(_read_lines(self.file, _parse_step))
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, step: StepOfSearch) -> None:
        """Write one step and flush it to the disk."""
        _append_lines(self.file, [json.dumps(asdict(step), ensure_ascii=False)])
        self.steps += (step,)

    def close(self) -> None:
        """Let other processes go on with this search."""
        os.close(self._lock)


def _bind_header(file: Path, header: Mapping[str, Any], unbound: tuple[str, ...], remedy: str) -> dict[str, Any]:
    """Write the header, or check that the one that is there says the same; of several writers at once exactly one writes."""
    ours = _plain(header)
    if not file.exists():
        part = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            write_json(part, ours)
            os.link(part, file)  # unlike a rename it fails where another writer was first
            return ours
        except FileExistsError:
            pass
        except OSError as error:
            raise _full_disk(error, file) from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    there = read_json(file)
    _check_same(file, there, ours, unbound, remedy)
    return there


def _plain(header: Mapping[str, Any]) -> dict[str, Any]:
    """As it reads after it was written."""
    plain: dict[str, Any] = json.loads(json.dumps(header))
    return plain


def _check_same(file: Path, there: Mapping[str, Any], ours: Mapping[str, Any], unbound: tuple[str, ...], remedy: str) -> None:
    for name in sorted(there.keys() | ours.keys()):
        if name not in unbound and there.get(name) != ours.get(name):
            raise StudyError(
                f"{file.parent}: was made with another {name} ({_short(there.get(name))}, now {_short(ours.get(name))}): {remedy}"
            )


def _read_study_header(file: Path) -> dict[str, Any]:
    header = read_json(file)
    _check_field(file, header, "model", str)
    _check_field(file, header, "num_layers", int)
    return header


def _read_search_header(file: Path) -> dict[str, Any]:
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
        raise StudyError(f"{file}: {prefix}{name} is {_short(header[name])}, not {_KINDS[kind]}; put back a copy, or make the study again")


def _missing(file: Path, name: str) -> StudyError:
    return StudyError(f"{file}: has no {name!r}; put back a copy, or make the study again with loopwise place")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _read_lines(file: Path, parse: Any) -> Iterator[Any]:
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


def _parse_result(values: dict[str, Any]) -> CandidateResult:
    result = CandidateResult(**values)
    if result.status not in STATUSES:
        raise ValueError(f"status is {result.status!r}")
    return result


def _parse_step(values: dict[str, Any]) -> StepOfSearch:
    return StepOfSearch(**values | {"loops": tuple(values["loops"]), "scores": tuple(values["scores"])})


def _result_line(result: CandidateResult) -> str:
    return json.dumps({name: value for name, value in asdict(result).items() if value is not None}, ensure_ascii=False, allow_nan=False)


def _append_lines(file: Path, lines: Iterable[str]) -> None:
    """Lines at the end of a file, whole or not at all, while nobody else appends."""
    content = "".join(line + "\n" for line in lines).encode()
    if not content:
        return
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        whole = os.fstat(handle).st_size
        try:
            written = 0
            while written < len(content):
                written += os.write(handle, content[written:])
            os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, whole)
            raise _full_disk(error, file) from None
    finally:
        os.close(handle)


def _full_disk(error: OSError, file: Path) -> OSError:
    return OSError(
        error.errno, f"{error.strerror}; what was written before is safe, the same command goes on when there is room", str(file)
    )


def _drop_cut_tail(file: Path) -> None:
    """Remove the half line that a killed writer left, unless somebody is writing it now."""
    if not file.exists():
        return
    handle = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(handle, whole)
    finally:
        os.close(handle)


def _losses_file(folder: Path, loops: str) -> Path:
    return folder / "losses" / (hashlib.sha256(loops.encode()).hexdigest()[:24] + ".npy")


def _write_array(file: Path, array: NDArray[np.float32]) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array, dtype=np.float32), allow_pickle=False)
    try:
        part.write_bytes(buffer.getvalue())
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise _full_disk(error, file) from None
