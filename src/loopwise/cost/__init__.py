"""FLOPs, KV bytes and layer passes of a model with loops, from its config.json alone; and a meter. No torch."""

from .account import CONVENTIONS, Breakdown, Convention, Cost, cost_of
from .config import CostError
from .families import COMPOSITES, FAMILIES
from .meter import Meter
from .regime import Rates, Regime, StepBound, bound_of, step_bytes, step_flops
from .shape import LayerShape, ModelShape, read_shape
from .totals import answer_flops, describe, memory_bytes, training_flops, training_flops_6nd

__all__ = [
    "COMPOSITES",
    "CONVENTIONS",
    "FAMILIES",
    "Breakdown",
    "Convention",
    "Cost",
    "CostError",
    "LayerShape",
    "Meter",
    "ModelShape",
    "Rates",
    "Regime",
    "StepBound",
    "answer_flops",
    "bound_of",
    "cost_of",
    "describe",
    "memory_bytes",
    "read_shape",
    "step_bytes",
    "step_flops",
    "training_flops",
    "training_flops_6nd",
]
