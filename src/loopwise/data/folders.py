"""Folders that a long command writes: held by one process, bound to their settings, every file whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .documents import DataError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes, and clear what killed ones left half written.

    Raises:
        DataError: another process is at work in it.
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{folder}: another process is writing it; wait for it, or give another --out") from None
        for left in folder.rglob("*.part"):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def write_bytes(file: Path, content: bytes) -> None:
    """A file whole or not at all, also after a power cut.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        reason = f"{error.strerror}; what is done is safe, the same command goes on when there is room"
        raise OSError(error.errno, reason, str(file)) from None


def write_json(file: Path, values: Any) -> None:
    """JSON with sorted keys, whole or not at all."""
    write_bytes(file, (json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        DataError: no such file, or damaged.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except (ValueError, RecursionError):
        raise DataError(f"{file}: damaged, not JSON; remove the folder and make it again") from None
    if not isinstance(values, dict):
        raise DataError(f"{file}: damaged, not a JSON object; remove the folder and make it again")
    return values


def check_unused(folder: Path, plan_file: str) -> None:
    """Check that a folder is new, or was begun with a plan of that name, before anything expensive is done for it.

    Raises:
        DataError: it is no folder, or holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is no folder; give a new --out")
    if not folder.is_dir() or (folder / plan_file).exists():
        return
    others = sorted(file.name for file in folder.iterdir() if file.name not in ("lock", "config.json") and file.suffix != ".part")
    if others:
        raise DataError(f"{folder}: holds {others[0]} and no {plan_file}; give a new --out")


def bind(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    """Write a folder's settings, or check that those that are there say the same.

    Raises:
        DataError: they differ; names the first field.
    """
    ours, file = json.loads(json.dumps(values)), folder / name
    if not file.exists():
        write_json(file, ours)
        return
    there = read_json(file)
    for key in sorted(there.keys() | ours.keys()):
        if there.get(key) != ours.get(key):
            old, new = (json.dumps(one.get(key), ensure_ascii=False)[:60] for one in (there, ours))
            raise DataError(f"{folder}: was made with another {key} ({old}, now {new}); give a new --out")
