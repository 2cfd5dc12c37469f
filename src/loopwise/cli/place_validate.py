"""``loopwise place validate``: whether a study's score ranks placements as a task does."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .console import Progress, print_json, save_config, table

if TYPE_CHECKING:
    from ..recipes.validation import Validation
    from ..stats import RankCorrelation


@dataclass(frozen=True)
class Command:
    """Answer a task with one window at places along the depth, and correlate accuracy with the study's score; resumes after a kill.

    This evaluates the score. It is no way to choose a loop: that would be choosing on the items that judge it.

    Example: loopwise place validate studies/smollm2 --task ladder --limit 96
    """

    study: Annotated[Path, tyro.conf.Positional]
    """The folder of a loopwise place."""
    task: tuple[str, ...]
    """One or more of ladder, gsm8k, math500, arc_challenge; of several the mean accuracy counts."""
    out: Path | None = None
    """The folder of the answers; default: validation in the study."""
    width: int = 7
    """Layers of the window."""
    passes: int = 2
    """Its passes."""
    beta: float = 0.25
    """Its anchor."""
    step: int = 2
    """Layers from one place to the next."""
    placements: int | None = None
    """In place of --step: so many places, evenly along the depth."""
    destroyed_nats: float = 0.5
    """A place whose calibrated loss is so much above the unlooped model's destroys the model."""
    split: str = "test"
    """The tasks' split: test, or train."""
    limit: int | None = None
    """Only the first items of each task."""
    budget: int | None = None
    """Tokens an answer can have; default: each task's own."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    batch_size: int = 16
    """Answers decoded together."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.validation import ValidationSettings, validate

        settings = ValidationSettings(
            width=self.width,
            passes=self.passes,
            beta=self.beta,
            step=self.step,
            num_placements=self.placements,
            destroyed_nats=self.destroyed_nats,
            split=self.split,
            limit=self.limit,
            budget_tokens=self.budget,
            batch_size=self.batch_size,
            data=self.data,
            device=self.device,
        )
        progress = Progress(quiet=self.json)
        found = validate(self.study, tasks=self.task, out=self.out, settings=settings, progress=progress)
        progress.close()
        save_config(self.out or self.study / "validation", "place validate", self)
        if self.json:
            print_json(found.to_json() | {"out": str(self.out or self.study / "validation")})
            return
        print(_summary(found))
        print(f"\nreport: {self.study / 'report.html'}")


def _summary(found: Validation) -> str:
    rows = [
        [
            one.loops,
            f"{one.layer_pass_ratio:.3f}",
            "ruined" if one.difference_nats is None else f"{one.difference_nats:+.4f}",
            f"{100 * one.accuracy:.1f}",
            f"{one.standard_error_points:.1f}",
            f"{100 * one.finished:.1f}",
            "yes" if one.destroyed else "",
        ]
        for one in found.placements
    ]
    header = ("loops", "cost", "nats against unlooped", "accuracy %", "se", "finished %", "destroyed")
    counts = ", ".join(f"{num} items of {name}" for name, num in zip(found.tasks, found.num_items, strict=True))
    lines = [table(rows, header), "", f"{counts} ({found.settings.split}); unlooped {100 * found.unlooped_accuracy:.1f} %"]
    for score, name in (("PPL_T", "rho"), ("plain PPL", "rho_plain")):
        every, kept = found.correlations[name], found.correlations[f"{name}_non_destructive"]
        lines.append(
            f"Spearman's rho of {score}: {_words(every)} over all {len(found.placements)}, "
            f"{_words(kept)} among the {found.num_kept} that do not destroy the model"
        )
    return "\n".join([*lines, "", *(line for note in found.notes for line in textwrap.wrap(note, 110))])


def _words(found: RankCorrelation) -> str:
    if found.rho is None:
        return "not defined"
    interval = "no interval" if found.ci95 is None else f"{found.ci95[0]:.2f} to {found.ci95[1]:.2f}"
    return f"{found.rho:.2f} [{interval}]"
