"""What models are called in verdicts: the end of a long path says enough; headers and plans keep the whole."""

from __future__ import annotations

import re
from collections.abc import Sequence

_KEPT_PARTS = 2
"""Of a path, from its end: a set's member or a run, and what it belongs to. As many as a hub's name has."""
_SEED = re.compile(r"seed-\d+")


def models_name(models: Sequence[str]) -> str:
    """One name for the models of an arm; those that differ in their training seed's folder alone are ``NAME, 3 seeds``,
    others ``FIRST and 2 more``."""
    distinct = list(dict.fromkeys(models))
    if len(distinct) == 1:
        return _end_of(distinct[0])
    without_seed = {"/".join(part for part in model.split("/") if not _SEED.fullmatch(part)) for model in distinct}
    if len(without_seed) == 1:
        return f"{_end_of(without_seed.pop())}, {len(distinct)} seeds"
    return f"{_end_of(distinct[0])} and {len(distinct) - 1} more"


def _end_of(model: str) -> str:
    parts = [part for part in model.split("/") if part]
    if len(parts) > _KEPT_PARTS and parts[-1] == "model":  # where a training run keeps its model
        del parts[-1]
    return "/".join(parts[-_KEPT_PARTS:]) if len(parts) > _KEPT_PARTS else model
