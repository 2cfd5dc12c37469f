"""How commands that read rows of text show how far they are: rows, time left where the rows are counted, and tokens a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .console import Progress

if TYPE_CHECKING:
    from ..data import Counts

_NOTE_SECONDS = 30.0


class RowsProgress:
    """Called with `Counts`; a bar or lines of the share done, and now and then a line with the speed."""

    def __init__(self, progress: Progress, label: str) -> None:
        self.progress, self.label = progress, label
        self.started = self.noted = time.monotonic()

    def __call__(self, counts: Counts) -> None:
        now = time.monotonic()
        if counts.total_rows:
            self.progress(self.label, counts.num_rows, counts.total_rows)
        done = counts.total_rows is not None and counts.num_rows >= counts.total_rows
        if now - self.noted < _NOTE_SECONDS and not (done and counts.new_rows):
            return
        self.noted = now
        seconds = max(now - self.started, 1e-3)
        tokens = f", {counts.num_tokens:,} tokens, {counts.new_tokens / seconds:,.0f} tokens/s" if counts.num_tokens else ""
        rows = f"{self.label}: {counts.num_rows:,} rows, {counts.new_rows / seconds:,.0f} rows/s"
        self.progress.note(f"{rows}{tokens}{'' if counts.total_rows else '; time left not known'}")
