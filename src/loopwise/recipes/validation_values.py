"""What a validation is asked for and what it finds; see `validation`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..placement import PlacementError
from ..records import Study
from ..stats import RankCorrelation


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """Which placements, and how they answer; every field has a default."""

    width: int = 7
    passes: int = 2
    beta: float = 0.25
    """Of the damped operator."""
    step: int = 2
    """Layers from one placement to the next, from the first layer on."""
    num_placements: int | None = None
    """In place of ``step``: so many, evenly along the depth, the first and the last place included."""
    destroyed_nats: float = 0.5
    """A placement whose calibrated loss is above the unlooped model's by this or more destroys the model."""
    split: str = "test"
    """Of the tasks' items."""
    limit: int | None = None
    """Only the first items of each task."""
    budget_tokens: int | None = None
    """Default: each task's own."""
    batch_size: int = 16
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlacementError(f"{name} is {value}; give at least 1")
        if not math.isfinite(self.destroyed_nats):
            raise PlacementError(f"destroyed_nats is {self.destroyed_nats}; give nats of calibrated loss, e.g. 0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedPlacement:
    """One placement: what the text said of it, and what the task did."""

    loops: str
    layer_pass_ratio: float
    score_nats: float | None
    """The calibrated loss, log PPL_T; None, as the two below, for a model that it ruined."""
    plain_loss_nats: float | None
    difference_nats: float | None
    """Calibrated loss minus the unlooped model's."""
    destroyed: bool
    accuracy: float
    """The mean over tasks, as a part of one; answers that do not end count as they were graded."""
    standard_error_points: float
    """Over items."""
    finished: float
    """The part of the answers that ended within the budget."""
    accuracy_by_task: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How a study's score ranks placements, against how a task does."""

    study: Study
    tasks: tuple[str, ...]
    num_items: tuple[int, ...]
    """Of each task."""
    settings: ValidationSettings
    placements: tuple[ValidatedPlacement, ...]
    unlooped_accuracy: float
    correlations: dict[str, RankCorrelation]
    """``rho``, ``rho_plain`` (of plain perplexity), each also ``_non_destructive``; with several tasks also ``rho_TASK``."""

    @property
    def num_kept(self) -> int:
        """Placements that do not destroy the model."""
        return sum(not one.destroyed for one in self.placements)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers do not say."""
        items = (
            "These are test items: they evaluate the score, and a loop chosen by these accuracies would be chosen on test items."
            if self.settings.split == "test"
            else f"These are items of the split {self.settings.split}."
        )
        few = "few; " if self.num_kept < 10 else ""
        return (
            items,
            f"The intervals draw the items again and keep the {len(self.placements)} placements, {self.num_kept} of them not "
            f"destructive ({few}how much rho would change with other placements is in no interval).",
            "Noise in the accuracies draws rho towards zero.",
        )

    def to_json(self) -> dict[str, Any]:
        """As validation.json holds it."""
        found: dict[str, Any] = {"task": " + ".join(self.tasks)}
        for name, (rho, ci95) in self.correlations.items():
            found |= {name: rho, f"{name}_ci95": None if ci95 is None else list(ci95)}
        header = {name: self.study.header.get(name) for name in ("model", "model_hash", "mixture_sha256", "dtype")}
        settings = asdict(self.settings) | {"data": None if self.settings.data is None else str(self.settings.data)}
        return found | {
            "unlooped_accuracy": self.unlooped_accuracy,
            "num_placements": len(self.placements),
            "num_non_destructive": self.num_kept,
            "num_items": dict(zip(self.tasks, self.num_items, strict=True)),
            "decoding": "greedy, budget forcing",
            "notes": list(self.notes),
            "settings": settings,
            "study": header,
            "placements": [asdict(one) for one in self.placements],
        }
