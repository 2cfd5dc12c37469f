"""``loopwise trial SET``: all members and seeds of a set that ``loopwise learn`` trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol import verdict_to_json
from .console import Progress, print_json, save_config
from .losses import refuse_given
from .summary import summary

if TYPE_CHECKING:
    from .trial import Command as TrialCommand

SET_ONLY = ("depths", "before")
"""Options of ``trial`` that only a set reads."""
OF_ONE_MODEL = ("loops", "placement", "twin", "noise_floor", "noise_floor_of", "larger_model", "seed")
"""Options that have no meaning for a set."""


def set_trial_command(command: TrialCommand) -> None:
    """Try a set, and print the verdict of the loop under test and the tables of the controls."""
    refuse_given(command, OF_ONE_MODEL, "has no meaning for a set, whose loops, twins and seeds are its own; leave it out")
    from ..recipes.set_judging import SET_REPORT_FILE, SET_VERDICT_FILE
    from ..recipes.set_trial import set_trial
    from ..records import read_json

    progress = Progress(quiet=command.json)
    verdict = set_trial(
        command.model[0],
        out=command.out,
        tasks=command.task,
        budgets=command.budgets,
        depths=command.depths,
        before=command.before,
        progress=progress,
        settings=command.settings(),
    )
    progress.close()
    save_config(command.out, "trial", command)
    if command.json:
        print_json(verdict_to_json(verdict) | {"set": read_json(command.out / SET_VERDICT_FILE), "out": str(command.out)})
        return
    print(summary(verdict, command.out))
    print("\n" + _read(command.out / SET_REPORT_FILE))


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")
