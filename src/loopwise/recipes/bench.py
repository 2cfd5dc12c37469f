"""The serving cost of a loop: latency, throughput, memory, plain beside looped (no-free-loop, Table 10).

Both arms are the same weights, and the loop goes in and out. Every repeat times both, each first in turn, so that a slow spell of
the machine falls on both. Rows hold one random prompt's cache, each a copy of it; what is timed are decode steps behind it, the
choice of the next token included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..cost import Meter, ModelShape, Rates, StepBound, bound_of, cost_of, read_shape, step_bytes, step_flops
from ..decoding import Batch, StaticBatch, check_static, evaluating
from ..decoding.batch import check_prompts
from ..decoding.packed import packed_weights
from ..loops import Loop, format_loops
from ..models import insert, inserted_loops, loops_of, remove
from .bench_batch import largest_batch, memory_to_fill
from .bench_device import measure_rates, synchronize
from .bench_values import WARM_STEPS, ArmBench, Bench, BenchSettings, Spread

Progress = Callable[[str, float, float], None]
"""Called with what is being done, the work done and all the work."""


def bench(model: PreTrainedModel, settings: BenchSettings | None = None, *, progress: Progress | None = None) -> Bench:
    """Measure a model with its loops, and beside it without those that were put in.

    The model leaves as it came.

    Raises:
        DecodingError: a context that the model has no positions for, or a model that the engine is not for.
        CostError: a family whose cost is not known.
    """
    settings = settings or BenchSettings()
    prompt = _prompt(model, settings)
    check_prompts(model, [prompt], settings.num_steps + WARM_STEPS)
    if settings.engine != "eager":
        check_static(model)
    loops = loops_of(model)
    arms: dict[str, tuple[Loop, ...]] = {"looped": loops} if loops else {"plain": ()}
    if inserted_loops(model):
        arms = {"plain": (), **arms}
    with evaluating(model, inference=settings.engine == "eager"):
        return _Measuring(model, prompt, arms, settings, progress).run()


class _Measuring:
    """One model, its arms, and how far the work is."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt: Sequence[int],
        arms: dict[str, tuple[Loop, ...]],
        settings: BenchSettings,
        progress: Progress | None,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.arms = arms
        self.settings = settings
        self.progress = progress
        self.shape: ModelShape = read_shape(model.config.to_dict())
        self.dtype_bytes = next(model.parameters()).element_size()
        self.rates = Rates(bytes_per_second=1.0, flops_per_second=1.0)

    def run(self) -> Bench:
        self.tell("the device's own rates", 0.0)
        dtype = next(self.model.parameters()).dtype
        self.rates = measure_rates(self.model.device, dtype)
        batches, peaks = {}, {}
        for number, arm in enumerate(self.arms):
            self.tell(f"the largest batch, {arm}", number / len(self.arms))
            with self.as_arm(arm):
                peaks[arm] = self.peak()
                batches[arm] = self.find_batch(self.arms[arm])
        latency: dict[str, list[float]] = {arm: [] for arm in self.arms}
        throughput: dict[str, list[float]] = {arm: [] for arm in self.arms}
        for repeat in range(self.settings.repeats):
            self.tell("timing", repeat / self.settings.repeats)
            for arm in list(self.arms)[:: -1 if repeat % 2 else 1]:
                with self.as_arm(arm):
                    latency[arm].append(self.step_seconds(1))
                    rows = batches[arm][0]
                    throughput[arm].append(rows / self.step_seconds(rows))
        self.tell("timing", 1.0)
        return Bench(
            arms=tuple(self.figures(arm, latency[arm], throughput[arm], batches[arm], peaks[arm]) for arm in self.arms),
            latency_ratio=_ratios(latency),
            throughput_ratio=_ratios(throughput),
            rates=self.rates,
            settings=self.settings,
            device=str(self.model.device) if self.model.device.type == "cpu" else torch.cuda.get_device_name(self.model.device),
            dtype=str(dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
        )

    def tell(self, what: str, share: float) -> None:
        if self.progress:
            self.progress(what, share, 1.0)

    @contextmanager
    def as_arm(self, arm: str) -> Iterator[None]:
        """The model with this arm's loops meanwhile."""
        inserted = inserted_loops(self.model)
        if arm == "looped" or not inserted:
            yield
            return
        remove(self.model)
        try:
            yield
        finally:
            insert(self.model, inserted)

    def open(self, batch_size: int) -> tuple[Batch | StaticBatch, Tensor]:
        """A batch whose rows all hold the prompt, and their logits."""
        settings = self.settings
        filled = Batch(self.model, [self.prompt], settings.num_steps + WARM_STEPS, 0)
        logits = filled.prefill().expand(batch_size, -1)
        if settings.engine == "eager":
            filled.keep([0] * batch_size)
            return filled, logits
        batch = StaticBatch(
            self.model,
            [self.prompt],
            num_rows=batch_size,
            num_columns=settings.context_tokens,
            pad_id=0,
            compiled=settings.engine == "compiled",
        )
        for row in range(batch_size):
            batch.take_over([row], filled, [len(self.prompt)])
        return batch, logits

    def step_seconds(self, batch_size: int, num_steps: int | None = None) -> float:
        """The median time of a step at so many rows."""
        num_steps = num_steps or self.settings.num_steps
        times = []
        with packed_weights(self.model, batch_size if self.settings.engine == "eager" else 0):  # as `generate` does
            batch, logits = self.open(batch_size)
            for _ in range(WARM_STEPS + num_steps):
                started = time.perf_counter()
                logits = batch.step(logits.max(dim=-1).indices.tolist())
                synchronize(self.model.device)
                times.append(time.perf_counter() - started)
        return statistics.median(times[WARM_STEPS:])

    def peak(self, batch_size: int = 1) -> tuple[int | None, str]:
        """The most memory that parameters, prompt and steps held, and how it was measured."""
        held = sum(tensor.numel() * tensor.element_size() for tensor in (*self.model.parameters(), *self.model.buffers()))
        with Meter(str(self.model.device)) as meter:
            self.step_seconds(batch_size)
        return None if meter.peak_bytes is None else held + meter.peak_bytes, meter.memory

    def find_batch(self, loops: tuple[Loop, ...]) -> tuple[int, bool]:
        """Rows for the throughput, and whether something else than the memory chose them."""
        settings = self.settings
        if settings.batch_size is not None:
            return settings.batch_size, True
        cost = cost_of(self.shape, loops, context_tokens=settings.context_tokens, kv_dtype_bytes=self.dtype_bytes)
        # An eager slot that outgrows its room gets one twice as large; static ones have their columns from the start.
        slack = 2 if settings.engine == "eager" else 1
        account = slack * ((cost.kv_bytes or 0) + cost.state_bytes) + 4 * self.shape.vocab_size
        found = largest_batch(
            lambda rows: self.step_seconds(rows, 1),
            self.model.device,
            settings.max_batch,
            row_bytes=account,
            memory_bytes=memory_to_fill(self.model, settings.memory_bytes),
        )
        return found, found == settings.max_batch

    def figures(
        self, arm: str, latency: list[float], throughput: list[float], batch: tuple[int, bool], peak: tuple[int | None, str]
    ) -> ArmBench:
        loops, context = self.arms[arm], self.settings.context_tokens
        cost = cost_of(self.shape, loops, context_tokens=context, kv_dtype_bytes=self.dtype_bytes)

        def bound(seconds: float, rows: int) -> StepBound:
            moved = step_bytes(self.shape, loops, batch_size=rows, context_tokens=context, dtype_bytes=self.dtype_bytes)
            flops = step_flops(self.shape, loops, batch_size=rows, context_tokens=context)
            return bound_of(seconds, moved, flops, self.rates, single_row_seconds=statistics.median(latency))

        return ArmBench(
            arm=arm,
            loops=format_loops(loops),
            layer_pass_ratio=cost.layer_pass_ratio,
            latency_seconds=_spread(latency),
            tokens_per_second=_spread(throughput),
            batch_size=batch[0],
            capped=batch[1],
            peak_bytes=peak[0],
            memory=peak[1],
            kv_bytes_per_token=cost.kv_bytes_per_token,
            kv_bytes=(cost.kv_bytes or 0) + cost.state_bytes,
            at_batch_1=bound(statistics.median(latency), 1),
            at_batch=bound(batch[0] / statistics.median(throughput), batch[0]),
        )


def _prompt(model: PreTrainedModel, settings: BenchSettings) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens: list[int] = torch.randint(0, vocabulary, (settings.prompt_tokens,), generator=generator).tolist()
    return tokens


def _spread(values: Sequence[float]) -> Spread:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return Spread(median=statistics.median(values), low=low, high=high)


def _ratios(values: dict[str, list[float]]) -> Spread | None:
    if len(values) < 2:
        return None
    return _spread([looped / plain for looped, plain in zip(values["looped"], values["plain"], strict=True)])
