"""``loopwise report``: verdict and report of a trial again, from its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..protocol import verdict_to_json
from .console import print_json
from .summary import summary


@dataclass(frozen=True)
class Command:
    """Judge a trial's runs by its plan again, and write verdict.json, report.html, report.md and the figures anew.

    Example: loopwise report trials/x
    """

    trial: Annotated[Path, tyro.conf.Positional]
    """The trial's folder."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.judging import judge_trial

        verdict = judge_trial(self.trial)
        if self.json:
            print_json(verdict_to_json(verdict) | {"out": str(self.trial)})
        else:
            print(summary(verdict, self.trial))
