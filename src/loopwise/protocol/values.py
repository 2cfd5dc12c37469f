"""Values of a judged trial: the two tests' outcomes and the verdict, beside those of `comparisons`. Plain data, no computing.

Every value turns into JSON and back (``verdict_to_json``, ``verdict_from_json`` in `loopwise.protocol.files`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .comparisons import (
    MARGIN_POINTS,
    MEASURES,
    ArmCost,
    ArmSummary,
    Comparison,
    FinishedComparison,
    Measure,
    Resampling,
    SeedPoints,
    Side,
    TaskComparison,
    TaskScore,
    TrialError,
    number_within,
)

__all__ = [
    "FEW_SEEDS_MARK",
    "MARGIN_POINTS",
    "MEASURES",
    "TRAINING_FREE_MARK",
    "ArmCost",
    "ArmSummary",
    "ComparatorRow",
    "Comparison",
    "ExcludedArm",
    "FinishedComparison",
    "LargerModel",
    "Measure",
    "MeasureOutcome",
    "Resampling",
    "RowRole",
    "SeedPoints",
    "Side",
    "TaskComparison",
    "TaskScore",
    "TestOutcome",
    "TestResult",
    "ThresholdEffect",
    "TrialError",
    "Verdict",
    "VerdictWord",
    "number_within",
]

TestResult = Literal["gain", "loss", "equivalent", "not shown"]
VerdictWord = Literal["pays", "does not pay", "not shown"]
RowRole = Literal["same budget", "best cheaper", "candidate", "other rule", "costlier", "larger model", "one-sided budget forcing"]

FEW_SEEDS_MARK = "△"
TRAINING_FREE_MARK = "‡"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparatorRow:
    """One line of a test's table: a looped arm against one comparator."""

    role: RowRole
    """Why the row is there. ``candidate``: an unlooped arm under the loop's own decoding rule, eligible or not.
    ``same budget``: the twin at the loop's own budget and rule. ``best cheaper``: the most accurate eligible arm, at each of
    the loop's budgets.
    ``other rule``: an unlooped arm under another decoding rule. ``costlier``, ``larger model``: shown, never deciding.
    ``one-sided budget forcing``: a diagnostic, unfair by construction."""
    label: str
    """The row's text in a table, with the warning that belongs to it."""
    looped: str
    other: str
    eligible: bool
    """Whether the arm takes part in the second test: unlooped, the loop's rule, at most the loop's cost."""
    decides: bool
    """Whether this is the row that the test's outcome rests on."""
    reason: str
    """Why it is eligible, not eligible, or only shown."""
    cost_ratio: float | None
    """The comparator's cost over the looped arm's, under the deciding measure."""
    comparison: Comparison
    p_value: float
    """The comparison's p-value; for ``best cheaper`` the largest over the eligible arms."""
    holm_p: float | None
    """Adjusted over the budgets of this role; None where the row belongs to no family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOutcome:
    """The second test under one measure of cost."""

    measure: Measure
    comparator: str | None
    """The most accurate eligible arm; None where no unlooped arm is known to cost at most as much as the loop, or where an arm of
    unknown cost is at least as accurate."""
    num_eligible: int
    delta_points: float | None
    ci95: tuple[float, float] | None
    p_value: float | None
    result: TestResult | None
    verdict: VerdictWord
    """What the whole verdict would be under this measure."""
    flips: bool
    """Whether that differs from the verdict under the deciding measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOutcome:
    """One of the two tests, with the table that it rests on."""

    name: Literal["equal parameters", "equal FLOPs"]
    result: TestResult
    """``gain``: significantly ahead. ``loss``: significantly behind. ``equivalent``: within +-2 points. ``not shown``: none of these."""
    passed: bool
    looped: str
    comparator: str
    looped_percent: float
    comparator_percent: float
    delta_points: float
    ci95: tuple[float, float]
    """Against the comparator; for equal FLOPs it was chosen on these items, which favours the unlooped side."""
    ci90: tuple[float, float]
    """Equivalence as a verdict needs more than this interval: 150 items, and for equal FLOPs the level corrected for the choice."""
    p_value: float
    """Equal parameters: against the twin. Equal FLOPs: the largest over the eligible arms."""
    p_value_loss: float
    """The p-value that a loss rests on: Bonferroni over the eligible arms (equal parameters: ``p_value``)."""
    equivalent: bool
    """The 90 % interval against the comparator lies within +-2 points."""
    smallest_detectable_points: float
    """The gain that this many items and seeds find with 80 % power at this discordance."""
    num_eligible: int
    """Arms that the comparator was chosen from; 1 for equal parameters."""
    measure: Measure | None
    """The deciding measure of cost; None for equal parameters."""
    comparison: Comparison
    """The full contrast with the comparator: benchmarks, seeds, both-finished accuracy."""
    rows: tuple[ComparatorRow, ...]
    measures: tuple[MeasureOutcome, ...]
    """Equal FLOPs under every available measure; empty for equal parameters."""
    statement: str
    """The outcome in one sentence with its numbers."""

    @property
    def deciding_p(self) -> float:
        """The p-value that the result rests on."""
        return self.p_value_loss if self.result == "loss" else self.p_value


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerModel:
    """The model that a budget which can grow would buy instead (section 4.5)."""

    name: str
    num_parameters: float
    accuracy_percent: float
    """On the trial's benchmarks, macro."""
    weight_bytes: float | None = None
    """Memory of its weights; None: two bytes a parameter."""

    def __post_init__(self) -> None:
        if not number_within(self.num_parameters, 1, 1e30):
            raise TrialError(f"larger model {self.name}: it has {str(self.num_parameters)[:40]} parameters; give a number from 1")
        if not number_within(self.accuracy_percent, 0, 100):
            raise TrialError(f"larger model {self.name}: its accuracy is {str(self.accuracy_percent)[:40]}; give percent, from 0 to 100")
        if self.weight_bytes is not None and not number_within(self.weight_bytes, 1, 1e30):
            raise TrialError(f"larger model {self.name}: its weights are {str(self.weight_bytes)[:40]} bytes; give a number from 1")

    @property
    def memory_bytes(self) -> float:
        """The given bytes, or bf16 weights."""
        return 2.0 * self.num_parameters if self.weight_bytes is None else self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdEffect:
    """Delta* (section 4.3): the gain that growing the model by the loop's extra compute would bring."""

    cost_ratio: float
    parameter_ratio: float
    accuracy_gap_points: float
    """The larger model's accuracy minus the twin's."""
    points: float
    """log c / log(P_large / P_small) times the gap."""
    reached: bool
    """Whether the loop's gain at equal parameters is at least this large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedArm:
    """An arm that could not take part, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Does the loop pay? The two tests' outcome with everything that it rests on."""

    verdict: VerdictWord
    sentence: str
    """The verdict in one plain sentence with its numbers."""
    model: str | None
    num_parameters: int | None
    loops: str
    cost_ratio: float | None
    """c = (N+m)/N of the loop; None where foreign records do not say."""
    tasks: tuple[str, ...]
    num_items: int
    seeds: tuple[int, ...]
    few_seeds: bool
    """Fewer than three seeds: results carry the mark of ``marks``."""
    training_free: bool
    """Looped arm and twin are the same weights: nothing was trained, seeds are replicates of decoding."""
    marks: str
    """``△`` for fewer than three seeds, ``‡`` for a training-free loop, both, or nothing."""
    alpha: float
    margin_points: float
    deciding_rule: str | None
    deciding_budget_label: str
    deciding_by: Literal["plan", "caller", "default"]
    """Who fixed the deciding budget and rule; only ``plan`` was written before the runs."""
    deciding_measure: Measure | None
    equal_parameters: TestOutcome
    equal_flops: TestOutcome | None
    equal_flops_reason: str | None
    """Why there is no second test; None where there is one."""
    unjudged_rows: tuple[ComparatorRow, ...]
    """The second test's table where there is no second test (costs unknown, or no arm as cheap as the loop); else empty."""
    threshold: ThresholdEffect | None
    larger: LargerModel | None
    advice: str
    """The rule of section 4.5, applied to this verdict."""
    notes: tuple[str, ...]
    """What a reader must know before quoting the numbers; one sentence each."""
    arms: tuple[ArmSummary, ...]
    """All arms: looped, twin, unlooped, larger; in each, by rule and budget."""
    excluded: tuple[ExcludedArm, ...]
    resampling: Resampling
    resamples: int
    resampling_seed: int
