"""Conversion: one adapter learns the loop, which comes in gradually, and keeps near the unmodified model (no-free-loop, A.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import NO_LOSS, BatchSource
from ..models import loop_passes
from .adapters import LoraSettings, adapter_off
from .divergences import gold_log_probabilities, summed_kl, with_targets
from .engine import Evaluate, train
from .losses import head_inputs
from .merging import merge_and_save
from .objectives import Forward, StepContext
from .pass_schedule import PassSchedule
from .reporting import Reporter, TrainResult
from .settings import Execution, TrainingError
from .tuning import LoopsGiven, Tuning, load_member


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTeacher:
    """kl_weight * KL(unmodified model || this model) + (1 - kl_weight) * the next token's loss, over positions with a target.

    The teacher is the same weights with adapter and loop off: no second copy.

    Raises:
        TrainingError: a weight outside [0, 1].
    """

    kl_weight: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.kl_weight <= 1:
            raise TrainingError(f"kl_weight is {self.kl_weight}; give a number in [0, 1]")

    def __call__(
        self, model: Any, inputs: Tensor, targets: Tensor, arguments: Mapping[str, Any], context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective`; terms ``kl`` and ``next_token``, in nats."""
        with torch.no_grad(), adapter_off(model), loop_passes(model, 1):
            teacher = with_targets(head_inputs(model, inputs, arguments), targets)
        with loop_passes(model, context.passes):
            student = with_targets(head_inputs(model, inputs, arguments), targets)
        head = model.lm_head.weight
        kl = summed_kl(teacher, student, head)
        next_token = -gold_log_probabilities(student, head, targets[targets != NO_LOSS]).sum()
        return self.kl_weight * kl + (1 - self.kl_weight) * next_token, {"kl": kl, "next_token": next_token}

    def forwards(self, passes: int | None) -> tuple[Forward, ...]:
        """The teacher's, and the model's own with gradients."""
        return ((1, False), (passes, True))

    def to_json(self) -> dict[str, Any]:
        """Its name and weight."""
        return {"objective": "near teacher", **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The recipe's numbers, at the paper's size: 2,000 steps on 33M tokens, so batches of about 16k tokens.

    Raises:
        TrainingError: a weight outside [0, 1].
    """

    tuning: Tuning = field(default_factory=lambda: Tuning(num_tokens=33_000_000, learning_rate=1e-4))
    """33M tokens are the paper's. The learning rate is a guess: adapters take about ten times that of full fine-tuning."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """On every linear layer is the paper's."""
    passes: PassSchedule = field(default_factory=lambda: PassSchedule(kind="introduced"))
    """The paper's: applied with a probability from 0 to 1 over the first third, in all steps after it."""
    objective: NearTeacher = field(default_factory=NearTeacher)
    """The paper's weights, 0.9 and 0.1."""

    @classmethod
    def nano(cls, *, num_tokens: int = 1_000_000, learning_rate: float = 1e-3, rank: int = 16, seed: int = 0) -> Conversion:
        """For networks of some million parameters on CPUs. Guesses."""
        tuning = Tuning(num_tokens=num_tokens, learning_rate=learning_rate, dtype="fp32", seed=seed)
        return cls(tuning=tuning, lora=LoraSettings(rank=rank, alpha=2.0 * rank))


def train_conversion(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: Conversion,
    out: str | Path,
    *,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Convert one member of a set; the same call goes on where a killed one stopped.

    Args:
        model: a Hugging Face id or a folder.
        loops: what the adapter is trained through; None trains the twin, with the same losses and no loop.
        source: traces with targets on the answers only.

    Returns:
        Where it lies, merged in fp32: ``OUT/model``, which ``loopwise.load`` reads with its loops in. ``OUT/adapter`` is the adapter,
        ``OUT/merge.json`` the change of logits that merging made.

    Raises:
        TrainingError, ModelError, LoopError: bad input, before weights are read where it can be known then; as `train`.
    """
    tuning = settings.tuning
    num_steps = tuning.num_steps(source)
    loaded = load_member(model, loops, lora=settings.lora, seed=tuning.seed, plain_head=True, needs_padding=True)
    result = train(
        loaded.model,
        source,
        tuning.settings(num_steps, None if loops is None else settings.passes),
        out,
        objective=settings.objective,
        execution=execution,
        evaluate=evaluate,
        tokenizer=loaded.tokenizer,
        reporter=reporter,
    )
    return merge_and_save(loaded, source, out, result, execution)
