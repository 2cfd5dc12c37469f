"""The learning rate of a step, as a share of its peak: a pure function of the step. No torch."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "cosine", "trapezoid"]


def learning_rate_factor(
    step: int, *, schedule: Schedule, num_steps: int, warmup_steps: int, final_factor: float, cooldown_share: float
) -> float:
    """The share of the peak in step ``step``, counted from 0.

    In the warm-up it is (step + 1) / warmup_steps. Then ``constant`` stays at 1; ``cosine`` falls from 1 to ``final_factor`` in the
    last step (ARLoop's large runs: 1,000 updates of warm-up, 1 %); ``trapezoid`` stays at 1 and falls in a line over the last
    ``cooldown_share`` of all steps, reaching zero one step after the last (Parcae's code: no warm-up, 50 %).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "cosine":
        done = (step - warmup_steps) / max(num_steps - 1 - warmup_steps, 1)
        return final_factor + (1 - final_factor) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if schedule == "trapezoid":
        cooldown_steps = round(cooldown_share * num_steps)
        return min(1.0, (num_steps - step) / cooldown_steps) if cooldown_steps else 1.0
    return 1.0
