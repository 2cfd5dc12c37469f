"""BFCL v3, the Berkeley Function Calling Leaderboard (no-free-loop, section D.3): single-turn categories; `bfcl_turns` has the others.

``bfcl_v3`` is all of those in Python, ``bfcl_v3:simple,parallel`` some; ``bfcl_v3:java,javascript`` are the other languages. A model
is asked in words, as the leaderboard asks models without tool calls of their own, and its answer is read as calls and compared with
the gold (`bfcl_check`); nothing of it is run. In the irrelevance categories the right answer is no call, in ``live_relevance`` any
call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from . import answers
from .bfcl_calls import Call, CallsError, parse_calls
from .bfcl_check import calls_match
from .bfcl_languages import JAVA, JAVASCRIPT, PYTHON, Language
from .bfcl_prompts import PROMPT, described_for
from .bfcl_source import parse_java, parse_javascript, source_parser
from .bfcl_turns import MULTI_TURN, OPENER, TURN_FACTS, Turns, no_single_answer, turn_items
from .rows import Row, Source, checked_items, data_path, file_rows, hub_file, local_file
from .values import Grade, Item, Task, TaskError

SOURCE = Source(folder="bfcl_v3", hub="gorilla-llm/Berkeley-Function-Calling-Leaderboard")
CATEGORIES = (
    "simple", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple", "live_parallel",
    "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
LANGUAGES: dict[str, tuple[Language, Callable[[str], tuple[Call, ...]]]] = {
    "java": (JAVA, parse_java),
    "javascript": (JAVASCRIPT, parse_javascript),
}
"""The categories in another language than Python: its rules, and what reads its answers."""
NO_CALL, ANY_CALL = "no call", "any call"
WRONG_GOLDS = {
    "simple_363": "the gold misspells the function's name; only its arguments count",
    "parallel_84": "the first car's acceleration is asked for and no gold call gives it; the question was rewritten",
    "parallel_155": "the second call must be standardized, the gold takes both",
    "parallel_158": "two draws of each distribution are asked for, the gold has one",
    "parallel_170": "the years can be read in two ways; the question was rewritten",
    "irrelevance_7": "a function was there that could answer; it was changed",
    "live_simple_137-90-0": "the gold's hour is not that of the time zone",
    "live_simple_138-91-0": "the gold's hour is not that of the time zone",
    "live_simple_205-116-13": "the gold's date is another one than the question's",
    "live_multiple_44-17-0": "a summary is asked for that the gold leaves out; the question was rewritten",
    "live_parallel_9-5-0": "the gold misspells an optional parameter",
    "live_relevance_13-13-0": "no function can answer; replaced",
    "live_relevance_14-14-0": "no function can answer; replaced",
    "live_relevance_15-15-0": "no function can answer; replaced",
    "live_relevance_16-16-0": "no function can answer; taken out",
    "live_relevance_17-17-0": "no function can answer; taken out",
    "javascript_41": "the gold misspells the function's name; only its arguments count",
}
"""Items of this version whose question or gold the leaderboard itself corrected later (bfcl-eval 2026.3.23 beside the version-3 files), and
what was wrong. They are asked and graded as version 3 has them, so that scores compare; both arms have the same ones."""
UNANSWERABLE = {
    "live_simple_106-63-0": "two required parameters have no value that is right",
    "live_simple_112-68-0": "five required parameters have no value that is right",
    "live_multiple_862-181-3": "the gold wants a parameter that the function does not have",
    "live_multiple_964-207-0": "the gold names a parameter that the function does not have",
    "java_1": "a map loses what is put into it when the answer is read",
    "java_35": "texts in an array keep their quotes when the answer is read, and the gold has none",
    "java_36": "members of a list of anything are read as texts, and the gold has a number and a truth value",
    "java_65": "members of a list of anything are read as texts, and the gold has truth values",
    "java_67": "a map loses what is put into it when the answer is read",
    "java_68": "a map loses what is put into it when the answer is read",
    "java_85": "texts in an array keep their quotes when the answer is read, and the gold has none",
}
"""Items whose gold no answer meets, by the leaderboard's rules as by these; nobody has corrected them. Kept likewise."""


