"""Decoding with vLLM under our rules: the counterpart of `loopwise.decoding.generate`.

vLLM runs the rows and hands out each token as it comes; what a token brings about is decided here, by the same `Row` as in the own
engine. When a rule forces text, the row's request is taken back and a new one continues after the forced text; vLLM computes the keys
and values of what it dropped again, or finds them in its prefix cache. No logits processor is needed, so this works the same under
tensor parallelism and in any version that streams.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..decoding import Completion, DecodingError, DecodingRule, Progress, RepetitionWatch
from ..decoding.requests import plan_rows, progress_of
from ..decoding.rows import Row, Script
from .engine import VllmEngine

_PLAIN = DecodingRule()
TEMPERATURES = (0.01, 2.0)
"""What vLLM draws at. It takes a lower one for the lowest, without a word, and refuses a higher one when an answer begins."""


def generate(
    engine: VllmEngine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[int]],
    *,
    budget_tokens: int,
    rule: DecodingRule = _PLAIN,
    seed: int = 0,
    batch_size: int = 16,
    answer_opener: str | None = None,
    keys: Sequence[Sequence[int]] | None = None,
    on_complete: Callable[[int, Completion], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Completion]:
    """Complete each prompt under one rule and budget, as `loopwise.decoding.generate` does; the arguments mean the same.

    Args:
        batch_size: rows that run at once; as one ends, the next begins.
        keys: name each prompt's draws. They are vLLM's own, so a drawn answer is another one than in the own engine.

    Raises:
        DecodingError: before anything runs, for prompts, budget, batch size, keys, forced text or a temperature that cannot be.
    """
    check_temperature(rule.temperature)
    script, rows = plan_rows(
        engine,
        tokenizer,
        prompts,
        budget_tokens=budget_tokens,
        rule=rule,
        seed=seed,
        batch_size=batch_size,
        answer_opener=answer_opener,
        keys=keys,
    )
    _check_room(rows, budget_tokens, engine.max_tokens)
    done: dict[int, Completion] = {}
    stream = _Stream(engine, script, deque(rows), batch_size)
    step = 0
    try:
        while stream.running or stream.waiting:
            step += 1
            for row, seconds in stream.step():
                done[row.index] = row.completion(seconds)
                if on_complete is not None:
                    on_complete(row.index, done[row.index])
            if progress is not None:
                running = [one.row for one in stream.running.values()]
                progress(progress_of(script, len(prompts), len(done), running, step))
    finally:
        stream.drop()
    return [done[index] for index in range(len(prompts))]


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that vLLM does not draw at.

    Raises:
        DecodingError: it is not 0 and not among `TEMPERATURES`.
    """
    lowest, highest = TEMPERATURES
    if temperature != 0 and not lowest <= temperature <= highest:
        raise DecodingError(
            f"temperature is {temperature:g}, and vLLM draws at {lowest:g} to {highest:g}; give one of these, 0 for greedy decoding, "
            "or use the own engine"
        )


def _check_room(rows: Sequence[Row], budget_tokens: int, max_tokens: int) -> None:
    for row in sorted(rows, key=lambda row: row.index):
        if len(row.prompt) + budget_tokens > max_tokens:
            needed = len(row.prompt) + budget_tokens
            raise DecodingError(
                f"prompt {row.index} has {len(row.prompt)} tokens and with the budget of {budget_tokens} needs {needed}; "
                f"the engine was started for {max_tokens}: raise max_tokens or lower the budget"
            )


@dataclass(slots=True, eq=False)
class _Running:
    """A row whose request runs."""

    row: Row
    watch: RepetitionWatch | None
    seconds: float = 0.0
    num_requests: int = 0


class _Stream:
    """At most ``batch_size`` rows in vLLM at a time."""

    def __init__(self, engine: VllmEngine, script: Script, waiting: deque[Row], batch_size: int) -> None:
        self.waiting = waiting
        self.running: dict[str, _Running] = {}
        self._vllm: Any = engine.llm.llm_engine
        self._script = script
        self._batch_size = batch_size
        self._seconds = 0.0
        """Of steps that gave no token, such as those that read a part of the prompts."""

    def drop(self) -> None:
        """Take back what still runs: after an error the engine goes on for others, and would go on with this too."""
        if self.running:
            self._vllm.abort_request(list(self.running))

    def step(self) -> list[tuple[Row, float]]:
        """One step of vLLM; the rows that ended, with their seconds."""
        while self.waiting and len(self.running) < self._batch_size:
            watch = RepetitionWatch(1, self._script.budget_tokens) if self._script.rule.repetition_stop else None
            self._send(_Running(self.waiting.popleft(), watch))
        started = time.perf_counter()
        outputs = [output for output in self._vllm.step() if output.request_id in self.running]
        self._seconds += time.perf_counter() - started
        ended = []
        for output in outputs:
            running = self.running[output.request_id]
            running.seconds += self._seconds / len(outputs)
            if self._take(running, output.outputs[0].token_ids):
                del self.running[output.request_id]
                if not output.finished:
                    self._vllm.abort_request([output.request_id])
                if running.row.stop is None:
                    self._send(running)
                else:
                    ended.append((running.row, running.seconds))
            elif output.finished:
                raise DecodingError(
                    f"vLLM ended prompt {running.row.index} after {len(running.row.token_ids)} of {self._script.budget_tokens} tokens "
                    f"({output.outputs[0].finish_reason}); this is a fault of loopwise or of this version of vLLM"
                )
        self._seconds = 0.0 if outputs else self._seconds
        return ended

    def _take(self, running: _Running, token_ids: Sequence[int]) -> bool:
        """Hand new tokens to the row; whether its request has nothing more to give: the row ended, or text was forced."""
        row = running.row
        for token in token_ids:
            self._advance(running, token)
            if row.stop is None and row.forces:
                while row.stop is None and row.forces:
                    self._advance(running, token)
                return True
            if row.stop is not None:
                return True
        return False

    @staticmethod
    def _advance(running: _Running, token: int) -> None:
        taken = running.row.emit(token)
        repeats = running.watch.update([taken])[0] if running.watch else False
        if running.row.settle(repeats) and running.watch:
            running.watch.restart(0)

    def _send(self, running: _Running) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        row, rule = running.row, self._script.rule
        name = f"{row.index}-{running.num_requests}"
        drawn = {} if rule.greedy else {"top_p": rule.top_p, "top_k": rule.top_k, "seed": _seed(row.key, running.num_requests)}
        running.num_requests += 1
        params = SamplingParams(
            temperature=rule.temperature,
            max_tokens=self._script.budget_tokens - len(row.token_ids),
            stop_token_ids=sorted(self._script.chat.end_ids),
            ignore_eos=True,  # the ends of text are those above, whatever the model's files name
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            **drawn,
        )
        self.running[name] = running
        self._vllm.add_request(name, TokensPrompt(prompt_token_ids=[*row.prompt, *row.token_ids]), params)


def _seed(key: Sequence[int], request: int) -> int:
    """A seed for vLLM's draws from a row's key; another one after each forced text, which else would repeat the draws."""
    return int.from_bytes(hashlib.sha256(repr((tuple(key), request)).encode()).digest()[:7], "big")
