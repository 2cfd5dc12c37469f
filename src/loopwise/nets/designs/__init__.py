"""The residual designs by name. A design is added by a file here and a line in this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..configuration import Architecture
from ..residual import ResidualDesign
from .arloop import depth_attention
from .deeploop import DeepLoop, deeploop_constants
from .parcae import Parcae
from .prenorm import PreNorm
from .sandwich import Sandwich

DESIGNS: Mapping[str, Callable[[Architecture], ResidualDesign]] = {
    "prenorm": PreNorm,
    "sandwich": Sandwich,
    "deeploop": DeepLoop,
    "parcae": Parcae,
    "arloop": depth_attention,
}

__all__ = ["DESIGNS", "DeepLoop", "Parcae", "PreNorm", "Sandwich", "deeploop_constants", "depth_attention"]