def load(data: Path | None, limit: int | None, split: str, *, categories: Sequence[str]) -> tuple[Item, ...]:
    """Items of the categories in turn, so that a limit takes from all alike.

    From ``BFCL_v3_<category>.json`` (one object a line, packed or not) with ``possible_answer/`` beside them, in ``bfcl_v3/`` or in the
    folder itself; else from the hub.
    """
    for language in LANGUAGES.keys() & set(categories):
        source_parser(language)  # before anything is read
    path = data_path(data)
    if path is not None and path.is_file():
        raise TaskError(f"{path}: {SOURCE.folder} needs its golds beside its questions; name the folder with BFCL_v3_simple.json")
    each = None if limit is None else -(-limit // len(categories))
    columns = [list((_turns if category in MULTI_TURN else _category)(path, category, each)) for category in categories]
    longest = max(map(len, columns))
    turns = [column[place] for place in range(longest) for column in columns if place < len(column)]
    return checked_items(turns[:limit])


def _category(path: Path | None, category: str, limit: int | None) -> Iterator[tuple[Item, Row]]:
    golds: dict[str, Row] = {}
    if _has_golds(category):
        golds = {row.text("id"): row for row in file_rows(_file(path, f"possible_answer/BFCL_v3_{category}.json"))}
    for number, row in enumerate(file_rows(_file(path, f"BFCL_v3_{category}.json"))):
        if limit is not None and number >= limit:
            return
        yield _item(row, category, golds), row


def _turns(path: Path | None, category: str, limit: int | None) -> Iterator[tuple[Item, Row]]:
    return turn_items(partial(_file, path), category, limit)


def _has_golds(category: str) -> bool:
    return "relevance" not in category


def _file(path: Path | None, name: str) -> Path:
    if path is None:
        return hub_file(SOURCE, name)
    return local_file(path, [f"{top}{name}{packed}" for top in (f"{SOURCE.folder}/", "") for packed in ("", ".gz")])


def _item(row: Row, category: str, golds: dict[str, Row]) -> Item:
    name, functions = row.text("id"), _functions(row, language_of(category), may_be_none=not _has_golds(category))
    if _has_golds(category):
        if name not in golds:
            raise row.error("id", f"is {name!r}, which has no gold in possible_answer/BFCL_v3_{category}.json")
        gold = json.dumps(_gold(golds[name]), ensure_ascii=False)
    else:
        gold = NO_CALL if "irrelevance" in category else ANY_CALL
    prompt = PROMPT.format(functions=described_for(functions, category)) + "\n\n" + _question(row)
    return Item(name=name, prompt=prompt, gold=gold, extra={"subtask": category, "functions": functions})


def language_of(category: str) -> Language:
    """The rules of a category's language."""
    return LANGUAGES[category][0] if category in LANGUAGES else PYTHON


def _functions(row: Row, language: Language, *, may_be_none: bool) -> list[dict[str, Any]]:
    """The offered functions, checked as far as grading reads them; some live items offer none, where no call is right."""
    functions = row.values.get("function")
    if not isinstance(functions, list) or not (functions or may_be_none):
        raise row.error("function", "is missing; give a list of functions")
    for function in functions:
        try:
            properties, required = function["parameters"]["properties"], function["parameters"]["required"]
            nested = [one["items"]["type"] for one in properties.values() if one["type"] in language.nested]
            kinds = [one["type"] for one in properties.values()] + nested
            whole = isinstance(function["name"], str) and isinstance(function["description"], str) and isinstance(required, list)
        except (KeyError, TypeError, AttributeError):
            whole, kinds = False, []
        if not whole or not set(kinds) <= language.types.keys():
            raise row.error("function", f"has one that is not described as the leaderboard does; types are {', '.join(language.types)}")
    return functions


def _gold(row: Row) -> list[dict[str, dict[str, list[Any]]]]:
    golds = row.values.get("ground_truth")
    whole = isinstance(golds, list) and bool(golds) and all(isinstance(one, dict) and len(one) == 1 for one in golds)
    if not whole or not isinstance(golds, list):
        raise row.error("ground_truth", "is missing; give a list with one call an entry")
    for gold in golds:
        if not all(isinstance(wanted, dict) and all(isinstance(values, list) for values in wanted.values()) for wanted in gold.values()):
            raise row.error("ground_truth", "has a parameter without a list of the values that are right")
    return golds


def _question(row: Row) -> str:
    """The messages of the one turn, joined as the leaderboard joins messages of one role; seven live items hold a conversation, whose
    messages are then marked with who wrote them (a guess: the leaderboard leaves that to the chat template)."""
    turns = row.values.get("question")
    if not isinstance(turns, list) or len(turns) != 1 or not isinstance(turns[0], list) or not turns[0]:
        raise row.error("question", "is no single turn; give a list that holds one list of messages")
    messages = [(one.get("role"), one.get("content")) if isinstance(one, dict) else (None, None) for one in turns[0]]
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in messages):
        raise row.error("question", "holds a message without role or content")
    marked = any(role == "assistant" for role, _ in messages)
    return "\n\n".join(f"{role}: {content}" if marked and role != "system" else str(content) for role, content in messages)


