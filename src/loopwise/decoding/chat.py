"""Prompts as tokens and tokens as text: chat templates, thinking tags, the tokens that end a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from .values import DecodingError

CHAT_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>")
"""Tokens that end a chat turn in the templates that name them, beside the model's and the tokenizer's own end of text."""

THINKING_TAGS = (
    ("<think>", "</think>"),  # Qwen3, Qwen3.5, SmolLM3, DeepSeek-R1, OLMo 3 Think
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
)
"""The tags that open and close a thinking block, by family. A new family is one line here."""

THINKING_SWITCH = "enable_thinking"
"""The variable by which templates with two modes are told which."""

_FIXED_DATE = "{%- macro strftime_now(format) -%}1 January 2025{%- endmacro -%}"
"""Before a template that writes today's date (Llama 3.2, SmolLM3); the date of training data, and a guess as there."""
_TAIL_TOKENS = 16
"""How many tokens, or letters, a tag and the whitespace around it can take."""
_QUESTION = "QUESTION"
"""Stands for the prompt where only the template's text behind it matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How a model's thinking block opens and closes."""

    opening: str
    closing: str
    opening_id: int | None
    """The opening tag's token; None where the vocabulary has no token of its own for it."""
    closing_id: int | None
    closing_text: str
    """The closing tag with the line breaks that the chat template writes around it: what budget forcing forces."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What decoding needs to know of a tokenizer and its model."""

    tokenizer: PreTrainedTokenizerBase
    template: str | None
    """The chat template; None for tokenizers without one, which are given the prompt as raw text."""
    thinking: Thinking | None
    end_ids: frozenset[int]
    """Every token that ends a text."""
    pad_id: int

    def encode(self, prompt: str | Sequence[int], *, thinking: bool = False) -> tuple[int, ...]:
        """The tokens of one user turn up to where the model begins to write; token ids are taken as they are."""
        return self._tokens(self.render(prompt, thinking=thinking)) if isinstance(prompt, str) else tuple(prompt)

    def encode_messages(self, messages: Sequence[Mapping[str, str]], *, thinking: bool = False) -> tuple[int, ...]:
        """The tokens of a conversation up to where the model begins to write its next answer; of one user message those of `encode`."""
        return self._tokens(self.render(messages, thinking=thinking))

    def _tokens(self, text: str) -> tuple[int, ...]:
        # A template writes the special tokens itself.
        return tuple(self.tokenizer(text, add_special_tokens=self.template is None)["input_ids"])

    def render(self, prompt: str | Sequence[Mapping[str, str]], *, thinking: bool = False) -> str:
        """The text of one user turn, or of messages with their roles, with the template around it; without a template the contents alone,
        with blank lines between them."""
        turn = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
        if self.template is None:
            return "\n\n".join(str(one["content"]) for one in turn)
        switch: dict[str, Any] = {THINKING_SWITCH: thinking} if THINKING_SWITCH in self.template else {}
        # Else the same question is another prompt on another day.
        dated: dict[str, Any] = {"chat_template": _FIXED_DATE + self.template} if "strftime_now" in self.template else {}
        return str(self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True, **dated, **switch))

    def continuation(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that goes on after other text, without the blank that some tokenizers put at a start."""
        before, joined = (list(self.tokenizer(t, add_special_tokens=False)["input_ids"]) for t in ("x", "x" + text))
        if joined[: len(before)] == before:
            return tuple(joined[len(before) :])
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, token_ids: Sequence[int]) -> str:
        """What the tokens say: special tokens left out, thinking tags not."""
        tags = {self.thinking.opening_id, self.thinking.closing_id} if self.thinking else set()
        hidden = (self.end_ids | set(self.tokenizer.all_special_ids)) - tags
        return str(self.tokenizer.decode([token for token in token_ids if token not in hidden]))

    def in_thinking(self, token_ids: Sequence[int], before: bool = False) -> bool:
        """Whether the last tag among the last tokens opens a thinking block; ``before`` where there is none."""
        return self._opens(str(self.tokenizer.decode(list(token_ids[-_TAIL_TOKENS:]))), before)

    def starts_in_thinking(self, prompt: str | Sequence[int], *, thinking: bool = False) -> bool:
        """Whether the model begins to write inside a thinking block, which some templates open for it."""
        if not isinstance(prompt, str):
            return self.in_thinking(prompt)
        if self.template is None:
            return self._opens(prompt[-_TAIL_TOKENS:], False)
        return self._opens(self.render(_QUESTION, thinking=thinking).rpartition(_QUESTION)[2], False)

    def _opens(self, text: str, before: bool) -> bool:
        if self.thinking is None:
            return False
        opened, closed = text.rfind(self.thinking.opening), text.rfind(self.thinking.closing)
        return before if opened == closed else opened > closed


def read_chat(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> Chat:
    """Find template, thinking tags and ends of text of a model and its tokenizer.

    Raises:
        DecodingError: no token is known to end a text.
    """
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    ends = {tokenizer.eos_token_id}
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        named = getattr(config, "eos_token_id", None)
        ends |= set(named) if isinstance(named, (list, tuple)) else {named}
    ends |= {_single_id(tokenizer, end) for end in CHAT_ENDS if template and end in template}
    end_ids = frozenset(end for end in ends if end is not None)
    if not end_ids:
        raise DecodingError("neither model nor tokenizer names an end-of-text token; set model.generation_config.eos_token_id")
    pad_id = min(end_ids) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return Chat(tokenizer, template, _find_thinking(tokenizer, template), end_ids, pad_id)


def _find_thinking(tokenizer: PreTrainedTokenizerBase, template: str | None) -> Thinking | None:
    """The first pair of tags that the template names or, where there is none, that the vocabulary holds."""
    for opening, closing in THINKING_TAGS:
        opening_id, closing_id = _single_id(tokenizer, opening), _single_id(tokenizer, closing)
        if closing in template if template is not None else closing_id is not None:
            return Thinking(
                opening=opening,
                closing=closing,
                opening_id=opening_id,
                closing_id=closing_id,
                closing_text=_closing_text(closing, template or ""),
            )
    return None


def _closing_text(closing: str, template: str) -> str:
    r"""The closing tag with the line breaks around it, which templates write as ``\n`` inside strings or as they are."""
    breaks = r"((?:\\n|\n)*)"
    found = re.findall(breaks + re.escape(closing) + breaks, template)
    after = max((behind.replace("\\n", "\n") for _, behind in found), key=len, default="") or "\n\n"
    before = "\n" if any(ahead for ahead, _ in found) or not template else ""
    return before + closing + after


def _single_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    """The id of a text that is one token of the vocabulary, else None."""
    found = tokenizer.convert_tokens_to_ids(token)
    return found if isinstance(found, int) and found != tokenizer.unk_token_id else None
