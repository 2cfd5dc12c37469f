"""The decoding loop: prompts in batches, one token a row and step, rows leaving as they finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .batch import Batch, check_prompts, plan_batches
from .chat import read_chat
from .repetition import RepetitionWatch
from .rows import Row, Script, write_script
from .sampling import Picker
from .values import Completion, DecodingError, DecodingRule, Progress

LEAVE_SHARE = 1 / 8
"""Finished rows leave when they are at least this share of the batch. Leaving copies the cache of the rows that stay: for
two of 16 rows of SmolLM2-135M on a CPU that costs what their absence saves in one step (100 columns) to four steps (500)."""

_PLAIN = DecodingRule()


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[int]],
    *,
    budget_tokens: int,
    rule: DecodingRule = _PLAIN,
    seed: int = 0,
    batch_size: int = 16,
    answer_opener: str | None = None,
    keys: Sequence[Sequence[int]] | None = None,
    fixed_rows: bool = False,
    on_complete: Callable[[int, Completion], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Completion]:
    """Complete each prompt under one rule and budget; looped and plain models alike.

    Args:
        prompts: user turns, put into the chat template where the tokenizer has one; token ids are taken as they are.
        budget_tokens: how many tokens each completion has at most, forced ones and the end of text included.
        seed: the draws of prompt i depend on (seed, i); without meaning for greedy rules.
        answer_opener: the text that opens the final answer, which the rules force where no thinking block is open.
        keys: whole numbers that name each prompt's draws instead, e.g. (seed, item, sample): the same key, the same draws, in
            whichever batch and call.
        fixed_rows: keep finished rows in their batch, so that its shape changes with the last of them only.
        on_complete: called with the prompt's index as soon as a row ends.
        progress: called at every step.

    Returns:
        The completions in the order of the prompts.

    Raises:
        DecodingError: before anything runs, for prompts, budget, batch size, keys or forced text that cannot be.
    """
    chat = read_chat(model, tokenizer)
    script = write_script(rule, chat, budget_tokens, answer_opener)
    encoded = [chat.encode(prompt, thinking=rule.thinking) if len(prompt) else () for prompt in prompts]
    check_prompts(model, encoded, budget_tokens)
    plan = plan_batches([len(ids) for ids in encoded], batch_size)
    keys = [(seed, index) for index in range(len(prompts))] if keys is None else keys
    _check_keys(keys, len(prompts))

    thinking = [chat.starts_in_thinking(prompt, thinking=rule.thinking) for prompt in prompts]
    done: dict[int, Completion] = {}
    with evaluating(model):
        for number, members in enumerate(plan):
            rows = [Row(script, index, len(encoded[index]), thinking[index]) for index in members]
            batch = Batch(model, [encoded[index] for index in members], budget_tokens, chat.pad_id)
            picker = Picker(rule, [keys[index] for index in members], budget_tokens, model.device)
            for step, ended in enumerate(_steps(script, batch, picker, rows, fixed_rows), 1):
                for index, completion in ended:
                    done[index] = completion
                    if on_complete is not None:
                        on_complete(index, completion)
                if progress is not None:
                    progress(
                        Progress(
                            rows_done=len(done),
                            num_rows=len(prompts),
                            batches_done=number,
                            num_batches=len(plan),
                            step=step,
                            budget_tokens=budget_tokens,
                        )
                    )
    return [done[index] for index in range(len(prompts))]


def _steps(script: Script, batch: Batch, picker: Picker, rows: list[Row], fixed_rows: bool) -> Iterator[list[tuple[int, Completion]]]:
    """Advance a batch to its end; at each step the completions that ended there."""
    clock = _Clock(rows)
    watch = RepetitionWatch(len(rows), script.budget_tokens) if script.rule.repetition_stop else None
    logits = batch.prefill()
    while True:
        running = [row for row in rows if row.stop is None]
        tokens = [row.emit(chosen) if row.stop is None else chosen for row, chosen in zip(rows, picker.pick(logits), strict=True)]
        hits = watch.update(tokens) if watch else [False] * len(rows)
        for slot, row in enumerate(rows):
            if row.stop is None and row.settle(hits[slot]) and watch:
                watch.restart(slot)
        clock.stop(len(running))
        yield [(row.index, row.completion(clock.seconds(row))) for row in running if row.stop is not None]
        clock.start()
        kept = [slot for slot, row in enumerate(rows) if row.stop is None]
        if not kept:
            return
        if not fixed_rows and len(rows) - len(kept) >= LEAVE_SHARE * len(rows):
            picker.keep(batch.keep(kept))
            if watch:
                watch.keep(kept)
            rows, tokens = [rows[slot] for slot in kept], [tokens[slot] for slot in kept]
        logits = batch.step(tokens)


class _Clock:
    """Shares a batch's wall time among its rows; the time that callers spend between steps is nobody's."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._prompt_tokens = sum(row.prompt_tokens for row in rows)
        self._prompt_seconds: float | None = None
        self._step_seconds = 0.0
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, num_running: int) -> None:
        """Add the time since the start to the shares of the rows that ran: the first stop ends the prompts, each further one a step."""
        seconds = time.perf_counter() - self._started
        if self._prompt_seconds is None:
            self._prompt_seconds = seconds
        else:
            self._step_seconds += seconds / num_running

    def seconds(self, row: Row) -> float:
        """The share of a row that ends now."""
        return (self._prompt_seconds or 0.0) * row.prompt_tokens / self._prompt_tokens + self._step_seconds


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout and without gradients; the mode of every module afterwards is what it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()  # type: ignore[no-untyped-call]
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def _check_keys(keys: Sequence[Sequence[int]], num_prompts: int) -> None:
    if len(keys) != num_prompts:
        raise DecodingError(f"{len(keys)} keys for {num_prompts} prompts; give one for each")
    for key in keys:
        if min(key, default=-1) < 0:
            raise DecodingError(f"the seed or key {tuple(key)} of a prompt's draws is not of whole numbers from 0")
