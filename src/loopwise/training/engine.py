"""The training loop: plain torch, for every network of ``loopwise.nets`` and every causal language model of transformers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import BatchSource, TokenBatch
from ..nets.model import LoopedTransformer
from ..nets.recurrence import Depth
from .adapters import adapter_of
from .checkpoints import keep_newest, load_checkpoint, newest_checkpoint, save_checkpoint
from .distributed import Ranks, adding_up, check_spread, full_tensor, join, replicate, settle, shard
from .feeding import Fed, Feeder
from .flops import step_flops
from .losses import loss_in_forward, to_device
from .metrics import MetricsWriter, StepMetrics, peak_flops, read_evaluations, read_metrics
from .objectives import LossModule, NextToken, Objective, StepContext
from .optimizers import fill_gradients, make_optimizers, parameter_groups, set_learning_rates
from .preparing import check_memory, check_model, compute_settings, draw_seed, peak_memory_bytes, prepare, run_header, vocabulary_of
from .reporting import Reporter, Silent, State, TrainResult, duration
from .resuming import check_batches, run_tensors
from .saving import ADAPTER_FOLDER, MODEL_FOLDER, claim, save_model
from .settings import DivergedError, Execution, TrainSettings

Evaluate = Callable[[PreTrainedModel, int], dict[str, float]]
"""Called on every process with the model and the number of updates made; gives named numbers, the same on all."""

_TIMED_STEPS = 3
"""Steps after which the time left is told; the first of them, which compiles and warms up, does not count."""
_LOSS = ""
"""Where the loss stands among the sums of a micro-batch: no term has this name."""


def train(
    model: PreTrainedModel,
    source: BatchSource,
    settings: TrainSettings,
    out: str | Path,
    *,
    objective: Objective | None = None,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Train a model, in place and in fp32 weights; the same call goes on where a killed one stopped.

    Under torchrun every process makes this call with the same arguments. ``out`` gets ``run.json`` (what binds the run),
    ``metrics.jsonl``, ``checkpoints/`` and, at the end, ``model/``, or ``adapter/`` of a model with an adapter. What does not require
    gradients stays as it is: no optimizer and no checkpoint holds it.

    Args:
        objective: what a step minimises; None is the next token's loss.

    Raises:
        TrainingError: bad input, before anything long begins; ``out`` holds another run; a loss or gradient that is not finite,
            with its step and batch (the checkpoints before it stay).
        OSError: the disk is full.
    """
    execution, out = execution or Execution(), Path(out)
    ranks = join(execution.device)
    reporter = reporter if reporter is not None and ranks.rank == 0 else Silent()
    check_spread(model, settings, execution, ranks, own_objective=objective is not None)
    check_model(model, source, settings, ranks)
    minimised = objective or NextToken()
    reporter.note(check_memory(model, source, settings, execution, ranks, minimised))
    header = run_header(model, source, settings, objective)
    handle = ranks.from_first(lambda: claim(out, header))
    try:
        with compute_settings(settings, execution, ranks):
            return _Run(model, source, settings, minimised, execution, out, ranks, reporter).train(evaluate, tokenizer)
    finally:
        if ranks.rank == 0:
            os.close(handle)


