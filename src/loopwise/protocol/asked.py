"""Whether arms were asked the same questions: names of items and reference answers can agree where the questions do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..records import Record
from .arms import Arm
from .values import TrialError

Part = tuple[str, Mapping[str, Any], Sequence[Record]]
"""A run's source, its header, and its records of one task."""


def items_hashes(task: str, arm: str, parts: Sequence[Part]) -> tuple[str, ...]:
    """Every ``items_hash`` that an arm's runs of one task say, in headers or on lines; runs of different items have several.

    Raises:
        TrialError: two runs of the same items that were asked otherwise, as of two seeds.
    """
    seen: dict[frozenset[str], tuple[str, str]] = {}
    found: set[str] = set()
    for source, header, records in parts:
        said = {str(one) for one in (header.get("items_hash"), *(record.extra.get("items_hash") for record in records)) if one is not None}
        found |= said
        if len(said) == 1:
            own = min(said)
            items = frozenset(record.item for record in records)
            first, there = seen.setdefault(items, (source, own))
            if own != there:
                raise TrialError(
                    f"{arm}: {task} was asked otherwise in {source} than in {first} (items_hash {own[:12]} and {there[:12]}): other "
                    "questions, chat template or tokenizer; repeat one of them"
                )
    return tuple(sorted(found))


def check_asked(one: Arm, other: Arm, remedy: str) -> None:
    """Refuse two arms that were asked otherwise, as far as both say: other questions, reference answers, template or tokenizer.

    Args:
        remedy: how the message ends.

    Raises:
        TrialError: the first task or item in which they differ.
    """
    for task in (task for task in one.tasks if task in other.tables):
        ours, theirs = one.tables[task], other.tables[task]
        if ours.items_hashes and theirs.items_hashes and ours.items_hashes != theirs.items_hashes:
            raise TrialError(
                f"{task} was asked otherwise in {one.name} than in {other.name}, by questions, chat template or tokenizer (items_hash "
                f"{ours.items_hashes[0][:12]} and {theirs.items_hashes[0][:12]}); {remedy}"
            )
        for item, mine, yours in zip(ours.items, ours.prompts, theirs.prompts, strict=False):  # either may be empty
            if None not in (mine, yours) and mine != yours:
                raise TrialError(
                    f"item {item!r} of {task} was asked with another prompt in {one.name} than in {other.name} (prompt_hash "
                    f"{str(mine)[:12]} and {str(yours)[:12]}); {remedy}"
                )
