"""``loopwise trial``: a loop against its twin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..protocol import verdict_to_json
from .console import Progress, print_json, save_config
from .summary import larger_model, summary


@dataclass(frozen=True)
class Command:
    """Plan, run and judge a trial, and write its report; the same command goes on after a kill.

    Example: loopwise trial smollm2 --loops "12:16 x2 damped beta=0.5" --task ladder --budgets 32 64 128 --limit 48 --out trials/x
    """

    model: Annotated[str, tyro.conf.Positional]
    """The looped model: a Hugging Face id, a folder (a loop.json in it counts), or smollm2."""
    out: Path
    """The trial's folder."""
    loops: str | None = None
    """The loops; default: the folder's own, or the best of --placement."""
    placement: Path | None = None
    """The folder of the loopwise place that chose the loops: no item may be in the text it read."""
    twin: str | None = None
    """The identically trained twin; default: the same weights without the loop."""
    task: tuple[str, ...] = ("ladder",)
    """One or more of ladder, gsm8k, math500, arc_challenge."""
    budgets: tuple[int, ...] = ()
    """Tokens an answer can have, ascending; default: half, once and twice each task's own."""
    rules: tuple[str, ...] = ("plain", "budget-forcing")
    """Decoding rules, each on both arms: plain, budget-forcing, repetition-stop, budget-forcing+repetition-stop."""
    deciding_rule: str | None = None
    """The rule that decides; default: budget-forcing where it is among the rules."""
    deciding_budget: int | None = None
    """The budget that decides; default: the largest."""
    alpha: float = 0.05
    """Level of both tests."""
    votes: int = 0
    """Also let the twin answer this often at every budget and take the majority."""
    thinking: bool = False
    """Use the template's thinking mode."""
    limit: int | None = None
    """Only the first items of each task."""
    seed: int = 0
    """Seed of the draws of repeated sampling."""
    larger: str | None = None
    """A larger model's name, with --larger-parameters and --larger-accuracy, for the threshold effect."""
    larger_parameters: float | None = None
    """Its parameters."""
    larger_accuracy: float | None = None
    """Its accuracy on these tasks, in percent."""
    noise_floor: bool = False
    """Repeat the twin in other batches and count the answers that change."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    batch_size: int = 16
    """Answers decoded together."""
    fixed_rows: bool = False
    """Keep every batch as it began; finished rows are carried along."""
    dtype: str = "auto"
    """auto, bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.trial import TrialSettings, trial

        settings = TrialSettings(
            rules=self.rules,
            thinking=self.thinking,
            limit=self.limit,
            vote_samples=self.votes,
            seed=self.seed,
            alpha=self.alpha,
            deciding_rule=self.deciding_rule,
            deciding_budget=self.deciding_budget,
            larger=larger_model(self.larger, self.larger_parameters, self.larger_accuracy),
            noise_floor=self.noise_floor,
            data=self.data,
            placement=self.placement,
            batch_size=self.batch_size,
            fixed_rows=self.fixed_rows,
            dtype=self.dtype,
            device=self.device,
        )
        progress = Progress(quiet=self.json)
        verdict = trial(
            self.model,
            out=self.out,
            loops=self.loops,
            tasks=self.task,
            budgets=self.budgets,
            twin=self.twin,
            progress=progress,
            settings=settings,
        )
        progress.close()
        save_config(self.out, "trial", self)
        if self.json:
            print_json(verdict_to_json(verdict) | {"out": str(self.out)})
        else:
            print(summary(verdict, self.out))
