"""``loopwise judge``: the verdict on anybody's per-item results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..protocol import Bootstrap, judge, verdict_to_json
from .console import UsageError, print_json
from .summary import larger_model, summary


@dataclass(frozen=True)
class Command:
    """Both tests on JSONL files with task, item, seed, sample and correct a line, or on loopwise's own runs.

    The second test needs costs: lines with flops, or with generated_tokens and --cost-ratio.

    Example: loopwise judge --looped looped.jsonl --twin twin.jsonl --cost-ratio 1.25
    """

    looped: tuple[Path, ...]
    """Files or runs of the looped model."""
    twin: tuple[Path, ...]
    """Files or runs of its identically trained twin."""
    unlooped: tuple[Path, ...] = ()
    """Further unlooped uses of the compute; each plain file is an arm of its own."""
    cost_ratio: float | None = None
    """(N+m)/N of the loop, for lines without a header."""
    alpha: float = 0.05
    """Level of both tests."""
    deciding_rule: str | None = None
    """The decoding rule that decides, where there are several."""
    deciding_budget: int | None = None
    """The token budget that decides, where there are several."""
    resample_seeds: bool = False
    """Resample training seeds too: intervals for "seeds like these" instead of "these seeds"."""
    resamples: int = 10_000
    """Bootstrap resamples."""
    larger: str | None = None
    """A larger model's name, with --larger-parameters and --larger-accuracy, for the threshold effect."""
    larger_parameters: float | None = None
    """Its parameters."""
    larger_accuracy: float | None = None
    """Its accuracy on these tasks, in percent."""
    out: Path | None = None
    """Also write verdict.json, report.html, report.md and the figures here."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if not self.looped or not self.twin:
            raise UsageError("give at least one file with --looped and one with --twin")
        verdict = judge(
            looped=self.looped,
            twin=self.twin,
            unlooped=self.unlooped,
            alpha=self.alpha,
            cost_ratio=self.cost_ratio,
            deciding_budget_tokens=self.deciding_budget,
            deciding_rule=self.deciding_rule,
            larger=larger_model(self.larger, self.larger_parameters, self.larger_accuracy),
            bootstrap=Bootstrap(resamples=self.resamples, resampling="items and seeds" if self.resample_seeds else "items"),
        )
        if self.out:
            from ..records import write_json
            from ..report import render

            self.out.mkdir(parents=True, exist_ok=True)
            write_json(self.out / "verdict.json", verdict_to_json(verdict))
            render(verdict, self.out)
        if self.json:
            print_json(verdict_to_json(verdict))
        else:
            print(summary(verdict, self.out))
