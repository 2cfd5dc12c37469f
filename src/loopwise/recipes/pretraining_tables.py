"""The tables of pretraining runs by name."""

from __future__ import annotations

from typing import get_args

from ..training import TrainingError
from . import arloop, free_loop
from .pretraining import PretrainingTable, Scale

TABLES = {**arloop.TABLES, **free_loop.TABLES}
"""Every table by its name: a function of the scale."""


def pretraining_table(name: str, scale: str = "paper") -> PretrainingTable:
    """A table at a scale.

    Raises:
        TrainingError: no such table or scale.
    """
    if name not in TABLES:
        raise TrainingError(f"no table is called {name!r}; use {', '.join(TABLES)}")
    if scale not in get_args(Scale):
        raise TrainingError(f"scale is {scale!r}; use {' or '.join(get_args(Scale))}")
    return TABLES[name](scale)  # type: ignore[arg-type]  # checked above
