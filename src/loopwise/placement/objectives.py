"""What a search minimises: one small function of what was measured for each objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopwise.loops import Loop, parent_of, parse_loops
from loopwise.records import CandidateResult

from .space import PlacementError

DEPTH_RULE = (0.45, 0.60)
"""Window centres that Chen et al. find with benchmark labels (no-free-loop, sections 2 and D.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A named score of candidates; lower is better, infinite for what is ruined."""

    name: str
    measure: str | None
    """The measurement that it reads: ``text``, ``text+kl``, ``accuracy:TASK``, or None where the place alone decides."""
    value: Callable[[CandidateResult, int], float]
    """From a result that has values, and the model's number of layers."""
    what: str
    """In a few words, for help and reports."""

    def score(self, result: CandidateResult, num_layers: int) -> float:
        """The score of a result, also of one that was dropped by a race (an estimate) or is ruined (infinite)."""
        if result.status in ("ruined", "failed"):
            return math.inf
        value = self.value(result, num_layers)
        return value if math.isfinite(value) else math.inf


def calibrated_loss(result: CandidateResult, num_layers: int) -> float:
    """The loss in nats at the candidate's own fitted temperature, log PPL_T (no-free-loop, section 3 and Appendix E)."""
    return result.values["loss_nats"]


def plain_loss(result: CandidateResult, num_layers: int) -> float:
    """The loss in nats at T = 1: it also rewards loops that merely flatten an over-confident model (Appendix E)."""
    return result.values["plain_loss_nats"]


def divergence(result: CandidateResult, num_layers: int) -> float:
    """KL(unlooped || looped) in nats; over all spans it favours loops that do nothing, so the space is narrowed (A.1)."""
    return result.values["kl_nats"]


def distance_to_depth_rule(result: CandidateResult, num_layers: int) -> float:
    """How far the window's centre lies from 0.45 to 0.60 of the depth, and within it from its middle, a thousandth as much."""
    centre = centre_of(parse_loops(result.loops, num_layers), num_layers)
    return max(DEPTH_RULE[0] - centre, centre - DEPTH_RULE[1], 0.0) + abs(centre - sum(DEPTH_RULE) / 2) / 1000


def centre_of(loops: Sequence[Loop], num_layers: int) -> float:
    """The centre of the looped layers as a part of depth.

    Several windows count by their widths; loops inside a window do not count; where only MLP halves loop, their layers do.
    """
    windows = [loop for loop in loops if loop.part == "layer" and parent_of(loop, loops) is None]
    counted = windows or [loop for loop in loops if loop.part == "mlp"]
    width = sum(loop.stop - loop.start for loop in counted)
    if not width:
        raise PlacementError("no loop has no centre: leave the unlooped model out")
    return sum((loop.start + loop.stop) / 2 * (loop.stop - loop.start) for loop in counted) / width / num_layers


def error_rate(result: CandidateResult, num_layers: int) -> float:
    """The share of training problems answered wrongly; never of test items (A.4)."""
    return 1.0 - result.values["accuracy"]


OBJECTIVES: dict[str, Objective] = {
    "ppl_t": Objective(name="ppl_t", measure="text", value=calibrated_loss, what="calibrated perplexity"),
    "ppl": Objective(name="ppl", measure="text", value=plain_loss, what="plain perplexity"),
    "kl": Objective(name="kl", measure="text+kl", value=divergence, what="divergence from the unlooped model"),
    "depth_rule": Objective(name="depth_rule", measure=None, value=distance_to_depth_rule, what="window centre at 0.45 to 0.60 of depth"),
}


def objective_named(name: str) -> Objective:
    """The objective of that name; ``accuracy:TASK`` is one for every task.

    Raises:
        PlacementError: no such objective.
    """
    if name.startswith("accuracy:") and name != "accuracy:":
        return Objective(name=name, measure=name, value=error_rate, what=f"wrong answers to training problems of {name[9:]}")
    if name not in OBJECTIVES:
        raise PlacementError(f"unknown objective {name!r}; use {', '.join(OBJECTIVES)} or accuracy:TASK")
    return OBJECTIVES[name]
