"""The two roles of `sandbox`, each in a process of its own: the judge runs the tests, the answer runs what the model wrote.

Stands alone, imported by `sandbox_walls` only. The judge holds tests and sentinel and never runs a line of the model's; the answer's
process holds neither. Between them goes a pipe with calls one way and plain values the other. Numbers, texts and collections are
copied and become Python's own types again, whatever class they had; every other object stays where it is, and the judge has a `Far`
one in its place, which answers no comparison. So nothing that an answer does to its own interpreter reaches the tests.
"""

from __future__ import annotations

import builtins
import json
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

LONGEST_MESSAGE = 4 << 20
"""Bytes. A longer one is not read."""

LONGEST_FAILURE = 300
SMALL = 1 << 53
"""Larger numbers are handed on in base 16, where Python limits no length."""


class Gone(BaseException):
    """The answer's process ended or wrote what is no message. Not an `Exception`, for tests may catch those."""


class FarError(Exception):
    """An exception in the answer's process that is none of Python's own."""


class Channel:
    """Messages over two pipes, each its length and then JSON."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads, self.writes = reads, writes
        self.gone = False

    def send(self, message: Any) -> None:
        content = json.dumps(message).encode()
        if len(content) > LONGEST_MESSAGE:
            raise ValueError("a value is too large to be handed on")
        content = struct.pack(">I", len(content)) + content
        try:
            while content:
                content = content[os.write(self.writes, content) :]
        except OSError:
            self.gone = True
            raise Gone("ended") from None

    def receive(self) -> Any:
        try:
            (length,) = struct.unpack(">I", self._read(4))
            if length > LONGEST_MESSAGE:
                raise ValueError
            return json.loads(self._read(length))
        except (OSError, ValueError, RecursionError):
            self.gone = True
            raise Gone("ended, or wrote what is no message") from None

    def _read(self, length: int) -> bytes:
        content = b""
        while len(content) < length:
            part = os.read(self.reads, min(length - len(content), 1 << 16))
            if not part:
                raise ValueError
            content += part
        return content


# Values


def encoded(value: Any, keep: Callable[[Any], int | str]) -> Any:
    """A value as JSON; ``keep`` numbers or names an object that cannot be copied."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value) if abs(int(value)) < SMALL else {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes | bytearray):
        return {"bytes" if isinstance(value, bytes) else "bytearray": bytes(value).hex()}
    for name, kind in COLLECTIONS.items():
        if isinstance(value, kind):
            return {name: [encoded(one, keep) for one in list(value)]}
    if isinstance(value, dict):
        return {"dict": [[encoded(key, keep), encoded(one, keep)] for key, one in list(value.items())]}
    return {"far": keep(value)}


COLLECTIONS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def decoded(value: Any, far: Callable[[Any], Any]) -> Any:
    """The value of `encoded`, in Python's own types alone.

    Raises:
        ValueError, TypeError: it is none.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("no value")
    ((name, content),) = value.items()
    if name == "int":
        return int(content, 16)
    if name == "float":
        return float.fromhex(content)
    if name == "complex":
        return complex(*map(float.fromhex, content))
    if name in ("bytes", "bytearray"):
        return getattr(builtins, name).fromhex(content)
    if name in COLLECTIONS:
        return COLLECTIONS[name](decoded(one, far) for one in content)
    if name == "dict":
        return {decoded(key, far): decoded(one, far) for key, one in content}
    if name == "far":
        return far(content)
    raise ValueError("no value")


# The judge


class Far:
    """An object in the answer's process: it can be called, iterated, asked for attributes and handed back, and nothing else."""

    __slots__ = ("_ask", "_number")

    def __init__(self, ask: Callable[..., Any], number: int | str) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        values = self._ask("iterate", self)
        while (found := self._ask("next", values)) is not None:
            yield found[0]

    def __len__(self) -> int:
        return int(self._ask("length", self))

    def __bool__(self) -> bool:
        raise TypeError("an object that the tests do not know is neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise TypeError("an object that the tests do not know equals nothing")

    def __hash__(self) -> int:
        raise TypeError("an object that the tests do not know has no hash")


def judge(pipes: tuple[int, int], task: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Run the tests and say the sentinel if the last line of them was reached and the answer's process was there to the end."""
    channel, failure = Channel(*pipes), None
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        _reply(channel, channel.receive())
        for source in task["before"]:
            _run(source, names)
        for name in task["far"]:
            names[name] = Far(_asking(channel), name)
        for source in task["tests"]:
            _run(source, names)
        if channel.gone:
            raise Gone("ended")
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"[:LONGEST_FAILURE]
    say({"sentinel": task["sentinel"] if failure is None else None, "failure": failure, "gone": channel.gone})


def _asking(channel: Channel) -> Callable[..., Any]:
    """The function by which far objects ask the answer's process."""

    def number(value: Any) -> Any:
        if isinstance(value, Far):
            return object.__getattribute__(value, "_number")
        raise TypeError(f"{type(value).__name__} objects cannot be handed to an answer")

    def ask(what: str, *values: Any) -> Any:
        channel.send([what, *(encoded(value, number) for value in values)])
        found = _reply(channel, channel.receive())
        try:
            return decoded(found, lambda there: Far(ask, int(there)))
        except (ValueError, TypeError, RecursionError):
            channel.gone = True
            raise Gone("wrote what is no message") from None

    return ask


def _reply(channel: Channel, message: Any) -> Any:
    """The value in a reply; raises what the answer raised."""
    match message:
        case ["value", value]:
            return value
        case ["error", str(name), str(text)]:
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
                raise kind(text)
            raise FarError(f"{name}: {text}")
    channel.gone = True
    raise Gone("wrote what is no message")


# The answer


def answer(pipes: tuple[int, int], task: dict[str, Any]) -> None:
    """Run what the model wrote, then whatever the judge asks for, until it asks no more."""
    channel = Channel(*pipes)
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def known(number: Any) -> Any:
        return module.__dict__[number] if isinstance(number, str) else kept[number]

    def serve(what: str, values: list[Any]) -> Any:
        if what == "start":
            for source in task["sources"]:
                _run(source, module.__dict__)
            return None
        values = [decoded(value, known) for value in values]
        return encoded(DEEDS[what](*values), keep)

    what = "start"
    values: list[Any] = []
    while True:
        try:
            message = ["value", serve(what, values)]
        except Exception as error:
            message = ["error", type(error).__name__, _text_of(error)]
        try:
            channel.send(message)
        except ValueError as error:
            channel.send(["error", "ValueError", str(error)])
        what, *values = channel.receive()


DEEDS: dict[str, Callable[..., Any]] = {
    "call": lambda thing, args, kwargs: thing(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "iterate": iter,
    "next": lambda values: next(((value,) for value in values), None),
    "length": len,
}


def _text_of(error: Exception) -> str:
    try:
        return str(error)[:LONGEST_FAILURE]
    except Exception:
        return ""


def _run(source: str, names: dict[str, Any]) -> None:
    exec(compile(source, "<code>", "exec", dont_inherit=True), names)
