"""Values of a judged loss trial. Plain data, no computing.

Losses are nats per token, differences milli-nats per token: the comparator's loss minus the looped model's, so that above zero the loop
is ahead (no-free-loop, Figure 3). What is not known is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .comparisons import Resampling
from .values import TestResult, VerdictWord

LossSide = Literal["looped", "twin", "unlooped"]
LossTestName = Literal["equal parameters", "equal FLOPs", "equal training FLOPs"]

MARGIN_MILLINATS = 5.0
"""Equivalence means a 90 % interval within this many milli-nats of zero. A guess: no paper gives one; of no-free-loop's Table 6, 2
milli-nats "barely change the loss" and 19 are a loop's lead over its twin."""
LEAST_DOCUMENTS = 30
"""Documents below which nothing is called equivalent and a note warns. A guess: the percentile interval of fewer is too narrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossModel:
    """One model, or several training seeds of one, on the text."""

    name: str
    """Unique within a verdict."""
    side: LossSide
    models: tuple[str, ...]
    """As they were asked for, one a training seed."""
    loops: str
    num_parameters: int
    layer_pass_ratio: float
    flops_per_token: float
    """Forward FLOPs of one token, head included."""
    flops_ratio: float
    """Over the looped model's."""
    training_flops: float | None
    """Mean over the seeds; None where the runs do not say."""
    training_flops_ratio: float | None
    """Over the looped model's."""
    loss_nats: float
    """Per token, over all documents and seeds."""
    loss_by_seed: tuple[float, ...]
    bits_per_byte: float | None
    perplexity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """The looped model against one other, paired by document and seed."""

    looped: str
    other: str
    delta_millinats: float
    ci95: tuple[float, float]
    ci90: tuple[float, float]
    p_value: float
    """Two-sided against zero, at least ``p_floor``."""
    p_floor: float
    """What the resamples, and the number of documents that differ, allow at least."""
    standard_error_millinats: float
    resampling: Resampling
    """``items`` are documents; ``items and seeds`` where it also draws training seeds."""
    ci95_items: tuple[float, float]
    """With the documents drawn again alone."""
    num_documents: int
    num_differing: int
    seed_deltas: tuple[float, ...]
    """Milli-nats of each pair of training seeds."""
    seeds_favouring: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """One line of a test's table."""

    comparison: LossComparison
    eligible: bool
    """Whether it spends no more than the looped model, in what the test holds equal."""
    decides: bool
    reason: str
    cost_ratio: float | None
    """In what the test holds equal, over the looped model's; None where it is not known, or nothing is held equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTest:
    """One test's outcome, with the table that it rests on."""

    name: LossTestName
    result: TestResult
    passed: bool
    reached: bool
    """Whether it can decide: the first always, the second if the first was passed, the one at equal training FLOPs never."""
    comparison: LossComparison
    """With the comparator: the twin, or the unlooped model of the lowest loss that spends no more."""
    p_value: float
    """Of a gain: the largest over all eligible models."""
    p_value_loss: float
    """Of a loss: the comparator's times the number of eligible models."""
    smallest_detectable_millinats: float
    """The gain that these documents and seeds would show four times in five."""
    num_eligible: int
    rows: tuple[LossRow, ...]
    statement: str

    @property
    def deciding_p(self) -> float:
        """The p-value that the result rests on."""
        return self.p_value_loss if self.result == "loss" else self.p_value


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVerdict:
    """Does the loop pay, by held-out loss?"""

    verdict: VerdictWord
    sentence: str
    model: str
    num_parameters: int
    loops: str
    cost_ratio: float
    """c = (N+m)/N of the loop."""
    num_documents: int
    num_targets: int
    num_bytes: int
    text_hash: str
    context_tokens: int
    stride_tokens: int
    start_token: str | None
    num_seeds: int
    few_seeds: bool
    training_free: bool
    """Looped model and twin are the same weights."""
    marks: str
    """As in `Verdict`."""
    alpha: float
    margin_millinats: float
    equal_parameters: LossTest
    equal_flops: LossTest | None
    equal_flops_reason: str | None
    """Why there is no second test."""
    equal_training: LossTest | None
    """Beside the two, never deciding."""
    equal_training_reason: str | None
    advice: str
    notes: tuple[str, ...]
    models: tuple[LossModel, ...]
    """The looped model, the twin, the others."""
    resampling: Resampling
    resamples: int
    resampling_seed: int
