"""What an arm is asked, and the hash by which a run's header tells it from anything else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding import DecodingRule, read_chat
from ..decoding.batch import check_prompts
from ..decoding.rows import write_script
from ..tasks import Item, Task
from .log_likelihood import hash_requests


def asked_items(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, items: Sequence[Item], rule: DecodingRule, budget_tokens: int
) -> tuple[list[Item], list[tuple[int, ...]]]:
    """A task's items as this model is asked them, and their prompts in tokens; what decoding would refuse is refused here.

    Raises:
        ValueError: a task in thinking mode, and a model without one.
        DecodingError: a rule that this model cannot be decoded by, or a prompt that it has no positions for.
    """
    chat = read_chat(model, tokenizer)
    if task.thinking and (chat.template is None or chat.thinking is None):
        raise ValueError(
            f"{task.name} is asked in thinking mode, and this model's chat template has none; take a task without, or another model"
        )
    asked = [item.asked(in_chat=chat.template is not None) for item in items]
    prompts = [chat.encode(item.prompt, thinking=rule.thinking) for item in asked]
    if task.kind == "generate":
        write_script(rule, chat, budget_tokens, task.answer_opener)
        check_prompts(model, prompts, budget_tokens)
    return asked, prompts


def hash_items(items: Sequence[Item], prompts: Sequence[Sequence[int]]) -> str:
    """What was asked, token by token, and what counts as right; of conversations also how they go on."""
    asked = [
        [item.name, item.gold, list(prompt)] + ([] if item.conversation is None else [item.conversation])
        for item, prompt in zip(items, prompts, strict=True)
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def items_hash(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, items: Sequence[Item], *, thinking: bool = False
) -> str:
    """The ``items_hash`` that `evaluate` writes into a header, without an answer.

    Raises:
        TaskError, DecodingError: as `evaluate`.
    """
    if task.kind == "log-likelihood":
        return hash_requests(model, tokenizer, items)
    chat = read_chat(model, tokenizer)
    asked = [item.asked(in_chat=chat.template is not None) for item in items]
    return hash_items(asked, [chat.encode(item.prompt, thinking=thinking or task.thinking) for item in asked])
