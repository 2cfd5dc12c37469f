"""Loss runs whose truth is known, and tiny text for tiny models."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loopwise.records import LOSS_FORMAT, LossRecord, LossRun

LOOPS = "1:3 x2"
HEADER: dict[str, Any] = {
    "format": LOSS_FORMAT,
    "num_parameters": 1000,
    "num_layers": 4,
    "text_hash": "t",
    "tokens_hash": "k",
    "start_token": "w2",
    "context_tokens": 64,
    "stride_tokens": 32,
    "dtype": "float32",
    "training_flops": None,
}


def loss_run(
    name: str, losses: Sequence[float], targets: Sequence[int], *, looped: bool = False, flops: float = 2.0, **header: Any
) -> LossRun:
    """A run in memory: ``losses`` are nats per token of each document."""
    head = HEADER | {
        "model": name,
        "model_hash": name,
        "looped": looped,
        "loops": LOOPS if looped else "none",
        "layer_pass_ratio": 1.5 if looped else 1.0,
        "flops_per_token": flops,
        "num_documents": len(losses),
    }
    records = tuple(
        LossRecord(document=f"d{n:04}", loss_nats=float(loss * count), num_targets=int(count), num_bytes=4 * int(count))
        for n, (loss, count) in enumerate(zip(losses, targets, strict=True))
    )
    return LossRun(head | header, records, name)


class World:
    """Documents of one text with their difficulty, and runs of models on them."""

    def __init__(self, num_documents: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.targets = self.rng.integers(50, 2000, size=num_documents)
        self.difficulty = 3.0 + 0.5 * self.rng.normal(size=num_documents)

    def run(self, name: str, shift: float, *, noise: float = 0.02, **options: Any) -> LossRun:
        """A model that loses ``shift`` nats per token more than the text's difficulty, and by chance on each document."""
        losses = self.difficulty + shift + noise * self.rng.normal(size=len(self.targets))
        return loss_run(name, losses, self.targets, **options)


def write_text(file: Path, num_documents: int = 12, longest: int = 40, seed: int = 0) -> list[str]:
    """JSONL of texts in the words of the tiny tokenizer, of unequal length; gives the texts."""
    rng = random.Random(seed)
    texts = [" ".join(f"w{rng.randrange(4, 100)}" for _ in range(rng.randrange(2, longest))) for _ in range(num_documents)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts
