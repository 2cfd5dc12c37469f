"""The check before the first step, of TRL's trainer as it stands."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..models import loops_of
from .grpo_stage import Stage
from .rollout_check import RolloutCheck, check_rollout
from .rollouts import Rollout, draw_recorded, recomputed_log_probabilities

_CHECKED_PROMPTS = 4


def check_trainer(trainer: Any, stage: Stage) -> RolloutCheck:
    """`check_rollout` of a trainer as it stands, on some of the first step's problems.

    The reference that TRL uses is taken the way TRL takes it; what it has to be is computed by full recompute with the adapter off and
    the loops as they were put in.

    Raises:
        TrainingError: as `check_rollout`.
    """
    model, grpo = trainer.model, stage.settings.grpo
    prompts = [stage.prompt(problem) for problem in stage.asked(0)[:_CHECKED_PROMPTS]]
    how = replace(stage.drawing, budget_tokens=min(grpo.checked_tokens, grpo.budget_tokens))
    keys = [(stage.seed, 0, index) for index in range(len(prompts))]

    def origin(drawn: Rollout) -> list[Tensor]:
        with model.disable_adapter():
            return recomputed_log_probabilities(
                model.get_base_model(), drawn, temperature=grpo.temperature, dtype=stage.settings.tuning.dtype
            )

    return check_rollout(
        model,
        loops_of(stage.loaded.model),
        rollout=lambda: draw_recorded(model.get_base_model(), stage.loaded.tokenizer, prompts, keys, how),
        policy=lambda drawn: trainer_log_probabilities(trainer, trainer.model, drawn),
        reference=(lambda drawn: reference_log_probabilities(trainer, drawn)) if grpo.divergence_weight else None,
        origin=origin,
    )


@torch.no_grad()
def trainer_log_probabilities(trainer: Any, model: Any, drawn: Rollout) -> list[Tensor]:
    """What TRL computes for its loss: prompts padded on the left, answers on the right, one fused head."""
    pad, device = int(trainer.processing_class.pad_token_id), trainer.accelerator.device
    width, length = (max(map(len, rows)) for rows in (drawn.prompt_ids, drawn.completion_ids))
    pairs = list(zip(drawn.prompt_ids, drawn.completion_ids, strict=True))
    ids = [[pad] * (width - len(prompt)) + [*prompt, *answer] + [pad] * (length - len(answer)) for prompt, answer in pairs]
    mask = [[0] * (width - len(prompt)) + [1] * (len(prompt) + len(answer)) + [0] * (length - len(answer)) for prompt, answer in pairs]
    found, _, _ = trainer._get_per_token_logps_and_entropies(
        model, torch.tensor(ids, device=device), torch.tensor(mask, device=device), length
    )
    return [row[: len(answer)].float().cpu() for row, answer in zip(found, drawn.completion_ids, strict=True)]


def reference_log_probabilities(trainer: Any, drawn: Rollout) -> list[Tensor]:
    """What TRL takes for its divergence: another model where it keeps one, a copy of an adapter, or the adapter switched off."""
    if trainer.ref_model is not None:
        return trainer_log_probabilities(trainer, trainer.ref_model, drawn)
    use_adapter = importlib.import_module("trl.trainer.utils").use_adapter
    with use_adapter(trainer.model, adapter_name="ref" if "ref" in trainer.model.peft_config else None):
        return trainer_log_probabilities(trainer, trainer.model, drawn)


def check_words(check: RolloutCheck) -> str:
    reference = (
        "" if check.reference_difference_nats is None else f", the reference from its origin by {check.reference_difference_nats:.2g}"
    )
    return (
        f"rollout and trainer run {check.layer_runs:g} layers and {check.mlp_runs:g} MLPs a forward pass; their log-probabilities "
        f"differ by {check.mean_difference_nats:.2g} nats a token on average over {check.num_tokens} tokens{reference}"
    )
