"""Looped transformers trained from scratch: one decoder, composed of a residual design, what loops, and what surrounds it.

Names are imported when they are first used: architectures, sizes, schedules and recurrences need no torch, the network does.
Whatever imports the network registers it with transformers' Auto classes; ``loopwise.models.load`` does so.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .configuration import MODEL_TYPE, Architecture, NetError
from .recurrence import Depth, Recurrence
from .schedule import Schedule, Site, Step, own_loops, schedule
from .sizes import PREFIX, named, names

if TYPE_CHECKING:
    from .designs import DESIGNS
    from .model import LoopedConfig, LoopedDecoder, LoopedTransformer
    from .residual import ResidualDesign, Stream

_WITH_TORCH = {
    "DESIGNS": "designs",
    "LoopedConfig": "model",
    "LoopedDecoder": "model",
    "LoopedTransformer": "model",
    "ResidualDesign": "residual",
    "Stream": "residual",
}

__all__ = [
    "DESIGNS",
    "MODEL_TYPE",
    "PREFIX",
    "Architecture",
    "Depth",
    "LoopedConfig",
    "LoopedDecoder",
    "LoopedTransformer",
    "NetError",
    "Recurrence",
    "ResidualDesign",
    "Schedule",
    "Site",
    "Step",
    "Stream",
    "named",
    "names",
    "own_loops",
    "schedule",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WITH_TORCH[name]}", __name__), name)
    globals()[name] = value
    return value
