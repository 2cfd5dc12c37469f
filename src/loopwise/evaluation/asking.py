"""What an arm is asked, and the hash by which a run's header tells it from anything else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding import read_chat
from ..tasks import Item, Task
from .log_likelihood import hash_requests


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
