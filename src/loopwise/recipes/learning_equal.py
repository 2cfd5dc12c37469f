"""How long ``equal-flops`` is trained: counted beforehand, or found once the looped model and its twin are trained."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..records import read_json, write_json
from ..training import DivergedError, LoraGrpo, RunBusyError, TrainingError, read_metrics
from .learning_files import RESULT_FILE, read_result
from .learning_members import EQUAL_FLOPS, LOOPED, TWIN, Member
from .learning_set import SetPlan

EQUAL_FILE = "equal.json"
"""The ratio that ``equal-flops`` is trained by, and what it was found from."""
WARM_STEPS = 2
"""Of a run, which compile and warm up: their time is not counted."""


class ControlError(TrainingError):
    """A control that cannot be made of what the looped model and its twin took: it fails, and the set goes on."""


def factor_of(plan: SetPlan, member: Member) -> float:
    """How many times the looped model's steps a member makes; measured once for all seeds.

    Raises:
        RunBusyError: the runs that it is measured by are not done.
        DivergedError: one of them failed.
        ControlError: as `longer_ratio`.
    """
    if member.token_factor is not None:
        return member.token_factor
    chosen = plan.chosen
    file = chosen.out / EQUAL_FILE
    if not file.exists():
        looped, twin = (done(chosen.folder(name, chosen.seeds[0])) for name in (LOOPED, TWIN))
        if isinstance(chosen.settings, LoraGrpo):
            found = first_stage_ratio(read_json(looped / RESULT_FILE), read_json(twin / RESULT_FILE), chosen.controls.equal)
        else:
            seconds = {LOOPED: seconds_per_step(looped), TWIN: seconds_per_step(twin)}
            found = {"seconds_per_step": seconds, "ratio": seconds[LOOPED] / seconds[TWIN]}
        write_json(file, found)
    return longer_ratio(read_json(file))


def first_stage_ratio(looped: Mapping[str, Any], twin: Mapping[str, Any], equal: str) -> dict[str, Any]:
    """How many times longer a twin's first stage has to be for both its stages to take what the looped model's took.

    Its reinforcement learning is taken to stay as it was: "no loop with fine-tuning extended to the looped model's training FLOPs"
    (no-free-loop, A.3). Not above 1 where the looped model took no more than the twin, as with shorter answers: `longer_ratio`.

    Args:
        looped, twin: what their runs left.
        equal: ``counted`` training FLOPs, or ``measured`` seconds.
    """
    unit, later = ("seconds", "grpo_seconds") if equal == "measured" else ("training_flops", "grpo_flops")
    second = twin["evaluation"][later]
    return {unit: {LOOPED: looped[unit], TWIN: twin[unit], later: second}, "ratio": (looped[unit] - second) / (twin[unit] - second)}


def longer_ratio(found: Mapping[str, Any]) -> float:
    """How many times the twin's steps ``equal-flops`` makes, by what `EQUAL_FILE` holds.

    Raises:
        ControlError: not more than the twin's: the looped model took no more than its twin, and a control that is trained less than the
            twin is none.
    """
    ratio = float(found["ratio"])
    if not ratio > 1:
        unit = next(name for name in found if name != "ratio")
        looped, twin = (f"{float(found[unit][name]):.4g}" for name in (LOOPED, TWIN))
        raise ControlError(
            f"{EQUAL_FLOPS}: the looped model took {looped} {unit.replace('_', ' ')}, no more than its twin's {twin}, so no "
            "longer training of the twin equals it; the twin itself is the control"
        )
    return ratio


def done(folder: Path) -> Path:
    """A folder whose run is done.

    Raises:
        RunBusyError: it is not.
        DivergedError: it failed.
    """
    found = read_result(folder)
    if found is None:
        raise RunBusyError(f"{folder} is not done")
    if "failed" in found:
        raise DivergedError(f"{folder}, which it needs, failed")
    return folder


def seconds_per_step(folder: Path) -> float:
    """The mean time of a run's steps, without the first ones."""
    seconds = [step.seconds for step in read_metrics(folder)]
    return statistics.fmean(seconds[WARM_STEPS:] or seconds)
