"""The decoding loop: prompts in batches, one token a row and step, rows leaving as they finish and the next prompts taking their place."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .batch import Batch
from .packed import packed_weights
from .repetition import RepetitionWatch
from .requests import plan_rows, progress_of
from .rows import Row, Script
from .sampling import Picker
from .static import StaticBatch, check_static
from .values import ENGINES, Completion, DecodingError, DecodingRule, Engine, Progress

LEAVE_SHARE = 1 / 8
"""Finished rows leave, or are refilled, when they are at least this share of the batch. Leaving copies the cache of the rows that
stay: for two of 16 rows of SmolLM2-135M on a CPU that costs what their absence saves in one step (100 columns) to four steps (500)."""

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
    refill: bool = True,
    engine: Engine = "eager",
    longest_prompt_tokens: int = 0,
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
        fixed_rows: keep finished rows in their batch, so that its shape changes with the last of them only; nothing is refilled.
        refill: let the next prompts take the place of finished rows. Where a model's cache cannot, batches run one after the other.
        engine: ``static`` and ``compiled`` keep ``batch_size`` rows and the columns of the longest prompt and budget throughout.
        longest_prompt_tokens: of other calls that are to share this one's static shapes.
        on_complete: called with the prompt's index as soon as a row ends.
        progress: called at every step.

    Returns:
        The completions in the order of the prompts.

    Raises:
        DecodingError: before anything runs, for prompts, budget, batch size, keys or forced text that cannot be, or a model
            that the engine is not for.
    """
    if engine not in ENGINES:
        raise DecodingError(f"engine {engine!r} is unknown; use {', '.join(ENGINES)}")
    script, planned = plan_rows(
        model,
        tokenizer,
        prompts,
        budget_tokens=budget_tokens,
        rule=rule,
        seed=seed,
        batch_size=batch_size,
        answer_opener=answer_opener,
        keys=keys,
    )
    if engine != "eager":
        check_static(model)

    num_columns = max(longest_prompt_tokens, *(len(row.prompt) for row in planned)) + budget_tokens
    waiting = deque(planned)
    done: dict[int, Completion] = {}
    with evaluating(model, inference=engine == "eager"), packed_weights(model, min(batch_size, len(planned)) if engine == "eager" else 0):
        while waiting:
            rows = [waiting.popleft() for _ in range(min(batch_size, len(waiting)))]
            batch = _open_batch(model, [row.prompt for row in rows], engine, (batch_size, num_columns), budget_tokens, script.chat.pad_id)
            queue = waiting if refill and not fixed_rows and batch.can_refill else deque()
            stepper = _Stepper(script, batch, rows, queue, model.device, leave=batch.can_leave and not fixed_rows)
            for step, ended in enumerate(stepper.run(), 1):
                for row, seconds in ended:
                    done[row.index] = row.completion(seconds)
                    if on_complete is not None:
                        on_complete(row.index, done[row.index])
                if progress is not None:
                    running = [row for row in stepper.rows if row.stop is None]
                    progress(progress_of(script, len(prompts), len(done), running, step))
    return [done[index] for index in range(len(prompts))]


def _open_batch(
    model: PreTrainedModel, prompts: list[Sequence[int]], engine: Engine, shape: tuple[int, int], budget_tokens: int, pad_id: int
) -> Batch | StaticBatch:
    if engine == "eager":
        return Batch(model, prompts, budget_tokens, pad_id)
    num_rows, num_columns = shape
    return StaticBatch(model, prompts, num_rows=num_rows, num_columns=num_columns, pad_id=pad_id, compiled=engine == "compiled")


