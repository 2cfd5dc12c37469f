"""Training: one engine for looped networks and for every causal language model of transformers.

Names are imported when they are first used: settings, schedules, estimates and metrics need no torch, the engine does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .estimate import Estimate, check_fits, estimate
from .metrics import StepMetrics, read_evaluations, read_metrics
from .reporting import Reporter, Silent, State, TrainResult, duration
from .schedules import Schedule, learning_rate_factor
from .settings import Execution, TrainingError, TrainSettings

if TYPE_CHECKING:
    from .distributed import Ranks, join, leave
    from .engine import Evaluate, train
    from .flops import StepFlops, step_flops
    from .losses import held_out_loss, summed_loss
    from .optimizers import parameter_groups
    from .preparing import available_bytes

_WITH_TORCH = {
    "Evaluate": "engine",
    "Ranks": "distributed",
    "StepFlops": "flops",
    "available_bytes": "preparing",
    "held_out_loss": "losses",
    "join": "distributed",
    "leave": "distributed",
    "parameter_groups": "optimizers",
    "step_flops": "flops",
    "summed_loss": "losses",
    "train": "engine",
}

__all__ = [
    "Estimate",
    "Evaluate",
    "Execution",
    "Ranks",
    "Reporter",
    "Schedule",
    "Silent",
    "State",
    "StepFlops",
    "StepMetrics",
    "TrainResult",
    "TrainSettings",
    "TrainingError",
    "available_bytes",
    "check_fits",
    "duration",
    "estimate",
    "held_out_loss",
    "join",
    "learning_rate_factor",
    "leave",
    "parameter_groups",
    "read_evaluations",
    "read_metrics",
    "step_flops",
    "summed_loss",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WITH_TORCH[name]}", __name__), name)
    globals()[name] = value
    return value
