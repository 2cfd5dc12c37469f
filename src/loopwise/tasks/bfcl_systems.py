"""The simulated systems of BFCL's conversations, in a child process with limits: the leaderboard's own package, ``bfcl-eval``.

Nothing that a model wrote is evaluated: its answer is read as data (`bfcl_calls`), and of a call the child takes the name of one of the
systems' public methods and literal arguments. What is left to guard against is a call that never ends or fills the memory, as a
power with a huge exponent, so there are limits and no walls, and no permission is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .values import TaskError

VERSION = "2025.7.17"
"""The version whose own questions and golds are those of the version-3 data set, row by row. Results move with the version, so no
other one executes or checks."""
INSTALL = f"pip install --no-deps bfcl-eval=={VERSION}"

CALL_SECONDS = 5.0
"""Processor time of one call. A guess: every call of a gold takes milliseconds."""
MEMORY_BYTES = 2 << 30
"""Address space of one request. A guess: thirty times what the systems need."""
REQUEST_SECONDS = 60
"""Processor time of one request: a conversation's calls so far and those of one answer; a check, which has the gold's as well, may take
twice as much. Whole seconds. A guess: all of a gold's calls together take less than one."""
MOST_BROKEN = 3
"""Calls of one answer that may break the limits; those after them are not executed. A guess: an answer holds hundreds of calls at most,
and must not hold up a run for an hour."""
STARTING_SECONDS = 300.0
WAITING_SECONDS = 1200.0
"""By the clock, for one line of an answer to a request: far above the processor time of any request, because a child that is starved
on a loaded machine has done nothing wrong."""
OUT_OF_LIMITS = f"Error during execution: it or a call before it took more than {CALL_SECONDS:g} seconds or more memory than there is"
"""The result of a call that took its process along, and of those that were not executed after it. What it changed is undone."""

_WORKER = Path(__file__).with_name("bfcl_systems_worker.py")
_NEEDED = {"bfcl_eval": INSTALL, "mpmath": "pip install mpmath"}


def package_folders() -> tuple[Path, ...]:
    """Where ``bfcl-eval`` and what its systems import lie: the package itself first. Nothing of it is imported.

    Raises:
        TaskError: it is missing, or of another version.
    """
    folders = []
    for name, install in _NEEDED.items():
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise TaskError(f"BFCL's multi-turn categories need {name.replace('_', '-')}, which is not installed; {install}")
        folders.append(Path(next(iter(found.submodule_search_locations))))
    try:
        version = importlib.metadata.version("bfcl-eval")
    except importlib.metadata.PackageNotFoundError:
        version = "one without a version"
    if version != VERSION:
        raise TaskError(f"BFCL's multi-turn categories need bfcl-eval {VERSION}, found {version}; {INSTALL}")
    return tuple(folders)


class Systems:
    """The child process, and the lock that hands it one request at a time."""

    def __init__(
        self, call_seconds: float = CALL_SECONDS, memory_bytes: int = MEMORY_BYTES, request_seconds: int = REQUEST_SECONDS
    ) -> None:
        self._limits = (str(call_seconds), str(memory_bytes), str(request_seconds))
        self._waiting_seconds = max(WAITING_SECONDS, 10.0 * request_seconds)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def execute(self, entry: Mapping[str, Any], done: Sequence[str], calls: Sequence[str]) -> list[str | None]:
        """The results of calls in turn, None for one that broke the limits.

        Args:
            entry: ``id``, ``initial_config`` and ``involved_classes`` as the data set has them.
            done: the calls executed before, those that broke the limits left out. They are executed again, so that the systems'
                state is a function of the calls alone.

        Raises:
            TaskError: the child cannot be started, or the systems cannot be set up so.
        """
        results: list[str | None] = []
        broken = 0
        while len(results) < len(calls):
            kept = [call for call, result in zip(calls, results, strict=False) if result is not None]
            said, status = self._ask({"entry": entry, "done": [*done, *kept], "calls": calls[len(results) :]})
            if said and "fault" in said[-1]:
                raise TaskError(
                    f"{entry['id']}: bfcl-eval cannot set up its systems ({said[-1]['fault']}); repair the row's initial_config"
                )
            results += [str(one["result"]) for one in said]
            if len(results) < len(calls):
                broken += 1
                ended = broken == MOST_BROKEN or os.WTERMSIG(status) == signal.SIGXCPU
                results += [None] * (len(calls) - len(results) if ended else 1)
        return results

    def check(self, entry: Mapping[str, Any], turns: Sequence[Sequence[Sequence[str]]], gold: Sequence[Sequence[str]]) -> str | None:
        """What the leaderboard's checker (its ``multi_turn_checker``) finds wrong with a conversation, in its own words; ``fault`` where
        it breaks on it, as on folders that hold themselves; None where all is right.

        Args:
            turns: for each turn, for each step, the calls.
        """
        said, _ = self._ask({"entry": entry, "turns": turns, "gold": gold})
        if not said or "fault" in said[0]:
            return "fault"
        return None if said[0]["valid"] else str(said[0]["error"])

    def _ask(self, request: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
        """What the child says to one request, and how its fork ended, as ``os.wait`` has it."""
        with self._lock:
            try:
                return self._exchange(request)
            except BaseException:
                self._stop()  # what it has still to say would be taken for the answer to the next request
                raise

    def _exchange(self, request: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            _write(process.stdin.fileno(), json.dumps(request).encode() + b"\n")
        said: list[dict[str, Any]] = []
        while (line := self._line(process, self._waiting_seconds)) is not None:
            if "ended" in line:
                return said, int(line["ended"])
            said.append(line)
        raise TaskError(
            f"the process of bfcl-eval's systems ended or did not answer within {self._waiting_seconds:g} s; run it again to resume"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        folders = [str(folder.parent) for folder in package_folders()]
        self._rest = b""
        # The order of a set or the time zone must not decide a grade.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-W", "ignore", str(_WORKER), *self._limits, *dict.fromkeys(folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"PYTHONHASHSEED": "0", "TZ": "UTC"},
        )
        if self._line(self._process, STARTING_SECONDS) is None:
            raise TaskError(f"bfcl-eval {VERSION} at {folders[0]} does not load in a process of its own; {INSTALL} --force-reinstall")
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any] | None:
        """The child's next line; None when it ended or was too late. Half a line is the last of a fork that ended while it wrote."""
        assert process.stdout is not None
        pipe, deadline = process.stdout.fileno(), time.monotonic() + seconds
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(pipe, 1 << 16)
            if not part:
                return None
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            return {"ended": 0}
        return found

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._let_go(process)
            process.wait()

    def close(self) -> None:
        """End the child; the next request starts another."""
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """In a forked process: the child belongs to the parent, so let go of its pipes and begin afresh."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            self._let_go(process)

    @staticmethod
    def _let_go(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]


@functools.cache
def systems() -> Systems:
    """The one child of this process."""
    one = Systems()
    atexit.register(one.close)
    os.register_at_fork(after_in_child=one.forget)
    return one
