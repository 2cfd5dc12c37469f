"""BFCL v3's multi-turn categories: conversations with simulated systems, whose state and results decide (bfcl-eval 2025.7.17).

In each turn the user says what is wanted, the model answers with calls, gets their results, and answers again, until it gives no
calls: then the next turn begins. Prompts, the form of the results, the limit of steps and the checks are the leaderboard's for models
without tool calls of their own (its ``inference_multi_turn_prompting``, with the user messages of its ``openai_completion``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import answers
from .bfcl_calls import Call, CallsError, parse_calls
from .bfcl_prompts import MORE_FUNCTIONS, PROMPT, described_for
from .bfcl_systems import OUT_OF_LIMITS, VERSION, package_folders, systems
from .rows import Row, file_rows
from .values import Grade, Item, Message, TaskError

MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
MOST_STEPS = 20
"""Answers with calls in one turn, as on the leaderboard; with one more the conversation is broken off, and wrong if turns remain."""
TURN_FACTS = {"most_steps": MOST_STEPS, "bfcl_eval": VERSION}
"""What a run's header says of a task of conversations."""
OPENER = "\n\nFunction calls:\n"
"""Stands before the calls where budget forcing opened them; what is before it is no part of them."""

TURN_RULES = {
    "turns-right": "after every turn the systems' state is the gold's, and the results hold all of the gold's",
    "empty-turn": "a turn in which calls were wanted had none",
    "wrong-state": "after a turn the systems were in another state than after the gold's calls",
    "missing-results": "after a turn some result of the gold's calls had not been had",
    "too-many-steps": f"a turn before the last had more than {MOST_STEPS} answers with calls",
    "other-length": "the gold has another number of turns than the question: nothing is right, as on the leaderboard",
    "broken-off": "the conversation did not come to its end: the next prompt was longer than the model can read",
    "checker-failed": "the leaderboard's checker breaks on what the calls did, or does not end; counted as wrong",
}
"""Every rule that a grade of a conversation can name."""
_RULE_OF_ERROR = {
    None: "turns-right",
    "multi_turn:empty_turn_model_response": "empty-turn",
    "multi_turn:instance_state_mismatch": "wrong-state",
    "multi_turn:execution_response_mismatch": "missing-results",
}

DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""The systems, and the package's file that describes each one's functions."""


def turn_items(find: Callable[[str], Path], category: str, limit: int | None) -> Iterator[tuple[Item, Row]]:
    """The conversations of a category; ``find`` gives the path of one of the data set's files.

    Raises:
        TaskError: bfcl-eval is missing, or a row is damaged.
    """
    documents = _documents(package_folders()[0])
    golds = {row.text("id"): row for row in file_rows(find(f"possible_answer/BFCL_v3_{category}.json"))}
    for number, row in enumerate(file_rows(find(f"BFCL_v3_{category}.json"))):
        if limit is not None and number >= limit:
            return
        name = row.text("id")
        if name not in golds:
            raise row.error("id", f"is {name!r}, which has no gold in possible_answer/BFCL_v3_{category}.json")
        yield _item(row, golds[name], category, documents), row


def _documents(package: Path) -> dict[str, list[dict[str, Any]]]:
    folder = package / "data" / "multi_turn_func_doc"
    return {name: [row.values for row in file_rows(folder / f"{file}.json")] for name, file in DOCUMENTS.items()}


def _item(row: Row, gold: Row, category: str, documents: dict[str, list[dict[str, Any]]]) -> Item:
    involved, config = row.values.get("involved_classes"), row.values.get("initial_config")
    if not isinstance(involved, list) or not involved or not set(involved) <= documents.keys():
        raise row.error("involved_classes", f"is no list of systems; they are {', '.join(documents)}")
    if not isinstance(config, dict):
        raise row.error("initial_config", "is missing; give an object with each system's state")
    functions = [function for system in involved for function in documents[system]]
    later: dict[int, str] = {}
    for turn, names in _held_back(row).items():
        held = [_take(functions, one, row) for one in names]
        later[turn] = MORE_FUNCTIONS.format(functions=held)
    turns = _turns(row, later)
    calls = _gold(gold)
    prompt = PROMPT.format(functions=described_for(functions, category)) + "\n\n" + turns[0]
    name = row.text("id")
    entry = {"id": name, "initial_config": config, "involved_classes": involved}
    return Item(
        name=name,
        prompt=prompt,
        gold=json.dumps(calls, ensure_ascii=False),
        conversation={"turns": turns[1:], "entry": entry},
        extra={"subtask": category},
    )


def _held_back(row: Row) -> dict[int, list[str]]:
    """The names of the functions that are offered at a later turn only, by turn."""
    missed = row.values.get("missed_function", {})
    if not isinstance(missed, dict) or not all(turn.isdigit() and isinstance(names, list) for turn, names in missed.items()):
        raise row.error("missed_function", "is no object of turns with lists of names")
    return {int(turn): names for turn, names in missed.items()}


def _take(functions: list[dict[str, Any]], name: Any, row: Row) -> dict[str, Any]:
    for place, function in enumerate(functions):
        if function["name"] == name:
            return functions.pop(place)
    raise row.error("missed_function", f"names {name!r}, which no system of this row has")


def _turns(row: Row, later: dict[int, str]) -> list[str]:
    """What the user says in each turn; one that brings functions holds nothing else."""
    question, turns = row.values.get("question"), []
    for number, messages in enumerate(question if isinstance(question, list) else []):
        said = [one.get("content") for one in messages if isinstance(one, dict) and one.get("role") == "user"]
        if number in later and messages == []:
            turns.append(later[number])
        elif number in later or len(messages) != 1 or len(said) != 1 or not isinstance(said[0], str):
            raise row.error("question", f"has no single user message in turn {number}")
        else:
            turns.append(said[0])
    if not turns or not later.keys() < set(range(len(turns))):
        raise row.error("question", "is no list of turns; give one list of messages for each")
    return turns


def _gold(row: Row) -> list[list[str]]:
    calls = row.values.get("ground_truth")
    whole = isinstance(calls, list) and all(isinstance(turn, list) and all(isinstance(call, str) for call in turn) for turn in calls)
    if not isinstance(calls, list) or not calls or not whole:
        raise row.error("ground_truth", "is no list of lists of calls, one list for each turn")
    return calls


class Turns:
    """A conversation under way. Its state follows from the answers alone."""

    def __init__(self, item: Item) -> None:
        assert item.conversation is not None
        self.messages: list[Message] = [{"role": "user", "content": item.prompt}]
        self.over = False
        self._entry: dict[str, Any] = item.conversation["entry"]
        self._later: list[str] = list(item.conversation["turns"])
        self._num_turns = 1 + len(self._later)
        self._gold: list[list[str]] = json.loads(item.gold)
        self._steps: list[list[list[str]]] = [[]]
        """For each turn so far, for each step, the calls that were executed."""
        self._shown: list[list[str]] = [[]]

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1, by turns."""
        return 1.0 if self.over else (len(self._steps) - 1) / self._num_turns

    def reply(self, text: str, *, forced: bool = False) -> None:
        """Take the model's answer: execute its calls, or go on to the next turn. What stands before the calls is no part of them only
        where budget forcing opened them; prose before calls makes an answer without calls, as on the leaderboard.
        """
        part = answers.answer_part(text)
        self.messages.append({"role": "assistant", "content": _sayable(text if part is None else part.lstrip("\n"))})
        calls = () if part is None else _calls(part.rpartition(OPENER)[2] if forced else part)
        if calls:
            self._execute(calls)
        elif self._later:
            self._steps.append([])
            self._shown.append([])
            self.messages.append({"role": "user", "content": self._later.pop(0)})
        else:
            self.over = True

    def _execute(self, calls: Sequence[str]) -> None:
        done = [call for turn in self._steps for step in turn for call in step]
        results = systems().execute(self._entry, done, calls)
        self._steps[-1].append([call for call, result in zip(calls, results, strict=True) if result is not None])
        self._shown[-1] += calls
        if len(self._steps[-1]) > MOST_STEPS:
            self.over = True
            return
        told = [
            {"role": "tool", "name": call, "content": OUT_OF_LIMITS if result is None else result}
            for call, result in zip(calls, results, strict=True)
        ]
        self.messages.append({"role": "user", "content": repr(told)})

    def grade(self) -> Grade:
        """Who is right, by the leaderboard's checker; a conversation that is not over is wrong."""
        answer = _sayable(_cut("; ".join(", ".join(turn) or "no call" for turn in self._shown)))
        if not self.over:
            return Grade(correct=False, answer=answer, rule="broken-off")
        if len(self._steps) != len(self._gold):
            return Grade(correct=False, answer=answer, rule="too-many-steps" if self._later else "other-length")
        error = systems().check(self._entry, self._steps, self._gold)
        return Grade(correct=error is None, answer=answer, rule=_RULE_OF_ERROR.get(error, "checker-failed"))


def _calls(part: str) -> tuple[str, ...]:
    """The calls of an answer as the leaderboard hands them to its executor; none where it cannot be read."""
    try:
        return tuple(map(as_source, parse_calls(part)))
    except (ValueError, RecursionError, MemoryError):  # as a number of more digits than Python writes
        return ()


def as_source(call: Call) -> str:
    """A call as Python source, in the leaderboard's way (its ``decoded_output_to_execution_list``): a mapping of mappings is a call.
    There a key is written as it is; here one that is no name is quoted, so that nothing in it is read as source.

    Raises:
        CallsError: it holds an empty mapping, which that way cannot write.
        ValueError: it holds a number too long to write.
    """
    name = call.name if all(map(str.isidentifier, call.name.split("."))) else repr(call.name)
    return f"{name}({', '.join(_argument(str(name), _source(value)) for name, value in call.arguments.items())})"


def _argument(name: str, source: str) -> str:
    return f"{name}={source}" if name.isidentifier() else f"**{{{name!r}: {source}}}"


def _source(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value)
    if not value:
        raise CallsError("an empty mapping")
    if all(isinstance(inner, dict) for inner in value.values()):
        name, arguments = next(iter(value.items()))
        return as_source(Call(str(name), arguments))
    return "{" + ", ".join(f"{str(key)!r}: {_source(inner)}" for key, inner in value.items()) + "}"


LONGEST_SHOWN = 2000


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def _sayable(text: str) -> str:
    """A text that can be written as UTF-8: halves of characters are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def no_single_answer(item: Item, text: str) -> Grade:
    """The grader of single answers, which conversations do not have.

    Raises:
        TaskError: always.
    """
    raise TaskError(f"{item.name} is a conversation, whose end is graded and not an answer; evaluate it with loopwise evaluate")
