"""Checkpoints that transformers' trainer writes, told apart by whether they are whole.

The trainer writes a checkpoint's files one after the other under its final name, so a kill can leave half of one. Once all are there a
list of them with their hashes is added; a checkpoint without it, or with other files than it says, is passed over.

Weights are safetensors; the optimizer's state is read by torch with ``weights_only``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .reporting import State

_PREFIX = "checkpoint-"
_WHOLE = "whole.json"


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Where the trainer writes the checkpoint after so many steps."""
    return folder / f"{_PREFIX}{step}"


def mark_whole(checkpoint: Path, state: State) -> None:
    """Write down that a checkpoint is whole, and where its run stands.

    Raises:
        OSError: the disk is full.
    """
    files = {}
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file() and file.name != _WHOLE:
            _flush(file)
            files[str(file.relative_to(checkpoint))] = _sha256(file)
    part = checkpoint / (_WHOLE + ".part")
    with part.open("w", encoding="utf-8") as opened:
        json.dump({"state": asdict(state), "files": files}, opened, indent=1)
        opened.flush()
        os.fsync(opened.fileno())
    part.rename(checkpoint / _WHOLE)


def newest_whole(folder: Path, say: Callable[[str], None]) -> tuple[Path, State] | None:
    """The newest whole checkpoint of a run and where it stands; None where there is none.

    Args:
        say: is told of each that is damaged and passed over.
    """
    for checkpoint in reversed(_checkpoints(folder)):
        file = checkpoint / _WHOLE
        if not file.exists():
            continue  # a kill's
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            broken = [name for name, digest in values["files"].items() if _sha256(checkpoint / name) != digest]
            if not broken:
                return checkpoint, State(**values["state"])
            say(f"{checkpoint}: {broken[0]} is not what was written; it is passed over")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            say(f"{checkpoint}: cannot be read ({type(error).__name__}); it is passed over")
    return None


def remove_unusable(folder: Path, *, after_step: int) -> None:
    """Remove what a killed trainer left half-written, and what is not as it was written: the trainer keeps the checkpoints with the
    highest numbers, and would remove good ones for them.

    Args:
        after_step: that of the newest whole checkpoint (`newest_whole`); each behind it was found damaged.
    """
    for checkpoint in _checkpoints(folder):
        if not (checkpoint / _WHOLE).exists() or int(checkpoint.name.removeprefix(_PREFIX)) > after_step:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    """The oldest first."""
    found = [path for path in folder.glob(f"{_PREFIX}*") if path.is_dir() and path.name.removeprefix(_PREFIX).isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(_PREFIX)))


def _flush(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
