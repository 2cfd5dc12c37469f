"""Where a run tells what it does while it runs, and what it is when it is done. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .metrics import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a run stands."""

    step: int
    """Updates made."""
    tokens: int
    """Inputs trained on."""
    flops: float | None
    """Spent so far; None where the model's cost is not known."""
    seconds: float
    """Of training steps, over all starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """A finished run."""

    state: State
    loss: float
    """Of the last step, in nats per target."""
    evaluation: dict[str, float]
    """After the last step."""
    model_folder: Path
    """The trained model, as transformers saves it."""


class Reporter(Protocol):
    """Where a run tells what it does; only the first process's is called."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def step(self, metrics: StepMetrics, num_steps: int) -> None:
        """A step was made."""

    def evaluation(self, step: int, results: dict[str, float]) -> None:
        """The model was evaluated after so many steps."""


class Silent:
    """Tells nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def step(self, metrics: StepMetrics, num_steps: int) -> None:
        """Nothing."""

    def evaluation(self, step: int, results: dict[str, float]) -> None:
        """Nothing."""


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
