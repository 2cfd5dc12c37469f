"""Candidates scored on a text: calibrated and plain perplexity, and the divergence from the unlooped model.

A filter of placements, never a promised gain: the score rules out loops that harm a model. Loops that it chose improved
calibrated perplexity at every size from 1.7B to 32B and accuracy clearly at one of them (no-free-loop, Appendix E).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from loopwise.cost import ModelShape, cost_of
from loopwise.loops import format_loops
from loopwise.records import CandidateResult, Status
from loopwise.scoring import (
    Batch,
    PositionLogits,
    ScoringError,
    TextScore,
    expansion,
    fit_temperature,
    losses_of,
    text_score,
)

from .nearness import nearest, structure
from .racing import Evidence, Losses, Race, look, weigh
from .runners import NEAR_STEP, NOTHING_READ, KnownLosses, Readings, Runner, Scored, is_far
from .sharing import Computer
from .space import Candidate

NEIGHBOURS = 2
"""Candidates read to the end that a difference is regressed on, beside the unlooped model: the nearest ones."""


@dataclass(slots=True)
class _Reader:
    """One candidate that is read to the text's end."""

    candidate: Candidate
    temperature: float = 1.0
    ended: Scored | None = None


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
        readers = [_Reader(candidate) for candidate in group]
        self._calibrate(readers, share)
        rows: list[list[Losses]] = [[] for _ in readers]
        divergences: list[list[Losses]] = [[] for _ in readers]
        for batch in self._parts(share)[1]:
            living = [number for number, reader in enumerate(readers) if reader.ended is None]
            if not living:
                break
            for number, kept in zip(living, self.computer.kept([group[n] for n in living], batch), strict=True):
                logits = self.computer.logits(kept, batch)
                rows[number].append(losses_of(logits, (1.0, readers[number].temperature)))
                if self.with_kl:
                    divergences[number].append(self._divergence(logits, batch))
        for number, reader in enumerate(readers):
            if reader.ended is None:
                kl = float(np.mean(np.concatenate(divergences[number]), dtype=np.float64)) if self.with_kl else None
                reader.ended = self._end(reader, np.concatenate(rows[number], axis=1), share, kl)
        return _with_seconds(readers, time.monotonic() - began)

    def heat(self, group: Sequence[Candidate], *, peek: bool = False) -> list[Runner]:
        """A group's candidates on the first look of a race alone; ``peek``: on the first part of it, see `Computer.peek`."""
        began = time.monotonic()
        batch = self.computer.peek if peek else self.computer.score[0]
        runners = [self._runner(candidate) for candidate in group]
        self._look(runners, batch)
        for runner in runners:
            if runner.ended is not None:
                runner.ended = _with_seconds([runner], (time.monotonic() - began) / len(group))[0]
            runner.peeked = batch is not self.computer.score[0]
        return [runner.rested() for runner in runners]

    def race_group(
        self,
        group: Sequence[Candidate],
        leader: KnownLosses,
        readings: Readings = NOTHING_READ,
        heated: Mapping[Candidate, Runner] | None = None,
    ) -> list[Scored]:
        """A group's candidates through the text, those that lose to ``leader`` only as far as it takes to see it.

        Args:
            readings: of other candidates, among which each finds its neighbours and a sibling.
            heated: what the first look left of all candidates, from which they go on.
        """
        began = time.monotonic()
        runners = [heated[candidate].rested() if heated else self._runner(candidate) for candidate in group]
        for number, batch in enumerate(self.computer.score):
            living = [runner for runner in runners if runner.ended is None]
            if not living:
                break
            if not number and heated:
                if not living[0].peeked:
                    continue
                for runner in living:
                    runner.expanded.clear()
            self._look(living, batch)
            for runner in living:
                if runner.ended is None:
                    self.compare(runner, leader, readings)
        self._finish([runner for runner in runners if runner.ended is None])
        return _with_seconds(runners, time.monotonic() - began)

    def _runner(self, candidate: Candidate) -> Runner:
        return Runner(candidate, 1 / self.start_temperature)

    def _look(self, runners: Sequence[Runner], batch: Batch) -> None:
        """The next batch of the scoring split."""
        for runner, kept in zip(runners, self.computer.kept([runner.candidate for runner in runners], batch), strict=True):
            logits = self.computer.logits(kept, batch)
            expanded = expansion(logits, runner.inverse).cpu().numpy()
            if not runner.expanded and is_far(expanded, runner.inverse):
                with contextlib.suppress(ScoringError):  # the unlooped model's temperature is too far to expand about
                    runner.inverse = 1 / fit_temperature([logits], tolerance=NEAR_STEP / 2, start=self.start_temperature)
                    expanded = expansion(logits, runner.inverse).cpu().numpy()
            runner.expanded.append(expanded)
            runner.kept.append(kept)
            if not np.isfinite(expanded).all():
                runner.ended = self._ruined(runner.candidate, 1.0, "its losses are not finite")

    def estimate(self, runner: Runner, leader: KnownLosses | None = None, readings: Readings = NOTHING_READ) -> float:
        """The candidate's mean loss in nats on the whole text, less the leader's or the unlooped model's, from what it has read."""
        return self._evidence(runner, leader or KnownLosses(candidate=(), losses=self.unlooped().losses), readings)[0].difference_nats

    def compare(self, runner: Runner, leader: KnownLosses, readings: Readings = NOTHING_READ) -> None:
        """Drop a candidate that the losses read so far show to lose to the leader; ``readings`` as in `race_group`."""
        evidence, part = self._evidence(runner, leader, readings)
        if part == 1.0 or not evidence.dropped:  # with nothing left to read but windows too short to score it has come through
            return
        plain = self.unlooped()
        difference = evidence.difference_nats - float(np.mean(plain.losses, dtype=np.float64) - np.mean(leader.losses, dtype=np.float64))
        values = {
            "loss_nats": plain.loss_nats + difference,
            "difference_nats": difference,
            "leader_difference_nats": evidence.difference_nats,
            "num_score_positions": float(runner.num_read),
        }
        reason = (
            f"loses to {format_loops(leader.candidate)} by {evidence.difference_nats:.3g} nats, standard error "
            f"{evidence.standard_error_nats:.2g}, seen on {part:.0%} of the text"
        )
        result = self._result(runner.candidate, "dropped", part, values, None, reason)
        runner.ended = Scored(result=result, read=runner.losses())

    @property
    def peek_part(self) -> float:
        """The part of the text that a peek reads."""
        return int((self.computer.peek.targets >= 0).sum()) / len(self.unlooped().losses)

    def _evidence(self, runner: Runner, leader: KnownLosses, readings: Readings) -> tuple[Evidence, float]:
        """What the losses read so far say against the leader's; and how much of the text was read."""
        assert self.race is not None
        others = {one: losses for one, losses in readings.whole.items() if one != leader.candidate}
        near = nearest(runner.candidate, others, NEIGHBOURS)
        own = structure(runner.candidate)
        has_sibling = any(structure(one) == own for one in (*readings.whole, leader.candidate))
        sibling = None if has_sibling else readings.partial.get(own)
        covariates = np.stack([self.unlooped().losses, *near])
        ours = runner.losses(weigh(runner.num_read, leader.losses, covariates, sibling))
        num_looks = self._num_looks(readings.are_siblings)
        evidence = look(self.race, ours, leader.losses, covariates, num_looks=num_looks, sibling=sibling)
        return evidence, len(ours) / len(leader.losses)

    def _num_looks(self, is_sibling: bool) -> int:
        """Looks that a candidate's end may rest on: at each batch but the last, and once more at the first as others become known.

        A sibling's two are at its peek, beside those at whole batches. Then there are those at siblings that speak for it: at its
        representative with the neighbours known when it was peeked at, with those of later, and at another one that was read further.
        """
        looks = max(1, len(self.computer.score) - 1)
        return 4 * looks + 2 if is_sibling else looks + 1

    def _finish(self, runners: Sequence[Runner]) -> None:
        """The exact scores of candidates that came through: the fitting split is read, and the head runs once more at its temperature."""
        if not runners:
            return
        if len(runners[0].kept) < len(self.computer.score):  # they went on from a first look that kept no tensors
            first = self.computer.kept([runner.candidate for runner in runners], self.computer.score[0])
            for runner, kept in zip(runners, first, strict=True):
                runner.kept.insert(0, kept)
        readers = [_Reader(runner.candidate) for runner in runners]
        self._calibrate(readers, 1.0)
        for runner, reader in zip(runners, readers, strict=True):
            if reader.ended is None:
                logits = (self.computer.logits(kept, batch) for kept, batch in zip(runner.kept, self.computer.score, strict=True))
                rows = [losses_of(one, (1.0, reader.temperature)) for one in logits]
                reader.ended = self._end(reader, np.concatenate(rows, axis=1), 1.0, None)
            runner.ended = reader.ended

    def _calibrate(self, readers: Sequence[_Reader], share: float) -> None:
        """Fit temperatures on the first ``share`` of the fitting split."""
        logits: list[list[PositionLogits]] = [[] for _ in readers]
        for batch in self._parts(share)[0]:
            for own, kept in zip(logits, self.computer.kept([reader.candidate for reader in readers], batch), strict=True):
                own.append(self.computer.logits(kept, batch))
        for reader, own in zip(readers, logits, strict=True):
            try:
                reader.temperature = fit_temperature(own, start=self.start_temperature)
            except ScoringError as error:
                reader.ended = self._ruined(reader.candidate, share, str(error))

    def _end(self, reader: _Reader, losses: NDArray[np.float32], share: float, kl: float | None) -> Scored:
        positions = sum(int((batch.targets >= 0).sum()) for batch in self._parts(share)[0])
        try:
            score = text_score(reader.temperature, positions, losses)
        except ScoringError as error:
            return self._ruined(reader.candidate, share, str(error))
        values = self._values(score, self.unlooped(share)) | ({} if kl is None else {"kl_nats": kl})
        if not all(map(math.isfinite, values.values())):
            return self._ruined(reader.candidate, share, "its perplexity is not finite")
        return Scored(result=self._result(reader.candidate, "scored", share, values, None), losses=score.losses if share == 1.0 else None)

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


def _first(batches: Sequence[Batch], share: float) -> Sequence[Batch]:
    ends = list(accumulate(int((batch.targets >= 0).sum()) for batch in batches))
    number = min(range(len(ends)), key=lambda at: abs(ends[at] - share * ends[-1]))
    return batches[: number + 1]


def _with_seconds(runners: Sequence[Runner] | Sequence[_Reader], seconds: float) -> list[Scored]:
    """Each result with its equal share of the group's time."""
    found = []
    for runner in runners:
        assert runner.ended is not None
        found.append(replace(runner.ended, result=replace(runner.ended.result, seconds=seconds / len(runners))))
    return found
