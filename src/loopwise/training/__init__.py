"""Training: one engine for looped networks and for every causal language model of transformers.

Names are imported when they are first used: settings, schedules, estimates and metrics need no torch, the engine does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .estimate import Estimate, check_fits, estimate
from .metrics import StepMetrics, read_evaluations, read_metrics
from .pass_schedule import PassSchedule, PassScheduleError
from .reporting import Reporter, Silent, State, TrainResult, duration
from .schedules import Schedule, learning_rate_factor
from .settings import DivergedError, Execution, TrainingError, TrainSettings

if TYPE_CHECKING:
    from .adapters import LoraSettings, MergeChange, adapter_of, adapter_off, add_lora, merge, merge_and_compare, save_adapter
    from .anchored import AnchoredDepth, AnchoredRecurrentDepth, core, train_anchored
    from .boxed_reward import Problem, Problems, boxed
    from .continued import ContinuedPretraining, held_out_by_passes, train_continued
    from .conversion import Conversion, NearTeacher, train_conversion
    from .distributed import Ranks, join, leave
    from .engine import Evaluate, train
    from .flops import StepFlops, step_flops
    from .grpo import train_lora_grpo
    from .grpo_settings import Grpo, LoraGrpo
    from .long_finetune import LongFinetune, MeasuredSteps, read_measured_steps, train_long_finetune
    from .losses import held_out_loss, row_losses, summed_loss
    from .merging import merge_and_save
    from .objectives import NextToken, Objective, StepContext
    from .optimizers import parameter_groups
    from .preparing import available_bytes
    from .rollout_check import RolloutCheck, check_rollout
    from .saving import MODEL_FOLDER, RunBusyError
    from .short_finetune import ShortFinetune, train_short_finetune
    from .tuning import LoopsGiven, Tuning, load_member

_WITH_TORCH = {
    "AnchoredDepth": "anchored",
    "AnchoredRecurrentDepth": "anchored",
    "ContinuedPretraining": "continued",
    "Conversion": "conversion",
    "Evaluate": "engine",
    "Grpo": "grpo_settings",
    "LongFinetune": "long_finetune",
    "LoopsGiven": "tuning",
    "LoraGrpo": "grpo_settings",
    "LoraSettings": "adapters",
    "MODEL_FOLDER": "saving",
    "MeasuredSteps": "long_finetune",
    "MergeChange": "adapters",
    "NearTeacher": "conversion",
    "NextToken": "objectives",
    "Objective": "objectives",
    "Problem": "boxed_reward",
    "Problems": "boxed_reward",
    "Ranks": "distributed",
    "RolloutCheck": "rollout_check",
    "RunBusyError": "saving",
    "ShortFinetune": "short_finetune",
    "StepContext": "objectives",
    "StepFlops": "flops",
    "Tuning": "tuning",
    "adapter_of": "adapters",
    "adapter_off": "adapters",
    "add_lora": "adapters",
    "available_bytes": "preparing",
    "boxed": "boxed_reward",
    "check_rollout": "rollout_check",
    "core": "anchored",
    "held_out_by_passes": "continued",
    "held_out_loss": "losses",
    "join": "distributed",
    "leave": "distributed",
    "load_member": "tuning",
    "merge": "adapters",
    "merge_and_compare": "adapters",
    "merge_and_save": "merging",
    "parameter_groups": "optimizers",
    "read_measured_steps": "long_finetune",
    "row_losses": "losses",
    "save_adapter": "adapters",
    "step_flops": "flops",
    "summed_loss": "losses",
    "train": "engine",
    "train_anchored": "anchored",
    "train_continued": "continued",
    "train_conversion": "conversion",
    "train_long_finetune": "long_finetune",
    "train_lora_grpo": "grpo",
    "train_short_finetune": "short_finetune",
}

__all__ = [
    "MODEL_FOLDER",
    "AnchoredDepth",
    "AnchoredRecurrentDepth",
    "ContinuedPretraining",
    "Conversion",
    "DivergedError",
    "Estimate",
    "Evaluate",
    "Execution",
    "Grpo",
    "LongFinetune",
    "LoopsGiven",
    "LoraGrpo",
    "LoraSettings",
    "MeasuredSteps",
    "MergeChange",
    "NearTeacher",
    "NextToken",
    "Objective",
    "PassSchedule",
    "PassScheduleError",
    "Problem",
    "Problems",
    "Ranks",
    "Reporter",
    "RolloutCheck",
    "RunBusyError",
    "Schedule",
    "ShortFinetune",
    "Silent",
    "State",
    "StepContext",
    "StepFlops",
    "StepMetrics",
    "TrainResult",
    "TrainSettings",
    "TrainingError",
    "Tuning",
    "adapter_of",
    "adapter_off",
    "add_lora",
    "available_bytes",
    "boxed",
    "check_fits",
    "check_rollout",
    "core",
    "duration",
    "estimate",
    "held_out_by_passes",
    "held_out_loss",
    "join",
    "learning_rate_factor",
    "leave",
    "load_member",
    "merge",
    "merge_and_compare",
    "merge_and_save",
    "parameter_groups",
    "read_evaluations",
    "read_measured_steps",
    "read_metrics",
    "row_losses",
    "save_adapter",
    "step_flops",
    "summed_loss",
    "train",
    "train_anchored",
    "train_continued",
    "train_conversion",
    "train_long_finetune",
    "train_lora_grpo",
    "train_short_finetune",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WITH_TORCH[name]}", __name__), name)
    globals()[name] = value
    return value