class _Run:
    """One run in one process."""

    def __init__(
        self,
        model: PreTrainedModel,
        source: BatchSource,
        settings: TrainSettings,
        objective: Objective,
        execution: Execution,
        out: Path,
        ranks: Ranks,
        reporter: Reporter,
    ) -> None:
        self.model, self.source, self.settings, self.execution = model, source, settings, execution
        self.objective, self.out, self.ranks, self.reporter = objective, out, ranks, reporter
        self.flops = step_flops(model)
        groups = parameter_groups(model, settings.optimizer)
        prepare(model, settings, execution, ranks.device)
        if execution.fsdp:
            assert isinstance(model, LoopedTransformer)
            shard(model, loss_in_forward, ranks, bf16=settings.dtype == "bf16")
        module = LossModule(model, objective)
        self.module = module if execution.fsdp else replicate(module, model, settings, ranks)
        self.optimizers = make_optimizers(model, groups, settings)
        self.parameters = [parameter for optimizer in self.optimizers for group in optimizer.param_groups for parameter in group["params"]]
        self.peak = peak_flops(torch.cuda.get_device_name(ranks.device)) if ranks.device.type == "cuda" else None
        self.state = State(step=0, tokens=0, flops=None if self.flops is None else 0.0, seconds=0.0)

    def train(self, evaluate: Evaluate | None, tokenizer: PreTrainedTokenizerBase | None) -> TrainResult:
        """Go on from the newest checkpoint to the end."""
        self._resume()
        writer = MetricsWriter(self.out, after_step=self.state.step) if self.ranks.rank == 0 else None
        num_steps, first_step = self.settings.num_steps, self.state.step
        feeder = Feeder(self.source, self.ranks, first_step=first_step, num_steps=num_steps, vocabulary=vocabulary_of(self.model))
        seconds: list[float] = []
        try:
            for step in range(first_step, num_steps):
                metrics = self._step(step, feeder)
                if writer:
                    writer.step(metrics)
                self.reporter.step(metrics, num_steps)
                seconds.append(metrics.seconds)
                if len(seconds) == _TIMED_STEPS:
                    self._tell_time(seconds[1:])
                self._evaluate(evaluate, writer)
                self._checkpoint(writer)
        finally:
            feeder.close()
            if writer:
                writer.close()
        folder = self.out / (MODEL_FOLDER if adapter_of(self.model) is None else ADAPTER_FOLDER)
        if first_step < num_steps or not self.ranks.from_first(folder.is_dir):
            save_model(self.out, self.model, tokenizer, self.ranks)
        found = self.ranks.from_first(lambda: (read_metrics(self.out), read_evaluations(self.out).get(num_steps, {})))
        loss = found[0][-1].loss if found[0] else math.nan  # where somebody removed the file
        return TrainResult(state=self.state, loss=loss, evaluation=found[1], model_folder=folder)

    def _step(self, step: int, feeder: Feeder) -> StepMetrics:
        """One update, step ``step`` counted from 0.

        Raises:
            TrainingError: tokens that the model does not know, no target, a loss or gradient that is not finite; the weights are as
                before the step.
        """
        began = time.perf_counter()
        fed = feeder(step)
        fed.check(step)
        learning_rate = set_learning_rates(self.optimizers, self.settings, step)
        depth, passes = self._depth(step), self._passes(step)
        size = self.execution.micro_batch_sequences or len(fed.rows)
        sums: dict[str, Tensor] = {}
        for places, batch in fed.micro_batches(size):
            for name, value in self._backward(step, fed, places, batch, depth, passes).items():
                sums[name] = sums[name] + value if name in sums else value
        terms = self._per_target(sums, fed)
        loss = terms.pop(_LOSS)
        self._check_finite("loss", loss, step, fed)
        fill_gradients(self.optimizers)
        norm = float(full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)))
        self._check_finite("gradient norm", norm, step, fed)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        tokens = self.source.num_sequences * self.source.sequence_tokens
        spent = self._flops_per_token(depth, passes) * tokens if self.flops else None
        self.state = State(
            step=step + 1,
            tokens=self.state.tokens + tokens,
            flops=None if spent is None or self.state.flops is None else self.state.flops + spent,
            seconds=self.state.seconds + seconds,
        )
        return StepMetrics(
            step=step + 1,
            loss=loss,
            lr=learning_rate,
            grad_norm=norm,
            tokens=self.state.tokens,
            num_loops=None if depth is None else _mean_depth(depth),
            batch_hash=fed.hash,
            seconds=seconds,
            tokens_per_second=tokens / seconds,
            mfu=spent / seconds / (self.peak * self.ranks.size) if spent and self.peak and self.settings.dtype == "bf16" else None,
            memory_bytes=peak_memory_bytes(self.ranks.device),
            passes=passes,
            terms=terms,
        )

    def _backward(
        self, step: int, fed: Fed, places: range, batch: TokenBatch, depth: Depth | None, passes: int | None
    ) -> dict[str, Tensor]:
        """Gradients of one micro-batch, normalised by the targets of the whole batch; returns its sums, the loss among them."""
        inputs, targets, arguments = to_device(batch, self.ranks.device)
        if depth is not None:
            arguments = arguments | self._depth_arguments(depth, fed.rows[places.start : places.stop])
        context = StepContext(
            step=step,
            num_steps=self.settings.num_steps,
            seed=self.settings.seed,
            first_row=fed.rows[places.start],
            num_targets=fed.num_targets,
            passes=passes,
        )
        torch.manual_seed(draw_seed(context.seed, step, context.first_row))
        with adding_up(self.module, self.model, last=places.stop == len(fed.rows)):
            with torch.autocast(self.ranks.device.type, dtype=torch.bfloat16, enabled=self.settings.dtype == "bf16"):
                loss, terms = self.module(inputs, targets, arguments, context)
            # DDP and FSDP2 take the mean over processes
            (loss * (self.ranks.size / fed.num_targets)).backward()
        return {name: value.detach().double() for name, value in {**terms, _LOSS: loss}.items()}

    def _per_target(self, sums: Mapping[str, Tensor], fed: Fed) -> dict[str, float]:
        """Sums over all processes, divided by the targets of the whole batch, under their names."""
        names = sorted(sums)
        totals = self.ranks.sum(torch.stack([sums[name] for name in names])).tolist()
        return {name: total / fed.num_targets for name, total in zip(names, totals, strict=True)}

    def _depth(self, step: int) -> Depth | None:
        """The depth of a step, the same on all processes; None for a model that has none to choose."""
        if not isinstance(self.model, LoopedTransformer):
            return None
        if self.settings.recurrence is None:
            return Depth(num_loops=self.model.model.arch.num_loops)
        return self.settings.recurrence.draw(seed=self.settings.seed, step=step, num_sequences=self.source.num_sequences)

    def _passes(self, step: int) -> int | None:
        """The passes of a step's inserted loops, the same on all processes; None is the loops as they were put in."""
        schedule, settings = self.settings.passes, self.settings
        return None if schedule is None else schedule.draw(seed=settings.seed, step=step, num_steps=settings.num_steps)

    def _flops_per_token(self, depth: Depth | None, passes: int | None) -> float:
        assert self.flops is not None
        return self.flops.of_forwards(self.objective.forwards(passes)) if depth is None else self.flops.per_token(depth)

    def _depth_arguments(self, depth: Depth, rows: range) -> dict[str, Any]:
        depths = None if depth.depths is None else torch.tensor([depth.depths[row] for row in rows], device=self.ranks.device)
        return {"num_loops": depth.num_loops, "depths": depths, "grad_loops": depth.grad_loops}

    def _check_finite(self, what: str, value: float, step: int, fed: Fed) -> None:
        if math.isfinite(value):
            return
        kept = self.ranks.from_first(lambda: newest_checkpoint(self.out, self.reporter.note))
        safe = f"the last good checkpoint is {kept[0]}" if kept else "there is no checkpoint yet"
        batch = f"batch {fed.hash[:16]} (metrics before it are in {self.out})"
        raise DivergedError(f"step {step + 1}: the {what} is {value} on {batch}; {safe}; try a lower learning rate in a new --out")

    def _resume(self) -> None:
        found = self.ranks.from_first(lambda: newest_checkpoint(self.out, self.reporter.note))
        if found is None:
            return
        folder, state = found
        if state.step < self.settings.num_steps:  # else no batch is read
            self.ranks.from_first(lambda: check_batches(self.out, self.source, state.step))
        load_checkpoint(folder, run_tensors(self.model, self.optimizers), self.ranks)
        self.state = state
        self.reporter.note(f"going on after step {state.step} from {folder}")

    def _evaluate(self, evaluate: Evaluate | None, writer: MetricsWriter | None) -> None:
        every, step = self.execution.evaluate_every_steps, self.state.step
        if evaluate is None or not (step == self.settings.num_steps or (every and step % every == 0)):
            return
        results = evaluate(self.model, step)
        settle(self.model)
        if writer:
            writer.evaluation(step, results)
        self.reporter.evaluation(step, results)

    def _checkpoint(self, writer: MetricsWriter | None) -> None:
        step = self.state.step
        if step != self.settings.num_steps and step % self.execution.checkpoint_every_steps:
            return
        if writer:
            writer.sync()
        written = save_checkpoint(self.out, self.state, run_tensors(self.model, self.optimizers), self.ranks)
        if self.ranks.rank == 0:
            keep_newest(self.out, self.execution.keep_checkpoints, written=written)

    def _tell_time(self, seconds: list[float]) -> None:
        left = (self.settings.num_steps - self.state.step) * sum(seconds) / len(seconds)
        self.reporter.note(f"by the last {len(seconds)} steps, the other {self.settings.num_steps - self.state.step} take {duration(left)}")


def _mean_depth(depth: Depth) -> float:
    return float(depth.num_loops) if depth.depths is None else sum(depth.depths) / len(depth.depths)
