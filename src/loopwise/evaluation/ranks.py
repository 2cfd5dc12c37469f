"""Several processes on one evaluation, under torchrun: who this one is, and what they tell each other.

They speak over the key-value store that torchrun keeps and never meet in a collective: one may decode for hours while the others
go on, and an error in one reaches all.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

POLL_SECONDS = 0.05
"""Between looks at the store while this process has nothing else to do."""
PART_CHARACTERS = 1 << 20
"""Of a value's text that one entry of the store holds: the store takes some megabytes at a time."""


class RanksError(ValueError):
    """Processes that do not belong together, or another process that failed and says why itself."""


class Store(Protocol):
    """What is used of a store of ``torch.distributed``."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> bool: ...


class Ranks:
    """This process among all of them; by default it is alone.

    Every process makes the same evaluations in the same order. Values are plain JSON.
    """

    def __init__(self, *, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        """Join the processes that share a store.

        Raises:
            RanksError: a rank that is not below the size, or several processes without a store.
        """
        if not 0 <= rank < size:
            raise RanksError(f"rank {rank} of {size} processes; give one from 0 to the number of processes less one")
        if size > 1 and store is None:
            raise RanksError(f"{size} processes without a store that they share; start them with torchrun")
        self.rank, self.size = rank, size
        self._store: Store = dist.HashStore() if store is None else store  # type: ignore[attr-defined]
        self._evaluations = 0

    def next_evaluation(self) -> str:
        """The beginning of the names of the next evaluation's values, the same in every process."""
        self._evaluations += 1
        return f"evaluation-{self._evaluations}/"

    def send(self, name: str, value: Any) -> None:
        """Put a value where every process finds it."""
        text = json.dumps(value)
        parts = [text[first : first + PART_CHARACTERS] for first in range(0, len(text), PART_CHARACTERS)]
        for number, part in enumerate(parts):
            self._store.set(f"{name}/{number}", part)
        self._store.set(name, str(len(parts)))

    def receive(self, name: str, *, once: bool = False) -> Any:
        """A value that another process sends; waits for it.

        Args:
            once: nobody else wants it, so that the store need not keep it.

        Raises:
            RanksError: another process failed meanwhile.
        """
        while not self._store.check([name]):
            self.check()
            time.sleep(POLL_SECONDS)
        names = [f"{name}/{number}" for number in range(int(self._store.get(name)))]
        value = json.loads(b"".join(self._store.get(part) for part in names))
        if once:
            self.forget(name)
        return value

    def forget(self, name: str) -> None:
        """Take a value that was sent out of the store."""
        for part in range(int(self._store.get(name))):
            self._store.delete_key(f"{name}/{part}")
        self._store.delete_key(name)

    def add(self, name: str, amount: int = 0) -> int:
        """A count that all processes share, after ``amount`` was added."""
        return int(self._store.add(name, amount))

    def wait_for(self, name: str, amount: int) -> None:
        """Wait until a shared count is there.

        Raises:
            RanksError: another process failed meanwhile.
        """
        while self.add(name) < amount:
            self.check()
            time.sleep(POLL_SECONDS)

    def fail(self) -> bool:
        """Tell all that this process fails; whether it is the first, which is the one that says why."""
        return self.add("failures", 1) == 1

    def check(self) -> None:
        """Stop here where another process failed.

        Raises:
            RanksError: one did.
        """
        if self.size > 1 and self.add("failures"):
            raise RanksError("another process of this evaluation failed; its own message says why")

    def own_device(self, device: str) -> str:
        """On a machine with several GPUs each process has one of its own."""
        return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def join_ranks() -> Ranks:
    """Join the other processes that torchrun started, if it started any; the same value at every call."""
    return _joined() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Ranks()


@functools.cache
def _joined() -> Ranks:
    store, rank, size = next(rendezvous("env://"))
    return Ranks(rank=rank, size=size, store=dist.PrefixStore("loopwise-evaluations", store))  # type: ignore[attr-defined]
