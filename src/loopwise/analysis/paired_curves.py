"""Loss curves of looped models and of their twins, paired by seed, and the same curves on documents that are drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..records import CurveError, LossCurve
from ..stats import Bootstrap
from ..stats.bootstrap import resample_sums
from .interpolation import Array

IntervalOver = Literal["seeds", "documents"]


class AnalysisError(ValueError):
    """Curves that an analysis is not defined for: names them and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCurves:
    """One looped model and its twin for each seed.

    Raises:
        AnalysisError: another number of twins than of looped models; documents that are not the same ones; looped models with fewer
            than two checkpoints in common.
    """

    looped: tuple[LossCurve, ...]
    twin: tuple[LossCurve, ...]
    """Trained identically without the loop, in the order of ``looped``."""
    first_pass: tuple[LossCurve, ...] = ()
    """The looped models evaluated with one pass, in the same order; empty where that was not measured."""

    def __post_init__(self) -> None:
        numbers = {"looped": len(self.looped), "twin": len(self.twin)} | ({"first-pass": len(self.first_pass)} if self.first_pass else {})
        if not self.looped or len(set(numbers.values())) > 1:
            counts = " and ".join(f"{number} {name}" for name, number in numbers.items())
            raise AnalysisError(f"{counts} curves; give one of each for every seed, in the same order")
        _common_tokens(self.looped)
        _check_documents(self.all)

    @property
    def all(self) -> tuple[LossCurve, ...]:
        """Every curve."""
        return (*self.looped, *self.twin, *self.first_pass)

    @property
    def num_seeds(self) -> int:
        """Pairs."""
        return len(self.looped)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Checkpoints that all looped models have."""
        return _common_tokens(self.looped)

    @property
    def has_documents(self) -> bool:
        """Whether the losses of single documents are known at every point of every curve."""
        return all(curve.document_losses is not None for curve in self.all)

    def interval_over(self, wanted: IntervalOver | None) -> IntervalOver | None:
        """What intervals are over: as wanted; else seeds where there are two, documents where their losses are known, or nothing.

        Raises:
            AnalysisError: there is nothing of the kind to draw again.
        """
        if wanted == "documents" and not self.has_documents:
            raise AnalysisError("intervals over documents need losses of documents at every point of every curve; give JSONL with losses")
        if wanted == "seeds" and self.num_seeds < 2:
            raise AnalysisError("intervals over seeds need at least 2 pairs of curves; 1 is there")
        if wanted is not None:
            return wanted
        return "seeds" if self.num_seeds > 1 else "documents" if self.has_documents else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLosses:
    """Losses of paired curves: for each seed an array ``[resamples, points]``, all points of its curve."""

    looped: tuple[Array, ...]
    twin: tuple[Array, ...]
    first_pass: tuple[Array, ...]


def observed(pairs: PairedCurves) -> CurveLosses:
    """The losses as they are, as one resample."""
    looped, twin, first = (
        tuple(np.array([curve.losses], dtype=np.float64) for curve in curves) for curves in (pairs.looped, pairs.twin, pairs.first_pass)
    )
    return CurveLosses(looped=looped, twin=twin, first_pass=first)


def resampled(pairs: PairedCurves, bootstrap: Bootstrap) -> CurveLosses:
    """The losses on documents drawn with replacement, the same draw for every curve, checkpoint and seed.

    Raises:
        AnalysisError: the losses of single documents are not known.
    """
    pairs.interval_over("documents")
    first = pairs.looped[0]
    assert first.document_losses is not None
    weights = np.ones(first.document_losses.shape[1]) if first.document_tokens is None else first.document_tokens
    by_point = np.concatenate([curve.document_losses for curve in pairs.all if curve.document_losses is not None])
    rows = np.concatenate([by_point.T * weights[:, None], weights[:, None]], axis=1)
    sums = resample_sums(rows, bootstrap.resamples, np.random.default_rng(bootstrap.seed))
    means = sums[:, :-1] / sums[:, -1:]
    parts = np.split(means, np.cumsum([len(curve.tokens) for curve in pairs.all])[:-1], axis=1)
    num = pairs.num_seeds
    return CurveLosses(looped=tuple(parts[:num]), twin=tuple(parts[num : 2 * num]), first_pass=tuple(parts[2 * num :]))


def columns(curve: LossCurve, tokens: Sequence[int]) -> list[int]:
    """Where a curve has these numbers of tokens."""
    place = {at: number for number, at in enumerate(curve.tokens)}
    return [place[at] for at in tokens]


def log_tokens(tokens: Sequence[float]) -> Array:
    """Natural logarithms."""
    return np.log(np.asarray(tokens, dtype=np.float64))


def _common_tokens(curves: Sequence[LossCurve]) -> tuple[int, ...]:
    common = set(curves[0].tokens).intersection(*(curve.tokens for curve in curves[1:]))
    if len(common) < 2:
        raise AnalysisError(
            f"{curves[0].source} and the other looped runs have {len(common)} checkpoints at the same tokens; "
            "evaluate every seed at the same steps"
        )
    return tuple(sorted(common))


def _check_documents(curves: Sequence[LossCurve]) -> None:
    """Documents are drawn once for all curves, so they have to be the same ones everywhere."""
    known = [curve for curve in curves if curve.document_losses is not None]
    for one in known[1:]:
        first = known[0]
        assert first.document_losses is not None and one.document_losses is not None
        if first.document_losses.shape[1] != one.document_losses.shape[1]:
            numbers = f"{first.document_losses.shape[1]} and {one.document_losses.shape[1]}"
            raise AnalysisError(f"{first.source} and {one.source} have {numbers} documents; evaluate both on the same text")
        if first.documents != one.documents and None not in (first.documents, one.documents):
            raise AnalysisError(f"{first.source} and {one.source} name other documents; give the same ones in the same order")
        weights = [None if curve.document_tokens is None else curve.document_tokens.tolist() for curve in (first, one)]
        if weights[0] != weights[1]:
            raise AnalysisError(f"{first.source} and {one.source} have other document_tokens; give the same ones in both")


__all__ = [
    "AnalysisError",
    "CurveError",
    "CurveLosses",
    "IntervalOver",
    "PairedCurves",
    "columns",
    "log_tokens",
    "observed",
    "resampled",
]
