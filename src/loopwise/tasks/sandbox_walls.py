"""The launcher of `sandbox`: a small process that puts up walls, runs one role behind them, and ends whatever is left of it.

Run as a script, apart from the package, once for each of the two roles of `sandbox_roles`. Two kinds of walls are known:

- ``namespaces``: own user ids, processes, network, mounts and IPC. The role sees a file system in memory that holds Python's
  library and an empty directory, and dies with the first process of its namespace.
- ``user``: for root where the kernel gives no namespaces. The role runs as a user of its own that owns no file; what it leaves
  behind is found as a descendant of this process, stopped first so that it cannot multiply, and killed.

This process ends the role when the time is up, when it is told to (SIGTERM), and when its parent dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (1 << n for n in (17, 26, 27, 28, 29, 30))
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 442, -100, 0x8000, 0x1, 0x2
CAPABILITY_VERSION_3 = 0x20080522

FIRST_OWN_USER = 2_000_000_000
"""Above every user id that systems hand out, so that such a user owns no file and no other process."""
NOBODY = 65534
OWN_DIRECTORY = "/loopwise-program"
OWN_SPACE = b"size=8m,nr_inodes=1024,mode=777"
"""The directory of a role in namespaces; all its files together fill no more memory than this."""
WATCHED = {signal.SIGCHLD, signal.SIGTERM}
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, WATCHED | {signal.SIGINT})
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    request = json.load(sys.stdin)
    if os.getppid() != request["parent"]:
        return
    request["user"] = FIRST_OWN_USER + os.getpid()
    status, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    try:
        if request["walls"] == "namespaces":
            _enter_namespaces(request["folder"], request["paths"])
            first = os.fork()
            if first == 0:
                _be_first(request, status)
        else:
            _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            first = os.fork()
            if first == 0:
                _be_role(request, status)
    except OSError as error:
        _say(status, {"error": f"{error.strerror} ({error.filename or 'no file'})"})
        return
    ended = _wait(first, request["limits"]["wall_seconds"])
    if request["walls"] == "user":
        end_descendants()
    elif ended is None:
        _kill(first, signal.SIGKILL)  # and with the first process all of its namespace
        os.waitpid(first, 0)
    elif ended == 0:
        return  # the first process has said how the role ended
    _say(status, {"ended": ended})


def _wait(child: int, wall_seconds: float) -> int | None:
    """How a child ended; None when the time was up, or when this process was told to end."""
    deadline = time.monotonic() + wall_seconds
    while (left := deadline - time.monotonic()) > 0:
        found = signal.sigtimedwait(WATCHED, left)
        if found is None or found.si_signo == signal.SIGTERM:
            return None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == child:
                    return status
                if pid == 0:
                    break
    return None


def _be_first(request: dict[str, Any], status: int) -> None:
    """The first process of a namespace: starts the role, takes over its orphans, says how it ended, and takes the rest along."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    role = os.fork()
    if role == 0:
        _be_role(request, status)
    while True:
        pid, ended = os.wait()
        if pid == role:
            _say(status, {"ended": ended})
            os._exit(0)


def _be_role(request: dict[str, Any], status: int) -> None:
    """Become the role, confined; never returns, and runs nothing that the role left to be run at its exit."""
    try:
        roles: Any = sys.modules["sandbox_roles"]
        channel = tuple(request["channel"])
        judges = request["role"] == "judge"
        _close_all_but({*channel, status})
        _confine(request["limits"], request["user"])
        if judges:
            roles.judge(channel, request["task"], lambda verdict: _say(status, verdict))
        else:
            os.close(status)
            status = -1
            roles.answer(channel, request["task"])
    except OSError as error:
        if status >= 0:
            _say(status, {"error": f"{error.strerror} ({error.filename or 'no file'})"})
    finally:
        os._exit(1)


def _confine(limits: dict[str, Any], user: int) -> None:
    """Give up what a role does not need, for good: hard limits hold, and no file can give rights back."""
    os.setsid()  # or the role could signal this group
    os.environ.clear()
    for name, limit in limits["kernel"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        allowed = resource.getrlimit(kind)[1]
        hard = limit + (name == "CPU")  # a second more, so that the end says what it was for
        hard = hard if allowed == resource.RLIM_INFINITY else min(hard, allowed)
        resource.setrlimit(kind, (min(limit, hard), hard))
    if os.geteuid() == 0:
        _drop_root(user)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, nothing)
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _drop_root(user: int) -> None:
    """Become a user that nobody else is; where a container maps no such id, ``nobody``."""
    os.setgroups([])
    try:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _enter_namespaces(folder: str, paths: list[str]) -> None:
    """Leave everything behind but ``paths``, read-only, and a small file system in memory that is mounted over ``folder``."""
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", flags)
    except OSError:
        _call("unshare", flags | CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with contextlib.suppress(OSError), open("/proc/sys/kernel/shmmax", "w") as file:
        file.write("0")  # shared memory is counted by no limit
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,nr_inodes=1024,mode=755")
    jail = os.path.join(folder, "jail")
    own = jail + OWN_DIRECTORY
    os.makedirs(own)
    _call("mount", b"tmpfs", os.fsencode(own), b"tmpfs", MS_NOSUID | MS_NODEV, OWN_SPACE)
    for path in paths:
        _show(path, jail + path)
    _make_read_only(folder, 0)
    os.chdir(folder)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chroot("jail")  # inside the new root: a process in a chroot gets no user namespace, so no new rights either
    os.chdir(OWN_DIRECTORY)


def _show(path: str, target: str) -> None:
    """Bind a file or folder, with all that is mounted below it, where it was, read-only."""
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT))
    _call("mount", os.fsencode(path), os.fsencode(target), None, MS_BIND | MS_REC, None)
    _make_read_only(target, AT_RECURSIVE)


def _make_read_only(path: str, how: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call("syscall", ctypes.c_long(SYS_MOUNT_SETATTR), AT_FDCWD, os.fsencode(path), how, attributes, size)


def end_descendants() -> None:
    """End every descendant of this process, which takes over orphans.

    A stopped process cannot fork and still counts against the limit, so new ones come to an end.
    """
    stopped: set[int] = set()
    while new := _descendants() - stopped:
        for pid in new:
            _kill(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, size = {os.getpid()}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _close_all_but(kept: set[int]) -> None:
    """This process inherited the channel alone and opened few files, so none of the others has a high number."""
    for number in range(3, 256):
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _say(status: int, what: dict[str, Any]) -> None:
    os.write(status, json.dumps(what).encode() + b"\n")


def _call(name: str, *arguments: Any) -> None:
    """A function of libc that returns 0.

    Raises:
        OSError: it did not.
    """
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    importlib.import_module("sandbox_roles")
    del sys.path[0]
    main()
