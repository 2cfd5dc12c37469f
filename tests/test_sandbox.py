"""What a model wrote passes by being right, by nothing else, and leaves nothing behind. Every escape here was tried."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwise.tasks import TaskError, sandbox
from loopwise.tasks.sandbox import Limits, Outcome, Program, SandboxError, run_program

QUICK = Limits(cpu_seconds=2, wall_seconds=60.0)
"""A loaded machine must not decide a test, so what waits by the clock has limits of its own."""
SYSTEM_PYTHON = "/usr/bin/python3"
"""Where the tests' own interpreter cannot be read by every user, as in a home directory, the ``user`` walls need another one."""


@functools.cache
def standing(kind: str) -> tuple[str | None, list[Outcome]]:
    """An interpreter with which walls of this kind stand here, and what became of the others."""
    outcomes = []
    for python in (sandbox.PYTHON, SYSTEM_PYTHON):
        with contextlib.suppress(SandboxError, OSError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sandbox, "PYTHON", python)
            outcomes.append(sandbox.try_out(kind))
            if outcomes[-1].ending == "passed":
                return python, outcomes
    return None, outcomes


@pytest.fixture(params=["namespaces", "user"])
def walls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Either kind of walls, where this machine has it."""
    kind = request.param
    if kind == "user" and os.geteuid() != 0:
        pytest.skip("the user walls are root's")
    python, outcomes = standing(kind)
    if python is None:
        pytest.skip(f"no {kind} walls here: {outcomes}")
    monkeypatch.setattr(sandbox, "PYTHON", python)
    yield kind
    assert not of(os.getpid()), "a process was left behind"


def of(pid: int) -> int:
    """How many processes of programs there are that the process ``pid`` had run."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                lines.append((entry / "cmdline").read_text(errors="replace"))
    return sum("sandbox_walls.py" in line and line.endswith(f"\0{pid}\0") for line in lines)


def test_namespaces_are_taken_where_the_kernel_gives_them():
    """Or every test of them would be skipped, and nobody would see why."""
    unshare = shutil.which("unshare")
    if not unshare or tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 12):
        pytest.skip("no unshare command, or a kernel before 5.12")
    command = [unshare, "--mount", "--pid", "--net", "--ipc", "--fork", "sh", "-c", "mount -t tmpfs none /mnt"]
    if all(subprocess.run([*command[:1], *user, *command[1:]], capture_output=True).returncode for user in ([], ["--map-root-user"])):
        pytest.skip("the kernel gives no namespaces here")
    assert standing("namespaces")[0] == sandbox.PYTHON and sandbox.find_walls() == "namespaces"


def run(source: str, walls: str, *tests: str, limits: Limits = QUICK) -> Outcome:
    program = Program(sources=(source,), far=("f",), tests=tests or ("assert f(2) == 4", "assert f(3) == 9"))
    return run_program(program, limits=limits, walls=walls)  # type: ignore[arg-type]


RIGHT = "def f(x):\n    return x * x\n"
# The pipes' numbers are those of the process that starts the program, which may hold many files.
MOST_FDS = 4096
ALL_FDS = f"for number in range(3, {MOST_FDS}):\n    try: os.write(number, {{what}})\n    except OSError: pass\n"
FORGED = json.dumps({"sentinel": "0" * 32, "failure": None, "gone": False}).encode() + b"\n"

