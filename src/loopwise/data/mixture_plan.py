"""A mixture in whole steps and whole sequences: everything about a run's batches but their tokens. Reads no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .assignment import Draw, draws, quotas
from .documents import DataError
from .training_mixture import Mixture

MANY_EPOCHS = 4.0
"""Beyond so many epochs of a source a plan warns: up to four cost next to nothing against new text (arXiv 2305.16264, abstract)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A stage in whole steps and whole sequences."""

    first_step: int
    num_steps: int | None
    """None: without end."""
    counts: Mapping[str, int]
    """Sequences of each source; nothing for a stage without end."""
    only: str | None
    """The one source of a stage without end."""
    before: Mapping[str, int]
    """Sequences of each source in the stages before."""


class MixturePlan:
    """A mixture in steps: everything about the batches but their tokens. Reads no data."""

    def __init__(self, mixture: Mixture, *, num_sequences: int, sequence_tokens: int) -> None:
        """Plan it; each stage is rounded to whole steps.

        Raises:
            DataError: a batch without rows or tokens, or a stage of less than half a step.
        """
        if num_sequences < 1 or sequence_tokens < 1:
            raise DataError(f"a batch of {num_sequences} sequences of {sequence_tokens} tokens; give at least 1 of each")
        self.mixture, self.num_sequences, self.sequence_tokens = mixture, num_sequences, sequence_tokens
        self.stages = tuple(self._planned())

    @property
    def num_steps(self) -> int | None:
        """Of all stages; None without an end."""
        last = self.stages[-1]
        return None if last.num_steps is None else last.first_step + last.num_steps

    def draw(self, step: int) -> tuple[Draw, ...]:
        """Where each row of a step's batch comes from; numbers go on over the stages.

        Raises:
            DataError: a step before the first or after the last.
        """
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            raise DataError(f"step {step} is asked of a mixture with {self.num_steps} steps; give it more tokens")
        stage = next(stage for stage in reversed(self.stages) if stage.first_step <= step)
        first = (step - stage.first_step) * self.num_sequences
        stop = first + self.num_sequences
        if stage.only is not None:
            found = tuple(Draw(source=stage.only, number=number) for number in range(first, stop))
        else:
            found = draws(stage.counts, first, stop)
        return tuple(Draw(source=one.source, number=one.number + stage.before.get(one.source, 0)) for one in found)

    def describe(self, available: Mapping[str, int | None]) -> dict[str, Any]:
        """The plan as JSON: tokens of each source in each stage, epochs over each, and what to look at.

        Args:
            available: tokens that each source has; what is missing or None is not known.

        Raises:
            DataError: a plan without an end.
        """
        if self.num_steps is None:
            raise DataError(f"mixture {self.mixture.name!r} goes on without end; say how many tokens to plan")
        totals = {name: sum(stage.counts.get(name, 0) for stage in self.stages) for name in self.mixture.sources}
        sources, warnings = [], []
        for name, count in totals.items():
            have = available.get(name)
            windows = None if have is None else (have - 1) // self.sequence_tokens
            epochs = count / windows if windows else None
            sources.append({"source": name, "tokens": count * self.sequence_tokens, "available_tokens": have, "epochs": epochs})
            if windows == 0:
                warnings.append(f"{name}: has {have} tokens, less than one sequence")
            elif epochs is not None and epochs > MANY_EPOCHS:
                warnings.append(f"{name}: is read {epochs:.1f} times; beyond {MANY_EPOCHS:.0f} epochs text teaches less each time")
        return {
            "mixture": self.mixture.name,
            "num_steps": self.num_steps,
            "num_sequences": self.num_sequences,
            "sequence_tokens": self.sequence_tokens,
            "tokens": self.num_steps * self.num_sequences * self.sequence_tokens,
            "stages": [self._describe_stage(stage) for stage in self.stages],
            "sources": sources,
            "warnings": warnings,
        }

    def _describe_stage(self, stage: PlannedStage) -> dict[str, Any]:
        total = sum(stage.counts.values())
        sources = [
            {"source": name, "share": count / total, "sequences": count, "tokens": count * self.sequence_tokens}
            for name, count in stage.counts.items()
        ]
        return {"first_step": stage.first_step, "num_steps": stage.num_steps, "tokens": total * self.sequence_tokens, "sources": sources}

    def _planned(self) -> list[PlannedStage]:
        stages: list[PlannedStage] = []
        first, before = 0, dict.fromkeys(self.mixture.sources, 0)
        for number, stage in enumerate(self.mixture.stages, 1):
            if stage.tokens is None:
                only = next(iter(stage.shares))
                return [*stages, PlannedStage(first_step=first, num_steps=None, counts={}, only=only, before=dict(before))]
            num_steps = round(stage.tokens / (self.num_sequences * self.sequence_tokens))
            if not num_steps:
                step_tokens = self.num_sequences * self.sequence_tokens
                raise DataError(
                    f"stage {number} has {stage.tokens} tokens, a step takes {step_tokens}; give more tokens or smaller batches"
                )
            shares = {name: share for name, share in stage.shares.items() if share}
            counts = quotas(shares, num_steps * self.num_sequences)
            stages.append(PlannedStage(first_step=first, num_steps=num_steps, counts=counts, only=None, before=dict(before)))
            first += num_steps
            before = {name: before[name] + counts.get(name, 0) for name in before}
        return stages
