"""What a training step reads, and what gives it: the two names that an engine and the data agree on. numpy only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .documents import DataError

NO_LOSS = -100
"""The target of a position that is not trained on: what torch's cross entropy leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Some rows of a step's batch: in each the inputs, and for every input the token that follows it.

    Raises:
        DataError: arrays that are not int64 [rows, tokens] of one shape.
    """

    input_ids: NDArray[np.int64]
    """[rows, tokens]"""
    targets: NDArray[np.int64]
    """[rows, tokens]; the next token, or `NO_LOSS`."""
    positions: NDArray[np.int64] | None = None
    """[rows, tokens]; each token's place in its document, where documents do not see one another; None for a plain stream."""

    def __post_init__(self) -> None:
        shape = self.input_ids.shape
        for name in ("input_ids", "targets", "positions"):
            array = getattr(self, name)
            if array is not None and (array.dtype != np.int64 or array.ndim != 2 or array.shape != shape):
                raise DataError(f"a batch's {name} are {array.dtype} {list(array.shape)}; give int64 [rows, tokens], all of one shape")

    def row_hashes(self) -> tuple[str, ...]:
        """A sha256 of each row: of its inputs, its targets and, where it has them, its positions (little-endian int64)."""
        parts = [self.input_ids, self.targets] + ([] if self.positions is None else [self.positions])
        rows = (b"".join(part[row].astype("<i8").tobytes() for part in parts) for row in range(len(self.input_ids)))
        return tuple(hashlib.sha256(row).hexdigest() for row in rows)


class BatchSource(Protocol):
    """The batches of a run: batch ``step`` is the same on every rank, after every resume and for every twin."""

    @property
    def num_sequences(self) -> int:
        """Rows of a step's whole batch, over all ranks."""

    @property
    def sequence_tokens(self) -> int:
        """Inputs of a row."""

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the batches, as JSON: a run's header keeps it, and a run is resumed only with an equal one."""

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows ``first .. stop-1`` of the batch of a step; steps are counted from 0, and ``stop=None`` is the last row."""
