"""``loopwise report``: the report of a trial or of a placement study again, from its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..protocol import verdict_to_json
from .console import UsageError, print_json
from .losses import show_loss_verdict
from .summary import summary


@dataclass(frozen=True)
class Command:
    """Write a folder's report anew: of a trial, judged by its plan again, or of a placement study, also while it runs.

    Example: loopwise report trials/x
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder of a trial (plan.json) or of a study (study.json)."""
    others: tuple[Path, ...] = ()
    """For a study: further studies, on other texts or models, that count in its stability."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if (self.folder / "study.json").is_file():
            self._report_study()
            return
        if (self.folder / "loss_plan.json").is_file():
            from ..recipes.judging_losses import judge_loss_trial

            show_loss_verdict(judge_loss_trial(self.folder), self.folder, as_json=self.json)
            return
        if self.others:
            raise UsageError(f"--others {self.others[0]}: only a study's report looks at others, and {self.folder} holds no study.json")
        from ..recipes.judging import judge_trial

        verdict = judge_trial(self.folder)
        if self.json:
            print_json(verdict_to_json(verdict) | {"out": str(self.folder)})
        else:
            print(summary(verdict, self.folder))

    def _report_study(self) -> None:
        from ..placement.stability import write_summary
        from ..report import render_study

        found = write_summary(self.folder, self.others)
        html = render_study(self.folder, others=self.others)
        if self.json:
            print_json(found.to_json() | {"out": str(self.folder)})
            return
        print(f"best by score: {found.best or 'no candidate has a score on the whole text'}")
        if found.near_best:
            print(
                f"{len(found.near_best):,} of {found.num_compared:,} within one paired standard error of it: the rank among these is noise"
            )
        print(f"report: {html}")