class _Stepper:
    """Advances a batch until no row of it runs; rows that wait take the place of those that ended."""

    def __init__(
        self, script: Script, batch: Batch | StaticBatch, rows: list[Row], waiting: deque[Row], device: torch.device, *, leave: bool
    ) -> None:
        self.rows = rows
        self._batch = batch
        self._waiting = waiting
        self._leave = leave
        self._picker = Picker(script.rule, [row.key for row in rows], script.budget_tokens, device)
        self._watch = RepetitionWatch(len(rows), script.budget_tokens) if script.rule.repetition_stop else None
        self._clock = _Clock()

    def run(self) -> Iterator[list[tuple[Row, float]]]:
        """Step by step the rows that ended, with their seconds."""
        self._clock.start()
        logits = self._batch.prefill()
        self._clock.prompts(self.rows)
        while True:
            running = [row for row in self.rows if row.stop is None]
            tokens = self._take(logits)
            self._clock.stop(len(running))
            yield [(row, self._clock.seconds(row)) for row in running if row.stop is not None]
            self._clock.start()
            ended = [slot for slot, row in enumerate(self.rows) if row.stop is not None]
            if len(ended) == len(self.rows):
                return
            due = len(ended) >= LEAVE_SHARE * len(self.rows)
            if due and self._leave and not self._waiting:
                tokens = self._let_go(ended, tokens)
            logits = self._batch.step(tokens)
            if due and self._waiting:
                self._clock.stop(len(self.rows) - len(ended))
                self._clock.start()
                logits = self._refill(ended, logits)

    def _take(self, logits: Tensor) -> list[int]:
        """Give each running row its next token; the tokens to go on with."""
        rows, watch = self.rows, self._watch
        tokens = [row.emit(chosen) if row.stop is None else chosen for row, chosen in zip(rows, self._picker.pick(logits), strict=True)]
        hits = watch.update(tokens) if watch else [False] * len(rows)
        for slot, row in enumerate(rows):
            if row.stop is None and row.settle(hits[slot]) and watch:
                watch.restart(slot)
        return tokens

    def _let_go(self, ended: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Go on without the rows that ended; the tokens of the others."""
        kept = [slot for slot in range(len(self.rows)) if slot not in set(ended)]
        self._picker.keep(self._batch.keep(kept))
        if self._watch:
            self._watch.keep(kept)
        self.rows = [self.rows[slot] for slot in kept]
        return [tokens[slot] for slot in kept]

    def _refill(self, ended: Sequence[int], logits: Tensor) -> Tensor:
        """Let rows that wait take the place of rows that ended; all rows' logits.

        It is after the step that the others have made, so that both have logits for a next token now.
        """
        slots = list(ended[: len(self._waiting)])
        new = [self._waiting.popleft() for _ in slots]
        first = self._batch.refill(slots, [row.prompt for row in new])
        self._picker.refill(slots, [row.key for row in new])
        for slot, row in zip(slots, new, strict=True):
            self.rows[slot] = row
            if self._watch:
                self._watch.restart(slot)
        self._clock.prompts(new)
        return logits.index_copy(0, torch.tensor(slots, device=logits.device), first)


class _Clock:
    """Shares a batch's wall time among its rows; the time that callers spend between steps is nobody's."""

    def __init__(self) -> None:
        self._prompt_seconds: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self._step_seconds = 0.0
        """What a row that ran from the first step on has of all steps."""

    def start(self) -> None:
        self._started = time.perf_counter()

    def prompts(self, rows: Sequence[Row]) -> None:
        """The time since the start was these rows' prompts'; a new start."""
        per_token = (time.perf_counter() - self._started) / sum(len(row.prompt) for row in rows)
        for row in rows:
            self._prompt_seconds[row.index] = per_token * len(row.prompt)
            self._before[row.index] = self._step_seconds
        self.start()

    def stop(self, num_running: int) -> None:
        """The time since the start was a step of so many rows."""
        self._step_seconds += (time.perf_counter() - self._started) / num_running

    def seconds(self, row: Row) -> float:
        """The share of a row that ends now."""
        return self._prompt_seconds[row.index] + self._step_seconds - self._before[row.index]


@contextmanager
def evaluating(model: PreTrainedModel, *, inference: bool = True) -> Iterator[None]:
    """Without dropout and without gradients; the mode of every module afterwards is what it was.

    Args:
        inference: in inference mode, whose tensors compiled code cannot write to later.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()  # type: ignore[no-untyped-call]
    try:
        with torch.inference_mode() if inference else torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
