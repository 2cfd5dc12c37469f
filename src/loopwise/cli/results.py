"""Files of results on the command line: ``[ARM][@SEED]=PATH``, what of them counts, and what their answers cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..records import ResultsChoice, Run, read_results, with_cost, with_costs
from .console import UsageError

_LABEL = re.compile(r"(?P<arm>[^=@/\\]*)(?:@(?P<seed>\d{1,9}))?=(?P<path>.+)", re.DOTALL)


def split_label(text: str) -> tuple[str | None, int | None, Path]:
    """The arm, the seed and the path of ``[ARM][@SEED]=PATH``; a path alone has neither, even one with an equals sign in it.

    Raises:
        UsageError: an equals sign that names nothing.
    """
    found = None if Path(text).exists() else _LABEL.fullmatch(text)
    if found is None:
        return None, None, Path(text)
    if not found["arm"] and found["seed"] is None:
        raise UsageError(f"{text}: names neither an arm nor a seed before the equals sign; give [ARM][@SEED]=PATH, or the path alone")
    return found["arm"] or None, None if found["seed"] is None else int(found["seed"]), Path(found["path"])


def read_side(specs: Sequence[Path], choice: ResultsChoice) -> list[Run]:
    """The runs of one side.

    Raises:
        UsageError: as `split_label`.
        RecordsError: as `read_results`.
    """
    labels = [split_label(str(spec)) for spec in specs]
    return [read_results(path, replace(choice, arm=arm, seed=seed)) for arm, seed, path in labels]


def read_sides(sides: dict[str, Sequence[Path]], choice: ResultsChoice, costs: Sequence[str]) -> dict[str, list[Run]]:
    """The runs of all sides, with the costs that were given for them.

    Args:
        sides: ``looped``, ``twin`` and ``unlooped``, as given.
        costs: ``NAME=VALUE``: a side's name, or an unlooped arm's, path or file name; a number for every answer, or a CSV file.

    Raises:
        UsageError: a cost that belongs to nothing, or is neither number nor file.
        RecordsError: as `read_results`, `with_cost` and `with_costs`.
    """
    runs = {side: read_side(specs, choice) for side, specs in sides.items()}
    for text in costs:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"--cost {text}: give NAME=NUMBER or NAME=FILE.csv, e.g. twin=2.1e12")
        found = False
        for side, specs in sides.items():
            for at, spec in enumerate(specs):
                if name in _names(side, str(spec)):
                    runs[side][at] = _costed(runs[side][at], name, value)
                    found = True
        if not found:
            named = [one for side, specs in sides.items() for spec in specs for one in _names(side, str(spec))[:1]]
            raise UsageError(f"--cost {text}: nothing is called {name!r}; costs can be given for {', '.join(dict.fromkeys(named))}")
    return runs


def _names(side: str, spec: str) -> list[str]:
    """What a cost may call a file by: the side, or for an unlooped one its arm or its path."""
    if side != "unlooped":
        return [side]
    arm, _, path = split_label(spec)
    return [arm, spec] if arm else [str(path), path.name, path.stem]


def _costed(run: Run, name: str, value: str) -> Run:
    try:
        number = float(value)
    except ValueError:
        return with_costs(run, Path(value))
    return with_cost(run, number, f"--cost {name}")
