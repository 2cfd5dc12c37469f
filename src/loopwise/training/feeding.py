"""The batches of a run, read one step ahead of the model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from ..data import NO_LOSS, BatchSource, TokenBatch
from .distributed import Ranks
from .metrics import batch_hash
from .settings import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """A step's rows of this process, and what is known of all rows."""

    rows: range
    """Which rows of the whole batch these are."""
    batch: TokenBatch
    num_targets: int
    """Of the whole batch."""
    num_unknown: int
    """Inputs and targets of the whole batch that the model has no row of its embedding for."""
    vocabulary: int
    """The rows of its embedding."""
    hash: str
    """Of the whole batch, whatever processes there are."""

    def check(self, step: int) -> None:
        """Check that the batch can be trained on.

        Raises:
            TrainingError: it cannot; on all processes alike.
        """
        if self.num_unknown:
            raise TrainingError(
                f"step {step + 1}: batch {self.hash[:16]} has {self.num_unknown} tokens beyond the model's vocabulary of "
                f"{self.vocabulary}; give text of its own tokenizer"
            )
        if not self.num_targets:
            raise TrainingError(f"step {step + 1}: batch {self.hash[:16]} has no target; give longer sequences or leave document masks out")

    def micro_batches(self, num_sequences: int) -> Iterator[tuple[range, TokenBatch]]:
        """The rows in pieces of ``num_sequences``, with their places among this process's rows."""
        for first in range(0, len(self.rows), num_sequences):
            places = range(first, min(first + num_sequences, len(self.rows)))
            part = slice(places.start, places.stop)
            positions = None if self.batch.positions is None else self.batch.positions[part]
            yield places, TokenBatch(input_ids=self.batch.input_ids[part], targets=self.batch.targets[part], positions=positions)


class Feeder:
    """Reads a process's rows of every step, the next step's while this one's are trained on."""

    def __init__(self, source: BatchSource, ranks: Ranks, *, first_step: int, num_steps: int, vocabulary: int) -> None:
        self._source, self._ranks, self._vocabulary = source, ranks, vocabulary
        self._rows = ranks.rows(source.num_sequences)
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._num_steps = num_steps
        self._next: Future[tuple[TokenBatch, bytes]] | None = None
        self._ask(first_step)

    def __call__(self, step: int) -> Fed:
        """The rows of step ``step``, counted from 0; steps are asked for in order."""
        assert self._next is not None
        batch, digests = self._next.result()
        self._ask(step + 1)
        device = self._ranks.device
        counts = torch.tensor([np.count_nonzero(batch.targets != NO_LOSS), num_unknown(batch, self._vocabulary)], device=device)
        all_digests = self._ranks.gather(torch.frombuffer(bytearray(digests), dtype=torch.uint8).to(device))
        whole = batch_hash([all_digests.cpu().numpy().tobytes()])
        targets, unknown = self._ranks.sum(counts).tolist()
        return Fed(rows=self._rows, batch=batch, num_targets=targets, num_unknown=unknown, vocabulary=self._vocabulary, hash=whole)

    def close(self) -> None:
        """Read no further."""
        self._pool.shutdown(cancel_futures=True)

    def _ask(self, step: int) -> None:
        self._next = self._pool.submit(self._read, step) if step < self._num_steps else None

    def _read(self, step: int) -> tuple[TokenBatch, bytes]:
        batch = self._source.batch(step, self._rows.start, self._rows.stop)
        return batch, b"".join(bytes.fromhex(digest) for digest in batch.row_hashes())


def num_unknown(batch: TokenBatch, vocabulary: int) -> int:
    """Inputs and targets that are no ids of a vocabulary of so many."""
    targets = batch.targets[batch.targets != NO_LOSS]
    return sum(int(np.count_nonzero((ids < 0) | (ids >= vocabulary))) for ids in (batch.input_ids, targets))