def grade(item: Item, text: str) -> Grade:
    """The whole answer after the thinking is a list of calls, or it holds no call, as on the leaderboard.

    An answer whose thinking never ended is wrong in every category: otherwise a model that never answers would be right on
    irrelevance.
    """
    part = answers.answer_part(text)
    if part is None:
        return Grade(correct=False, answer=None, rule="no-answer")
    category = item.extra["subtask"]
    language, parse = LANGUAGES.get(category, (PYTHON, parse_calls))
    try:
        calls: tuple[Call, ...] | None = parse(part)
    except CallsError:
        calls = None
    answer = None if calls is None else shown(calls)
    if item.gold in (NO_CALL, ANY_CALL):
        return Grade(correct=bool(calls) == (item.gold == ANY_CALL), answer=answer or "[]", rule="calls")
    if calls is None:
        return Grade(correct=False, answer=None, rule="no-answer")
    golds = json.loads(item.gold)
    correct = calls_match(item.extra["functions"], calls, golds, any_order="parallel" in category, language=language)
    return Grade(correct=correct, answer=answer, rule="calls")


LONGEST_SHOWN = 2000


def shown(calls: Sequence[Call]) -> str:
    """One text for equal calls, cut when long."""
    written = (f"{call.name}({', '.join(f'{name}={value!r}' for name, value in sorted(call.arguments.items()))})" for call in calls)
    text = f"[{', '.join(written)}]"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


BFCL = Task(
    name="bfcl_v3",
    version="1",
    kind="generate",
    budget_tokens=1024,
    thinking_budget_tokens=4096,
    reserve_tokens=512,
    answer_opener=OPENER + "[",
    forced_cut=OPENER,
    from_templates=True,
    loader=partial(load, categories=CATEGORIES),
    grader=grade,
)
"""Budgets and reserve are guesses: the paper names none, and the leaderboard lets models write as much as they will."""


def bfcl_of(names: str) -> Task:
    """Some categories: ``simple``, or ``simple,live_simple``; ``multi_turn`` is the four of conversations.

    Raises:
        TaskError: no such category, text that names none, or single answers and conversations in one task.
    """
    named = [name.strip() for name in names.split(",")]
    categories = tuple(dict.fromkeys(one for name in named for one in (MULTI_TURN if name == "multi_turn" else (name,))))
    known = (*CATEGORIES, *LANGUAGES, *MULTI_TURN)
    if unknown := next((name for name in categories if name not in known), None):
        raise TaskError(f"bfcl_v3:{names}: {unknown!r} is no category here; they are {', '.join(known)}")
    task = replace(BFCL, name=f"bfcl_v3:{','.join(categories)}", loader=partial(load, categories=categories))
    turns = [name for name in categories if name in MULTI_TURN]
    if turns and len(turns) < len(categories):
        raise TaskError(f"bfcl_v3:{names}: {turns[0]} is of conversations and others are of single answers; make two tasks of them")
    return replace(task, begin=Turns, grader=no_single_answer, facts=TURN_FACTS) if turns else task