ESCAPES = {
    "sys.exit(0) while loading": "import sys\nsys.exit(0)",
    "sys.exit(0) in a call": "import sys\ndef f(x): sys.exit(0)",
    "os._exit(0) while loading": "import os\nos._exit(0)",
    "os._exit(0) in a call": "import os\ndef f(x): os._exit(0)",
    "exec of something that ends well": "import os\nos.execv('/bin/true', ['true'])",
    "an object that equals everything": "class A:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return A()",
    "a number that equals everything": "class A(int):\n    def __eq__(self, other): return True\ndef f(x): return A(7)",
    "a list that equals everything": "class A(list):\n    def __eq__(self, other): return True\ndef f(x): return A()",
    "a class that pretends": "class A:\n    __class__ = int\n    def __eq__(self, other): return True\ndef f(x): return A()",
    "patched built-ins": "import builtins\nbuiltins.AssertionError = None\nbuiltins.isinstance = lambda *a: True\ndef f(x): return 0",
    "a patched assert": "import sys\nsys.modules['__main__'].__dict__['_be_role'] = None\n__debug__\ndef f(x): assert False",
    "an exception in place of a result": "def f(x): raise AssertionError('all right')",
    "a trace function": "import sys\nsys.settrace(lambda frame, event, arg: frame.f_locals.update(failure=None))\ndef f(x): return 0",
    "a sentinel on every file": f"import os\ndef f(x):\n    pass\n{ALL_FDS.format(what=FORGED)}",
    "a sentinel at the exit": f"import atexit, os\ndef last():\n    os.write(1, {FORGED!r})\natexit.register(last)\ndef f(x): return 0",
    "no message": "import os\n" + ALL_FDS.format(what="b'\\xff' * 64") + RIGHT,
    "an endless message": "import os, struct\nbig = b'1' * (1 << 20)\n" + ALL_FDS.format(what="struct.pack('>I', 1 << 31) + big"),
    "a deep message": "def f(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
    "a large message": "def f(x): return 'x' * (5 << 20)",
    "a value that contains itself": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "closed pipes": f"import os\nos.closerange(0, {MOST_FDS})\n" + RIGHT,
    "nothing": "",
    "no Python": "Certainly! Here is the function:",
    "null bytes": "def f(x):\0 return x",
    "another name": "def g(x): return x * x",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)",
    "a memory bomb": "def f(x):\n    held = []\n    while True: held.append(bytearray(1 << 24))",
    "one large object": "def f(x): return len(bytearray(10**11))",
    "kill everybody": "import os\ndef f(x):\n    os.kill(-1, 9)\n    os.killpg(0, 9)",
    "kill the parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return 0",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_does_not_pass(name: str, walls: str):
    assert run(ESCAPES[name], walls).ending != "passed"


