"""What `test_training_ranks` has torchrun run: several trainings in one start, each into a folder of its own."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from loopwise.nets import Recurrence
from loopwise.training import Execution, Ranks, TrainingError, TrainSettings, held_out_loss, leave, train
from training_cases import Killed, Walks, fresh_net

SETTINGS = TrainSettings(num_steps=5, learning_rate=3e-3, warmup_steps=2)
CPU = Execution(device="cpu", checkpoint_every_steps=2, micro_batch_sequences=2)
POISSON = Recurrence(kind="poisson", mean=2, most=3)
PER_SEQUENCE = Recurrence(kind="poisson", mean=2, most=3, per_sequence=True)

CASES: dict[str, tuple[dict[str, Any], TrainSettings]] = {
    "prenorm": (dict(name="prenorm", init="scaled"), SETTINGS),
    "parcae": (dict(name="parcae", init="scaled"), replace(SETTINGS, recurrence=POISSON, seed=1)),
    "arloop": (dict(name="arloop-sw", block_size_sublayers=2), replace(SETTINGS, recurrence=PER_SEQUENCE)),
    "injected": (dict(name="injected"), replace(SETTINGS, recurrence=replace(POISSON, backprop_loops=1))),
    "muon": (dict(name="span-arloop", init="scaled"), replace(SETTINGS, optimizer="muon")),
}
SHARDED: dict[str, tuple[dict[str, Any], TrainSettings]] = {
    "prenorm": CASES["prenorm"],
    "span-arloop": (dict(name="span-arloop", init="scaled"), SETTINGS),
    "value-residual": (dict(name="value-residual"), SETTINGS),
}


def evaluate(model: Any, step: int) -> dict[str, float]:
    """The loss on three batches, shared out over the processes."""
    batches = [Walks().batch(100 + number) for number in range(3)]
    size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    rank = torch.distributed.get_rank() if size > 1 else 0
    return {"held_out_loss": held_out_loss(model, batches, ranks=Ranks(rank=rank, size=size))}


def kill_after_three(model: Any, step: int) -> dict[str, float]:
    """Stops every process between a step and its checkpoint."""
    if step == 3:
        raise Killed
    return {}


def main(out: Path) -> None:
    """Train every case with DDP, some with FSDP2, and stop one of each half-way."""
    for name, (net, settings) in CASES.items():
        train(fresh_net(**net), Walks(), settings, out / f"ddp-{name}", execution=CPU, evaluate=evaluate)
    for name, (net, settings) in SHARDED.items():
        train(fresh_net(**net), Walks(), settings, out / f"fsdp-{name}", execution=replace(CPU, fsdp=True), evaluate=evaluate)
    for kind, fsdp in (("ddp", False), ("fsdp", True)):
        execution = replace(CPU, fsdp=fsdp, evaluate_every_steps=1)
        net, settings = CASES["prenorm"]
        with contextlib.suppress(Killed):
            train(fresh_net(**net), Walks(), settings, out / f"{kind}-cut", execution=execution, evaluate=kill_after_three)
    for settings, source, words in (
        (replace(SETTINGS, optimizer="muon"), Walks(), "muon with fsdp"),
        (SETTINGS, Walks(num_sequences=3), "multiple of 2"),
    ):
        try:
            train(fresh_net(), source, settings, out / "refused", execution=replace(CPU, fsdp=True))
        except TrainingError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
