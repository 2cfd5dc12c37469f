"""Candidates scored on a text: calibrated and plain perplexity, and the divergence from the unlooped model.

A filter of placements, never a promised gain: the score rules out loops that harm a model. Loops that it chose improved
calibrated perplexity at every size from 1.7B to 32B and accuracy clearly at one of them (no-free-loop, Appendix E).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwise.cost import ModelShape, cost_of
from loopwise.loops import format_loops
from loopwise.records import CandidateResult, Status
from loopwise.scoring import (
    Batch,
    PositionLogits,
    ScoringError,
    TextScore,
    fit_temperature,
    losses_of,
    text_score,
)

from .racing import Losses, Race, look
from .sharing import Computer
from .space import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A candidate's result and, where it was scored on the whole text, its losses."""

    result: CandidateResult
    losses: Losses | None = None
    """In nats at the fitted temperature, position after position."""


@dataclass(slots=True)
class _Runner:
    """One candidate on its way through the text."""

    candidate: Candidate
    fit_kept: list[Tensor] = field(default_factory=list)
    score_kept: list[Tensor] = field(default_factory=list)
    fit_logits: list[PositionLogits] = field(default_factory=list)
    temperature: float = 1.0
    losses: list[Losses] = field(default_factory=list)
    """At each look, the new positions' losses at the temperature of that look."""
    ended: Scored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The best candidate when a wave of a race began."""

    candidate: Candidate
    looks: tuple[Losses, ...]
    """Its losses at each look, as a runner's."""


