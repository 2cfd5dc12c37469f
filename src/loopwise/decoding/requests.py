"""What a call of `generate` asks for, checked and in the order in which it runs: for every engine alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from .batch import check_prompts, plan_batches
from .chat import read_chat
from .rows import Row, Script, write_script
from .values import DecodingError, DecodingRule, Progress


def plan_rows(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[int]],
    *,
    budget_tokens: int,
    rule: DecodingRule,
    seed: int,
    batch_size: int,
    answer_opener: str | None,
    keys: Sequence[Sequence[int]] | None,
) -> tuple[Script, list[Row]]:
    """The rows of a generation, batch after batch, and what they share; arguments as those of `generate`.

    Raises:
        DecodingError: prompts, budget, batch size, keys or forced text that cannot be.
    """
    chat = read_chat(model, tokenizer)
    script = write_script(rule, chat, budget_tokens, answer_opener)
    encoded = [chat.encode(prompt, thinking=rule.thinking) if len(prompt) else () for prompt in prompts]
    check_prompts(model, encoded, budget_tokens)
    plan = plan_batches([len(ids) for ids in encoded], batch_size)
    keys = [(seed, index) for index in range(len(prompts))] if keys is None else keys
    _check_keys(keys, len(prompts))
    thinking = [chat.starts_in_thinking(prompt, thinking=rule.thinking) for prompt in prompts]
    return script, [Row(script, index, encoded[index], keys[index], thinking[index]) for members in plan for index in members]


def progress_of(script: Script, num_rows: int, done: int, running: Sequence[Row], step: int) -> Progress:
    """Where a generation is after a step: ``done`` rows ended, and what the running ones wrote."""
    share = (done + sum(len(row.token_ids) for row in running) / script.budget_tokens) / num_rows
    return Progress(rows_done=done, num_rows=num_rows, step=step, budget_tokens=script.budget_tokens, share=share)


def _check_keys(keys: Sequence[Sequence[int]], num_prompts: int) -> None:
    if len(keys) != num_prompts:
        raise DecodingError(f"{len(keys)} keys for {num_prompts} prompts; give one for each")
    for key in keys:
        if min(key, default=-1) < 0:
            raise DecodingError(f"the seed or key {tuple(key)} of a prompt's draws is not of whole numbers from 0")
