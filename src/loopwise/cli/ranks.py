"""Commands under torchrun: every process runs the command, the first one speaks, and an error in one ends all with one line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from .console import UsageError, one_line

if TYPE_CHECKING:
    from ..evaluation import Ranks

GRACE_SECONDS = 1.0
"""torchrun ends all processes when the first one ends with an error; the one that has something to say gets so long to say it."""


def num_ranks() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_silent() -> bool:
    """Whether another process says what all of them find alike."""
    return num_ranks() > 1 and os.environ.get("RANK", "0") != "0"


def end_silently() -> NoReturn:
    """End with an error that another process says."""
    time.sleep(GRACE_SECONDS)
    raise SystemExit(1)


def refuse_ranks(what: str) -> None:
    """Refuse several processes where nothing is shared out.

    Raises:
        UsageError: torchrun started several.
    """
    if num_ranks() > 1:
        if is_silent():
            end_silently()
        raise UsageError(f"{what} runs in one process, and torchrun started {num_ranks()}; start it without torchrun")


@contextmanager
def together() -> Iterator[Ranks | None]:
    """The processes of this command, None where this one is alone; the first that fails says why, and the others end without a word."""
    if num_ranks() == 1:
        yield None
        return
    from ..evaluation import join_ranks

    ranks = join_ranks()
    try:
        yield ranks
    except Exception as error:
        if not ranks.fail():
            end_silently()
        if ranks.rank == 0:
            raise
        raise ValueError(f"process {ranks.rank} of 0 to {ranks.size - 1}: {one_line(error)}") from error
