"""What `test_learning_ranks` has torchrun run: learning recipes in two processes."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learning_cases import CPU, LOOPS, recipes
from loopwise.training import leave
from training_cases import Killed

NAMES = ("short", "conversion", "anchored", "long")
TWO = replace(CPU, micro_batch_sequences=1)


def kill_after_three(model: Any, step: int) -> dict[str, float]:
    """Stops every process between a step and its checkpoint."""
    if step == 3:
        raise Killed
    return {}


def main(model: Path, out: Path) -> None:
    """Train with every recipe, and stop one half-way."""
    made = recipes(out / "steps.json")
    for name in NAMES:
        made[name](model, LOOPS, out / name, execution=TWO)
    with contextlib.suppress(Killed):
        made["conversion"](model, LOOPS, out / "cut", execution=replace(TWO, evaluate_every_steps=1), evaluate=kill_after_three)
    leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
