"""What ARLoop's Tables 1, 2 and 8 print, by scale, design and loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

Published = Mapping[str, Mapping[str, Mapping[int, tuple[float | None, ...]]]]

TABLE_1: Published = {
    "140m": {
        "sandwich": {1: (18.98,), 3: (17.19,), 5: (16.59,)},
        "deeploop": {1: (18.72,), 3: (17.05,), 5: (16.52,)},
        "parcae-decay": {1: (18.37,), 3: (16.60,), 5: (16.01,)},
        "parcae": {1: (18.37,), 3: (16.55,), 5: (15.96,)},
        "prenorm": {1: (18.37,), 3: (16.91,), 5: (16.34,)},
    },
    "370m": {
        "sandwich": {1: (13.92,), 3: (12.97,)},
        "deeploop": {1: (13.69,), 3: (12.78,)},
        "parcae-decay": {1: (13.55,), 3: (12.31,)},
        "parcae": {1: (13.55,), 3: (12.30,)},
        "prenorm": {1: (13.55,), 3: (12.48,)},
    },
}
TABLE_2: Published = {
    "140m": {
        "prenorm": {1: (None, 41.41), 2: (17.48, 42.22), 3: (16.91, 42.72), 4: (16.59, 43.27)},
        "arloop-full": {1: (None, 41.82), 2: (17.27, 41.96), 3: (16.46, 43.69), 4: (16.07, 44.09)},
        "arloop-sw": {2: (17.30, 42.27), 3: (16.38, 43.09), 4: (16.03, 43.73)},
    },
    "370m": {
        "prenorm": {2: (12.83, 48.98), 3: (12.48, 49.29)},
        "arloop-full": {2: (12.68, 48.70), 3: (12.27, 50.23)},
        "arloop-sw": {2: (12.55, 49.25), 3: (12.17, 50.67)},
    },
}
"""Table 2's perplexity and zero-shot accuracy in percent; of R = 1 the accuracies of Table 8, which has no perplexity."""


class Printed(TypedDict, total=False):
    perplexity: float
    accuracy_percent: float


def printed(table: Published, size: str, design: str, loops: int) -> Printed:
    """A row's values, as keywords; none where the table prints none."""
    names: tuple[Literal["perplexity", "accuracy_percent"], ...] = ("perplexity", "accuracy_percent")
    found = Printed()
    for name, value in zip(names, table.get(size, {}).get(design, {}).get(loops, ()), strict=False):
        if value is not None:
            found[name] = value
    return found
