"""Sequences of equal length from a stream of tokens, in an order that is drawn anew in each epoch.

The stream is cut into windows of ``sequence_tokens + 1`` tokens, each beginning with the last token of the one before: so every token
is the input of one position and the target of one, but for the first and for fewer than ``sequence_tokens`` at the end. Sequence
``n`` is a pure function of (seed, name, n); nothing in proportion to the corpus is kept in memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batches import NO_LOSS, TokenBatch
from .documents import DataError
from .permutation import Permutation
from .shards import TokenStream


class PackedSequences:
    """The sequences of one stream of tokens, epoch after epoch."""

    def __init__(self, stream: TokenStream, *, name: str, sequence_tokens: int, seed: int, document_mask: bool = False) -> None:
        """Cut a stream.

        Args:
            name: with the seed it decides the order; two streams of one run have different ones.
            sequence_tokens: inputs of a row.
            document_mask: positions start again with each document, so that attention keeps to it, and the last token of a document has
                no target. Without, rows are plain stretches of the stream.

        Raises:
            DataError: a stream of less than one window.
        """
        if sequence_tokens < 1:
            raise DataError(f"sequence_tokens is {sequence_tokens}; give at least 1")
        if stream.num_tokens <= sequence_tokens:
            raise DataError(
                f"{name}: has {stream.num_tokens} tokens, a sequence takes {sequence_tokens + 1}; give more text or shorter sequences"
            )
        self._stream, self._name, self._seed = stream, name, seed
        self.sequence_tokens, self.document_mask = sequence_tokens, document_mask
        self.num_windows = (stream.num_tokens - 1) // sequence_tokens
        """Sequences of one epoch."""
        self._order: tuple[int, Permutation] | None = None

    def windows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which window of the stream each sequence is; sequence ``n`` belongs to epoch ``n // num_windows``."""
        epochs, places = np.divmod(numbers, self.num_windows)
        found = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            found[chosen] = self._permutation(int(epoch))(places[chosen])
        return found

    def read(self, numbers: NDArray[np.int64]) -> TokenBatch:
        """The sequences of these numbers, one a row."""
        shape = (len(numbers), self.sequence_tokens)
        inputs, targets = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        positions = np.empty(shape, dtype=np.int64) if self.document_mask else None
        for row, window in enumerate(self.windows(numbers)):
            first = int(window) * self.sequence_tokens
            tokens = self._stream.tokens(first, first + self.sequence_tokens + 1)
            inputs[row], targets[row] = tokens[:-1], tokens[1:]
            if positions is not None:
                starts = self._stream.document_starts(first, first + self.sequence_tokens + 1) - first
                targets[row, starts[starts > 0] - 1] = NO_LOSS
                positions[row] = _positions(starts, self.sequence_tokens)
        return TokenBatch(input_ids=inputs, targets=targets, positions=positions)

    def _permutation(self, epoch: int) -> Permutation:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, Permutation(self.num_windows, f"{self._seed}:{self._name}:{epoch}")
        return self._order[1]


def _positions(starts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The place of each of ``size`` tokens in its document, or in what of it the window shows."""
    begins = np.zeros(size, dtype=np.int64)
    inside = starts[starts < size]
    begins[inside] = inside
    return np.arange(size, dtype=np.int64) - np.maximum.accumulate(begins)
