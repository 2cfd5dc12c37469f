"""What candidates have in common, computed once: exactly, and in a stated amount of memory.

The plain model's hidden states at every boundary between layers are kept for the whole text. A candidate then costs its
further passes and the layers after its last loop: its first pass is the plain model's, iterates are shared over betas
(and over passes where nothing is damped), and the layers after the loop run over several candidates side by side. Scores
are bit for bit those of the looped model's own forward where candidates run one by one; side by side, matrix products
have other shapes and fp32 scores agree to about 1e-7.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from loopwise.data import TextMixture
from loopwise.loops import format_loops
from loopwise.models import Arguments, Iterates, ModelError, Replay, insert, loops_of, remove
from loopwise.scoring import Batch, PositionLogits, make_batches, model_forward, scored_logits, scored_positions

from .space import Candidate, PlacementError

Progress = Callable[[int, int], None]
MOST_SIDE_BY_SIDE = 32
MOST_WINDOWS = 2
"""Windows of the largest batch: more would be no faster with several candidates side by side, and races would look more seldom."""
ROWS_TOKENS = 2048
"""Tokens that the layers after a loop run over at once: enough for matrix products to be efficient on CPUs."""
FEWEST_AT_A_PEEK = 40
"""Positions. A guess: a regression on five others needs some more than the fewest of a look."""


class Computer(Protocol):
    """Computes candidates' logits on batches of text, in two steps, so that a head can run again at another temperature."""

    fit: tuple[Batch, ...]
    score: tuple[Batch, ...]
    peek: Batch
    """The first half of the windows of ``score[0]``, or all of it where that is short."""
    max_group: int

    def groups(self, candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
        """The candidates, those that share computation together, at most ``max_group`` of them."""
        ...

    def kept(self, group: Sequence[Candidate], batch: Batch) -> list[Tensor]:
        """For each candidate what `logits` needs; an empty candidate is the unlooped model."""
        ...

    def logits(self, kept: Tensor, batch: Batch) -> PositionLogits:
        """The logits at the batch's scored positions, in the model's dtype."""
        ...


def text_computer(
    model: PreTrainedModel,
    mixture: TextMixture,
    *,
    stride: int = 2,
    fit_stride: int | None = None,
    batch_windows: int = 1,
    memory_bytes: int = 2 << 30,
    max_group: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Computer:
    """A `SharedText`, or a `GenericText` where a forward does more than call its layers one after the other.

    Args:
        stride: every how many tokens of the scoring split one is scored; ``fit_stride`` of the fitting split, by default the same.
        batch_windows: windows of the first batch; see `growing_batches`.
        memory_bytes: what kept states and a group at work may take; states that do not fit go into a file in ``folder``.
        max_group: candidates side by side; None takes as many as fill `ROWS_TOKENS` and the memory, 1 gives exact bits.

    Raises:
        PlacementError: a model with loops, or less memory than one candidate needs.
        ScoringError: as `make_batches`, or a model in training mode.
    """
    if loops_of(model):
        raise PlacementError(
            f"the model has the loops {format_loops(loops_of(model))}; remove them, candidates are put into the plain model"
        )
    device = next(model.parameters()).device
    model_forward(model)  # refuses a model in training mode
    fit = growing_batches(mixture.token_ids("fit"), stride if fit_stride is None else fit_stride, batch_windows, device)
    score = growing_batches(mixture.token_ids("score"), stride, batch_windows, device)
    try:
        return SharedText(model, fit, score, memory_bytes=memory_bytes, max_group=max_group, folder=folder, progress=progress)
    except ModelError:
        return GenericText(model, fit, score)


def growing_batches(windows: Sequence[Sequence[int]], stride: int, first: int, device: torch.device | str) -> tuple[Batch, ...]:
    """Windows as batches that grow from ``first`` windows to `MOST_WINDOWS`: a race's first look is early.

    Raises:
        ScoringError: as `make_batches`.
    """
    scored = [window for window in windows if stride < 1 or len(scored_positions(len(window), stride))]
    if not scored or stride < 1 or first < 1:
        return make_batches(windows, stride=stride, batch_size=first)  # says what is wrong
    batches: list[Batch] = []
    at, size = 0, first
    while at < len(scored):
        batches += make_batches(scored[at : at + size], stride=stride, batch_size=size, device=device)
        at += size
        size = min(max(at // 2, first), MOST_WINDOWS)
    return tuple(batches)


def peek_of(batch: Batch) -> Batch:
    """The first half of a batch's windows: earlier tokens do not depend on later ones. The batch itself where that is little."""
    tokens = batch.input_ids.shape[1] // 2
    places = int((batch.kept < tokens).sum())
    if int((batch.targets[:, :places] >= 0).sum()) < FEWEST_AT_A_PEEK:
        return batch
    return Batch(
        input_ids=batch.input_ids[:, :tokens],
        attention_mask=batch.attention_mask[:, :tokens],
        kept=batch.kept[:places],
        targets=batch.targets[:, :places],
    )


class GenericText:
    """Every candidate by the looped model's own forward: the reference, and the way for forwards that cannot be replayed."""

    max_group = 1

    def __init__(self, model: PreTrainedModel, fit: tuple[Batch, ...], score: tuple[Batch, ...]) -> None:
        self.model, self.fit, self.score, self.peek = model, fit, score, peek_of(score[0])

    def groups(self, candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
        return [(candidate,) for candidate in candidates]

    @torch.inference_mode()
    def kept(self, group: Sequence[Candidate], batch: Batch) -> list[Tensor]:
        found = []
        for candidate in group:
            insert(self.model, candidate)
            try:
                found.append(model_forward(self.model)(batch))
            finally:
                remove(self.model)
        return found

    def logits(self, kept: Tensor, batch: Batch) -> PositionLogits:
        return scored_logits(kept, batch)


class SharedText:
    """The plain model's states on a text, and candidates computed from them.

    ``model`` must stay without loops, and nobody else may use it while a call runs.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        fit: tuple[Batch, ...],
        score: tuple[Batch, ...],
        *,
        memory_bytes: int,
        max_group: int | None = None,
        folder: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.fit, self.score, self.peek = model, fit, score, peek_of(score[0])
        self.replay = Replay(model)
        self._arguments: dict[tuple[Batch, int], Arguments] = {}
        self._kept_plain: dict[Batch, Tensor] = {}
        self._states: dict[Batch, _States] = {}
        memory = _Memory(model, (*fit, *score), self.replay.num_layers, memory_bytes)
        self.max_group = memory.group(max_group)
        self._file = None if memory.states_fit else _SpilledStates(memory.states_bytes, folder)
        self._record(progress)

    @torch.inference_mode()
    def _record(self, progress: Progress | None) -> None:
        batches = (*self.fit, *self.score)
        for done, batch in enumerate(batches, 1):
            recorded = self.replay.record(partial(self._call, batch.input_ids, batch.attention_mask, logits_to_keep=1))
            self._states[batch] = _States(self._file.keep(recorded.states) if self._file else recorded.states, recorded.states[-1].device)
            self._kept_plain[batch] = recorded.states[-1][:, batch.kept]
            if progress:
                progress(done, len(batches))
        if self.peek not in self._states:
            whole, tokens = self._states[self.score[0]], self.peek.input_ids.shape[1]
            self._states[self.peek] = _States([state[:, :tokens] for state in whole.stored], whole.device)
            self._kept_plain[self.peek] = self._kept_plain[self.score[0]][:, : self.peek.kept.numel()]

    def groups(self, candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
        bundles: dict[Any, list[Candidate]] = {}
        for candidate in candidates:
            bundles.setdefault((self.replay.last_stop(candidate), _shared_iterates(candidate)), []).append(candidate)
        groups: list[list[Candidate]] = []
        for _, bundle in sorted(bundles.items()):
            for at in range(0, len(bundle), self.max_group):
                part = bundle[at : at + self.max_group]
                if not groups or len(groups[-1]) + len(part) > self.max_group:
                    groups.append([])
                groups[-1] += part
        return [tuple(group) for group in groups]

    @torch.inference_mode()
    def kept(self, group: Sequence[Candidate], batch: Batch) -> list[Tensor]:
        """The last layer's output at the kept places, [batch, kept, d_model] for each candidate of a group."""
        order = sorted((self.replay.last_stop(candidate), place) for place, candidate in enumerate(group) if candidate)
        found = [self._kept_plain[batch]] * len(group)
        if not order:
            return found
        states, own, iterates = self._states[batch], self.arguments(batch, 1), Iterates()
        hidden, layer = torch.empty(0), 0
        try:
            for number, (stop, place) in enumerate(order):
                end = self.replay.looped(group[place], states, own, iterates)
                # Those that ended before catch up, and all go on side by side.
                hidden = torch.cat([self.replay.onwards(hidden, layer, self.arguments(batch, number), stop), end]) if number else end
                layer = stop
        finally:
            states.release()
        last = self.replay.onwards(hidden, layer, self.arguments(batch, len(order)))
        for (_, place), kept in zip(order, last[:, batch.kept].unflatten(0, (len(order), -1)).unbind(), strict=True):
            found[place] = kept
        return found

    @torch.inference_mode()
    def logits(self, kept: Tensor, batch: Batch) -> PositionLogits:
        places = batch.kept.numel()
        run = self.replay.finish(kept, lambda: self._call(batch.input_ids[:, :places], torch.ones_like(batch.input_ids[:, :places])))
        return scored_logits(run.logits, batch)

    def arguments(self, batch: Batch, copies: int) -> Arguments:
        """What layers are given for ``copies`` of a batch side by side."""
        key = (batch, copies)
        if key not in self._arguments:
            if len(self._arguments) > (1 + self.max_group) * len(self._states):
                self._arguments.clear()
            ids, mask = batch.input_ids.repeat(copies, 1), batch.attention_mask.repeat(copies, 1)
            self._arguments[key] = self.replay.arguments(lambda: self._call(ids, mask, logits_to_keep=1))
        return self._arguments[key]

    def _call(self, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int = 0) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep, use_cache=False)


def _shared_iterates(candidate: Candidate) -> str:
    """What is alike in candidates whose first loop's passes are shared; sorts by place."""
    first, *others = candidate
    alike = replace(first, beta=0.0) if first.operator == "damped" else replace(first, passes=2)
    return f"{first.start:6} {format_loops([alike, *others])}" if not others or alike.part == "layer" else format_loops(candidate)


class _States:
    """One batch's states as a sequence that gives the same tensor for the same layer until it is released."""

    def __init__(self, stored: Sequence[Tensor], device: torch.device) -> None:
        self.stored, self.device = stored, device
        self._given: dict[int, Tensor] = {}

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self._given:
            self._given[layer] = self.stored[layer].to(self.device)
        return self._given[layer]

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[layer] for layer in range(len(self)))

    def release(self) -> None:
        self._given.clear()


class _SpilledStates:
    """States in a file that is mapped into memory and has no name any more: whatever ends the process, its room is free again."""

    def __init__(self, num_bytes: int, folder: Path | None) -> None:
        with tempfile.NamedTemporaryFile(prefix="states-", dir=folder) as file:  # mapped by its name, which is gone at the end
            try:
                os.posix_fallocate(file.fileno(), 0, num_bytes)  # a mapped file that cannot grow would end the process
            except OSError as error:
                what = f"{error.strerror}: {num_bytes / 1e9:.1f} GB are needed for kept states; raise --memory-gb or make room"
                raise OSError(error.errno, what, file.name) from None
            self._mapped = torch.from_file(file.name, shared=True, size=num_bytes, dtype=torch.uint8)
        self._used = 0

    def keep(self, states: Sequence[Tensor]) -> list[Tensor]:
        kept = []
        for state in states:
            size = state.numel() * state.element_size()
            place = self._mapped[self._used : self._used + size].view(state.dtype).view(state.shape)
            place.copy_(state)
            kept.append(place)
            self._used += -(-size // 64) * 64
        return kept


class _Memory:
    """What the states and a group at work take."""

    def __init__(self, model: PreTrainedModel, batches: Sequence[Batch], num_layers: int, budget_bytes: int) -> None:
        parameter = next(model.parameters())
        config = model.config.get_text_config()
        width, element = int(config.hidden_size), parameter.element_size()
        padded = 64
        self.states_bytes = sum((num_layers + 1) * (batch.input_ids.numel() * width * element + padded) for batch in batches)
        self.rows, self.first_rows = max(batch.input_ids.numel() for batch in batches), batches[0].input_ids.numel()
        positions = sum(batch.targets.numel() for batch in batches)
        inner = max(int(config.intermediate_size), 4 * width) if getattr(config, "intermediate_size", None) else 4 * width
        at_work = self.rows * (8 * width + 3 * inner) * element
        held = positions * (width + int(config.vocab_size) // 2) * element  # hidden states at all places, and some logits
        self.candidate_bytes = at_work + held
        self.budget_bytes = budget_bytes
        self.states_fit = self.states_bytes <= budget_bytes // 2

    def group(self, wanted: int | None) -> int:
        """Candidates side by side."""
        left = self.budget_bytes - (self.states_bytes if self.states_fit else 0)
        fitting = left // self.candidate_bytes
        if fitting < 1:
            raise PlacementError(
                f"one candidate needs about {self.candidate_bytes / 1e9:.2g} GB at work and {self.budget_bytes / 1e9:.2g} GB are allowed; "
                "give --memory-gb more, or shorter windows"
            )
        return int(min(fitting, wanted or min(max(1, ROWS_TOKENS // self.first_rows), MOST_SIDE_BY_SIDE)))
