"""TRL's GRPOTrainer around a looped model: our rollouts, the task's reward, one line of metrics a step, checkpoints that are whole.

TRL is imported when a run begins: ``pip install 'loopwise[grpo]'``. A step is a function of (weights, seed, step): problems and draws
are the seed's and the step's, the order of the answers within a step is drawn from torch's numbers, which are set anew before each step.
TRL resumes to the same bits then, as long as every batch of answers is used up when a checkpoint is written: it draws answers anew
after a resume and keeps none. So answers are drawn for one update and used for it alone.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers.trainer_callback import PrinterCallback

from .adapters import LoraSettings, lora_targets
from .boxed_reward import boxed_reward
from .grpo_checkpoints import newest_whole
from .grpo_stage import Rollouts, Stage
from .grpo_steps import Steps
from .reporting import State
from .settings import TrainingError

_MOST_STEPS_BETWEEN_CHECKPOINTS = 10
"""A step draws whole answers, so it takes minutes where a step of the first stage takes seconds, and a checkpoint holds an adapter only."""


def run_trainer(stage: Stage) -> None:
    """Check, then train from the newest whole checkpoint to the end; the last step leaves a checkpoint.

    Raises:
        TrainingError: no TRL, or a check that fails.
        DivergedError: a loss or gradient that is not finite.
    """
    trl = _trl()
    with _random_numbers_kept():
        found = newest_whole(stage.folder, stage.reporter.note)
        state = found[1] if found else State(step=0, tokens=0, flops=0.0, seconds=0.0)
        rollouts = Rollouts(stage)
        trainer = make_trainer(trl, stage, rollouts)
        steps = Steps(stage, rollouts, trainer, state)
        trainer.add_callback(steps)
        try:
            trainer.train(resume_from_checkpoint=str(found[0]) if found else None)
        finally:
            steps.writer.close()


def make_trainer(trl: Any, stage: Stage, rollouts: Rollouts) -> Any:
    """TRL's trainer, with a fresh adapter in the model; it tells nobody anything and writes no card."""
    from datasets import Dataset

    grpo = stage.settings.grpo
    problems = [problem for step in range(grpo.num_steps) for problem in stage.asked(step)]

    def boxed_answer(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], row: Sequence[int], **_: Any) -> list[float]:
        asked = [problems[number] for number in row]
        return [boxed_reward(problem, stage.chat, stage.prompt(problem), ids) for problem, ids in zip(asked, completion_ids, strict=True)]

    quiet = {"_send_telemetry": lambda self: None, "create_model_card": lambda self, *args, **more: None}
    quiet_trainer = type("QuietGRPOTrainer", (trl.GRPOTrainer,), quiet)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func")  # an experimental part of TRL: what it asks is checked at each step
        trainer = quiet_trainer(
            model=stage.loaded.model,
            reward_funcs=boxed_answer,
            args=trainer_arguments(trl, stage),
            train_dataset=Dataset.from_dict({"prompt": [one.item.prompt for one in problems], "row": list(range(len(problems)))}),
            processing_class=stage.loaded.tokenizer,
            peft_config=lora_config(stage.loaded.model, stage.settings.lora),
            rollout_func=rollouts,
        )
    trainer.eos_token_ids = sorted(stage.chat.end_ids)
    trainer.remove_callback(PrinterCallback)
    return trainer


def trainer_arguments(trl: Any, stage: Stage) -> Any:
    """GRPO's settings as TRL takes them."""
    grpo, execution = stage.settings.grpo, stage.execution
    rows = grpo.micro_batch(execution)
    accumulated = grpo.step_answers // rows
    return trl.GRPOConfig(
        output_dir=str(stage.folder),
        max_steps=grpo.num_steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=accumulated,  # answers serve one update
        num_iterations=1,
        num_generations=grpo.num_answers,
        max_completion_length=grpo.budget_tokens,
        temperature=grpo.temperature,
        top_p=1.0,
        top_k=0,
        loss_type=grpo.loss_type,
        beta=grpo.divergence_weight,
        scale_rewards="group",
        disable_dropout=True,  # rollout and trainer would differ
        shuffle_dataset=False,  # the order is the problems' own
        learning_rate=grpo.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=grpo.weight_decay,
        adam_beta1=grpo.betas[0],
        adam_beta2=grpo.betas[1],
        max_grad_norm=grpo.clip_norm,
        bf16=stage.settings.tuning.dtype == "bf16",
        use_cpu=stage.ranks.device.type == "cpu",
        gradient_checkpointing=execution.checkpoint_activations,
        gradient_checkpointing_kwargs={"use_reentrant": False} if execution.checkpoint_activations else None,
        seed=stage.seed,
        save_strategy="steps",
        save_steps=min(execution.checkpoint_every_steps, _MOST_STEPS_BETWEEN_CHECKPOINTS),
        save_total_limit=max(2, execution.keep_checkpoints),  # the older one goes before the newer is marked as whole
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=stage.ranks.device.type == "cuda",
    )


def lora_config(model: Any, settings: LoraSettings) -> Any:
    """A fresh adapter's settings as PEFT takes them; of fp32 weights also where the frozen ones are in bf16."""
    peft: Any = importlib.import_module("peft")
    return peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(lora_targets(model, settings)),
        task_type="CAUSAL_LM",
    )


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """TRL sets the seeds of Python, NumPy and torch; afterwards they are what they were."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _trl() -> Any:
    try:
        return importlib.import_module("trl")
    except ImportError:
        raise TrainingError("GRPO needs TRL and PEFT: pip install 'loopwise[grpo]'") from None
