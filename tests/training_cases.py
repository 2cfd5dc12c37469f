"""What tests of training share: batches that a tiny network can learn, shards on the disk, and runs that stop where they are told."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loopwise.data import NO_LOSS, TokenBatch
from loopwise.data.shards import Shard, write_index, write_shard
from loopwise.data.text_tokenizers import ByteTokenizer, save_beside
from loopwise.nets import LoopedTransformer
from loopwise.training import Silent, StepMetrics
from tiny_nets import VOCABULARY, tiny_architecture

SOURCE = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """A `BatchSource` of walks through the tokens in steps of one size a row, from which some targets are left out."""

    num_sequences: int = 8
    sequence_tokens: int = 12
    seed: int = 0
    left_out: bool = True
    identity: dict[str, Any] = field(default_factory=lambda: {"walks": 1})

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows of a step's batch."""
        rng = np.random.default_rng((self.seed, step))
        starts, sizes = rng.integers(VOCABULARY, size=(2, self.num_sequences, 1))
        walks = (starts + np.arange(self.sequence_tokens + 1) * (sizes % 3 + 1)) % VOCABULARY
        targets = walks[:, 1:].copy()
        if self.left_out:  # rows with different numbers of targets
            targets[np.arange(self.sequence_tokens)[None] < (np.arange(self.num_sequences) % 4)[:, None] * 3] = NO_LOSS
        return TokenBatch(input_ids=walks[first:stop, :-1], targets=targets[first:stop])


def fresh_net(name: str = "prenorm", seed: int = 0, **changes: Any) -> LoopedTransformer:
    """A tiny network as training starts from."""
    torch.manual_seed(seed)
    return LoopedTransformer.from_architecture(tiny_architecture(name, **changes), eos_token_id=None, pad_token_id=0)


class Killed(Exception):
    """Stands for a kill."""


class KillAfter(Silent):
    """Stops a run after a step, as it were between the step's line and its checkpoint."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, metrics: StepMetrics, num_steps: int) -> None:
        """Stop here?"""
        if metrics.step == self.at:
            raise Killed


class Kept(Silent):
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a line."""
        self.notes.append(text)


def write_text_shards(folder: Path, num_documents: int = 200) -> Path:
    """Shards of byte tokens of made-up sums, with a held-out folder."""
    facts = ByteTokenizer().facts
    for place, first in ((folder, 0), (folder / "heldout", num_documents)):
        place.mkdir(parents=True, exist_ok=True)
        texts = [f"{n} and {n * 7 % 50} make {n + n * 7 % 50}.\n" * 3 for n in range(first, first + num_documents)]
        documents = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        counts = write_shard(place, "sums-00000", documents, facts)
        save_beside(ByteTokenizer(), place)
        write_index(place, facts, [Shard(file="sums-00000", source="sums", domain="sums", **counts)], {"made": "by a test"})
    return folder


def start(*arguments: str, torchrun: int = 0) -> subprocess.Popen[str]:
    """Start ``python -m loopwise`` (with torchrun, in so many processes) with one thread a process."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(torchrun), "--standalone"] if torchrun else []
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *launcher, "-m", "loopwise", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
