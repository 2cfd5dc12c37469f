"""Placements scored by calibrated perplexity on held-out text. A filter, never a promised gain.

The score rules out placements that harm a model. It does not say that the best of them helps: loops that it chose improved
calibrated perplexity at every size from 1.7B to 32B, accuracy clearly at one of them (no-free-loop, Appendix E). Whether a
loop pays is judged on tasks, against the twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from loopwise.cost import cost_of, read_shape
from loopwise.data import TextMixture
from loopwise.loops import Loop, check_loops, format_loops
from loopwise.models import decoder_layers, insert, loops_of, remove
from loopwise.scoring import Batch, Forward, Progress, ScoringError, TextScore, make_batches, model_forward, score_batches

from .candidates import PlacementError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPlacement:
    """One candidate's score beside the unlooped model's on the same positions."""

    loops: tuple[Loop, ...]
    layer_pass_ratio: float
    """(N + m)/N."""
    score: TextScore
    difference_nats: float
    """Mean loss, each model at its own fitted temperature, minus the unlooped model's: below 0 the text is predicted better."""
    standard_error_nats: float
    """Of the difference, paired by position; documents and the fitted temperatures are taken as given."""

    def to_json(self) -> dict[str, Any]:
        """The placement as plain values."""
        return {
            "loops": format_loops(self.loops),
            "layer_pass_ratio": self.layer_pass_ratio,
            "difference_nats": self.difference_nats,
            "standard_error_nats": self.standard_error_nats,
        } | _score_json(self.score)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementScores:
    """All candidates on one text."""

    unlooped: TextScore
    placements: tuple[ScoredPlacement, ...]
    """Lowest calibrated perplexity first."""
    unscored: tuple[tuple[tuple[Loop, ...], str], ...]
    """Candidates that could not be scored, with the reason: they have no score, not a bad one."""
    mixture_sha256: str

    @property
    def best(self) -> ScoredPlacement:
        """The candidate that harms the prediction of this text least, or helps it most; no promise for any task."""
        return self.placements[0]

    def to_json(self) -> dict[str, Any]:
        """All scores as plain values."""
        return {
            "unlooped": _score_json(self.unlooped),
            "placements": [placement.to_json() for placement in self.placements],
            "unscored": [{"loops": format_loops(loops), "reason": reason} for loops, reason in self.unscored],
            "mixture_sha256": self.mixture_sha256,
        }


