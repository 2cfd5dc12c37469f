"""Checkpoints: everything a run needs to go on, whole on the disk or not there at all.

``OUT/checkpoints/step-00000500`` holds torch's distributed checkpoint (weights and optimizer, by parameter, so that it loads on any
number of processes), ``state.json`` and ``manifest.json`` with the size and sha256 of every file. It is written under another name,
flushed to the disk, and renamed. No state of random numbers is in it: a step's are drawn from (seed, step).

The metadata of torch's format is a pickle: go on only with checkpoints of your own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from .distributed import Ranks
from .reporting import State
from .settings import TrainingError

CHECKPOINTS = "checkpoints"
_MANIFEST, _STATE = "manifest.json", "state.json"
_PREFIX, _UNFINISHED, _REMOVED = "step-", ".part", ".removed"


def save_checkpoint(out: Path, state: State, tensors: Mapping[str, Tensor], ranks: Ranks) -> Path:
    """Write a checkpoint; returns its folder.

    Raises:
        OSError: the disk is full; the checkpoints that were there stay.
    """
    folder = out / CHECKPOINTS / f"{_PREFIX}{state.step:08}"
    part = folder.with_name(folder.name + _UNFINISHED)

    def begin() -> None:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)

    def finish() -> None:
        _write(part / _STATE, asdict(state))
        files = sorted(file for file in part.iterdir() if file.name != _MANIFEST)
        _write(part / _MANIFEST, {file.name: [file.stat().st_size, _sha256(file)] for file in files})
        _sync_folder(part)
        shutil.rmtree(folder, ignore_errors=True)  # of the same step, found damaged
        part.rename(folder)
        _sync_folder(folder.parent)

    ranks.from_first(begin)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process only
        try:
            save(dict(tensors), storage_writer=FileSystemWriter(part), no_dist=ranks.size == 1)
        except CheckpointException as error:
            raise _disk_error(error, part) from None
    ranks.from_first(finish)
    return folder


def load_checkpoint(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Read a checkpoint into tensors, in place, whatever number of processes wrote it.

    Raises:
        TrainingError: it lacks a tensor, or has one of another shape.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            load(dict(tensors), storage_reader=FileSystemReader(folder), no_dist=ranks.size == 1)
        except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
            raise TrainingError(f"{folder}: does not fit this run ({_reason(error)}); give a new --out") from None


def newest_checkpoint(out: Path, say: Callable[[str], None]) -> tuple[Path, State] | None:
    """The newest checkpoint that is as it was written; None where there is none.

    Args:
        say: is told of each that is damaged and passed over.
    """
    for folder in reversed(checkpoint_folders(out)):
        fault = _fault(folder)
        if fault is None:
            try:
                return folder, State(**json.loads((folder / _STATE).read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                fault = f"{_STATE} cannot be read ({error})"
        say(f"{folder}: {fault}; it is passed over")
    return None


def checkpoint_folders(out: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    found = (out / CHECKPOINTS).glob(f"{_PREFIX}*")
    return sorted(folder for folder in found if folder.suffix not in (_UNFINISHED, _REMOVED) and folder.is_dir())


def keep_newest(out: Path, count: int, *, written: Path) -> None:
    """Remove all but the newest checkpoints, and what killed writers left.

    Args:
        written: the checkpoint that was just written. A later one was found damaged when the run went on from before it
            (`newest_checkpoint`): it goes, and counts for none.
    """
    folders = checkpoint_folders(out)
    last = folders.index(written) + 1
    for folder in folders[: max(last - count, 0)] + folders[last:]:
        removed = folder.with_name(folder.name + _REMOVED)  # so that a kill leaves none that looks whole
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
    for suffix in (_UNFINISHED, _REMOVED):
        for folder in (out / CHECKPOINTS).glob(f"{_PREFIX}*{suffix}"):
            shutil.rmtree(folder, ignore_errors=True)


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest.items():
            file = folder / name
            if not file.is_file():
                return f"lacks {name}"
            if file.stat().st_size != size or _sha256(file) != digest:
                return f"{name} is not what was written"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{_MANIFEST} cannot be read ({type(error).__name__})"
    return None if _STATE in manifest else f"{_MANIFEST} lacks {_STATE}"


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _write(file: Path, values: Any) -> None:
    with file.open("w", encoding="utf-8") as opened:
        json.dump(values, opened, indent=1)
        opened.flush()
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _disk_error(error: BaseException, part: Path) -> OSError:
    safe = "the checkpoints before are safe, the same command goes on when there is room"
    return OSError(f"{part}: cannot be written ({_reason(error)}); {safe}")


def _reason(error: BaseException) -> str:
    """What went wrong, in a line. The text of torch's exception is a traceback of each process; its failures are what they raised."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