class TextScorer:
    """Scores groups of candidates on one text."""

    def __init__(self, computer: Computer, shape: ModelShape, *, race: Race | None = None, with_kl: bool = False) -> None:
        self.computer, self.shape, self.race, self.with_kl = computer, shape, race, with_kl
        self.measure = "text+kl" if with_kl else "text"
        self._plain: dict[float, TextScore] = {}
        self.start_temperature = 1.0
        self.start_temperature = self.unlooped().temperature

    def unlooped(self, share: float = 1.0) -> TextScore:
        """The unlooped model's score on the first ``share`` of the text; where a part has no temperature, at the whole text's.

        Raises:
            ScoringError: the plain model itself cannot be scored on the whole text: the text or the model is unusable.
        """
        if share not in self._plain:
            fit, score = self._parts(share)
            self._plain[share] = self._whole_score(
                [self._one((), batch) for batch in fit], [self._one((), batch) for batch in score], share
            )
        return self._plain[share]

    def unlooped_result(self) -> Scored:
        """As a result, for a study."""
        score = self.unlooped()
        return Scored(result=self._result((), "scored", 1.0, self._values(score, score), 0.0), losses=score.losses)

    def score(self, group: Sequence[Candidate], share: float = 1.0) -> list[Scored]:
        """A group's candidates on the first ``share`` of the text, every one to its end.

        A ruined model is a result: losses that are not finite, or that no temperature can calibrate.
        """
        began = time.monotonic()
        fit, score = self._parts(share)
        runners = [_Runner(candidate) for candidate in group]
        for batch in fit:
            for runner, kept in zip(runners, self.computer.kept(group, batch), strict=True):
                runner.fit_logits.append(self.computer.logits(kept, batch))
        for runner in runners:
            self._calibrate(runner, share)
        rows: list[list[Losses]] = [[] for _ in runners]
        divergences: list[list[Losses]] = [[] for _ in runners]
        for batch in score:
            living = [number for number, runner in enumerate(runners) if runner.ended is None]
            if not living:
                break
            for number, kept in zip(living, self.computer.kept([group[n] for n in living], batch), strict=True):
                logits = self.computer.logits(kept, batch)
                rows[number].append(losses_of(logits, (1.0, runners[number].temperature)))
                if self.with_kl:
                    divergences[number].append(self._divergence(logits, batch))
        for number, runner in enumerate(runners):
            if runner.ended is None:
                kl = float(np.mean(np.concatenate(divergences[number]), dtype=np.float64)) if self.with_kl else None
                runner.ended = self._end(runner, np.concatenate(rows[number], axis=1), share, kl)
        return _with_seconds(runners, time.monotonic() - began)

    def race_group(self, group: Sequence[Candidate], leader: Leader | None) -> tuple[list[Scored], list[tuple[Losses, ...]]]:
        """A group's candidates through the text, those that lose to ``leader`` only as far as it takes to see it.

        Returns the results, and each candidate's losses look by look, for the next leader.
        """
        race = self.race
        assert race is not None
        began = time.monotonic()
        runners = [_Runner(candidate) for candidate in group]
        looks = self._looks()
        for number, (fit, score) in enumerate(looks, 1):
            living = [runner for runner in runners if runner.ended is None]
            if not living:
                break
            self._read(living, fit, score)
            for runner in living:
                if runner.ended is None and leader is not None and number < len(looks):
                    self._compare(runner, leader)
        for runner in runners:
            if runner.ended is None:
                self._finish(runner)
        return _with_seconds(runners, time.monotonic() - began), [tuple(runner.losses) for runner in runners]

    def _read(self, runners: list[_Runner], fit: Sequence[Batch], score: Sequence[Batch]) -> None:
        """One look: the next batches of both splits."""
        candidates = [runner.candidate for runner in runners]
        for batch in fit:
            for runner, kept in zip(runners, self.computer.kept(candidates, batch), strict=True):
                runner.fit_kept.append(kept)
                runner.fit_logits.append(self.computer.logits(kept, batch))
        for runner in runners:
            if fit:
                self._calibrate(runner, None)
        for batch in score:
            for runner, kept in zip(runners, self.computer.kept(candidates, batch), strict=True):
                runner.score_kept.append(kept)
                if runner.ended is None:
                    runner.losses.append(losses_of(self.computer.logits(kept, batch), (runner.temperature,))[0])
                    if not np.isfinite(runner.losses[-1]).all():
                        runner.ended = self._ruined(runner.candidate, 1.0, "its losses are not finite")

    def _compare(self, runner: _Runner, leader: Leader) -> None:
        """Drop a candidate that the losses read so far show to lose to the leader."""
        assert self.race is not None
        plain = self.unlooped()
        ours, theirs = np.concatenate(runner.losses), np.concatenate(leader.looks)
        part = len(ours) / len(theirs)
        if part == 1.0:  # nothing is left to read but windows too short to score: it has come through
            return
        behind = float(np.mean(plain.losses, dtype=np.float64) - np.mean(theirs, dtype=np.float64))
        evidence = look(
            self.race, ours, theirs[: len(ours)], plain.losses[: len(ours)], behind, part=part, num_looks=len(self._looks()) - 1
        )
        if not evidence.dropped:
            return
        difference = evidence.difference_nats - behind
        values = {
            "temperature": runner.temperature,
            "loss_nats": plain.loss_nats + difference,
            "difference_nats": difference,
            "leader_difference_nats": evidence.difference_nats,
            "num_score_positions": float(len(ours)),
        }
        reason = (
            f"loses to {format_loops(leader.candidate)} by {evidence.difference_nats:.3g} nats, standard error "
            f"{evidence.standard_error_nats:.2g}, seen on {part:.0%} of the text"
        )
        runner.ended = Scored(result=self._result(runner.candidate, "dropped", part, values, None, reason))

    def _finish(self, runner: _Runner) -> None:
        """The exact score of a candidate that came through: the head once more, at the temperature of the whole fitting split."""
        self._calibrate(runner, 1.0)
        if runner.ended is not None:
            return
        rows, divergences = [], []
        for kept, batch in zip(runner.score_kept, self.computer.score, strict=True):
            logits = self.computer.logits(kept, batch)
            rows.append(losses_of(logits, (1.0, runner.temperature)))
            if self.with_kl:
                divergences.append(self._divergence(logits, batch))
        kl = float(np.mean(np.concatenate(divergences), dtype=np.float64)) if self.with_kl else None
        runner.ended = self._end(runner, np.concatenate(rows, axis=1), 1.0, kl)

    def _calibrate(self, runner: _Runner, share: float | None) -> None:
        """Fit the temperature; ``share`` None: on a part, where a race goes on with the last one if none can be fitted."""
        try:
            runner.temperature = fit_temperature(runner.fit_logits, start=self.start_temperature)
        except ScoringError as error:
            if share is not None or "not finite" in str(error):
                runner.ended = self._ruined(runner.candidate, 1.0 if share is None else share, str(error))
        if share is not None:
            runner.fit_logits = []

    def _end(self, runner: _Runner, losses: NDArray[np.float32], share: float, kl: float | None) -> Scored:
        positions = sum(int((batch.targets >= 0).sum()) for batch in self._parts(share)[0])
        try:
            score = text_score(runner.temperature, positions, losses)
        except ScoringError as error:
            return self._ruined(runner.candidate, share, str(error))
        values = self._values(score, self.unlooped(share)) | ({} if kl is None else {"kl_nats": kl})
        if not all(map(math.isfinite, values.values())):
            return self._ruined(runner.candidate, share, "its perplexity is not finite")
        return Scored(result=self._result(runner.candidate, "scored", share, values, None), losses=score.losses if share == 1.0 else None)

    def _values(self, score: TextScore, plain: TextScore) -> dict[str, float]:
        differences = score.losses.astype(np.float64) - plain.losses
        return {
            "temperature": score.temperature,
            "perplexity": score.perplexity,
            "calibrated_perplexity": score.calibrated_perplexity,
            "plain_loss_nats": math.log(score.perplexity),
            "loss_nats": score.loss_nats,
            "difference_nats": float(differences.mean()),
            "standard_error_nats": float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0,
            "num_fit_positions": float(score.num_fit_tokens),
            "num_score_positions": float(score.num_score_tokens),
        }

    def _divergence(self, logits: PositionLogits, batch: Batch) -> Losses:
        """KL(unlooped || candidate) in nats at every position, both as they are (T = 1)."""
        plain = self.computer.logits(self.computer.kept([()], batch)[0], batch)
        found = []
        for (ours, _), (theirs, _) in zip(logits.chunks(), plain.chunks(), strict=True):
            reference = torch.log_softmax(theirs, dim=-1)
            found.append(torch.linalg.vecdot(reference.exp(), reference - torch.log_softmax(ours, dim=-1)))
        return torch.cat(found).cpu().numpy() if found else np.empty(0, np.float32)

    def _one(self, candidate: Candidate, batch: Batch) -> PositionLogits:
        return self.computer.logits(self.computer.kept([candidate], batch)[0], batch)

    def _whole_score(self, fit: list[PositionLogits], score: list[PositionLogits], share: float) -> TextScore:
        try:
            temperature = fit_temperature(fit, start=self.start_temperature)
        except ScoringError:
            if share == 1.0:
                raise
            temperature = self.start_temperature
        rows = [losses_of(logits, (1.0, temperature)) for logits in score]
        return text_score(temperature, sum(len(part.targets) for part in fit), np.concatenate(rows, axis=1))

    def _ruined(self, candidate: Candidate, share: float, reason: str) -> Scored:
        return Scored(result=self._result(candidate, "ruined", share, {}, None, reason))

    def _result(
        self, candidate: Candidate, status: Status, share: float, values: dict[str, float], seconds: float | None, reason: str | None = None
    ) -> CandidateResult:
        return CandidateResult(
            loops=format_loops(candidate) if candidate else "",
            layer_pass_ratio=cost_of(self.shape, candidate).layer_pass_ratio,
            status=status,
            measure=self.measure,
            share=share,
            values=values,
            reason=reason,
            seconds=seconds,
        )

    def _parts(self, share: float) -> tuple[Sequence[Batch], Sequence[Batch]]:
        """The first batches of both splits, of each as many as come nearest to the share, at least one."""
        return _first(self.computer.fit, share), _first(self.computer.score, share)

    def _looks(self) -> list[tuple[Sequence[Batch], Sequence[Batch]]]:
        """One scoring batch a look, and of the fitting split as much as keeps step with it."""
        fit, score = self.computer.fit, self.computer.score
        looks: list[tuple[Sequence[Batch], Sequence[Batch]]] = []
        for number in range(len(score)):
            low, high = (math.ceil(at * len(fit) / len(score)) for at in (number, number + 1))
            looks.append((fit[low:high], score[number : number + 1]))
        return looks


def _first(batches: Sequence[Batch], share: float) -> Sequence[Batch]:
    ends = list(accumulate(int((batch.targets >= 0).sum()) for batch in batches))
    number = min(range(len(ends)), key=lambda at: abs(ends[at] - share * ends[-1]))
    return batches[: number + 1]


def _with_seconds(runners: Sequence[_Runner], seconds: float) -> list[Scored]:
    """Each result with its equal share of the group's time."""
    found = []
    for runner in runners:
        assert runner.ended is not None
        found.append(replace(runner.ended, result=replace(runner.ended.result, seconds=seconds / len(runners))))
    return found