ENDLESS = {
    "an infinite loop": "def f(x):\n    while True: pass",
    "an infinite loop while loading": "while True: pass",
    "deaf to signals": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\n"
    "def f(x):\n    while True: pass",
    "a power tower": "def f(x): return len(str(9 ** 9 ** 9))",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_processor_time_ends(name: str, walls: str):
    assert run(ENDLESS[name], walls, limits=Limits(cpu_seconds=1, wall_seconds=60.0)).ending == "out-of-time"


WAITING = {
    "asleep while loading": "import time\ntime.sleep(999)",
    "asleep in a call": "import time\ndef f(x): time.sleep(999)",
    "a message without an end": "import os, struct\n" + ALL_FDS.format(what="struct.pack('>I', 4 << 20) + b'1'") + "def f(x): return 0",
}


@pytest.mark.parametrize("name", WAITING)
def test_waiting_ends(name: str, walls: str):
    assert run(WAITING[name], walls, limits=Limits(wall_seconds=3.0)).ending == "out-of-time"


def test_nobody_is_there_to_be_asked(walls: str):
    assert run("def f(x): return input()", walls, "try: f(0)\nexcept EOFError: pass\nelse: assert False").ending == "passed"


def test_an_endless_iterator_ends_in_the_tests(walls: str):
    assert run("import itertools\ndef f(x): return itertools.count()", walls, "assert 5 in f(2)").ending == "passed"
    short = Limits(cpu_seconds=2, wall_seconds=4.0)
    assert run("import itertools\ndef f(x): return itertools.count()", walls, "assert -1 in f(2)", limits=short).ending == "out-of-time"


HARMLESS = {
    "right": RIGHT,
    "noisy": RIGHT + "print('x' * 10**6)\nimport sys\nprint('y', file=sys.stderr)\n",
    "without stdout": RIGHT + "import sys\nsys.stdout = sys.stderr = None\ndel sys.stdin\n",
    "threads left running": "import threading, time\n"
    + RIGHT
    + "for _ in range(3): threading.Thread(target=time.sleep, args=(999,)).start()\n",
    "atexit": RIGHT + "import atexit, time\natexit.register(time.sleep, 999)\n",
    "signal handlers": RIGHT + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    "a main block": RIGHT + "if __name__ == '__main__':\n    raise SystemExit(input())\n",
    "another file's imports": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    + RIGHT,
    "recursion": "def f(x, n=900): return x * x if n == 0 else f(x, n - 1)",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_right_program_passes_whatever_else_it_does(name: str, walls: str):
    assert run(HARMLESS[name], walls, limits=Limits(wall_seconds=60.0)) == Outcome("passed", None)


def test_ten_gigabytes_of_output_fill_neither_memory_nor_disk(walls: str):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood = "import os, sys\npart = 'x' * (1 << 20)\nfor _ in range(10 << 10):\n    sys.stdout.write(part); os.write(2, part.encode())\n"
    assert run(flood + RIGHT, walls, limits=Limits(cpu_seconds=10, wall_seconds=60.0)).ending in ("passed", "out-of-time")
    over_the_pipe = "import os\npart = b'7' * (1 << 20)\nwhile True:\n" + textwrap.indent(ALL_FDS.format(what="part"), "    ")
    assert run(over_the_pipe, walls).ending in ("ended-early", "out-of-time")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_files_stay_small_and_stay_inside(walls: str, tmp_path: Path):
    fill = """
import os
def f(x):
    total = 0
    for n in range(200):
        try:
            with open(f"{x}/part{n}", "wb", buffering=0) as file:
                while True: total += file.write(b"x" * (1 << 16))
        except OSError: pass
    return total
"""
    limit = (8 << 20) if walls == "namespaces" else 0
    assert run(fill, walls, f"assert f('.') <= {limit}").ending == "passed"
    if walls == "namespaces":
        assert run(fill, walls, "assert f('.') > 1 << 20").ending == "passed", "its own directory can be written"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o777)
    assert run(fill, walls, f"assert f({str(tmp_path)!r}) == 0").ending == "passed"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0
    if walls == "namespaces":
        assert not list(tmp_path.iterdir())


FORK_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
DAEMON = """
import os, time
def start():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            for number in range(256):
                try: os.close(number)
                except OSError: pass
            time.sleep(999)
        os._exit(0)
    os.wait()
"""


def test_a_fork_bomb_comes_to_nothing(walls: str):
    assert run(FORK_BOMB, walls, limits=Limits(cpu_seconds=1, wall_seconds=4.0)).ending in ("out-of-time", "ended-early")
    count = """
import os, time
def f(x):
    children = 0
    try:
        for _ in range(100):
            if os.fork() == 0: time.sleep(999)
            children += 1
    except OSError: pass
    return children
"""
    assert run(count, walls, f"assert 0 < f(0) < {Limits().processes}").ending == "passed"


def test_a_daemon_does_not_outlive_its_program(walls: str):
    assert run(DAEMON + "start()\n" + RIGHT, walls).ending == "passed"
    assert of(os.getpid()) == 0
    assert run(DAEMON + "start()\nos._exit(0)", walls).ending == "ended-early"


def test_nothing_outlives_a_parent_that_is_killed(walls: str, tmp_path: Path):
    script = (
        "import sys\nfrom loopwise.tasks import sandbox\nsandbox.PYTHON = sys.argv[2]\n"
        "program = sandbox.Program(sources=(sys.argv[3],), far=('f',), tests=('f(1)',))\nprint('begins', flush=True)\n"
        "sandbox.run_program(program, limits=sandbox.Limits(wall_seconds=300.0), walls=sys.argv[1])"
    )
    source = str(Path(sandbox.__file__).parents[2])
    program = DAEMON + "start()\ntime.sleep(999)"
    parent = subprocess.Popen(
        [sys.executable, "-c", script, walls, sandbox.PYTHON, program],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": source, "TMPDIR": str(tmp_path)},
    )
    tmp_path.chmod(0o755)
    parent.stdout.readline()
    assert _wait_for(lambda: of(parent.pid) >= 4), "the program is running"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _wait_for(lambda: of(parent.pid) == 0)


def _wait_for(true, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(true())


def test_files_outside_cannot_be_changed_or_with_namespaces_seen(walls: str, tmp_path: Path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    canary = tmp_path / "canary"
    canary.write_text("alive")
    attack = """
import os, shutil
def f(path):
    found = []
    for deed in (os.unlink, lambda p: open(p, "w"), lambda p: open(p, "a"), lambda p: os.chmod(p, 0o777), lambda p: os.rename(p, p + "2"),
                 lambda p: shutil.rmtree(os.path.dirname(p)), lambda p: open(os.path.dirname(p) + "/new", "w")):
        try: deed(path); found.append("done")
        except OSError as error: found.append(type(error).__name__)
    return found
"""
    assert run(attack, walls, f"assert 'done' not in f({str(canary)!r})").ending == "passed"
    assert canary.read_text() == "alive" and [path.name for path in tmp_path.iterdir()] == ["canary"]
    if walls == "namespaces":
        seen = "import os\ndef f(x): return os.path.exists(x), sorted(os.listdir('/'))"
        expected = {part.split("/")[1] for part in sandbox._visible_paths()} | {"loopwise-program"}
        assert run(seen, walls, f"assert f({str(canary)!r}) == (False, {sorted(expected)!r})").ending == "passed"
        nothing = (
            "import os\ndef f(x): return [name for name in os.listdir('/') if os.path.isdir('/' + name) and os.access('/' + name, os.W_OK)]"
        )
        assert run(nothing, walls, "assert f(0) == ['loopwise-program']").ending == "passed"
        packages = "import os\ndef f(x): return os.path.exists(x)"
        assert run(packages, walls, f"assert not f({os.path.dirname(pytest.__file__)!r})").ending == "passed"
        library = os.path.dirname(os.__file__)
        change = f"def f(x):\n    try: open({library + '/new.py'!r}, 'w')\n    except OSError as error: return error.errno"
        assert run(change, walls, "assert f(0) in (30, 13)").ending == "passed"


def test_rights_cannot_be_had_again(walls: str):
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def f(x):
    tried = [libc.unshare(1 << 28), libc.unshare(1 << 17), libc.ptrace(16, os.getppid(), 0, 0), libc.chroot(b"."),
             libc.mount(b"tmpfs", b"/", b"tmpfs", 0, None), libc.setuid(0)]
    if x: tried.append(libc.shmget(0, 4096, 0o1600))
    return tried, os.geteuid() != 0, dict(os.environ), os.listdir(".")
"""
    held = "tried == [-1] * 6" if walls == "namespaces" else "tried[2] == tried[5] == -1"
    tests = f"tried, *found = f(0)\nassert {held} and found == [True, {{}}, []], (tried, found)"
    assert run(source, walls, tests) == Outcome("passed", None)
    if walls == "namespaces" and os.geteuid() == 0:
        assert run(source, walls, "assert f(1)[0] == [-1] * 7").ending == "passed", "shared memory that no limit counts"


AS_NOBODY = """
from loopwise.tasks.sandbox import Program, find_walls, run_program
assert find_walls() == "namespaces"
source = '''
import ctypes, os, socket
libc = ctypes.CDLL(None)
def f(x):
    rights = [libc.unshare(1 << 28), libc.unshare(1 << 17), libc.mount(b't', b'/', b'tmpfs', 0, None)]
    rights += [libc.ptrace(16, 1, 0, 0), libc.setuid(0)]
    try: open('/new', 'w')
    except OSError as error: rights.append(error.errno)
    return rights, os.getuid(), os.listdir('.'), [name for _, name in socket.if_nameindex()]
'''
print(run_program(Program(sources=(source,), far=("f",), tests=("assert f(0) == ([-1] * 5 + [30], 65534, [], ['lo']), f(0)",))))
"""


def test_users_who_are_not_root_get_the_same_namespaces():
    """Also here, where the tests run as root: as ``nobody``, with an interpreter that everybody can read."""
    source = str(Path(sandbox.__file__).parents[2])
    environment = {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin"}
    if os.geteuid() == 0:
        other: dict = {"user": 65534, "group": 65534, "extra_groups": []}
        probe = [SYSTEM_PYTHON, "-c", "import loopwise.tasks.sandbox, sys; sys.exit(sys.version_info < (3, 11))"]
        if not os.path.exists(SYSTEM_PYTHON) or subprocess.run(probe, env=environment, capture_output=True, cwd="/", **other).returncode:
            pytest.skip(f"no {SYSTEM_PYTHON} of 3.11 or newer with which nobody can read {source}")
        done = subprocess.run([SYSTEM_PYTHON, "-c", AS_NOBODY], env=environment, capture_output=True, text=True, cwd="/", **other)
    elif standing("namespaces")[0] is None:
        pytest.skip("no namespaces here")
    else:
        done = subprocess.run([sys.executable, "-c", AS_NOBODY], env=environment, capture_output=True, text=True)
    if "no walls hold here" in done.stderr:
        pytest.skip(f"no namespaces for users who are not root: {done.stderr.splitlines()[-1]}")
    assert done.stdout == "Outcome(ending='passed', failure=None)\n", done.stderr


def test_no_network_in_namespaces(walls: str):
    if walls != "namespaces":
        pytest.skip("the user walls have none against the network, and the header says so")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = f"""
import socket
def f(x):
    try: socket.create_connection(("127.0.0.1", {port}), timeout=1).close()
    except OSError as error: return type(error).__name__
    return "connected"
"""
        names: dict = {}
        exec(source, names)
        assert names["f"](0) == "connected", "the server is there"
        assert run(source, walls, "assert f(0) in ('OSError', 'ConnectionRefusedError')").ending == "passed"
        assert (
            run("import socket\ndef f(x): return socket.if_nameindex()", walls, "assert [n for _, n in f(0)] == ['lo']").ending == "passed"
        )


SEARCH = """
import gc, os, sys
def everything():
    texts = [repr(sys.argv), repr(dict(os.environ)), repr(sys.modules["__main__"].__dict__)]
    frame = sys._getframe()
    while frame:
        texts.append(repr(frame.f_locals) + repr(frame.f_globals.keys()))
        frame = frame.f_back
    texts += [one for held in gc.get_objects() for one in gc.get_referents(held) if type(one) is str]
    for top in (".", "/proc/self", f"/proc/{os.getppid()}"):
        for folder, _, files in os.walk(top):
            for file in files[:200]:
                try: texts.append(open(os.path.join(folder, file), errors="replace").read(1 << 16))
                except OSError: pass
            if top.startswith("/proc"): break
    return "".join(texts)
def f(x):
    text = everything()
    return [needle[::-1] in text for needle in ("%s", "%s", "%s")]
"""


def test_tests_and_sentinel_are_nowhere_to_be_found(walls: str, monkeypatch: pytest.MonkeyPatch):
    """The third needle is in the program itself: the search finds what is there."""
    sentinel = "51f0" * 8
    monkeypatch.setattr(sandbox.secrets, "token_hex", lambda size: sentinel)
    source = SEARCH % (sentinel[::-1], "tset-eht-ni-eldeen", "margorp-eht-ni-eldeen") + "\nhere = 'needle-in-the-program'\n"
    tests = ("found = f(0)\nassert found == [False, False, True], 'needle-in-the-test'",)
    assert run(source, walls, *tests, limits=Limits(cpu_seconds=10)) == Outcome("passed", None)


def test_values_are_handed_on_as_they_are(walls: str):
    """There and back again, and nothing but Python's own types."""
    values = (
        "[None, True, 0, -7, 2**64, -(10**5000), 0.1, -0.0, 1e308, 1j, 'ä\\0\\ud800', b'\\xff', bytearray(b'x'), "
        "[1, (2, {3}), {'a': [None]}], {1: {2: 3}}, {()}, frozenset({4})]"
    )
    source = (
        "class I(int): pass\nclass D(dict): pass\ndef f(x): return x\n"
        "def g(): return [I(3), D(a=I(1)), float('inf'), range(3), map(abs, [-1])]"
    )
    same = f"for value in {values}:\n    there = f(value)\n    assert there == value and repr(there) == repr(value), value"
    kinds = (
        "a, b, c, d, e = g()\nassert (type(a), type(b), c, list(d), len(d), list(e)) == (int, dict, float('inf'), [0, 1, 2], 3, [1])\n"
        "assert repr(f(float('nan'))) == 'nan'"
    )
    raises = "try: f()\nexcept TypeError as error: assert 'missing' in str(error)\nelse: assert False"
    program = Program(sources=(source,), far=("f", "g"), tests=("import sys\nsys.set_int_max_str_digits(0)", same, kinds, raises))
    assert run_program(program, walls=walls) == Outcome("passed", None)  # type: ignore[arg-type]


def test_objects_stay_where_they_are_and_can_be_built_by_the_tests(walls: str):
    source = "class Node:\n    def __init__(self, v): self.v, self.left = v, None\ndef depth(n): return 1 + depth(n.left) if n else 0"
    tests = ("root = Node(1)\nroot.left = Node(2)\nassert root.left.v == 2 and depth(root) == 2",)
    program = Program(sources=(source,), far=("Node", "depth"), tests=tests)
    assert run_program(program, walls=walls) == Outcome("passed", None)  # type: ignore[arg-type]
    for use in ("assert Node(1)", "assert Node(1) != 5", "assert not Node(1) == 5", "assert Node(1) in [5]"):
        wrong = Program(sources=(source,), far=("Node",), tests=(use,))
        assert run_program(wrong, walls=walls).ending == "failed"  # type: ignore[arg-type]


def test_an_end_that_the_tests_swallow_is_no_pass(walls: str):
    tests = "try: f(2)\nexcept BaseException: pass"
    assert run("import os\ndef f(x): os._exit(0)", walls, tests).ending == "ended-early"
    assert run("def f(x): raise ValueError", walls, tests).ending == "passed"


def test_the_order_of_a_set_decides_no_grade(walls: str):
    source = "def f(x): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})"
    outcomes = {run(source, walls, "assert f(0) == None, f(0)").failure for _ in range(3)}
    assert len(outcomes) == 1 and run(source, walls, "assert f(0)[0] in 'abcdefg'").ending == "passed"


def test_numbers_of_users_that_no_one_is(walls: str):
    source = "import os\ndef f(x): return os.getuid(), os.geteuid(), os.getgroups()"
    if os.geteuid() == 0:
        assert run(source, walls, "u, e, g = f(0)\nassert u == e and (u > 2_000_000_000 or u == 65534) and g == []").ending == "passed"
    else:
        assert run(source, walls, "u, e, g = f(0)\nassert u == e == 65534").ending == "passed"


def test_walls_that_fail_are_said_and_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    launcher = tmp_path / "sandbox_walls.py"
    text = Path(sandbox._LAUNCHER).read_text()
    launcher.write_text(text.replace('_call("pivot_root", b".", b".")', 'raise OSError(1, "Operation not permitted", "pivot_root")'))
    (tmp_path / "sandbox_roles.py").write_text(Path(sandbox._LAUNCHER).with_name("sandbox_roles.py").read_text())
    monkeypatch.setattr(sandbox, "_LAUNCHER", launcher)
    with pytest.raises(SandboxError, match=r"^the walls around a model's code cannot be put up: Operation not permitted \(pivot_root\)$"):
        run(RIGHT, "namespaces")
    launcher.write_text("raise SystemExit")
    with pytest.raises(SandboxError, match=r"did not start"):
        run(RIGHT, "namespaces")
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(SandboxError, match=r"^running a model's code needs Linux, this is darwin; use a Linux container or machine$"):
        sandbox.find_walls.__wrapped__()


def test_no_walls_no_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "try_out", lambda walls: Outcome("failed", "a file outside could be deleted"))
    with pytest.raises(
        SandboxError, match=r"^no walls hold here for a model's code \(namespaces: a file outside .*docs/code-execution\.md\)$"
    ):
        sandbox.find_walls.__wrapped__()


def test_limits_are_checked():
    with pytest.raises(TaskError, match=r"^sandbox limit cpu_seconds is 0; give a number above 0$"):
        Limits(cpu_seconds=0)
    with pytest.raises(TaskError, match="wall_seconds is nan"):
        Limits(wall_seconds=float("nan"))


def test_a_loaded_machine_is_no_reason(walls: str):
    """Time by the clock is long: a process that is starved has done nothing wrong."""
    assert Limits().wall_seconds >= 20 * Limits().cpu_seconds
    assert run(RIGHT, walls).ending == "passed"
