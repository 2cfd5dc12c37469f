"""The child process of `math_child`: reads a pair of answers a line, asks math-verify, writes its opinion a line.

Run as a script, apart from the package: nothing else may import math-verify. It ends when its input ends, and a timer of its own
processor time ends it when one pair takes too long, even inside a calculation that never comes back to the interpreter, and even
when nobody waits any more. Processor time, because a loaded machine must grade as an idle one does.
"""

import json
import os
import signal
import sys
from importlib.metadata import version


def main() -> None:
    limit_seconds = float(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    from math_verify import parse, verify

    def equal(gold: str, answer: str) -> bool:
        parsed = [parse(f"${text}$", parsing_timeout=None) for text in (gold, answer)]
        return bool(verify(*parsed, timeout_seconds=None, allow_set_relation_comp=True))

    equal("\\frac{1}{2}", "0.25")
    print(json.dumps({"math_verify": version("math-verify")}), file=answers, flush=True)
    for line in sys.stdin:
        pair = json.loads(line)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, limit_seconds)
        try:
            same = equal(pair["gold"], pair["answer"])
        except (MemoryError, RecursionError, ValueError, ArithmeticError, TypeError, AttributeError, NotImplementedError):
            same = False
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"equal": same}), file=answers, flush=True)


def _limit_memory() -> None:
    """A power tower fills the memory before it fills the time."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


if __name__ == "__main__":
    main()
