"""``loopwise judge``: the verdict on anybody's per-item results."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path

from ..protocol import BeforeAfter, Bootstrap, judge, judge_before_after, verdict_to_json
from ..records import ResultsChoice
from .console import UsageError, print_json
from .results import read_side, read_sides
from .summary import larger_model, summary


@dataclass(frozen=True)
class Command:
    """Both tests on per-item results: JSONL or CSV with task, item, seed, sample and correct, per-item files of lm-eval (--log_samples)
    and lighteval (--save-details), or loopwise's own runs. A file may be called [ARM][@SEED]=PATH.

    The second test needs costs: flops, or generated_tokens and --cost-ratio; in the file, in PATH.costs.csv beside it, or by --cost.

    Example: loopwise judge --looped looped.jsonl --twin twin.jsonl --cost-ratio 1.25
    """

    looped: tuple[Path, ...]
    """Files or runs of the looped model."""
    twin: tuple[Path, ...]
    """Files or runs of its identically trained twin."""
    unlooped: tuple[Path, ...] = ()
    """Further unlooped uses of the compute; each plain file is an arm of its own."""
    metric: tuple[str, ...] = ()
    """Of files with several metrics: the one that says right or wrong; of several names the first that a task has."""
    filter: tuple[str, ...] = ()
    """Of lm-eval: how answers were read, e.g. strict-match; likewise."""
    task_name: str | None = None
    """The benchmark, where neither file nor file name says it."""
    cost: tuple[str, ...] = ()
    """NAME=VALUE: looped, twin, or an unlooped arm's name or file; FLOPs of one answer on average, or a CSV file with costs by item."""
    looped_before: tuple[Path, ...] = ()
    """Files or runs of the looped model before post-training, with --twin-before: the difference of differences is judged too."""
    twin_before: tuple[Path, ...] = ()
    """Those of its control then."""
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
        if bool(self.looped_before) != bool(self.twin_before):
            raise UsageError("--looped-before and --twin-before go together; give both, or neither")
        bootstrap = Bootstrap(resamples=self.resamples, resampling="items and seeds" if self.resample_seeds else "items")
        runs = read_sides({"looped": self.looped, "twin": self.twin, "unlooped": self.unlooped}, self._choice(), self.cost)
        verdict = judge(
            looped=runs["looped"],
            twin=runs["twin"],
            unlooped=runs["unlooped"],
            alpha=self.alpha,
            cost_ratio=self.cost_ratio,
            deciding_budget_tokens=self.deciding_budget,
            deciding_rule=self.deciding_rule,
            larger=larger_model(self.larger, self.larger_parameters, self.larger_accuracy),
            bootstrap=bootstrap,
        )
        change = self._change(bootstrap) if self.looped_before else None
        if self.out:
            from ..records import write_json
            from ..report import beside, render

            verdict = beside(verdict, self.out)
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(self.out / "verdict.json", verdict_to_json(verdict))
            render(verdict, self.out)
            if change:
                write_json(self.out / "before_after.json", asdict(change))
        if self.json:
            print_json(verdict_to_json(verdict) | ({"before_after": asdict(change)} if change else {}))
            return
        print(summary(verdict, self.out))
        if change:
            lines = [line for text in (change.statement, *map(_note, change.notes)) for line in textwrap.wrap(text, 110)]
            print("\n" + "\n".join(["BEFORE AND AFTER", *lines]))

    def _choice(self) -> ResultsChoice:
        return ResultsChoice(task=self.task_name, metrics=self.metric, filters=self.filter)

    def _change(self, bootstrap: Bootstrap) -> BeforeAfter:
        looped, twin, looped_before, twin_before = (
            read_side(paths, self._choice()) for paths in (self.looped, self.twin, self.looped_before, self.twin_before)
        )
        return judge_before_after(
            looped=looped,
            twin=twin,
            looped_before=looped_before,
            twin_before=twin_before,
            budget_tokens=self.deciding_budget,
            rule=self.deciding_rule,
            alpha=self.alpha,
            bootstrap=bootstrap,
        )


def _note(text: str) -> str:
    return f"Note: {text}"
