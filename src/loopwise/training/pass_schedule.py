"""How many passes an inserted loop runs in a training step: a pure function of (seed, step), the same on every process. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["fixed", "introduced", "uniform", "curriculum"]


class PassScheduleError(ValueError):
    """A schedule of passes that cannot be: names the field, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSchedule:
    """The passes of the loops that were put into a model, step by step, for all of a step's sequences alike.

    ``fixed``: ``most``. ``introduced``: ``most`` with a probability that rises in a line, else one pass (conversion: "the probability
    of applying it rises from 0 to 1 over the first third of training", no-free-loop, A.3). ``uniform``: every number from ``least`` to
    ``most`` alike ("a random 1-3 times per batch", A.3). ``curriculum``: every number from ``least`` to a ceiling alike, which rises
    from ``first_most`` to ``most`` in stages of equal length ("K drawn from a curriculum", A.3; the stages are a guess).

    Raises:
        PassScheduleError: a value that cannot be.
    """

    kind: Kind = "fixed"
    least: int = 1
    """Of ``uniform`` and ``curriculum``."""
    most: int | None = None
    """Of all kinds; None is the loops as they were put in, for ``fixed`` and ``introduced``."""
    first_most: int = 2
    """Of ``curriculum``. A guess: recurrence is there from the first step on."""
    rise_share: float = 1 / 3
    """The first part of all steps over which ``introduced`` and ``curriculum`` rise. A third is the paper's for conversion, a guess
    for the curriculum."""
    first_probability: float = 0.0
    """Of ``introduced``, in the first step."""
    last_probability: float = 1.0
    """Of ``introduced``, once risen."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise PassScheduleError(f"passes {self.kind!r} are unknown; use {', '.join(get_args(Kind))}")
        for name in ("least", "most", "first_most"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise PassScheduleError(f"{name} is {value}; give a whole number of passes, at least 1 (the plain model)")
        for name in ("rise_share", "first_probability", "last_probability"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise PassScheduleError(f"{name} is {value}; give a number in [0, 1]")
        if self.kind in ("uniform", "curriculum"):
            if self.most is None or self.most < self.least:
                raise PassScheduleError(f"passes {self.kind} from {self.least} to {self.most}; give 1 <= least <= most")
            if self.kind == "curriculum" and not self.least <= self.first_most <= self.most:
                raise PassScheduleError(f"first_most is {self.first_most}; give one from least {self.least} to most {self.most}")

    def draw(self, *, seed: int, step: int, num_steps: int) -> int | None:
        """The passes of step ``step``, counted from 0; None is the loops as they were put in."""
        if self.kind == "fixed":
            return self.most
        import numpy as np  # takes longer to import than all else here

        rng = np.random.default_rng((seed, step))
        if self.kind == "introduced":
            return self.most if rng.random() < self.probability(step, num_steps) else 1
        return int(rng.integers(self.least, self.ceiling(step, num_steps) + 1))

    def probability(self, step: int, num_steps: int) -> float:
        """How likely ``introduced`` applies the loop in a step."""
        return self.first_probability + (self.last_probability - self.first_probability) * self._risen(step, num_steps)

    def ceiling(self, step: int, num_steps: int) -> int:
        """The most passes that ``uniform`` and ``curriculum`` draw in a step."""
        assert self.most is not None
        if self.kind == "uniform":
            return self.most
        stages = self.most - self.first_most + 1
        return min(self.most, self.first_most + math.floor(self._risen(step, num_steps) * stages))

    def _risen(self, step: int, num_steps: int) -> float:
        rise_steps = self.rise_share * num_steps
        return 1.0 if step >= rise_steps else step / rise_steps
