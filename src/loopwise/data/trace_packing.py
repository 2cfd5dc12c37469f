"""Which traces share a row: whole ones, in an order that is drawn anew in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .permutation import Permutation


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRows:
    """The rows of one epoch, in their order: row ``r`` holds ``traces[starts[r]:starts[r + 1]]``."""

    traces: NDArray[np.int64]
    """[traces]: every trace once."""
    starts: NDArray[np.int64]
    """[rows + 1]"""

    @property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        return len(self.starts) - 1

    def row(self, number: int) -> NDArray[np.int64]:
        """The traces of a row, from its beginning on."""
        return self.traces[self.starts[number] : self.starts[number + 1]]

    def sums(self, of_traces: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row the sum of something that every trace has."""
        return np.add.reduceat(of_traces[self.traces], self.starts[:-1])


def first_fit(lengths: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The bin of each thing, in order: the first one that has room for it, else a new one.

    Args:
        lengths: [things], none above ``capacity``.
    """
    room = np.full(len(lengths), capacity, dtype=np.int64)  # at most a bin for each
    bins = np.empty(len(lengths), dtype=np.int64)
    used = 0
    for number, length in enumerate(lengths):
        fits = room[:used] >= length
        chosen = int(fits.argmax()) if used else 0
        if not used or not fits[chosen]:
            chosen, used = used, used + 1
        bins[number] = chosen
        room[chosen] -= length
    return bins


def pack_epoch(lengths: NDArray[np.int64], capacity: int, *, key: str, window: int | None) -> EpochRows:
    """Every trace once, in rows of ``capacity``.

    The traces are shuffled; each ``window`` of them fills rows of its own by first fit; then the rows are shuffled, so that no batch is
    made of what was left over at a window's end.

    Args:
        lengths: [traces], none above ``capacity``.
        key: decides both orders.
        window: traces that are packed together; None gives each a row of its own.
    """
    size = len(lengths)
    order = Permutation(size, f"{key}:traces")(np.arange(size))
    rows = list(_rows(order, lengths, capacity, window))
    row_order = Permutation(len(rows), f"{key}:rows")(np.arange(len(rows)))
    rows = [rows[number] for number in row_order]
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return EpochRows(traces=np.concatenate(rows), starts=starts)


def _rows(order: NDArray[np.int64], lengths: NDArray[np.int64], capacity: int, window: int | None) -> Iterator[NDArray[np.int64]]:
    if window is None:
        yield from order.reshape(-1, 1)
        return
    for first in range(0, len(order), window):
        own = order[first : first + window]
        bins = first_fit(lengths[own], capacity)
        by_bin = np.argsort(bins, kind="stable")
        yield from np.split(own[by_bin], np.flatnonzero(np.diff(bins[by_bin])) + 1)
