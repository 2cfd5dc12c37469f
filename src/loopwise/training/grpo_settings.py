"""The numbers of LoRA fine-tuning with reinforcement learning (no-free-loop, A.3).

The paper names GRPO, that of DeepSeekMath (arXiv 2402.03300), its problems and its reward, and gives none of its numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from .adapters import LoraSettings
from .settings import Execution, TrainingError
from .tuning import Tuning

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """The second stage. Every answer is trained on once, right after it was drawn, so the ratio of probabilities is one and no clip acts.

    Raises:
        TrainingError: a value that cannot be.
    """

    problems: tuple[str, ...] = ("gsm8k", "math")
    """Tasks whose train splits are asked; these are the paper's."""
    num_steps: int = 200
    """Updates. A guess: 3,200 questions at 16 a step, a fifth of both train splits."""
    num_prompts: int = 16
    """Questions of a step. A guess: DeepSeekMath's batch of 1,024 answers is 16 questions of 64."""
    num_answers: int = 8
    """Answers drawn for each question. A guess: DeepSeekMath draws 64, most later work 8 to 16."""
    budget_tokens: int = 4096
    """Of an answer, thinking included: that of thinking-mode GSM8K (A.4), a guess for training."""
    thinking: bool = True
    """Ask the chat template for its thinking mode: "after finished thinking" is the paper's."""
    temperature: float = 1.0
    """A guess: the model's own distribution."""
    learning_rate: float = 1e-5
    """Constant. A guess: ten times DeepSeekMath's 1e-6, as adapters take."""
    divergence_weight: float = 0.04
    """Of the divergence from the model after the first stage. A guess: DeepSeekMath's; 0 leaves it out."""
    loss_type: LossType = "grpo"
    """How tokens are averaged: DeepSeekMath's, over an answer's tokens and then over answers, as the paper names GRPO. TRL's own default
    is another one."""
    clip_norm: float = 1.0
    """Of the gradient. A guess."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW. A guess, as in the first stage."""
    weight_decay: float = 0.0
    """A guess, as in the first stage."""
    checked_tokens: int = 64
    """Of each of four answers that the check before the first step draws, at most. A guess: enough for passes to drift apart."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise TrainingError("GRPO has no tasks to take problems from; give some, e.g. gsm8k math")
        for name, least in (("num_steps", 1), ("num_prompts", 1), ("num_answers", 2), ("budget_tokens", 1), ("checked_tokens", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TrainingError(f"GRPO's {name} is {value}; give a whole number, at least {least}")
        for name in ("temperature", "learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise TrainingError(f"GRPO's {name} is {getattr(self, name)}; give a number above 0")
        for name in ("divergence_weight", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TrainingError(f"GRPO's {name} is {getattr(self, name)}; give a number, at least 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise TrainingError(f"GRPO's betas are {self.betas}; give numbers in [0, 1)")
        if self.loss_type not in get_args(LossType):
            raise TrainingError(f"GRPO's loss_type is {self.loss_type!r}; use grpo, bnpo, dr_grpo or dapo")

    @property
    def step_answers(self) -> int:
        """Answers of a step."""
        return self.num_prompts * self.num_answers

    def micro_batch(self, execution: Execution) -> int:
        """Answers that go through the model at once.

        Raises:
            TrainingError: they do not share out a step's answers.
        """
        size = min(execution.micro_batch_sequences or self.step_answers, self.step_answers)
        if self.step_answers % size:
            raise TrainingError(
                f"a micro-batch of {size} does not share out GRPO's {self.step_answers} answers of a step; "
                f"give a divisor of {self.step_answers}"
            )
        return size

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, which a run's header holds."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraGrpo:
    """Both stages, at the paper's size. Each trains an adapter of its own, merged in fp32 at its end."""

    tuning: Tuning = field(default_factory=lambda: Tuning(num_tokens=100_000_000, learning_rate=1e-4))
    """Of the first stage. The paper gives no number of tokens; the short fine-tune's is a guess, and so is the rate, that of conversion."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """Of both stages. An adapter is needed: the divergence is from the model with its adapter switched off, which keeps its loop."""
    grpo: Grpo = field(default_factory=Grpo)

    @classmethod
    def nano(cls, *, num_tokens: int = 1_000_000, seed: int = 0) -> LoraGrpo:
        """For networks of some million parameters on CPUs, on the arithmetic ladder. Guesses."""
        return cls(
            tuning=Tuning(num_tokens=num_tokens, learning_rate=1e-3, dtype="fp32", seed=seed),
            lora=LoraSettings(rank=16, alpha=32.0),
            grpo=Grpo(
                problems=("ladder",), num_steps=50, num_prompts=8, num_answers=4, budget_tokens=64, thinking=False, learning_rate=1e-4
            ),
        )