def score_placements(
    model: PreTrainedModel,
    candidates: Iterable[Iterable[Loop]],
    mixture: TextMixture,
    *,
    stride: int = 4,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> PlacementScores:
    """Score the unlooped model and each candidate by calibrated perplexity, as a filter of placements.

    The layers before a candidate's first loop compute what they compute in the unlooped model, so they run once: their
    hidden states are kept, in the model's dtype, for every place where some candidate begins. Scores are bit for bit those
    of the looped model's own forward. ``model`` carries each candidate's loops in turn and is given back without loops;
    nobody else may use it meanwhile.

    Raises:
        PlacementError: no candidate, none that could be scored, or a model that has loops already.
        LoopError: a candidate that the model cannot have.
        ScoringError: the unlooped model cannot be scored on this text.
    """
    layers = decoder_layers(model)
    checked = [check_loops(loops, len(layers)) for loops in candidates]
    if not checked or not all(checked):
        raise PlacementError("a candidate has no loop; the unlooped model is always scored" if checked else "no candidates to score")
    if loops_of(model):
        raise PlacementError(f"the model has the loops {format_loops(loops_of(model))}; remove them before others are scored")
    device = next(model.parameters()).device
    fit, score = (make_batches(mixture.token_ids(split), stride=stride, batch_size=batch_size, device=device) for split in ("fit", "score"))
    count = _Counter(progress, (len(fit) + len(score)) * (1 + len(checked)))
    prefixes = _Prefixes(layers, {loops[0].start for loops in checked} - {0})
    unlooped = score_batches(prefixes.recorded(model_forward(model)), fit, score, progress=count.step)
    shape = read_shape(model.config.to_dict())
    placements, unscored = [], []
    for number, loops in enumerate(checked, 1):
        insert(model, loops)
        try:
            scored = score_batches(prefixes.shared(model_forward(model), loops[0].start), fit, score, progress=count.step)
        except ScoringError as error:
            unscored.append((loops, str(error)))
        else:
            placements.append(_paired(loops, cost_of(shape, loops).layer_pass_ratio, scored, unlooped))
        finally:
            remove(model)
        count.reach((len(fit) + len(score)) * (1 + number))
    if not placements:
        raise PlacementError(f"none of {len(checked)} candidates could be scored; {format_loops(unscored[0][0])}: {unscored[0][1]}")
    placements.sort(key=lambda placement: placement.score.calibrated_perplexity)
    return PlacementScores(unlooped=unlooped, placements=tuple(placements), unscored=tuple(unscored), mixture_sha256=mixture.sha256)


def _paired(loops: tuple[Loop, ...], ratio: float, score: TextScore, unlooped: TextScore) -> ScoredPlacement:
    differences = score.losses.astype(np.float64) - unlooped.losses
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return ScoredPlacement(
        loops=loops,
        layer_pass_ratio=ratio,
        score=score,
        difference_nats=float(differences.mean()),
        standard_error_nats=error,
    )


def _score_json(score: TextScore) -> dict[str, Any]:
    names = ("temperature", "perplexity", "calibrated_perplexity", "num_fit_tokens", "num_score_tokens")
    return {name: getattr(score, name) for name in names}


class _Prefixes:
    """The unlooped model's hidden states before some layers, batch by batch, and forwards that begin from them."""

    def __init__(self, layers: nn.ModuleList, starts: Iterable[int]) -> None:
        self._layers = list(layers._modules.values())  # the modules themselves, also while a looped list hands out others
        self._starts = sorted(starts)
        self._states: dict[tuple[int, Batch], Tensor] = {}

    def recorded(self, forward: Forward) -> Forward:
        """``forward`` of the unlooped model, keeping the hidden state before each start."""

        def run(batch: Batch) -> Tensor:
            handles = []
            for start in self._starts:
                handles += self._watch(start, batch)
            try:
                return forward(batch)
            finally:
                for handle in handles:
                    handle.remove()

        return run

    def _watch(self, start: int, batch: Batch) -> list[Any]:
        outputs: list[Any] = []

        def after(module: Any, args: Any, output: Any) -> None:
            outputs.append(output)

        def before(module: Any, args: Any) -> None:
            # Where the forward does anything between two layers, nothing is kept, and candidates there run from the first layer.
            if args and args[0] is outputs[0]:
                self._states[start, batch] = args[0]

        return [self._layers[start - 1].register_forward_hook(after), self._layers[start].register_forward_pre_hook(before)]

    def shared(self, forward: Forward, start: int) -> Forward:
        """``forward`` of the looped model, with the layers before ``start`` handing on what they gave in the unlooped one."""

        def run(batch: Batch) -> Tensor:
            state = self._states.get((start, batch))
            if state is None:
                return forward(batch)
            with _handing_out(self._layers[:start], state):
                return forward(batch)

        return run


@contextmanager
def _handing_out(layers: Sequence[Any], state: Tensor) -> Iterator[None]:
    """The layers give ``state`` instead of computing; their own forward is back afterwards."""

    def stored(*args: Any, **kwargs: Any) -> Tensor:
        return state

    for layer in layers:
        layer.forward = stored
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Counter:
    """Batches done over all models, for a progress display."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def step(self, done: int, total: int) -> None:
        self.reach(self._done + 1)

    def reach(self, done: int) -> None:
        if self._progress and done > self._done:
            self._progress(done, self._total)
        self._done = max(self._done, done)
