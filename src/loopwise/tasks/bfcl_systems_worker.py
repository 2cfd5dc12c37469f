"""The child process of `bfcl_systems`: executes function calls on the simulated systems of ``bfcl-eval``, and asks its checker.

Run as a script, apart from the package. Its executor would ``eval`` each call; `read` stands in its place here, which knows literals and
the public methods of the conversation's own systems and nothing else. Each request is served by a fork, so that none finds what
another one left behind (two of the systems keep values in their modules), and a call that takes too much time or memory ends its
fork alone.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

MODEL = "model"
"""Stands in the names that the package gives to its instances."""
LONGEST_FAULT = 200
LONGEST_RESULT = 100_000
"""Characters of a result that are told; the checker has all of a longer one. A guess: three times the golds' longest."""
PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval"


def main() -> None:
    call_seconds, memory_bytes, request_seconds, *folders = sys.argv[1:]
    answers = os.dup(1)
    os.dup2(2, 1)  # what a system prints is no answer
    sys.path.extend(folders)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    utils: Any = import_module(f"{PACKAGE}.multi_turn_utils")
    checker: Any = import_module(f"{PACKAGE}.multi_turn_checker")
    for module in utils.CLASS_FILE_PATH_MAPPING.values():
        import_module(module)
    instances: dict[str, Any] = {}
    utils.eval = reader(instances)
    named = utils._process_method_calls

    def name_instances(call: str, instance_of_method: dict[str, str]) -> Any:
        # The package keeps the instances of the model and of the gold side by side: a call reaches those it is executed on.
        instances.clear()
        instances.update((name, vars(utils)[name]) for name in instance_of_method.values())
        return named(call, instance_of_method)

    utils._process_method_calls = name_instances

    def say(what: dict[str, Any]) -> None:
        content = json.dumps(what).encode() + b"\n"
        while content:
            content = content[os.write(answers, content) :]

    say({"ready": True})
    for line in sys.stdin:
        fork = os.fork()
        if fork == 0:
            try:
                request = json.loads(line)
                _limit(int(memory_bytes), int(request_seconds) * (2 if "gold" in request else 1))
                _serve(request, utils, checker, float(call_seconds), say)
            except Exception as error:
                say({"fault": f"{type(error).__name__}: {error}"[:LONGEST_FAULT]})
            finally:
                os._exit(0)
        _, status = os.waitpid(fork, 0)
        say({"ended": status})


def _limit(memory_bytes: int, seconds: int) -> None:
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # at the first the signal says why it ended


def _serve(request: dict[str, Any], utils: Any, checker: Any, call_seconds: float, say: Callable[[dict[str, Any]], None]) -> None:
    """Execute calls after those that were executed before, a result each; or check a whole conversation."""
    entry = request["entry"]
    long_context = "long_context" in entry["id"]

    def execute(*calls: str) -> list[str]:
        results, _ = utils.execute_multi_turn_func_call(
            calls, entry["initial_config"], entry["involved_classes"], MODEL, entry["id"], long_context=long_context
        )
        return list(results)

    if "gold" in request:
        num_calls = sum(len(calls) for turn in request["turns"] for calls in turn) + sum(map(len, request["gold"]))
        _allow(call_seconds * (1 + num_calls))
        verdict = checker.multi_turn_checker(request["turns"], request["gold"], entry, "", MODEL)
        say({"valid": verdict["valid"], "error": verdict.get("error_type")})
        return
    _allow(call_seconds * (1 + len(request["done"])))
    execute()  # sets the systems up; what it raises is the row's fault
    with contextlib.suppress(Exception):  # and from here on the call's, as where no memory is left to tell its result
        for call in request["done"]:
            execute(call)
        for call in request["calls"]:
            _allow(call_seconds)
            say({"result": _told(*execute(call))})


def _told(result: str) -> str:
    return result if len(result) <= LONGEST_RESULT else f"{result[:LONGEST_RESULT]}... ({len(result)} characters in all)"


def _allow(seconds: float) -> None:
    """Let the next piece of work take so much processor time, even inside a calculation that never comes back to the interpreter."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def reader(names: dict[str, Any]) -> Callable[[str], Any]:
    """What stands in the place of ``eval``: a call of a public method of one of the instances ``names``, its arguments literals or such
    calls. Messages are Python's own, for the model reads them.
    """

    def read(source: str) -> Any:
        tree: Any = compile(source.lstrip(" \t"), "<string>", "eval", ast.PyCF_ONLY_AST)
        return value(tree.body)

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Call(func=function, args=args, keywords=keywords):
                method = called(function)
                if any(keyword.arg is None for keyword in keywords) or any(isinstance(one, ast.Starred) for one in args):
                    raise ValueError("unpacked arguments are not allowed")
                return method(*map(value, args), **{str(keyword.arg): value(keyword.value) for keyword in keywords})
            case ast.List(elts=elements):
                return [value(one) for one in elements]
            case ast.Tuple(elts=elements):
                return tuple(value(one) for one in elements)
            case ast.Set(elts=elements):
                return {value(one) for one in elements}
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {value(key): value(one) for key, one in zip(keys, values, strict=True) if key is not None}
            case ast.Name(id=name):
                raise NameError(f"name {name!r} is not defined")
            case _:
                return ast.literal_eval(node)  # type: ignore[arg-type]

    def called(function: ast.expr) -> Callable[..., Any]:
        match function:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names:
                method: Any = None if attribute.startswith("_") else getattr(names[name], attribute, None)
                if getattr(method, "__self__", None) is not names[name]:
                    raise AttributeError(f"{type(names[name]).__name__!r} object has no attribute {attribute!r}")
                return method  # type: ignore[no-any-return]
        while isinstance(function, ast.Attribute):
            function = function.value
        if isinstance(function, ast.Name):
            raise NameError(f"name {function.id!r} is not defined")
        raise ValueError("a call of something without a name")

    return read


if __name__ == "__main__":
    main()
