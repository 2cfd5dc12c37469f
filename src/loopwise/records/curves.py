"""Loss curves: held-out loss against tokens trained on, from a run of ``loopwise train``, a CSV or a JSONL file. No torch."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .losses import read_loss_run
from .runs import RecordsError

HELD_OUT_LOSS = "held_out_loss"
"""The name under which ``loopwise train`` writes it, and whose documents' losses a file may list."""
METRICS_FILE = "metrics.jsonl"
_SAME = 1e-4
"""Nats by which a file's loss may differ from the mean of its documents' losses: both may be rounded."""


class CurveError(RecordsError):
    """A loss curve that cannot be used: names the file, the fault and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossCurve:
    """Held-out loss at several checkpoints of one run.

    Raises:
        CurveError: fewer than two points, tokens that do not increase, a loss or a number of tokens that cannot be.
    """

    source: str
    """The folder or file it was read from, for messages."""
    tokens: tuple[int, ...]
    """Trained on at each point, increasing. A point before training is no part of a curve: its logarithm is not defined."""
    losses: tuple[float, ...]
    """Nats per token at each point."""
    document_losses: NDArray[np.float64] | None = None
    """Nats per token, ``[points, documents]``; None where they are not known."""
    document_tokens: NDArray[np.float64] | None = None
    """Tokens of each document, the weights of their losses; None: all weigh the same."""
    documents: tuple[str, ...] | None = None
    """Names of the documents, so that two curves can be known to be of the same text."""

    def __post_init__(self) -> None:
        if len(self.tokens) < 2:
            raise CurveError(
                f"{self.source}: {len(self.tokens)} point{'' if len(self.tokens) == 1 else 's'} after the first tokens; a curve needs at "
                "least 2: train with --evaluate-every"
            )
        if len(self.losses) != len(self.tokens):
            raise CurveError(f"{self.source}: {len(self.tokens)} numbers of tokens and {len(self.losses)} losses; give one for each")
        for at, loss in zip(self.tokens, self.losses, strict=True):
            if not (math.isfinite(loss) and loss >= 0):
                raise CurveError(f"{self.source}: the loss at {at:,} tokens is {loss}; leave the point out, or repeat its evaluation")
        for one, other in zip(self.tokens, self.tokens[1:], strict=False):
            if other <= one:
                raise CurveError(f"{self.source}: tokens do not increase, {other:,} comes after {one:,}; one line for each checkpoint")
        if self.tokens[0] < 1:
            raise CurveError(f"{self.source}: a point at {self.tokens[0]} tokens; leave out what lies before the first")
        self._check_documents()

    def _check_documents(self) -> None:
        found, weights = self.document_losses, self.document_tokens
        if found is None:
            return
        if found.ndim != 2 or len(found) != len(self.tokens) or found.shape[1] < 2:
            raise CurveError(f"{self.source}: losses of documents have shape {found.shape}; give at least 2 documents at each point")
        if not (np.isfinite(found).all() and (found >= 0).all()):
            raise CurveError(f"{self.source}: a document's loss is not a number from 0; leave the document out at every point")
        if weights is not None and not (weights.shape == found.shape[1:] and np.isfinite(weights).all() and (weights > 0).all()):
            raise CurveError(f"{self.source}: document_tokens are not {found.shape[1]} numbers above 0, one for each document")
        if self.documents is not None and len(set(self.documents)) != found.shape[1]:
            raise CurveError(f"{self.source}: documents are not {found.shape[1]} different names, one for each document")
        means = np.average(found, axis=1, weights=weights)
        for at, loss, mean in zip(self.tokens, self.losses, means, strict=True):
            if abs(loss - mean) > _SAME:
                raise CurveError(
                    f"{self.source}: the loss at {at:,} tokens is {loss:.6g}, the mean of its documents {mean:.6g}; "
                    "leave the loss out, or give document_tokens as weights"
                )


def read_curve(path: str | Path, metric: str = HELD_OUT_LOSS) -> LossCurve:
    """A curve from a folder of ``loopwise train``, a CSV with the columns tokens and loss, or a JSONL file.

    A line of JSONL has ``tokens`` and ``loss``; or ``losses``, a list with one loss a document, with ``document_tokens`` (a list of
    weights) and ``documents`` (a list of names) if known; or ``loss_run``, the folder of a run of ``loopwise evaluate --task loss``,
    beside the file. A point at 0 tokens is left out.

    Args:
        metric: which of a run's evaluations, or which column; for `HELD_OUT_LOSS` a file may call it ``loss``. Only then are
            ``losses`` read.

    Raises:
        CurveError: nothing there, a damaged file, or a curve that cannot be.
    """
    path = Path(path)
    if path.is_dir():
        return _read_run(path / METRICS_FILE, metric, str(path))
    if path.name == METRICS_FILE:
        return _read_run(path, metric, str(path))
    text = _read(path)
    if path.suffix.lower() == ".csv":
        return _curve(_csv_rows(text, path), metric, str(path))
    return _curve(((where, _with_run(row, path.parent, where)) for where, row in _json_rows(text, path)), metric, str(path))


def _with_run(row: Mapping[str, Any], folder: Path, where: str) -> Mapping[str, Any]:
    """A line that names a loss run, with that run's documents in it."""
    if row.get("loss_run") is None:
        return row
    if row.get("losses") is not None:
        raise CurveError(f"{where}: both losses and loss_run; give one of them")
    records = read_loss_run(folder / str(row["loss_run"])).records
    return dict(row) | {
        "losses": [one.totals.nats_per_token for one in records],
        "document_tokens": [one.num_targets for one in records],
        "documents": [one.document for one in records],
    }


