"""One evaluation's batches over several processes: each takes the next batch of the plan, and the first process writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..records import Record, Run, RunWriter
from ..records.runs import parse_record
from .ranks import POLL_SECONDS, Ranks, RanksError

LOOK_SECONDS = 0.2
"""Between looks at the store while a batch is decoded. A guess: so much is lost by a kill, and a look takes below a millisecond."""


class Spread:
    """The work of one evaluation, shared out. Alone it is a plain loop over the batches.

    Which rows share a batch is the plan's; only who decodes a batch depends on the processes, and no record depends on that.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.first = ranks.rank == 0
        self._name = ranks.next_evaluation()
        self._pending: Sequence[int] = ()
        self._write: Callable[[Record], None] = _nowhere
        self._progress: Callable[[float], None] | None = None
        self._finished = self._collected = 0
        self._looked = self._told = 0.0

    def first_says(self, missing: bool) -> bool:
        """Whether an answer is missing, as the first process sees it: it alone reads the folder, and all begin or nobody does.

        Raises:
            RanksError: another process failed.
        """
        if self.ranks.size > 1 and self.first:
            self.ranks.send(self._name + "missing", missing)
        return missing if self.first else bool(self.ranks.receive(self._name + "missing"))

    def agree(self, header: dict[str, Any]) -> None:
        """Check that every process would write the same header: same model, task, threads, versions and kind of device. Nobody goes on
        before all have it.

        Raises:
            RanksError: one would not; the first differing field is named.
        """
        if self.ranks.size == 1:
            return
        ours = json.loads(json.dumps(header))
        if self.first:
            self.ranks.send(self._name + "header", ours)
            self.ranks.wait_for(self._name + "agreed", self.ranks.size - 1)
            return
        there = self.ranks.receive(self._name + "header")
        for name in sorted(there.keys() | ours.keys()):
            if name not in RunWriter.UNBOUND and there.get(name) != ours.get(name):
                raise RanksError(
                    f"this process has another {name} ({ours.get(name)!r}) than the first one ({there.get(name)!r}); "
                    "the processes of one run are alike: give all the same"
                )
        self.ranks.add(self._name + "agreed", 1)

    def batches(self, pending: Sequence[int], write: Callable[[Record], None], progress: Callable[[float], None] | None) -> Iterator[int]:
        """The batches that this process decodes; in the first one it ends when all processes have done theirs.

        Args:
            pending: numbers of the plan's batches that lack a record; those of the first process count.
            write: takes each record, in the first process only.

        Raises:
            RanksError: another process failed.
        """
        if self.first:
            if self.ranks.size > 1:
                self.ranks.send(self._name + "pending", list(pending))
            self._pending, self._write, self._progress = pending, write, progress
        else:
            self._pending = self.ranks.receive(self._name + "pending")
        while (place := self.ranks.add(self._name + "taken", 1) - 1) < len(self._pending):
            yield self._pending[place]
            self.ranks.add(self._name + "finished", 1)
            self._look()
            self.report(0.0)
        while self.first and self._finished < len(self._pending):
            time.sleep(POLL_SECONDS)
            self._look()
            self.report(0.0)

    def keep(self, record: Record) -> None:
        """Write a record, or send it to the process that writes."""
        if self.first:
            self._write(record)
        else:
            self.ranks.send(f"{self._name}record-{self.ranks.add(self._name + 'sent', 1)}", record.to_json())

    def report(self, share: float) -> None:
        """Tell how far all are, ``share`` of this process's batch being done; now and then look what the others did."""
        if self.ranks.size > 1 and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look()
        done = min(1.0, (self._finished + share) / len(self._pending)) if self._pending else 0.0
        if self._progress and done > self._told:
            self._told = done
            self._progress(done)

    def _look(self) -> None:
        self._looked = time.monotonic()
        self.ranks.check()
        finished = self.ranks.add(self._name + "finished")  # first: what a finished batch sent is there then
        while self.first and self._collected < self.ranks.add(self._name + "sent"):
            self._collected += 1
            line = self.ranks.receive(f"{self._name}record-{self._collected}", once=True)
            self._write(parse_record(line, "a record of another process"))
        self._finished = finished

    def hand_out(self, run: Run) -> Run:
        """Give the whole run to the other processes, which may not see its folder, and wait until they have it."""
        if self.ranks.size > 1:
            lines = [record.to_json() for record in run.records]
            self.ranks.send(self._name + "run", {"header": run.header, "records": lines, "source": run.source})
            self.ranks.wait_for(self._name + "received", self.ranks.size - 1)
            for name in ("missing", "header", "pending", "run"):
                self.ranks.forget(self._name + name)
        return run

    def whole_run(self) -> Run:
        """The run as the first process has it."""
        found = self.ranks.receive(self._name + "run")
        self.ranks.add(self._name + "received", 1)
        records = tuple(parse_record(line, "a record of the first process") for line in found["records"])
        return Run(found["header"], records, found["source"])


def _nowhere(record: Record) -> None:
    raise RanksError(f"record {record.key} has no writer in this process")
