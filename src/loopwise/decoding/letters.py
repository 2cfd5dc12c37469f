"""Multiple choice by the next token: the option letter with the highest logit (no-free-loop, A.4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .batch import Batch, check_prompts, plan_batches
from .chat import Chat, read_chat
from .loop import evaluating
from .values import DecodingError

_CONTEXT_TOKENS = 8
"""How many tokens of the prompt can change how the letter behind it is split into tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterChoice:
    """The option that a model finds most likely to come next."""

    letter: str
    """The first of the options with the highest logit."""
    num_tied: int
    """How many options share that logit; 1 is no tie."""
    logits: tuple[float, ...]
    """Each option's logit, in fp32."""
    prompt_tokens: int
    seconds: float
    """Its share of its batch's wall time, by prompt tokens."""


def score_letters(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[int]],
    letters: Sequence[Sequence[str]],
    *,
    answer_opener: str = "",
    batch_size: int = 16,
    on_complete: Callable[[int, LetterChoice], None] | None = None,
) -> list[LetterChoice]:
    """Choose an option for each prompt by the logits of the next token.

    The head's rows for the options are applied to the last hidden state in fp32: logits in bf16 are rounded so coarsely that
    options tie.

    Args:
        prompts: user turns, put into the chat template in its non-thinking mode where the tokenizer has one; token ids are
            taken as they are.
        letters: the options of each prompt, e.g. ("A", "B", "C", "D").
        answer_opener: text that stands between prompt and letter, e.g. "Answer:".
        on_complete: called with the prompt's index and its choice.

    Raises:
        DecodingError: no prompts, a prompt without options, too long a prompt, or two options with the same token.
    """
    chat = read_chat(model, tokenizer)
    if len(letters) != len(prompts):
        raise DecodingError(f"{len(letters)} sets of letters for {len(prompts)} prompts; give one for each")
    opener = chat.continuation(answer_opener) if answer_opener else ()
    encoded = [(*chat.encode(prompt), *opener) if len(prompt) else () for prompt in prompts]
    check_prompts(model, encoded, 0)
    options = [_option_ids(chat, index, encoded[index], choices) for index, choices in enumerate(letters)]
    done: dict[int, LetterChoice] = {}
    with evaluating(model):
        for members in plan_batches([len(ids) for ids in encoded], batch_size):
            started = time.perf_counter()
            states = _last_states(model, [encoded[index] for index in members], chat.pad_id)
            scores = [_letter_logits(model, state, options[index]) for state, index in zip(states, members, strict=True)]
            per_token = (time.perf_counter() - started) / sum(len(encoded[index]) for index in members)
            for index, logits in zip(members, scores, strict=True):
                best = max(logits)
                done[index] = LetterChoice(
                    letter=letters[index][logits.index(best)],
                    num_tied=logits.count(best),
                    logits=tuple(logits),
                    prompt_tokens=len(encoded[index]),
                    seconds=per_token * len(encoded[index]),
                )
                if on_complete is not None:
                    on_complete(index, done[index])
    return [done[index] for index in range(len(prompts))]


def _option_ids(chat: Chat, index: int, prompt: Sequence[int], choices: Sequence[str]) -> list[int]:
    """The last token of each option where it follows the prompt: " A" after running text, "A" after a line's end."""
    if not choices:
        raise DecodingError(f"prompt {index} has no options; give its letters")
    context = str(chat.tokenizer.decode(list(prompt[-_CONTEXT_TOKENS:])))
    blank = "" if context[-1:].isspace() else " "
    ids = [chat.tokenizer(context + blank + choice, add_special_tokens=False)["input_ids"][-1] for choice in choices]
    if len(set(ids)) < len(ids):
        raise DecodingError(f"prompt {index}: two of the options {', '.join(choices)} end in the same token; tell them apart by their ends")
    return ids


def _last_states(model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """What the model hands to its head at the last token of each prompt, shape (rows, hidden size)."""
    caught: list[Tensor] = []

    def catch(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        caught.append(inputs[0])

    handle = _head(model).register_forward_pre_hook(catch)
    try:
        Batch(model, prompts, 0, pad_id).prefill()
    finally:
        handle.remove()
    return caught[0][:, -1]


def _letter_logits(model: PreTrainedModel, state: Tensor, ids: Sequence[int]) -> list[float]:
    head = _head(model)
    rows = torch.tensor(ids, device=head.weight.device)
    logits = head.weight.index_select(0, rows).float() @ state.to(head.weight.device).float()
    if head.bias is not None:
        logits = logits + head.bias.index_select(0, rows).float()
    cap = getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    if cap is not None:
        logits = torch.tanh(logits / cap) * cap
    values: list[float] = logits.tolist()
    return values


def _head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, nn.Linear):
        raise DecodingError(f"{type(model).__name__} has no linear output head to take the letters' logits from")
    return head
