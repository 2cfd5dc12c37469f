"""A tiny table of pretraining runs, for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopwise.nets import Recurrence
from loopwise.recipes.pretraining import Budget, PretrainingTable, Row
from loopwise.recipes.pretraining_runs import TableRun
from loopwise.training import Execution

TINY = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
TINY |= dict(value_embedding_channels=8)
BUDGET = Budget(tokens=512, batch_tokens=128, sequence_tokens=32)
OPTIONS: dict[str, Any] = dict(learning_rate=2e-2)


def tiny_row(name: str, **more: Any) -> Row:
    network = more.pop("network", "prenorm-nano")
    changes = {**TINY, "num_loops": 2, **more.pop("changes", {})}
    return Row(name=name, label=name, network=network, changes=changes, budget=BUDGET, **{"optimization": OPTIONS, **more})


DENSE = dict(num_loops=1)
SPAN = dict(loop_start=1, loop_stop=2, operator="damped", beta=0.5)
TABLE = PretrainingTable(
    name="tiny",
    source="none",
    scale="nano",
    text="made",
    rows=(
        tiny_row("dense", changes=DENSE),
        tiny_row("sw", network="arloop-sw-nano"),
        tiny_row("added", changes=SPAN, begins_with="dense"),
        tiny_row("drawn", recurrence=Recurrence(kind="uniform", least=1, most=3), test_loops=(2, 1)),
    ),
    references={None: "dense"},
)


def run_of(shards: Path, out: Path, **more: Any) -> TableRun:
    execution = Execution(device="cpu", checkpoint_every_steps=2)
    return TableRun(folders=(shards,), out=out, execution=execution, **{"held_out_tokens": 512, "seeds": (0, 1), **more})
