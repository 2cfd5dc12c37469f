"""What a second stage is made of, and how its answers are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..decoding import Chat
from ..models import Loaded
from .boxed_reward import Problem, Problems
from .distributed import Ranks
from .grpo_settings import LoraGrpo
from .metrics import batch_hash
from .reporting import Reporter
from .rollouts import Drawing, Ids, draw_answers
from .settings import Execution, TrainingError

_ROLLOUT_ROWS = 64
"""Answers that are drawn at once. A guess: enough to fill a GPU, and 4,096 tokens of a 9B model's keys and values fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """All that a second stage is made of."""

    loaded: Loaded
    """With its loops in, and without an adapter."""
    chat: Chat
    problems: Problems
    settings: LoraGrpo
    folder: Path
    execution: Execution
    ranks: Ranks
    reporter: Reporter

    @property
    def seed(self) -> int:
        """Of adapter, problems and draws."""
        return self.settings.tuning.seed

    def asked(self, step: int) -> tuple[Problem, ...]:
        """The problems of a step, counted from 0."""
        return self.problems.step(self.seed, step, self.settings.grpo.num_prompts)

    def prompt(self, problem: Problem) -> Ids:
        """What the model is given."""
        return self.chat.encode(problem.item.prompt, thinking=self.settings.grpo.thinking)

    @property
    def drawing(self) -> Drawing:
        """How its answers are drawn."""
        grpo = self.settings.grpo
        rows = min(_ROLLOUT_ROWS, grpo.step_answers)
        return Drawing(temperature=grpo.temperature, budget_tokens=grpo.budget_tokens, batch_size=rows, dtype=self.settings.tuning.dtype)


class Rollouts:
    """TRL's rollout function: one answer for each row of a step's prompts, through our decoding."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.num_tokens = 0
        """Of the last step: prompts and answers."""
        self.ended = 0.0
        """Share of the last step's answers that ended by themselves."""
        self.hash = ""
        """Of the last step's prompts, in order."""

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """The answers of the step that the trainer is at."""
        stage, grpo = self.stage, self.stage.settings.grpo
        step = trainer.state.global_step
        asked = [stage.prompt(problem) for problem in stage.asked(step)]
        if len(prompts) != grpo.step_answers or list(prompts[:: grpo.num_answers]) != [one.item.prompt for one in stage.asked(step)]:
            raise TrainingError(f"step {step + 1}: TRL asks {len(prompts)} prompts, not the {grpo.step_answers} of this step; use trl 1.16")
        ids = [prompt for prompt in asked for _ in range(grpo.num_answers)]
        keys = [(stage.seed, step, index) for index in range(len(ids))]
        found = draw_answers(trainer.model.get_base_model(), stage.loaded.tokenizer, ids, keys, stage.drawing)
        self.num_tokens = sum(map(len, ids)) + sum(completion.generated_tokens for completion in found)
        self.ended = sum(completion.finished for completion in found) / len(found)
        self.hash = batch_hash(hashlib.sha256(np.array(prompt, dtype="<i8").tobytes()).digest() for prompt in asked)
        return {
            "prompt_ids": [list(prompt) for prompt in ids],
            "completion_ids": [list(completion.token_ids) for completion in found],
            "logprobs": None,
        }
