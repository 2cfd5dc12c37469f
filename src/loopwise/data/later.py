"""The batches of a run that goes on where another left the data."""

from __future__ import annotations

from typing import Any

from .batches import BatchSource, TokenBatch
from .documents import DataError


class LaterBatches:
    """The batches of a source from a step on: its step 0 is that step. A `BatchSource`."""

    def __init__(self, source: BatchSource, first_step: int) -> None:
        """Skip ``first_step`` steps of a source.

        Raises:
            DataError: fewer than one.
        """
        if first_step < 1:
            raise DataError(f"first_step is {first_step}; give at least 1, or the source itself")
        self._source, self._first_step = source, first_step

    @property
    def num_sequences(self) -> int:
        """Rows of a step's whole batch, over all ranks."""
        return self._source.num_sequences

    @property
    def sequence_tokens(self) -> int:
        """Inputs of a row."""
        return self._source.sequence_tokens

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the batches, as JSON."""
        return {**self._source.identity, "first_step": self._first_step}

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows ``first .. stop-1`` of the batch of a step.

        Raises:
            DataError: as the source; a step before the first.
        """
        if step < 0:
            raise DataError(f"step {step} is asked of batches that are counted from 0")
        return self._source.batch(step + self._first_step, first, stop)
