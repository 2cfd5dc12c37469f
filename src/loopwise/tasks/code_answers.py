"""Finding the program in a model's text, and grading it by running its tests."""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
import warnings
from collections.abc import Sequence

from . import answers
from .rows import Row
from .sandbox import Program, run_program
from .values import Grade

CODE_RULES = {
    "no-answer": "the text holds no program, or its thinking never ended",
    "tests-passed": "the program passed all tests",
    "tests-failed": "a test failed, or the program could not be loaded",
    "ended-early": "the program's process ended before the tests did: it left, crashed or broke the rules of calling",
    "out-of-time": "the program or its tests took more time than they may",
}
"""Every rule that a grade of a program can name."""

LONGEST_SHOWN = 400
"""Characters of a program in a record; a hash tells longer ones apart."""

_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*[\w+#.-]*[ \t]*$")
_RULE_OF_ENDING = {"passed": "tests-passed", "failed": "tests-failed"}


def parsed(row: Row, field: str, source: str) -> ast.Module:
    """A source that a row's field brought, as a tree.

    Raises:
        TaskError: it is no Python; file, line and field are named.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources have escapes that newer versions warn of
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise row.error(field, f"is no Python ({error}); give the data set's own text") from None


def grade_program(code: str | None, *, before: Sequence[str] = (), far: Sequence[str], tests: Sequence[str]) -> Grade:
    """Run a program against its tests (see `sandbox.Program`); None and blank text are no answer.

    Args:
        before: sources from the data set, given to the program and to its tests alike.

    Raises:
        SandboxError: there are no walls to run it behind.
    """
    if code is None or not code.strip():
        return Grade(correct=False, answer=None, rule="no-answer")
    program = Program(sources=(*before, code), before=tuple(before), far=tuple(far), tests=tuple(tests))
    ending = run_program(program).ending
    return Grade(correct=ending == "passed", answer=_shown(code), rule=_RULE_OF_ENDING.get(ending, ending))


def find_code(text: str, entry_point: str) -> str | None:
    """The program in a chat answer: the last fenced block that defines the entry point, else the whole text behind the thinking.

    A fence may be of backticks or tildes, follow other text on its line, be indented as in a list, and be cut off by the budget.
    None when the thinking never ended.
    """
    part = answers.answer_part(text)
    if part is None:
        return None
    for block in reversed(fenced_blocks(part)):
        if defines(block, entry_point):
            return block
    return part


def fenced_blocks(text: str) -> list[str]:
    """The contents of the fenced blocks of a text, without common indentation; the last one may be open."""
    blocks: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        if not fence:
            if opening := _OPENING.search(line):
                fence, lines = opening[1], []
        elif _closes(line, fence):
            before = line.rstrip().rstrip(fence[0])
            blocks.append(textwrap.dedent("\n".join([*lines, before] if before.strip() else lines)))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append(textwrap.dedent("\n".join(lines)))
    return blocks


def _closes(line: str, fence: str) -> bool:
    """Whether a line is a closing fence, or code that somebody closed without a new line."""
    stripped = line.rstrip()
    return stripped.endswith(fence) and not stripped.endswith(f"'''{fence}") and not _OPENING.fullmatch(stripped.removesuffix(fence))


def defines(code: str, name: str) -> bool:
    """Whether a text defines a name at its outermost level; it need not be correct Python, for the budget may have cut it."""
    found = rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*(?::[^=\n]+)?=(?!=)"
    return re.search(found, code, re.MULTILINE) is not None


def cut_completion(text: str, stops: Sequence[str]) -> str:
    """What a model without a chat template wrote up to the first of the texts at which its program is over."""
    text = text.replace("\r\n", "\n")
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def _shown(code: str) -> str:
    """A program for people and for counting equal ones."""
    code = code.strip()
    told_apart = hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()[:16]
    return code if len(code) <= LONGEST_SHOWN else f"{code[:LONGEST_SHOWN]}... {told_apart}"
