"""Does a loop pay? Loops in trained language models, judged at equal parameters and at equal FLOPs.

Names are imported when they are first used: ``import loopwise`` alone needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cost import Cost, CostError, cost_of, read_shape
    from .decoding import Completion, DecodingError, DecodingRule, generate
    from .evaluation import Parity, ParityError, evaluate
    from .loops import CallSite, Loop, LoopError, call_sites, format_loops, parse_loops
    from .models import Loaded, ModelError, insert, load, loops_of, remove, save
    from .protocol import Bootstrap, Comparison, LargerModel, Plan, TrialError, Verdict, compare, judge
    from .recipes.trial import trial
    from .recipes.trial_settings import TrialSettings
    from .records import Record, RecordsError, Run, read_run
    from .tasks import Grade, Item, Task, TaskError, task_named

__version__ = "0.1.0"

_PUBLIC: dict[str, tuple[str, ...]] = {
    "loops": ("CallSite", "Loop", "LoopError", "call_sites", "format_loops", "parse_loops"),
    "records": ("Record", "RecordsError", "Run", "read_run"),
    "cost": ("Cost", "CostError", "cost_of", "read_shape"),
    "tasks": ("Grade", "Item", "Task", "TaskError", "task_named"),
    "models": ("Loaded", "ModelError", "insert", "load", "loops_of", "remove", "save"),
    "decoding": ("Completion", "DecodingError", "DecodingRule", "generate"),
    "evaluation": ("Parity", "ParityError", "evaluate"),
    "protocol": ("Bootstrap", "Comparison", "LargerModel", "Plan", "TrialError", "Verdict", "compare", "judge"),
    "recipes.trial": ("trial",),
    "recipes.trial_settings": ("TrialSettings",),
}
_ROOM_OF = {name: room for room, names in _PUBLIC.items() for name in names}

__all__ = [*sorted(_ROOM_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_ROOM_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
