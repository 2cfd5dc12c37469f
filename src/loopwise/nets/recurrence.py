"""How many loops a training step runs: a pure function of (seed, step), so that all ranks and every resume draw the same.

The draws need numpy and no torch; a rank takes its own sequences' part of a per-sequence draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from .configuration import NetError

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["fixed", "poisson", "lognormal_poisson", "uniform"]
MOST_MEAN = 10_000
"""The largest mean. A guess: no paper loops a hundredth as often, and numpy's draws end at some number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The depth of one training step, as `LoopedTransformer.forward` takes it."""

    num_loops: int
    """Loops that run: the largest depth in the batch."""
    depths: tuple[int, ...] | None = None
    """Each sequence's own depth, at most ``num_loops``; None: the same for all."""
    grad_loops: int | None = None
    """Only the last so many loops keep gradients; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """The distribution of the number of loops in training.

    ``fixed``: ``mean`` itself. ``poisson``: clamp(Poisson(mean), least, most), ARLoop's Table 15 with mean 4 in [1, 4].
    ``lognormal_poisson``: Poisson(rate) + 1, rate ~ LogNormal(ln(mean) - sigma^2/2, sigma) (Huginn, arXiv 2502.05171).
    ``uniform``: every whole number from least to most alike, "a random 1-3 times per batch" (no-free-loop, A.3).

    Raises:
        NetError: a value that cannot be.
    """

    kind: Kind = "fixed"
    mean: float = 1.0
    """R of ``fixed``, the mean before clamping of the two Poisson kinds; ``uniform`` does not read it."""
    sigma: float = 0.5
    """Of the log-normal rate (Huginn's code)."""
    least: int = 1
    most: int | None = None
    """The clamp, inclusive; None only where the kind needs none."""
    per_sequence: bool = False
    """One draw for every sequence (ARLoop's Poisson-Seq), not one for the batch (Poisson-Batch)."""
    backprop_loops: int | None = None
    """Truncated backpropagation: only the last so many loops keep gradients (8 in Huginn); None: all."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise NetError(f"recurrence {self.kind!r} is unknown; use {', '.join(get_args(Kind))}")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise NetError(f"recurrence {self.kind} from {self.least} to {self.most}; give 1 <= least <= most")
        if self.kind == "uniform" and self.most is None:
            raise NetError("recurrence uniform needs its largest value; give most")
        if not self.mean <= MOST_MEAN or not math.isfinite(self.sigma):  # nothing that is compared with NaN is true
            raise NetError(f"recurrence {self.kind} with mean {self.mean}, sigma {self.sigma}; give a mean of at most {MOST_MEAN}")
        if self.kind == "fixed" and (self.mean < 1 or self.mean != int(self.mean) or self.per_sequence):
            raise NetError(
                f"recurrence fixed with mean {self.mean:g}, per_sequence {self.per_sequence}; give a whole number, for all sequences"
            )
        if not self.mean > 0 or not self.sigma >= 0:
            raise NetError(
                f"recurrence {self.kind} with mean {self.mean}, sigma {self.sigma}; give a mean above 0 and a sigma of at least 0"
            )
        if self.backprop_loops is not None and (self.backprop_loops < 1 or self.per_sequence):
            raise NetError(
                f"backprop_loops is {self.backprop_loops}, per_sequence {self.per_sequence}; give at least 1, one draw for the batch"
            )

    def draw(self, *, seed: int, step: int, num_sequences: int) -> Depth:
        """The depth of step ``step``.

        Args:
            num_sequences: of the whole batch over all ranks, for a draw per sequence; its order is the batch's.
        """
        if self.kind == "fixed":
            return self._depth([int(self.mean)], None)
        import numpy as np  # takes longer to import than all else here

        rng = np.random.default_rng((seed, step))
        draws = [self._clamp(value) for value in self._numbers(rng, num_sequences if self.per_sequence else 1)]
        return self._depth(draws, tuple(draws) if self.per_sequence else None)

    def _numbers(self, rng: np.random.Generator, count: int) -> list[int]:
        if self.kind == "uniform":
            assert self.most is not None
            return [int(n) for n in rng.integers(self.least, self.most + 1, size=count)]
        if self.kind == "poisson":
            return [int(n) for n in rng.poisson(self.mean, size=count)]
        rates = rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma, size=count)
        return [int(n) + 1 for n in rng.poisson(rates)]

    def _clamp(self, value: int) -> int:
        return max(self.least, value if self.most is None else min(value, self.most))

    def _depth(self, draws: list[int], depths: tuple[int, ...] | None) -> Depth:
        num_loops = max(draws)
        kept = self.backprop_loops
        return Depth(num_loops=num_loops, depths=depths, grad_loops=None if kept is None or kept >= num_loops else kept)
