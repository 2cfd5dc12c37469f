"""The one temperature that minimises a model's loss on a text (no-free-loop, section 3 and Appendix E)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST_TEMPERATURE = 1 / 64
HIGHEST_TEMPERATURE = 64.0
CHUNK_POSITIONS = 32
"""How many positions are in fp32 at once; 32 of a vocabulary of 150,000 take 19 MB, which stays in a CPU's cache."""


class ScoringError(ValueError):
    """A text or a model that cannot be scored: names what, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogits:
    """The logits of some positions, in the dtype in which the model computed them, and the tokens that followed."""

    logits: Tensor
    """[positions, vocabulary]"""
    targets: Tensor
    """[positions]: the token that stands at each position, which the logits predict."""

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The positions by parts, logits as a copy in fp32 to work on, so that the whole never is."""
        for start in range(0, len(self.targets), CHUNK_POSITIONS):
            logits = self.logits[start : start + CHUNK_POSITIONS].to(torch.float32, copy=True)
            yield logits, self.targets[start : start + CHUNK_POSITIONS]


def losses_at(part: PositionLogits, *temperatures: float) -> Tensor:
    """The loss of each position in nats with the logits divided by each temperature; fp32, [temperatures, positions]."""
    losses = []
    for logits, targets in part.chunks():
        logits -= logits.amax(dim=-1, keepdim=True)  # once for all temperatures
        own = logits.gather(1, targets[:, None])[:, 0]
        losses.append(torch.stack([(logits / one).exp_().sum(dim=-1).log_() - own / one for one in temperatures]))
    return torch.cat(losses, dim=1) if losses else torch.empty(len(temperatures), 0)


def fit_temperature(parts: Sequence[PositionLogits], *, tolerance: float = 1e-4, start: float = 1.0) -> float:
    """The T that minimises the mean loss over the positions of ``parts``, to ``tolerance`` in log T. For scoring only.

    The loss is convex in b = 1/T, with slope E_b[z] - z_target and curvature Var_b[z], where E_b is over the softmax of b*z.
    Newton's method runs inside a bracket and steps half a tolerance too far, so that the bracket closes from both sides;
    a step out of it is replaced by bisection in log b. ``start`` is a guess, e.g. a similar model's T: it saves steps.

    Raises:
        ScoringError: no position, logits that are not finite, or a loss without a minimum between the lowest and the highest
            temperature (it falls for ever where every target has the highest logit, or where flatter is always better).
    """
    num_positions = sum(len(part.targets) for part in parts)
    if num_positions == 0:
        raise ScoringError("the fitting split holds no position to score; give longer documents or a smaller stride")
    low, high = 1 / HIGHEST_TEMPERATURE, 1 / LOWEST_TEMPERATURE
    low_is_seen = high_is_seen = False
    first = inverse = min(max(1 / start, low), high)
    while math.log(high / low) > tolerance:
        slope, curvature = _slope_and_curvature(parts, inverse, num_positions)
        if not (math.isfinite(slope) and math.isfinite(curvature)):
            raise ScoringError("the model's logits are not finite on the fitting split; no temperature can be fitted")
        if slope == curvature == 0 and inverse == first:
            raise ScoringError("the loss on the fitting split does not depend on the temperature: all logits are equal, or all are certain")
        if slope == 0 < curvature:
            return 1 / inverse
        if slope > 0:
            high, high_is_seen = inverse, True
        else:
            low, low_is_seen = inverse, True
        newton = inverse - slope / curvature if curvature > 0 else 0.0
        inverse = newton * math.exp(math.copysign(tolerance / 2, -slope))
        if not low < inverse < high:
            inverse = math.sqrt(low * high)
    if not (low_is_seen and high_is_seen):
        edge = HIGHEST_TEMPERATURE if not low_is_seen else LOWEST_TEMPERATURE
        reason = "the model knows nothing of this text" if not low_is_seen else "the model knows this text by heart"
        raise ScoringError(
            f"no temperature minimises the loss on the {num_positions} positions of the fitting split: it still falls at "
            f"T = {edge:g}, so {reason}; give other text"
        )
    return 1 / math.sqrt(low * high)


def _slope_and_curvature(parts: Sequence[PositionLogits], inverse: float, num_positions: int) -> tuple[float, float]:
    """First and second derivative of the mean loss by 1/T."""
    sums = sum((expansion(part, inverse)[1:].double().sum(dim=1) for part in parts), start=torch.zeros(2, dtype=torch.float64))
    slope, curvature = (sums / num_positions).tolist()
    return slope, curvature


def expansion(part: PositionLogits, inverse: float) -> Tensor:
    """Each position's loss at 1/T = ``inverse``, and its first and second derivative by 1/T; fp32, [3, positions].

    Logits are taken from their row's largest, against cancellation.
    """
    found = []
    for logits, targets in part.chunks():
        logits -= logits.amax(dim=-1, keepdim=True)
        weights = (logits * inverse).exp_()
        totals = weights.sum(dim=-1)
        own = logits.gather(1, targets[:, None])[:, 0]
        weights *= logits
        mean = weights.sum(dim=-1) / totals
        square = torch.linalg.vecdot(weights, logits) / totals
        found.append(torch.stack([totals.log_() - inverse * own, mean - own, square - mean.square()]))
    return torch.cat(found, dim=1) if found else torch.empty(3, 0)
