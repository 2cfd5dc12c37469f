"""The batches of a set of traces: whole traces in rows, trained on their answers alone.

Batch ``t`` is a pure function of (seed, t): each epoch is packed by its own key, so a looped model, its twin, every rank and every
resume read the same rows.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .batches import NO_LOSS, TokenBatch
from .documents import DataError
from .trace_packing import EpochRows, pack_epoch
from .trace_store import TraceSet

Counted = Literal["all", "answer"]
"""Which tokens a budget counts: the inputs that are a trace's (padding is never counted), or the targets."""

WINDOW = 1024
"""Traces that are packed together. A guess: the work of first fit grows with it, and little is gained beyond some hundreds."""
_KEPT_EPOCHS = 2


class TraceBatches:
    """The batches of a set of traces: the `BatchSource` that an engine fine-tunes on."""

    def __init__(
        self, traces: TraceSet, *, num_sequences: int, sequence_tokens: int, seed: int, packed: bool = True, window: int = WINDOW
    ) -> None:
        """Bind a set to rows.

        Args:
            num_sequences: rows of a step's whole batch, over all ranks.
            sequence_tokens: inputs of a row; a trace that does not fit into one is left out, whole, and counted in ``num_left_out``.
            packed: several traces share a row, with positions that begin again at each, so that attention keeps to it; for models whose
                attention reads that (`loopwise.models.check_packing`). Without, each has a row of its own, filled up at its end, which
                suits every causal model.
            window: traces that are packed together.

        Raises:
            DataError: a value that cannot be, or rows into which no trace fits.
        """
        for name, value, least in (("num_sequences", num_sequences, 1), ("sequence_tokens", sequence_tokens, 1), ("window", window, 1)):
            if value < least:
                raise DataError(f"{name} is {value}; give at least {least}")
        inputs = traces.table[:, 2] - 1  # the last token of a trace is a target only
        self._fitting = np.flatnonzero(inputs <= sequence_tokens)
        if not len(self._fitting):
            raise DataError(
                f"{traces.folder}: no trace fits into a row of {sequence_tokens} tokens, the shortest has {int(inputs.min()) + 1}; "
                "give longer rows"
            )
        self._lengths = inputs[self._fitting]
        self._answers = traces.table[self._fitting, 3]
        self._traces, self._num_sequences, self._sequence_tokens = traces, num_sequences, sequence_tokens
        self._seed, self._window = seed, window if packed else None
        self._firsts = [0]  # row that each epoch begins with
        self._epoch = lru_cache(maxsize=_KEPT_EPOCHS)(self._pack)

    @property
    def num_sequences(self) -> int:
        """Rows of a step's whole batch, over all ranks."""
        return self._num_sequences

    @property
    def sequence_tokens(self) -> int:
        """Inputs of a row."""
        return self._sequence_tokens

    @property
    def num_traces(self) -> int:
        """Traces of an epoch."""
        return len(self._fitting)

    @property
    def num_left_out(self) -> int:
        """Traces of the set that are longer than a row."""
        return len(self._traces) - len(self._fitting)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the batches, as JSON."""
        return {
            "traces_sha256": self._traces.sha256,
            "tokenizer_sha256": self._traces.facts.tokenizer.sha256,
            "template_sha256": self._traces.facts.template_sha256,
            "num_sequences": self.num_sequences,
            "sequence_tokens": self.sequence_tokens,
            "seed": self._seed,
            "packing": "one trace a row" if self._window is None else f"whole traces, document mask, first fit in {self._window}",
            "num_traces": self.num_traces,
            "num_left_out": self.num_left_out,
        }

    def num_steps(self, num_tokens: int, counted: Counted = "all") -> int:
        """The steps after which at least so many tokens have been read, whole epochs and parts of them.

        Args:
            counted: ``all`` counts the inputs of traces, padding left out; ``answer`` the targets.

        Raises:
            DataError: no tokens, or another word for what is counted.
        """
        if num_tokens < 1 or counted not in get_args(Counted):
            raise DataError(f"a budget of {num_tokens} {counted!r} tokens; give at least 1, counted as {' or '.join(get_args(Counted))}")
        row = found = epoch = 0
        while True:
            sums = self._epoch(epoch).sums(self._lengths if counted == "all" else self._answers)
            total = np.cumsum(sums)
            if found + int(total[-1]) >= num_tokens:
                row += int(np.searchsorted(total, num_tokens - found)) + 1
                return -(-row // self.num_sequences)
            row, found, epoch = row + len(sums), found + int(total[-1]), epoch + 1

    def epochs(self, num_steps: int) -> float:
        """How often the traces are read in so many steps."""
        epoch, row = self._place(num_steps * self.num_sequences)
        return epoch + row / self._epoch(epoch).num_rows

    def filled(self) -> float:
        """The share of the first epoch's inputs that are a trace's, not padding."""
        return float(self._lengths.sum() / (self._epoch(0).num_rows * self.sequence_tokens))

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows ``first .. stop-1`` of the batch of a step; there is a batch for every step, epoch after epoch.

        Raises:
            DataError: a negative step, or rows that the batch does not have.
        """
        stop = self.num_sequences if stop is None else stop
        if not 0 <= first < stop <= self.num_sequences:
            raise DataError(f"rows {first} to {stop} are asked of a batch with {self.num_sequences}; ask within it")
        if step < 0:
            raise DataError(f"step {step} is asked for; steps are counted from 0")
        shape = (stop - first, self.sequence_tokens)
        inputs, targets = np.full(shape, self._traces.facts.pad_token_id, dtype=np.int64), np.full(shape, NO_LOSS, dtype=np.int64)
        positions = None if self._window is None else np.empty(shape, dtype=np.int64)
        for row in range(stop - first):
            epoch, number = self._place(step * self.num_sequences + first + row)
            self._fill(self._epoch(epoch).row(number), inputs[row], targets[row], None if positions is None else positions[row])
        return TokenBatch(input_ids=inputs, targets=targets, positions=positions)

    def row_hashes(self, step: int, first: int = 0, stop: int | None = None) -> tuple[str, ...]:
        """The sha256 of each of those rows."""
        return self.batch(step, first, stop).row_hashes()

    def _fill(
        self, traces: NDArray[np.int64], inputs: NDArray[np.int64], targets: NDArray[np.int64], positions: NDArray[np.int64] | None
    ) -> None:
        """Write traces into one row, one after the other; what is left is padding, a document of its own."""
        start = 0
        for trace in traces:
            ids, trained = self._traces.read(int(self._fitting[trace]))
            stop = start + len(ids) - 1
            inputs[start:stop] = ids[:-1]
            targets[start:stop] = np.where(trained[1:] == 1, ids[1:].astype(np.int64), NO_LOSS)
            if positions is not None:
                positions[start:stop] = np.arange(stop - start)
            start = stop
        if positions is not None:
            positions[start:] = np.arange(self.sequence_tokens - start)

    def _place(self, row: int) -> tuple[int, int]:
        """The epoch that a row of the run is in, and its number there."""
        while self._firsts[-1] <= row:
            self._firsts.append(self._firsts[-1] + self._epoch(len(self._firsts) - 1).num_rows)
        epoch = bisect_right(self._firsts, row) - 1
        return epoch, row - self._firsts[epoch]

    def _pack(self, epoch: int) -> EpochRows:
        return pack_epoch(self._lengths, self.sequence_tokens, key=f"{self._seed}:{epoch}", window=self._window)
