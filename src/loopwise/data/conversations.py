"""Conversations in the rows of data sets: which shapes of rows are known, and how each becomes turns.

A new shape is one line of a table. A row of none of them is refused, naming what it has: a guess would train on the wrong text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .documents import DataError
from .files import CHAT_FIELDS

CHAT_COLUMNS = ("messages", "conversations", "conversation")
"""Columns with a list of turns, by ``role`` and ``content`` or ``from`` and ``value`` (OpenThoughts, AM-Qwen3-Distilled, OpenR1)."""

QUESTION_AND_ANSWER = (
    ("prompt", "completion"),  # TRL; text, or messages on both sides
    ("prompt", "response"),
    ("problem", "generation"),
    ("question", "generation"),
    ("problem", "generated_solution"),  # OpenMathReasoning, OpenMathInstruct
    ("question", "generated_solution"),
    ("problem", "response"),
    ("question", "response"),
    ("problem", "solution"),  # MATH, NuminaMath; before the bare answer that some of them have too
    ("question", "solution"),
    ("problem", "answer"),
    ("question", "answer"),  # GSM8K
)
"""Pairs of columns with a question and its answer; the first that a row has both of is taken, after `CHAT_COLUMNS`."""

TEXT_COLUMN = "text"
"""Plain text, trained on from its second token; taken only where a row has nothing that asks."""

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
"""How data sets name who speaks, and what chat templates call them."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a turn that hold its thinking apart from its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one speaker says."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str
    reasoning: str = ""
    """Thinking that the row keeps apart; thinking tags in the content stay there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What one row says: turns that end with the assistant's, or a plain text."""

    turns: tuple[Turn, ...] = ()
    text: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that is said, each piece on its own."""
        own = [part for turn in self.turns for part in (turn.content, turn.reasoning) if part]
        return (*own, self.text) if self.text else tuple(own)


def read_conversation(row: Mapping[str, Any], where: str, columns: tuple[str, str] | None = None) -> Conversation | None:
    """What a row says, up to its last answer; None where a question or an answer has no words.

    Args:
        where: the row's file and number, for messages.
        columns: the columns of the question and the answer, where they are not to be found by the tables.

    Raises:
        DataError: a row of no known shape, which names the columns it has, or one whose columns hold something else.
    """
    question, answer = _columns(row, where, columns)
    if answer is None:
        if question != TEXT_COLUMN:
            turns = _turns(row[question], where, question)
            return None if turns is None else _ended(_with_system(row, turns))
        text = row[TEXT_COLUMN]
        if text is not None and not isinstance(text, str):
            raise DataError(f"{where}: column {TEXT_COLUMN!r} holds {str(text)[:40]!r}, no text")
        return Conversation(text=text.strip()) if text and text.strip() else None
    asked, said = (_side(row[name], role, where, name) for name, role in ((question, "user"), (answer, "assistant")))
    if asked is None or said is None:
        return None
    return _ended(_with_system(row, asked + said))


def _columns(row: Mapping[str, Any], where: str, columns: tuple[str, str] | None) -> tuple[str, str | None]:
    if columns is not None:
        if missing := [name for name in columns if name not in row]:
            raise DataError(f"{where}: has no column {missing[0]!r}; it has {_names(row)}")
        return columns
    for name in CHAT_COLUMNS:
        if name in row:
            return name, None
    for question, answer in QUESTION_AND_ANSWER:
        if question in row and answer in row:
            return question, answer
    asking = [name for name, _ in QUESTION_AND_ANSWER if name in row]
    if TEXT_COLUMN in row and not asking:
        return TEXT_COLUMN, None
    raise DataError(f"{where}: is of no known shape; it has {_names(row)}: name question and answer with --question and --answer")


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "no columns"


def _side(value: Any, role: str, where: str, column: str) -> tuple[Turn, ...] | None:
    """One side of a pair: a text, or messages."""
    if isinstance(value, str):
        return (Turn(role=role, content=value),) if value.strip() else None
    return None if value is None else _turns(value, where, column)


def _turns(value: Any, where: str, column: str) -> tuple[Turn, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: column {column!r} holds {str(value)[:40]!r}, no list of messages")
    return tuple(_turn(message, f"{where}, {column!r} {number}") for number, message in enumerate(value))


def _turn(message: Any, where: str) -> Turn:
    fields = next((one for one in CHAT_FIELDS if isinstance(message, Mapping) and all(field in message for field in one)), None)
    if fields is None:
        has = _names(message) if isinstance(message, Mapping) else repr(str(message)[:40])
        raise DataError(f"{where}: no message with {' or '.join('/'.join(one) for one in CHAT_FIELDS)}; it has {has}")
    speaker, said = message[fields[0]], message[fields[1]]
    if speaker not in ROLES:
        raise DataError(f"{where}: is said by {speaker!r}; known are {', '.join(ROLES)}: leave out rows that call tools")
    thought = next((message[name] for name in REASONING_FIELDS if isinstance(message.get(name), str)), "")
    return Turn(role=ROLES[speaker], content=_content(said, where), reasoning=thought.strip())


def _content(said: Any, where: str) -> str:
    """The words of a turn: text, or a list of parts that are text (``{"type": "text", "text": ...}``)."""
    if said is None or isinstance(said, str):
        return said or ""
    if isinstance(said, list) and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in said):
        return "".join(part["text"] for part in said)
    raise DataError(f"{where}: says {str(said)[:40]!r}; give text")


def _with_system(row: Mapping[str, Any], turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """With the row's own column ``system`` before the turns, where it has words and they do not begin with one (OpenThoughts)."""
    words = row.get("system")
    if isinstance(words, str) and words.strip() and turns and turns[0].role != "system":
        return (Turn(role="system", content=words), *turns)
    return turns


def _ended(turns: tuple[Turn, ...]) -> Conversation | None:
    """Without what follows the last answer, which nobody is trained on."""
    last = max((number for number, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    turns = turns[: last + 1]
    asked = any(turn.role == "user" for turn in turns)
    return Conversation(turns=turns) if asked and all(turn.content.strip() for turn in turns if turn.role != "system") else None
