"""The files of a set's folder: what binds it, what each run left, and how processes keep apart. No torch."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..records import read_json, write_json
from ..training import TrainingError
from ..training.settings import first_difference
from .learning_members import EQUAL_FLOPS

SET_FILE, LOCK_FILE = "set.json", "set.lock"
STEPS_FILE = "steps.json"
"""The measured step count of a long fine-tune, which all members share."""
RESULT_FILE = "result.json"
"""What a run left in its folder: what it was charged, or why it failed."""
FORMAT = "loopwise-set/1"
_GROWING = ("members", "seeds")
"""What a later call may add to."""
_EQUAL = "equal"
"""Of the control equal-flops alone: it binds calls that have it."""


def read_set(folder: Path) -> dict[str, Any]:
    """What binds a set's folder.

    Raises:
        TrainingError: it is no set.
    """
    values = read_json(folder / SET_FILE)
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("members"), dict):
        raise TrainingError(f"{folder / SET_FILE}: is no set of this version ({FORMAT}); give a folder that loopwise learn wrote")
    return values


def is_set(model: str | Path) -> bool:
    """Whether a model's name is a set's folder."""
    return (Path(model).expanduser() / SET_FILE).is_file()


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a member's run left; None where it is not over."""
    file = folder / RESULT_FILE
    return read_json(file) if file.exists() else None


def bind(out: Path, ours: Mapping[str, Any]) -> None:
    """Write what binds a set's folder; members and seeds of earlier calls stay in it.

    Raises:
        TrainingError: the folder holds another set.
    """
    write_json(out / SET_FILE, merged(out, read_set(out), ours) if (out / SET_FILE).exists() else dict(ours))


def merged(out: Path, there: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """What a folder is bound to, with the members and seeds of both.

    Raises:
        TrainingError: they are two sets, with the first field that differs.
    """
    both = EQUAL_FLOPS in there["members"] and EQUAL_FLOPS in ours["members"]
    passed_over = (*_GROWING, *(() if both else (_EQUAL,)))
    for name in ours:
        if name not in passed_over and name in there and there[name] != ours[name]:
            field, old, new = first_difference({name: there[name]}, {name: ours[name]}) or (name, there[name], ours[name])
            raise TrainingError(f"{out}: holds a set with another {field} ({str(old)[:80]}, now {str(new)[:80]}); give a new --out")
    for name, member in ours["members"].items():
        before = there["members"].get(name, member)
        if before != member:
            field_name = next(one for one in member if before.get(one) != member[one])
            raise TrainingError(
                f"{out}: its member {name} has another {field_name} ({before.get(field_name)}, now {member[field_name]}); give a new --out"
            )
    seeds = list(dict.fromkeys([*there["seeds"], *ours["seeds"]]))
    equal = {_EQUAL: there[_EQUAL]} if EQUAL_FLOPS in there["members"] and _EQUAL in there else {}
    return {**there, **ours, **equal, "members": {**there["members"], **ours["members"]}, "seeds": seeds}


def hold(file: Path, *, wait: bool) -> int:
    """Hold a file against other processes until the handle is closed.

    Args:
        wait: for a process that holds it; else that is an error.

    Raises:
        RunBusyError: another process holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        from ..training import RunBusyError  # with torch

        raise RunBusyError(f"{file.with_suffix('')}: another process is at it") from None
    return handle
