"""What decides a training run's numbers, and how it is carried out: two frozen values. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..nets.recurrence import Recurrence
from .pass_schedule import PassSchedule
from .schedules import Schedule

Optimizer = Literal["adamw", "muon"]
Dtype = Literal["fp32", "bf16"]


class TrainingError(ValueError):
    """A run that cannot be, or cannot go on: the message names the thing, the value and the remedy in one line."""


class DivergedError(TrainingError):
    """A loss or gradient became something else than a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What decides the numbers of a run, beside its model and its batches: a run is gone on with under equal ones only.

    Raises:
        TrainingError: a value that cannot be.
    """

    num_steps: int
    """Updates of the weights."""
    seed: int = 0
    """Of what is drawn in training: the depth of every step, and the random first state of input-injected loops."""
    recurrence: Recurrence | None = None
    """The number of loops of each step, for networks of ``loopwise.nets``; None is the network's own ``num_loops``."""
    passes: PassSchedule | None = None
    """The passes of each step, for models that loops were put into; None is the loops as they were put in."""
    optimizer: Optimizer = "adamw"
    """``muon`` takes the matrices of attention and MLP; all else is AdamW's (ARLoop's code base, Parcae's: MuonAdamW)."""
    learning_rate: float = 1e-3
    """The peak. A guess: no paper trains at ``nano`` size."""
    muon_learning_rate: float | None = None
    """The peak of Muon's matrices; None is ``learning_rate``, as in Parcae's code (8e-3 for both)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW. A guess; Parcae's code has (0.8, 0.95)."""
    epsilon: float = 1e-8
    """Of AdamW. A guess; Parcae's code has 1e-10."""
    weight_decay: float = 0.1
    """Of matrices, decoupled. A guess."""
    momentum: float = 0.95
    """Of Muon, Nesterov's (Parcae's code)."""
    schedule: Schedule = "cosine"
    """What follows the warm-up: `schedules.learning_rate_factor` has the curves."""
    warmup_steps: int = 0
    """The learning rate rises in a line over so many steps; 1,000 in ARLoop's large runs."""
    final_factor: float = 0.01
    """The share of the peak that ``cosine`` ends at (ARLoop: "cosine decay to 1 % of the peak")."""
    cooldown_share: float = 0.5
    """The last part of the steps, over which ``trapezoid`` falls to zero in a line (0.5 in Parcae's code)."""
    clip_norm: float = 1.0
    """The largest norm of a step's gradient (Parcae's code)."""
    dtype: Dtype = "fp32"
    """``bf16``: matrix products and the residual stream in bf16; weights, gradients and optimizer stay in fp32."""
    tf32: bool = False
    """On CUDA, products of fp32 matrices in TF32."""

    def __post_init__(self) -> None:
        for name, kind in (("optimizer", Optimizer), ("dtype", Dtype), ("schedule", Schedule)):
            if getattr(self, name) not in get_args(kind):
                raise TrainingError(f"{name} is {getattr(self, name)!r}; use {', '.join(get_args(kind))}")
        _at_least(self, num_steps=1, warmup_steps=0, seed=0)
        for name in ("learning_rate", "epsilon", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise TrainingError(f"{name} is {getattr(self, name)}; give a number above 0")
        if self.muon_learning_rate is not None and (self.optimizer != "muon" or not 0 < self.muon_learning_rate < math.inf):
            raise TrainingError(f"muon_learning_rate is {self.muon_learning_rate} with {self.optimizer}; give one above 0 with muon only")
        if not 0 <= self.weight_decay < math.inf:
            raise TrainingError(f"weight_decay is {self.weight_decay}; give at least 0")
        shares = {"betas": self.betas, "momentum": (self.momentum,)}
        for name, values in shares.items():
            if not all(0 <= value < 1 for value in values):
                raise TrainingError(f"{name} is {getattr(self, name)}; give numbers in [0, 1)")
        for name in ("final_factor", "cooldown_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise TrainingError(f"{name} is {getattr(self, name)}; give a number in [0, 1]")
        if self.recurrence is not None and self.passes is not None:
            raise TrainingError("recurrence is for networks of nets:..., passes for loops put into a model; leave one of them out")
        if self.warmup_steps >= self.num_steps > 1:
            raise TrainingError(f"warmup_steps is {self.warmup_steps} of {self.num_steps} steps; give fewer, or train longer")

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, which a run's header holds."""
        return asdict(self) | {"betas": list(self.betas)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a run is carried out: none of it changes a number by more than rounding, so it may change when a run goes on.

    Raises:
        TrainingError: a value that cannot be.
    """

    device: str = "auto"
    """``auto``, ``cpu`` or ``cuda``; under torchrun each process takes the GPU of its local rank."""
    micro_batch_sequences: int | None = None
    """Sequences that go through the model at once; gradients are added up. None: all rows of a process."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer over the processes (FSDP2); else each process holds all of them (DDP)."""
    compile: bool = False
    """``torch.compile`` the attention and the MLP of every layer, and depth-attention reads and norms. Not the whole model: it would
    compile anew for each depth."""
    checkpoint_activations: bool = False
    """Keep only the inputs of attention and MLP for the backward pass and compute them again: less memory, more time."""
    checkpoint_every_steps: int = 500
    """Steps between checkpoints; the last step has one too."""
    keep_checkpoints: int = 2
    """Checkpoints that stay, the newest ones."""
    evaluate_every_steps: int | None = None
    """Steps between evaluations; there is one after the last step anyhow. None: only that one."""

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise TrainingError(f"device is {self.device!r}; use auto, cpu or cuda")
        _at_least(self, checkpoint_every_steps=1, keep_checkpoints=1)
        for name in ("micro_batch_sequences", "evaluate_every_steps"):
            if getattr(self, name) is not None:
                _at_least(self, **{name: 1})


def _at_least(value: Any, **least: int) -> None:
    for name, smallest in least.items():
        if getattr(value, name) < smallest:
            raise TrainingError(f"{name} is {getattr(value, name)}; give at least {smallest}")


def first_difference(there: Mapping[str, Any], ours: Mapping[str, Any], prefix: str = "") -> tuple[str, Any, Any] | None:
    """The first field, by its dotted name, in which two headers differ, and both values; None where they are equal."""
    for name in sorted(there.keys() | ours.keys()):
        old, new = there.get(name), ours.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if (found := first_difference(old, new, f"{prefix}{name}.")) is not None:
                return found
        elif old != new:
            return f"{prefix}{name}", old, new
    return None
