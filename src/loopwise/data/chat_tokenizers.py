"""Tokenizers with a chat template: turns as text, and text as ids in which the template's marks are tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .conversations import Turn
from .documents import DataError
from .shards import TokenizerFacts
from .text_tokenizers import end_id_of, fast_facts, load_fast

THINKING_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""What opens and closes thinking inside a turn; tests hold it against what decoding knows."""

_THINKING_SWITCH = "enable_thinking"
_FIXED_DATE = "{%- macro strftime_now(format) -%}1 January 2025{%- endmacro -%}"
"""Before a template that writes today's date (Llama 3.2, SmolLM3): the same text on every day. The date is a guess."""
_LARGEST_CONTEXT = 10**9
"""From here on a tokenizer's ``model_max_length`` means that nobody set it."""


class ChatTokenizer(Protocol):
    """Turns conversations into text and text into ids."""

    @property
    def facts(self) -> TokenizerFacts:
        """What its ids depend on; the end token ends plain text and raw answers."""

    @property
    def template(self) -> str | None:
        """The chat template, or None."""

    @property
    def pad_token_id(self) -> int:
        """Fills rows; never trained on."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """The marks that a template may write and nobody may say, thinking tags not among them."""

    @property
    def context_tokens(self) -> int | None:
        """The longest row that the tokenizer's model reads; None where that is not known."""

    def render(self, turns: Sequence[Turn], *, answer_begins: bool = False, thinking: bool = False) -> str:
        """The text of some turns by the template.

        Args:
            answer_begins: with what the template writes before the assistant's words.
            thinking: for templates with a switch, whether the answer thinks.

        Raises:
            DataError: the template refuses them.
        """

    def encode(self, texts: Sequence[str], *, ends: bool = False) -> list[NDArray[Any]]:
        """The ids of each text, in which special tokens are tokens; ``ends`` adds the marks that the tokenizer puts around a text."""

    def save(self, folder: Path) -> None:
        """Write it as a folder that transformers' AutoTokenizer loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTokenizerChoice:
    """Which tokenizer, and what is to be changed about it; can be sent to another process."""

    name: str
    """A folder or hub id."""
    label: str | None = None
    """What records call it; None is its name."""
    end_token: str | None = None
    """None is its own end-of-text token."""
    pad_token: str | None = None
    """None is its own."""
    template: str | None = None
    """A chat template in place of its own."""

    def load(self) -> FastChatTokenizer:
        """The tokenizer.

        Raises:
            DataError: there is none, or none that can be used.
        """
        return FastChatTokenizer(self)


class FastChatTokenizer:
    """A Hugging Face tokenizer of the fast kind with its chat template."""

    def __init__(self, choice: ChatTokenizerChoice) -> None:
        """Load it.

        Raises:
            DataError: there is none, it is of the slow kind, or has no end or pad token.
        """
        loaded = load_fast(choice.name)
        from tokenizers import Tokenizer

        label = choice.label or choice.name
        if choice.template is not None:
            loaded.chat_template = choice.template
        self._own, self._name = loaded, choice.name
        self._template: str | None = loaded.get_chat_template() if loaded.chat_template else None
        self._pad_id = _pad_id(loaded, label, choice.pad_token)
        self._fast = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        self._fast.no_truncation()
        self._fast.no_padding()
        self._facts = fast_facts(self._fast, label, end_id_of(loaded, label, choice.end_token))

    @property
    def facts(self) -> TokenizerFacts:
        """Its name, hash and size."""
        return self._facts

    @property
    def template(self) -> str | None:
        """The chat template, or None."""
        return self._template

    @property
    def pad_token_id(self) -> int:
        """Fills rows."""
        return self._pad_id

    @property
    def special_tokens(self) -> dict[str, int]:
        """Every token that is marked special, but for thinking tags."""
        tags = {tag for pair in THINKING_TAGS for tag in pair}
        added = self._own.added_tokens_decoder.items()
        found = {token.content: int(number) for number, token in added if token.special}
        found |= dict(zip(self._own.all_special_tokens, map(int, self._own.all_special_ids), strict=True))
        return {token: number for token, number in found.items() if token not in tags}

    @property
    def context_tokens(self) -> int | None:
        """What the config.json beside it says, else the tokenizer's own limit."""
        from transformers import PretrainedConfig

        try:
            values = PretrainedConfig.get_config_dict(self._name)[0]
        except (OSError, ValueError):
            values = {}
        found = values.get("max_position_embeddings") or values.get("text_config", {}).get("max_position_embeddings")
        found = found or values.get("n_positions") or self._own.model_max_length
        return int(found) if found and found < _LARGEST_CONTEXT else None

    def render(self, turns: Sequence[Turn], *, answer_begins: bool = False, thinking: bool = False) -> str:
        """The text of some turns by the template."""
        from jinja2 import TemplateError

        assert self._template is not None
        switch = {_THINKING_SWITCH: thinking} if _THINKING_SWITCH in self._template else {}
        template = _FIXED_DATE + self._template if "strftime_now" in self._template else self._template
        messages = [
            {"role": turn.role, "content": turn.content} | ({"reasoning_content": turn.reasoning} if turn.reasoning else {})
            for turn in turns
        ]
        options: dict[str, Any] = dict(chat_template=template, tokenize=False, add_generation_prompt=answer_begins)
        try:
            return str(self._own.apply_chat_template(messages, **options, **switch))
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise DataError(f"the chat template refuses the turns {', '.join(turn.role for turn in turns)} ({reason})") from None

    def encode(self, texts: Sequence[str], *, ends: bool = False) -> list[NDArray[Any]]:
        """The ids of each text."""
        return [np.array(one.ids, dtype=np.int64) for one in self._fast.encode_batch_fast(list(texts), add_special_tokens=ends)]

    def save(self, folder: Path) -> None:
        """Write it, with the template that it was used with."""
        self._own.save_pretrained(folder)


def template_hash(tokenizer: ChatTokenizer) -> str | None:
    """The sha256 of a tokenizer's chat template."""
    return None if tokenizer.template is None else hashlib.sha256(tokenizer.template.encode()).hexdigest()


def _pad_id(loaded: Any, label: str, pad_token: str | None) -> int:
    found = loaded.pad_token_id if pad_token is None else loaded.get_vocab().get(pad_token)
    if found is None:
        what = "has no pad token" if pad_token is None else f"has no token {pad_token!r}"
        raise DataError(f"tokenizer {label!r}: {what}; name one of its tokens as --pad-token, its end token for one")
    return int(found)