def _read_run(file: Path, metric: str, source: str) -> LossCurve:
    if not file.exists():
        raise CurveError(f"{source}: holds no {METRICS_FILE}; give a folder of loopwise train, or a CSV or JSONL file of tokens and loss")
    text = _read(file)
    tokens: dict[Any, Any] = {}
    found: dict[Any, tuple[str, Any]] = {}
    names: set[str] = set()
    # The half line that a killed writer may have left is no part of a run.
    for where, row in _json_rows(text[: text.rfind("\n") + 1], file):
        step = row.get("step")
        if isinstance(evaluation := row.get("evaluation"), dict):
            names |= evaluation.keys()
            if metric in evaluation and step:
                found[step] = (where, evaluation[metric])
        elif "tokens" in row:
            tokens[step] = row["tokens"]
    if not found:
        has = f"they have {', '.join(sorted(names))}" if names else "there is none: train with --evaluate-every and held-out text"
        raise CurveError(f"{source}: no evaluation after a step has {metric!r}; {has}")
    if missing := found.keys() - tokens.keys():
        raise CurveError(f"{source}: step {min(missing)} was evaluated, and no line says how many tokens it had; the file is damaged")
    rows = [(where, {"tokens": tokens[step], metric: value}) for step, (where, value) in sorted(found.items())]
    return _curve(rows, metric, source)


def _curve(rows: Iterable[tuple[str, Mapping[str, Any]]], metric: str, source: str) -> LossCurve:
    tokens: list[int] = []
    losses: list[float] = []
    of_documents: list[list[float]] = []
    weights: list[float] | None = None
    names: tuple[str, ...] | None = None
    for where, row in rows:
        at = _number(row.get("tokens"), "tokens", where)
        if not (math.isfinite(at) and at >= 0 and at == int(at)):
            raise CurveError(f"{where}: tokens is {row['tokens']}; give a whole number from 0")
        if at == 0:
            continue
        each = row.get("losses") if metric == HELD_OUT_LOSS else None
        if each is not None:
            of_documents.append(_numbers(each, "losses", where))
            given = None if row.get("document_tokens") is None else _numbers(row["document_tokens"], "document_tokens", where)
            named = None if row.get("documents") is None else tuple(map(str, _list(row["documents"], "documents", where)))
            if len(of_documents) > 1 and (
                len(of_documents[0]) != len(of_documents[-1])
                or (given is not None and given != weights)
                or (named is not None and named != names)
            ):
                raise CurveError(f"{where}: other documents than at the first point; give the same ones, in the same order, at every point")
            weights, names = given if len(of_documents) == 1 else weights, named if len(of_documents) == 1 else names
            if weights is not None and len(weights) != len(of_documents[0]):
                raise CurveError(f"{where}: {len(of_documents[0])} losses and {len(weights)} document_tokens; give one for each document")
        loss = row.get(metric, row.get("loss") if metric == HELD_OUT_LOSS else None)
        if loss is None and each is not None:
            loss = _mean(of_documents[-1], weights, where)
        losses.append(_number(loss, "loss" if metric == HELD_OUT_LOSS else metric, where))
        tokens.append(int(at))
    if of_documents and len(of_documents) != len(tokens):
        raise CurveError(f"{source}: {len(of_documents)} of {len(tokens)} points have losses of documents; give them at all or at none")
    return LossCurve(
        source=source,
        tokens=tuple(tokens),
        losses=tuple(losses),
        document_losses=np.array(of_documents, dtype=np.float64) if of_documents else None,
        document_tokens=None if weights is None else np.array(weights, dtype=np.float64),
        documents=names,
    )


def _mean(values: Sequence[float], weights: Sequence[float] | None, where: str) -> float:
    if not values or (weights is not None and not sum(weights) > 0):
        raise CurveError(f"{where}: losses or document_tokens are empty; give one for each document")
    return float(np.average(values, weights=weights))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CurveError(f"{path}: no such file or folder") from None
    except UnicodeDecodeError:
        raise CurveError(f"{path}: not UTF-8 text; give CSV or JSONL") from None


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    if "tokens" not in reader.fieldnames:
        raise CurveError(f"{path}: no column named tokens in its first line; a CSV begins with: tokens,loss")
    for row in reader:
        yield f"{path}, line {reader.line_num}", {name: value for name, value in row.items() if name != "losses"}


def _json_rows(text: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise CurveError(f"{where}: not a JSON object ({line[:40]!r}...); one line for each checkpoint") from None
        if not isinstance(row, dict):
            raise CurveError(f"{where}: not a JSON object but {type(row).__name__}; one line for each checkpoint")
        yield where, row


def _number(value: Any, name: str, where: str) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise CurveError(f"{where}: {name} {'is missing' if value is None else f'is {str(value)[:40]!r}'}; give a number")


def _list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise CurveError(f"{where}: {name} is {str(value)[:40]!r}; give a list")
    return value


def _numbers(value: Any, name: str, where: str) -> list[float]:
    return [_number(one, name, where) for one in _list(value, name, where)]
