"""Conversations as ids, with the places that are trained on: the assistant's words and the token that ends its turn.

What is trained on is found by encoding, not by searching: a turn is trained on where the encoding of the prompt before it, as a
model is asked in decoding, and the encoding of everything up to its end are both prefixes of the encoding of the whole. So a model is
trained on exactly the tokens that it would have to write after exactly the tokens that it would be given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chat_tokenizers import THINKING_TAGS, ChatTokenizer
from .conversations import Conversation, Turn
from .documents import DataError

DROPS = {
    "without_answer": "without a question or an answer",
    "too_long": "longer than a row",
    "decontaminated": "sharing 13 words in a row with an evaluation item",
    "duplicate": "with the tokens of an earlier one",
    "special": "with a special token, or half of a character, in their words",
    "altered": "whose answer the chat template changes",
    "merged": "whose answer does not begin with a token of its own",
    "refused": "that the chat template, or raw encoding, does not take",
}
"""Why a row is left out."""

_PROBE = (Turn(role="user", content="FIRST QUESTION"), Turn(role="assistant", content="FIRST ANSWER"))
_THOUGHT = "FIRST THOUGHT"
_HALF_CHARACTER = "[\ud800-\udfff]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTrace:
    """One conversation as ids, up to the last that is trained on."""

    ids: NDArray[Any]
    """[tokens], int64."""
    trained: NDArray[np.bool_]
    """[tokens]; whether a token is a target."""
    num_turns_untrained: int
    """Answers before the last that the template shows otherwise than they were given, e.g. without their thinking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Why a conversation is left out."""

    reason: str
    """A key of `DROPS`."""
    what: str = ""


class TraceEncoder:
    """Encodes conversations for one tokenizer; never cuts one."""

    def __init__(self, tokenizer: ChatTokenizer, *, raw: bool = False) -> None:
        """Try the chat template before anything is read.

        Args:
            raw: no template: a question, its answer right behind it, and the end token.

        Raises:
            DataError: no chat template, or one that cannot be trained with; names the reason.
        """
        self._tokenizer, self._raw = tokenizer, raw
        self._special = tokenizer.special_tokens
        self._marks = re.compile("|".join([_HALF_CHARACTER, *map(re.escape, self._special)]))
        self._fault = f"tokenizer {tokenizer.facts.name!r}: its chat template"
        self.end_of_turn_id = tokenizer.facts.end_token_id if raw else self._find_end()
        """The token that ends an answer, and is trained on."""
        self._drops_thinking = False if raw else self._try_template()

    def encode(self, conversation: Conversation, where: str = "") -> EncodedTrace | Dropped:
        """The ids of a conversation, or why it is left out.

        Raises:
            DataError: thinking, with a template that leaves it out.
        """
        if found := next(filter(None, map(self._marks.search, conversation.texts)), None):
            return Dropped(reason="special", what=f"says {found[0]!r}")
        if conversation.text is not None:
            return self._text(conversation.text)
        if self._raw:
            return self._question_and_answer(conversation.turns)
        if self._drops_thinking and _thinks(conversation.turns[-1]):
            raise DataError(
                f"{where}: thinks, and {self._fault.partition(': ')[2]} leaves thinking out; give another as --chat-template, or --raw"
            )
        return self._chat(conversation.turns)

    def _text(self, text: str) -> EncodedTrace:
        (ids,) = self._tokenizer.encode([text], ends=True)
        ids = self._with_end(ids)
        return EncodedTrace(ids=ids, trained=np.arange(len(ids)) > 0, num_turns_untrained=0)

    def _question_and_answer(self, turns: Sequence[Turn]) -> EncodedTrace | Dropped:
        if [turn.role for turn in turns] != ["user", "assistant"] or turns[-1].reasoning:
            roles = ", ".join(turn.role for turn in turns)
            return Dropped(reason="refused", what=f"has the turns {roles}; raw encoding takes a question and an answer")
        (question,) = self._tokenizer.encode([turns[0].content], ends=True)
        # Behind a line's end, so that no tokenizer puts a blank before the answer; the prompt is encoded alone in decoding, too.
        line, joined, alone = self._tokenizer.encode(["\n", "\n" + turns[1].content, turns[1].content])
        answer = self._with_end(joined[len(line) :] if _is_prefix(line, joined) else alone)
        trained = np.arange(len(question) + len(answer)) >= len(question)
        return EncodedTrace(ids=np.concatenate([question, answer]), trained=trained, num_turns_untrained=0)

    def _with_end(self, ids: NDArray[Any]) -> NDArray[Any]:
        end = self._tokenizer.facts.end_token_id
        return ids if len(ids) and ids[-1] == end else np.append(ids, end)

    def _chat(self, turns: Sequence[Turn]) -> EncodedTrace | Dropped:
        """A conversation that ends with an answer; every answer is tried, and the last one must be trainable."""
        answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
        thinking = _thinks(turns[-1])
        try:
            whole = self._tokenizer.render(turns, thinking=thinking)
            before = [self._tokenizer.render(turns[:number], answer_begins=True, thinking=thinking) for number in answers]
            after = [self._tokenizer.render(turns[: number + 1], thinking=thinking) for number in answers[:-1]]
        except DataError as error:
            return Dropped(reason="refused", what=str(error))
        if not whole.startswith(before[-1]):
            return Dropped(reason="altered", what="begins otherwise than the template asks for it")
        if not _says(whole[len(before[-1]) - len(_opening(before[-1])) :], turns[-1]):
            return Dropped(reason="altered", what="some of its words, perhaps its thinking, are not in the template's text")
        ids, *bounds = self._tokenizer.encode([whole, *before, *after])
        trained = np.zeros(len(ids), dtype=np.bool_)
        num_untrained = 0
        for begin, end in zip(bounds[: len(answers)], [*bounds[len(answers) :], ids], strict=True):
            span = self._answer_span(ids, begin, end)
            num_untrained += span is None
            if span is not None:
                trained[slice(*span)] = True
        if span is None:
            return Dropped(reason="merged", what="the prompt's tokens are not a prefix of the whole's")
        return EncodedTrace(ids=ids[: span[1]], trained=trained[: span[1]], num_turns_untrained=num_untrained)

    def _answer_span(self, ids: NDArray[Any], begin: NDArray[Any], end: NDArray[Any]) -> tuple[int, int] | None:
        """Where an answer stands, from its first token to the one that ends its turn; None where it cannot be cut out."""
        if not (_is_prefix(begin, ids) and _is_prefix(end, ids)):
            return None
        ends = np.flatnonzero(ids[len(begin) : len(end)] == self.end_of_turn_id)
        return (len(begin), len(begin) + int(ends[-1]) + 1) if len(ends) else None

    def _find_end(self) -> int:
        """The first special token that the template writes behind an answer."""
        if self._tokenizer.template is None:
            raise DataError(
                f"tokenizer {self._tokenizer.facts.name!r}: has no chat template; name a file as --chat-template, "
                "or give --raw to train on answers right behind their questions"
            )
        behind = self._probe(_PROBE).rpartition(_PROBE[1].content)[2]
        (ids,) = self._tokenizer.encode([behind])
        special = set(self._special.values())
        found = next((int(one) for one in ids if int(one) in special), None)
        if found is None:
            raise DataError(f"{self._fault} ends an answer with {behind!r}, in which no special token is: a model could not learn to stop")
        return found

    def _try_template(self) -> bool:
        """Try a question with an answer, with and without thinking; gives whether the template leaves thinking out."""
        opening, closing = THINKING_TAGS[0]
        thoughtful = Turn(role="assistant", content=f"{opening}\n{_THOUGHT}\n{closing}\n\n{_PROBE[1].content}")
        plain, thinking = self._chat(_PROBE), self._chat((_PROBE[0], thoughtful))
        if isinstance(plain, Dropped) and isinstance(thinking, Dropped):
            raise DataError(f"{self._fault} cannot be trained with: of a question and its answer, {plain.what}; give another")
        return _THOUGHT not in self._probe((_PROBE[0], thoughtful))

    def _probe(self, turns: Sequence[Turn]) -> str:
        try:
            return self._tokenizer.render(turns, thinking=_thinks(turns[-1]))
        except DataError as error:
            raise DataError(f"{self._fault} cannot be used: {error}") from None


def _thinks(turn: Turn) -> bool:
    return bool(turn.reasoning) or any(closing in turn.content for _, closing in THINKING_TAGS)


def _says(text: str, turn: Turn) -> bool:
    """Whether a text has a turn's words, whatever blanks and lines are between them."""
    packed = "".join(text.split())
    return all("".join(words.split()) in packed for words in (turn.content, turn.reasoning))


def _opening(text: str) -> str:
    """The thinking tag that a prompt ends in, which may be the answer's own; else nothing."""
    return next((text[text.rindex(opening) :] for opening, _ in THINKING_TAGS if text.rstrip().endswith(opening)), "")


def _is_prefix(start: NDArray[Any], ids: NDArray[Any]) -> bool:
    return len(start) <= len(ids) and bool(np.array_equal(start, ids[: len(start)]))
