"""One row of a batch: what it wrote, whether its reasoning is still open, and what happens next.

A row reasons until it answers. Two rules end its reasoning early: budget forcing, `reserve_tokens` before the budget, and the
repetition stop, once the output repeats. Ending the reasoning forces text, token by token, within the budget:

- an open thinking block is closed by the family's closing text;
- where no thinking block was opened (models without thinking tags, or in non-thinking mode), the text that opens the final
  answer is forced, unless the row opened its answer already;
- where the thinking closed by itself, or something was forced before, nothing is forced.

When nothing can be forced, budget forcing lets the row go on, and the repetition stop ends it. An end of text ends a row
under every rule, in the middle of its thinking too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .chat import Chat
from .values import Completion, DecodingError, DecodingRule, StopReason

BOX = "\\boxed{"
"""Where an opener ends in it, any box opens the answer; an empty one, as in a quoted instruction, does not."""


@dataclass(frozen=True, slots=True)
class Script:
    """What is common to all rows of a generation."""

    rule: DecodingRule
    chat: Chat
    budget_tokens: int
    answer_opener: str | None
    closing_ids: tuple[int, ...]
    """The tokens that close a thinking block."""
    opener_ids: tuple[int, ...]
    """The tokens that open the final answer; empty without an opener."""

    def opens_answer(self, text: str) -> bool:
        """Whether ``text`` holds the answer's opening, whitespace and case aside."""
        opener = (self.answer_opener or "").strip().casefold()
        if opener.endswith(BOX):
            return BOX in text.replace(BOX + "}", "")
        return bool(opener) and opener in text.casefold()


def write_script(rule: DecodingRule, chat: Chat, budget_tokens: int, answer_opener: str | None) -> Script:
    """Prepare what the rows of a generation share.

    Raises:
        DecodingError: the budget does not fit the rule, the model cannot think as asked, or the reserve cannot hold the
            forced text and an answer.
    """
    rule.check_budget(budget_tokens)
    if rule.thinking and chat.thinking is None:
        raise DecodingError("thinking is on, but the model's chat template has no thinking tags; use thinking=False")
    if answer_opener is not None and not answer_opener.strip():
        raise DecodingError(f"answer_opener is {answer_opener!r}; give the text that opens the final answer, or None")
    closing = chat.continuation(chat.thinking.closing_text) if chat.thinking else ()
    opener = chat.continuation(answer_opener) if answer_opener else ()
    if rule.budget_forcing:
        _check_forced_text(rule, chat, closing, opener)
    return Script(rule, chat, budget_tokens, answer_opener, closing, opener)


def _check_forced_text(rule: DecodingRule, chat: Chat, closing: Sequence[int], opener: Sequence[int]) -> None:
    thinks = rule.thinking or (chat.template is not None and chat.starts_in_thinking(""))
    if not opener and not thinks and (chat.template is not None or chat.thinking is None):
        raise DecodingError("budget forcing has nothing to force: the model does not think in tags here; give answer_opener")
    for what, ids in (("the text that closes thinking", closing if thinks else ()), ("answer_opener", opener)):
        if len(ids) >= rule.reserve_tokens:
            raise DecodingError(
                f"reserve_tokens {rule.reserve_tokens} has no room for an answer after {what} ({len(ids)} tokens); "
                f"raise the reserve above {len(ids)}"
            )


class Row:
    """The state of one completion. Each step calls `emit`, then `settle`."""

    __slots__ = (
        "_closed_itself",
        "_forced",
        "_queue",
        "_script",
        "_thinking",
        "forced_mask",
        "index",
        "key",
        "prompt",
        "stop",
        "token_ids",
    )

    def __init__(self, script: Script, index: int, prompt: Sequence[int], key: Sequence[int], thinking: bool) -> None:
        """Begin after prompt number ``index``, its draws named by ``key``, in an open thinking block or not."""
        self.index = index
        self.prompt = prompt
        self.key = key
        self.token_ids: list[int] = []
        self.forced_mask: list[bool] = []
        self.stop: StopReason | None = None
        self._script = script
        self._thinking = thinking
        self._closed_itself = False
        self._forced = False
        self._queue: list[int] = []

    @property
    def forces(self) -> bool:
        """Whether the next token is a forced one, whatever is chosen."""
        return bool(self._queue)

    def emit(self, chosen: int) -> int:
        """Take the next token, a forced one instead of ``chosen`` while some are due; the token taken."""
        forced = bool(self._queue)
        token = self._queue.pop(0) if forced else chosen
        self.token_ids.append(token)
        self.forced_mask.append(forced)
        return token

    def settle(self, repeats: bool) -> bool:
        """Decide what the newest token brings about.

        Args:
            repeats: whether the output now ends in a repetition.

        Returns:
            Whether the reasoning ended here, after which repetition is counted anew.
        """
        rule, script = self._script.rule, self._script
        if not self.forced_mask[-1] and self.token_ids[-1] in script.chat.end_ids:
            self.stop = "forced" if self._forced else "end"
            return False
        closed = self._follow_thinking()
        if len(self.token_ids) >= script.budget_tokens:
            self.stop = "budget"
        elif self._queue:
            pass
        elif repeats:
            if not self._end_reasoning():
                self.stop = "repetition"
        elif rule.budget_forcing and len(self.token_ids) == script.budget_tokens - rule.reserve_tokens:
            self._end_reasoning()
        return closed or self.forced_mask[-1] or bool(self._queue)

    def _follow_thinking(self) -> bool:
        """Note an opening or closing tag in the newest tokens; whether thinking closed here."""
        thinking = self._script.chat.thinking
        if thinking is None:
            return False
        token, before = self.token_ids[-1], self._thinking
        if thinking.closing_id is None or thinking.opening_id is None:
            self._thinking = self._script.chat.in_thinking(self.token_ids, before)
        elif token in (thinking.opening_id, thinking.closing_id):
            self._thinking = token == thinking.opening_id
        closed = before and not self._thinking
        self._closed_itself |= closed and not self.forced_mask[-1]
        return closed

    def _end_reasoning(self) -> bool:
        """Queue the text that leads to the answer; False where there is nothing to force, or no room for it and an answer."""
        script = self._script
        if self._forced:
            return False
        if self._thinking:
            text = script.closing_ids
        elif self._closed_itself or script.opens_answer(script.chat.text(self.token_ids)):
            return False
        else:
            text = script.opener_ids
        if not text or len(self.token_ids) + len(text) >= script.budget_tokens:
            return False
        self._queue = list(text)
        self._forced = True
        return True

    def completion(self, seconds: float) -> Completion:
        """The finished row as a value."""
        assert self.stop is not None
        return Completion(
            text=self._script.chat.text(self.token_ids),
            token_ids=tuple(self.token_ids),
            prompt_tokens=len(self.prompt),
            generated_tokens=len(self.token_ids),
            forced_tokens=sum(self.forced_mask),
            forced_mask=tuple(self.forced_mask),
            stop_reason=self.stop,
            finished=self.stop in ("end", "forced"),
            seconds=seconds,
        )
