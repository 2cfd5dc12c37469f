"""A tokenizer of single characters and a model that says what a test tells it to, through a real cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, PreTrainedTokenizerFast

END = "<|im_end|>"
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING_CHAT = CHAT.replace(
    "assistant\n' }}",
    r"assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)
OPENED_CHAT = CHAT.replace("assistant\n' }}", r"assistant\n<think>\n' }}{# the answer follows \n</think>\n\n #}")

_WRITTEN_BY = {THINKING_CHAT: "<think>\n\n</think>\n\n", OPENED_CHAT: "<think>\n"}
"""What a template itself may write before the answer."""

_SPECIAL = ["<|pad|>", "<|im_start|>", END]
_TAGS = ["<think>", "</think>"]
_LETTERS = [chr(code) for code in range(32, 127)] + ["\n"]


def char_tokenizer(template: str | None = CHAT, *, tags: bool = True) -> PreTrainedTokenizerFast:
    """One token a character; with ``tags`` thinking tags are tokens too. 101 tokens at most."""
    vocabulary = {token: number for number, token in enumerate(_SPECIAL + _LETTERS + (_TAGS if tags else []))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if tags:
        tokenizer.add_tokens(_TAGS)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token="<|pad|>", bos_token="<|im_start|>")
    wrapped.chat_template = template
    return wrapped


Mind = Callable[[str], str]
"""From what a row wrote so far to what it writes next; nothing is the end of text."""


def recite(script: str, after: Mapping[str, str] | None = None, ends: bool = True) -> Mind:
    """Say ``script`` and end; once a text of ``after`` stands in the output, say what it leads to instead.

    Without ``ends`` the script starts again and again.
    """

    def mind(said: str) -> str:
        for cue, answer in (after or {}).items():
            if cue in said:
                return answer[len(said.rpartition(cue)[2]) :]
        return script[len(said) :] if ends else script[len(said) % len(script) :]

    return mind


class Parrot(nn.Module):
    """Answers each prompt as its mind says. It reads its past from the cache, so rows, padding and masks must be right."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, minds: Mapping[str, Mind]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1, max_position_embeddings=4096)
        self.tokenizer = tokenizer
        self.minds = minds
        self.shapes: list[tuple[int, int, int]] = []
        """Rows, new tokens and columns of every call."""

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, cache: Any, use_cache: bool, logits_to_keep: int) -> Any:
        assert use_cache and logits_to_keep == 1
        state = input_ids[:, None, :, None].double()
        seen = cache.update(state, state, 0)[0][:, 0, :, 0].long()
        assert seen.shape == attention_mask.shape
        self.shapes.append((*input_ids.shape, seen.shape[1]))
        logits = torch.full((len(seen), 1, len(self.tokenizer)), -9.0)
        for row, ids in enumerate(seen):
            own = ids[attention_mask[row].bool()]
            assert position_ids[row, -1] == len(own) - 1
            logits[row, 0, self._next(self.tokenizer.decode(own))] = 9.0
        return type("Output", (), {"logits": logits})

    def _next(self, text: str) -> int:
        for prompt, mind in self.minds.items():
            start = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n" if self.tokenizer.chat_template else prompt
            if text.startswith(start):
                said = text[len(start) :].removeprefix(_WRITTEN_BY.get(self.tokenizer.chat_template, ""))
                rest = mind(said)
                return int(self.tokenizer(rest)["input_ids"][0] if rest else self.tokenizer.convert_tokens_to_ids(END))
        raise AssertionError(f"no mind for {text!r}")
