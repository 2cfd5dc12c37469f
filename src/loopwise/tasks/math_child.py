"""math-verify behind a wall: one child process that answers pair by pair and is killed when it takes too long.

math-verify evaluates what a model wrote, so a tower of powers never ends, and its own time-out takes the main thread's alarm
signal. Here it lives in a child that is started at the first question, serves all threads, and dies with its parent or soon after.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from .values import TaskError

MATH_VERIFY_VERSION = "0.9.0"
"""Scores move with the version, so no other one grades."""

LIMIT_SECONDS = 5.0
"""Processor time for one pair, kept by the child itself. An ordinary pair takes milliseconds."""

WAITING = 60 if hasattr(signal, "setitimer") else 4
"""How many times the limit the parent waits by the clock before it kills the child: long where the child times itself, for a
child that is starved on a loaded machine has done nothing wrong."""

START_SECONDS = 300.0
_OUT_OF_TIME = -getattr(signal, "SIGPROF", 0)
_WORKER = Path(__file__).with_name("math_worker.py")


class MathChild:
    """The child process and the lock that hands it one pair at a time."""

    def __init__(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def equal(self, gold: str, answer: str) -> bool | None:
        """Whether math-verify holds ``answer`` equal to ``gold`` (its order matters); None when the child died over it.

        Raises:
            TaskError: math-verify is missing or of another version.
        """
        request = json.dumps({"gold": gold, "answer": answer}).encode() + b"\n"
        with self._lock:
            for _ in range(2):
                line, late = self._ask(self._process or self._start(), request)
                if line is not None:
                    return bool(json.loads(line)["equal"])
                if self._stop() == _OUT_OF_TIME or late:
                    break
            return None

    def _ask(self, process: subprocess.Popen[bytes], request: bytes) -> tuple[bytes | None, bool]:
        try:
            _pipes(process)[0].write(request)
        except BrokenPipeError:
            return None, False
        return _read_line(process, WAITING * self.limit_seconds)

    def _start(self) -> subprocess.Popen[bytes]:
        """A fresh child, past its imports. Its hash seed is fixed: the order of sympy's sets must not decide a grade."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-W", "ignore", str(_WORKER), str(self.limit_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment | {"PYTHONHASHSEED": "0"},
        )
        hello, _ = _read_line(self._process, START_SECONDS)
        found = None if hello is None else json.loads(hello)["math_verify"]
        if found != MATH_VERIFY_VERSION:
            self._stop()
            raise TaskError(
                f"grading needs math-verify {MATH_VERIFY_VERSION}, found {found or 'none that starts'}; "
                f"pip install math-verify=={MATH_VERIFY_VERSION}"
            )
        return self._process

    def _stop(self) -> int | None:
        """End the child; how it ended if there was one."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in _pipes(process):
            pipe.close()
        return process.wait()

    def close(self) -> None:
        """End the child; the next question starts another."""
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """In a forked process: the child belongs to the parent, so let go of its pipes and begin afresh."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            for pipe in _pipes(process):
                pipe.close()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


def _read_line(process: subprocess.Popen[bytes], limit_seconds: float) -> tuple[bytes | None, bool]:
    """One line from the child, and whether the child was killed for being late; no line when it died."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    killer = threading.Timer(limit_seconds, kill)
    killer.daemon = True
    killer.start()
    line = _pipes(process)[1].readline()
    killer.cancel()
    killer.join()
    return (line if line.endswith(b"\n") else None), late.is_set()


CHILD = MathChild()
atexit.register(CHILD.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CHILD.forget)
