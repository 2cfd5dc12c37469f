"""Repetition: the output repeats a period of 4 to 256 tokens three times (no-free-loop, Table 4 and B.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_PERIOD = 4
MAX_PERIOD = 256
REPEATS = 3


def repeats(token_ids: Sequence[int]) -> bool:
    """Whether ``token_ids`` ends in the same stretch of 4 to 256 tokens three times. The definition; `RepetitionWatch` is its fast form."""
    for period in range(MIN_PERIOD, min(MAX_PERIOD, len(token_ids) // REPEATS) + 1):
        stretch = list(token_ids[-period:])
        if list(token_ids[-REPEATS * period :]) == stretch * REPEATS:
            return True
    return False


class RepetitionWatch:
    """`repeats` for the rows of a batch, one token each a step.

    The last 3p tokens are one period of p three times exactly if each of the last 2p tokens equals the one p before it. So
    a run of such matches is counted for each row and period, and a run of 2p is a hit: one comparison a period and step.
    """

    _PERIODS = np.arange(MAX_PERIOD, MIN_PERIOD - 1, -1)
    """From long to short, as the tokens before the newest lie in a row."""

    def __init__(self, num_rows: int, num_steps: int) -> None:
        """Watch ``num_rows`` rows; ``num_steps`` is how many steps there is room for before the past is moved to the front."""
        self._seen = np.full((num_rows, MAX_PERIOD + num_steps), -1, dtype=np.int64)  # -1 is no token and never matches
        self._runs = np.zeros((num_rows, len(self._PERIODS)), dtype=np.int32)
        self._step = 0

    def update(self, token_ids: Sequence[int]) -> list[bool]:
        """Add one token to each row; for each row whether its output now ends in a repetition."""
        if MAX_PERIOD + self._step == self._seen.shape[1]:
            self._seen[:, :MAX_PERIOD] = self._seen[:, self._step :].copy()
            self._step = 0
        new = np.asarray(token_ids, dtype=np.int64)[:, None]
        before = self._seen[:, self._step : self._step + len(self._PERIODS)]
        self._runs += 1
        self._runs *= before == new
        self._seen[:, MAX_PERIOD + self._step] = new[:, 0]
        self._step += 1
        hits = np.any(self._runs >= (REPEATS - 1) * self._PERIODS, axis=1)
        return [bool(hit) for hit in hits]

    def restart(self, row: int) -> None:
        """Forget what ``row`` wrote: from here on only new tokens count."""
        self._seen[row] = -1
        self._runs[row] = 0

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self._seen = self._seen[list(rows)]
        self._runs = self._runs[list(rows)]
