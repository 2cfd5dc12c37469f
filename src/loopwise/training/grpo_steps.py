"""What happens around each step of TRL's loop: the check, the seed of what is drawn, a line of metrics, a checkpoint that is whole."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback

from ..records import write_json
from .flops import StepFlops, step_flops
from .grpo_check import check_trainer, check_words
from .grpo_checkpoints import checkpoint_folder, mark_whole
from .grpo_stage import Rollouts, Stage
from .metrics import MetricsWriter, StepMetrics
from .objectives import Forward
from .preparing import draw_seed, peak_memory_bytes
from .reporting import State
from .settings import DivergedError

CHECK_FILE = "check.json"
_TERMS = {
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy",
    "frac_reward_zero_std": "silent_groups",
    "completions/mean_length": "answer_tokens",
}
"""Of TRL's figures, those that are kept, under our names; ``silent_groups``: the share of questions whose answers all earn the same."""


class Steps(TrainerCallback):
    """What happens around each step of TRL's loop."""

    def __init__(self, stage: Stage, rollouts: Rollouts, trainer: Any, state: State) -> None:
        self.stage, self.rollouts, self.trainer, self.state = stage, rollouts, trainer, state
        self.flops: StepFlops | None = step_flops(trainer.model.get_base_model())
        self.writer = MetricsWriter(stage.folder, after_step=state.step)
        self.began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The check, with whatever adapter was loaded."""
        check = check_trainer(self.trainer, self.stage)
        write_json(self.stage.folder / CHECK_FILE, asdict(check) | {"after_step": state.global_step})
        self.stage.reporter.note(check_words(check))
        if state.global_step:
            self.stage.reporter.note(f"going on after step {state.global_step} of GRPO")

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Whatever this step draws is its own."""
        torch.manual_seed(draw_seed(self.stage.seed, state.global_step, 0))
        self.began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any) -> None:
        """Write a step down, before its checkpoint is written."""
        if not logs or "loss" not in logs:
            return
        step, seconds, tokens = state.global_step, time.perf_counter() - self.began, self.rollouts.num_tokens
        for what, value in (("loss", logs["loss"]), ("gradient norm", logs["grad_norm"])):
            if not math.isfinite(value):
                raise DivergedError(f"GRPO, step {step}: the {what} is {value}; try a lower learning rate in a new --out")
        self.state = State(
            step=step,
            tokens=self.state.tokens + tokens,
            flops=None if self.flops is None or self.state.flops is None else self.state.flops + tokens * self._flops_per_token(),
            seconds=self.state.seconds + seconds,
        )
        terms = {ours: float(logs[theirs]) for theirs, ours in _TERMS.items() if logs.get(theirs) is not None}
        metrics = StepMetrics(
            step=step,
            loss=float(logs["loss"]),
            lr=float(logs["learning_rate"]),
            grad_norm=float(logs["grad_norm"]),
            tokens=self.state.tokens,
            num_loops=None,
            batch_hash=self.rollouts.hash,
            seconds=seconds,
            tokens_per_second=tokens / seconds,
            mfu=None,
            memory_bytes=peak_memory_bytes(self.stage.ranks.device),
            terms=terms | {"ended": self.rollouts.ended},
        )
        self.writer.step(metrics)
        self.stage.reporter.step(metrics, self.stage.settings.grpo.num_steps)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """All files are there."""
        self.writer.sync()
        mark_whole(checkpoint_folder(self.stage.folder, state.global_step), self.state)

    def _flops_per_token(self) -> float:
        """Drawing, the reference, and the update, of one token of a prompt or an answer."""
        assert self.flops is not None
        reference: list[Forward] = [(None, False)] if self.stage.settings.grpo.divergence_weight else []
        return self.flops.of_forwards([(None, False), *reference, (None, True)])
