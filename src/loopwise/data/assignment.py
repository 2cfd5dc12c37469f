"""Which source each sequence of a stage comes from: exact shares, evenly spread, each place computed on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .documents import DataError

_SCALE = 1 << 64


def quotas(shares: Mapping[str, float], num_sequences: int) -> dict[str, int]:
    """Whole sequences of each source that come nearest to the shares and make ``num_sequences`` in all.

    Each gets its share rounded down; the sequences left over go to the largest fractions, ties to the first named (Hamilton's method).
    """
    weights = {name: Fraction(share) for name, share in shares.items()}
    exact = {name: num_sequences * weight / sum(weights.values()) for name, weight in weights.items()}
    found = {name: int(value) for name, value in exact.items()}
    by_fraction = sorted(exact, key=lambda name: found[name] - exact[name])
    for name in by_fraction[: num_sequences - sum(found.values())]:
        found[name] += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Where one sequence comes from."""

    source: str
    number: int
    """Among the sequences of its source, in this stage."""


def draws(counts: Mapping[str, int], first: int, stop: int) -> tuple[Draw, ...]:
    """The sequences ``first .. stop-1`` of a stage in which each source has so many.

    Sequence m of a source with q of the stage's S is due at time (2m + 1) / 2q, and the stage takes them as they fall due. So each source
    has exactly its q, and in any beginning of the stage its count differs from its share by less than 1 + K / 2, with K
    sources. All in whole numbers: nothing depends on rounding.

    Raises:
        DataError: sequences beyond the stage.
    """
    names = [name for name, count in counts.items() if count]
    total = sum(counts.values())
    if not 0 <= first <= stop <= total:
        raise DataError(f"sequences {first} to {stop} of a stage with {total}; ask within it")
    # Those before a time are counted without listing them; K more on each side is surely wide enough.
    low, high = (_SCALE * bound // total for bound in (first - len(names), stop + len(names)))
    before = [_due_before(counts[name], low) for name in names]
    due = [
        (_due(number, counts[name]), place, number)
        for place, name in enumerate(names)
        for number in range(before[place], _due_before(counts[name], high))
    ]
    chosen = sorted(due)[first - sum(before) : stop - sum(before)]
    return tuple(Draw(source=names[place], number=number) for _, place, number in chosen)


def _due(number: int, count: int) -> int:
    """When a source's sequence is due, in parts of `_SCALE` of the stage."""
    return (2 * number + 1) * _SCALE // (2 * count)


def _due_before(count: int, time: int) -> int:
    """How many of a source's sequences are due before a time: those m with (2m + 1) * scale < 2 * count * time."""
    return min(count, max(0, -(-(2 * count * time - _SCALE) // (2 * _SCALE))))
