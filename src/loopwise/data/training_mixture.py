"""What a run trains on: stages, each a number of tokens and the share of each source in them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .documents import DataError
from .shards import ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of training."""

    tokens: int | None
    """Inputs trained on; None: as many as are asked for, which a mixture's last stage may say where it has one source."""
    shares: Mapping[str, float]
    """The share of each source, domain, or of `ALL`; they are divided by their sum."""

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise DataError(f"a stage has {self.tokens} tokens; give at least 1")
        if (
            not self.shares
            or not all(math.isfinite(share) and share >= 0 for share in self.shares.values())
            or not sum(self.shares.values())
        ):
            raise DataError(f"a stage has the shares {dict(self.shares)}; give at least one above 0 and none below")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Stages, one after the other.

    Raises:
        DataError: no stage, or one without an end that is not the last or has several sources.
    """

    name: str
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise DataError(f"mixture {self.name!r} has no stage; give at least one")
        for stage in self.stages:
            if stage.tokens is None and (stage is not self.stages[-1] or len(stage.shares) > 1):
                raise DataError(f"mixture {self.name!r}: only a last stage with one source can go on without end; give its tokens")

    @property
    def sources(self) -> tuple[str, ...]:
        """Every name that a stage gives a share, in the order of first use."""
        return tuple(dict.fromkeys(name for stage in self.stages for name, share in stage.shares.items() if share))

    @property
    def num_tokens(self) -> int | None:
        """Of all stages; None without an end."""
        counts = [stage.tokens for stage in self.stages]
        return None if None in counts else sum(count for count in counts if count is not None)

    def scaled(self, num_tokens: int) -> Mixture:
        """The same stages in the same proportions, of ``num_tokens`` in all."""
        if self.num_tokens is None:
            return (
                self if len(self.stages) > 1 else Mixture(name=self.name, stages=(Stage(tokens=num_tokens, shares=self.stages[0].shares),))
            )
        ends = [0]
        for stage in self.stages:
            ends.append(ends[-1] + (stage.tokens or 0))
        cuts = [round(num_tokens * end / ends[-1]) for end in ends]
        stages = zip(self.stages, cuts, cuts[1:], strict=False)
        return Mixture(name=self.name, stages=tuple(Stage(tokens=stop - start, shares=stage.shares) for stage, start, stop in stages))

    def to_json(self) -> dict[str, Any]:
        """As JSON, which `Mixture.from_json` reads."""
        return {"name": self.name, "stages": [{"tokens": stage.tokens, "shares": dict(stage.shares)} for stage in self.stages]}

    @classmethod
    def from_json(cls, values: Any) -> Mixture:
        """A mixture from JSON: ``{"name": ..., "stages": [{"tokens": 1000000, "shares": {"web": 0.9, "math": 0.1}}]}``.

        Raises:
            DataError: something else.
        """
        try:
            stages = tuple(_stage(stage) for stage in values["stages"])
            return cls(name=str(values["name"]), stages=stages)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"a mixture of {str(values)[:60]} lacks {error}; give its name and stages with tokens and shares") from None


def single_mixture() -> Mixture:
    """All that a folder of shards holds, in proportion, for as long as is asked."""
    return Mixture(name="single", stages=(Stage(tokens=None, shares={ALL: 1.0}),))


def read_mixture(file: str | Path) -> Mixture:
    """A mixture from a JSON file.

    Raises:
        DataError: no such file, or no mixture.
    """
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{file}: no such mixture or JSON file") from None
    except (ValueError, RecursionError):
        raise DataError(f"{file}: not JSON; write a mixture's name and stages into it") from None
    try:
        return Mixture.from_json(values)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None


def _stage(values: Mapping[str, Any]) -> Stage:
    tokens, shares = values.get("tokens"), values["shares"]
    if tokens is not None and not (_is_finite(tokens) and tokens == int(tokens)):
        raise DataError(f"a stage has tokens {str(tokens)[:40]}; give a whole number")
    if not all(map(_is_finite, shares.values())):
        raise DataError(f"a stage has the shares {str(dict(shares))[:80]}; give finite numbers")
    return Stage(tokens=None if tokens is None else int(tokens), shares=dict(shares))


def _is_finite(value: Any) -> bool:
    """Whether it is a number, and one that a float holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max
