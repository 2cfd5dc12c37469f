"""``loopwise data plan``: what a run would train on, step by step, without reading a token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .console import UsageError, print_json, table

_COUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kKmMbBgGtT]?)")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Command:
    """Print a mixture in steps: tokens of each source in each stage, and how often each would be read. Reads no tokens.

    Example: loopwise data plan --mixture arloop-0.6b --batch-tokens 1M --sequence-tokens 4096
    Example: loopwise data plan --mixture single --data shards --tokens 10M
    """

    mixture: str = "single"
    """single, arloop-0.6b, arloop-1.2b, arloop-0.6b-listed, arloop-1.2b-listed, or a .json file."""
    data: tuple[Path, ...] = ()
    """Folders of shards, for their sizes."""
    tokens: str | None = None
    """Tokens in all, e.g. 180B; default: the mixture's own."""
    batch_tokens: str = "512K"
    """Tokens of one step; a K is 1,000."""
    sequence_tokens: int = 2048
    """Tokens of one sequence."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..data import MixturePlan, named_mixture, planned_sizes

        mixture = named_mixture(self.mixture)
        if self.tokens is not None:
            mixture = mixture.scaled(parse_count(self.tokens))
        if self.sequence_tokens < 1:
            raise UsageError(f"--sequence-tokens {self.sequence_tokens}: give at least 1")
        num_sequences = max(1, round(parse_count(self.batch_tokens) / self.sequence_tokens))
        plan = MixturePlan(mixture, num_sequences=num_sequences, sequence_tokens=self.sequence_tokens)
        found = plan.describe(planned_sizes(mixture, self.data))
        if self.json:
            print_json(found)
        else:
            print(_text(found))


def parse_count(text: str) -> int:
    """A number of tokens: ``1500``, ``1.5K``, ``1M``, ``180B``.

    Raises:
        UsageError: none, or not a whole number.
    """
    match = _COUNT.fullmatch(text.replace(",", "").replace("_", ""))
    value = 0.0 if match is None else float(match["number"]) * _UNITS[match["unit"].upper()]
    if value < 1 or round(value) != value:
        raise UsageError(f"{text!r} is no number of tokens; write 1500, 1.5K, 1M or 180B")
    return round(value)


def _text(found: Mapping[str, Any]) -> str:
    rows = []
    for number, stage in enumerate(found["stages"], 1):
        for place, source in enumerate(stage["sources"]):
            steps = f"{stage['num_steps']:,}" if place == 0 else ""
            rows.append((str(number) if place == 0 else "", steps, source["source"], f"{source['share']:.2%}", f"{source['tokens']:,}"))
    totals = []
    for source in found["sources"]:
        have, epochs = source["available_tokens"], source["epochs"]
        known = ("not known" if have is None else f"{have:,}", "not known" if epochs is None else f"{epochs:.2f}")
        totals.append((source["source"], f"{source['tokens']:,}", *known))
    head = f"{found['mixture']}: {found['num_steps']:,} steps of {found['num_sequences']:,} x {found['sequence_tokens']:,} tokens"
    parts = [
        f"{head}, {found['tokens']:,} in all",
        table(rows, ("stage", "steps", "source", "share", "tokens")),
        table(totals, ("source", "tokens", "available", "epochs")),
        *(f"warning: {warning}" for warning in found["warnings"]),
    ]
    return "\n\n".join(parts)
