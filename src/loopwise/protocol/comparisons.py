"""Values of arms and of their paired comparisons. Plain data, no computing.

Accuracies and shares are percent (0 to 100), differences are points, looped minus the other. What is not known is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal, cast

Measure = Literal["layer-passes", "flops", "seconds"]
Side = Literal["looped", "twin", "unlooped", "larger"]
Resampling = Literal["items", "items and seeds"]

MEASURES: tuple[Measure, ...] = ("layer-passes", "flops", "seconds")
MARGIN_POINTS = 2.0
"""Equivalence means a 90 % interval within this many points of zero (no-free-loop, A.5)."""


class TrialError(ValueError):
    """Runs that cannot be compared or judged: one line with the first offender, its value and the remedy."""


def number_within(value: object, least: float, most: float) -> bool:
    """Whether a value is a number from ``least`` to ``most``: no truth value, no NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and least <= cast(float, value) <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """One arm on one benchmark."""

    task: str
    num_items: int
    accuracy_percent: float
    """Mean over seeds and items; sampled answers are averaged per item, voted ones count once."""
    finished_percent: float | None
    """Answers that ended within the budget; None where the records do not say."""
    budget_tokens: int | None
    mean_generated_tokens: float | None
    """Per answer; for a vote the sum over its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCost:
    """What an arm spends under one measure."""

    measure: Measure
    """``layer-passes``: (N+m)/N times generated tokens, in tokens of the plain model. ``flops``: the records' FLOPs, head
    included. ``seconds``: measured time."""
    per_answer: float
    """Mean over all items and seeds; for a vote the sum over its samples."""
    ratio_to_loop: float | None
    """Over the deciding looped arm's cost; None where the two cannot be compared (layer passes of another model)."""
    ratio_to_twin: float | None
    """Over the cost of the twin under the deciding rule and budget (Table 4's last column)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPoints:
    """One training seed's value."""

    seed: int
    points: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One way to spend compute, and what it scored."""

    name: str
    """Unique within a verdict; comparisons and rows refer to arms by it."""
    side: Side
    """``looped``, ``twin``, ``unlooped`` (any other unlooped use of the model) or ``larger`` (a model with more parameters)."""
    model: str | None
    num_parameters: int | None
    loops: str
    """In the notation; ``none`` for an unlooped arm, ``unknown`` for foreign looped records."""
    layer_pass_ratio: float | None
    """c = (N+m)/N; 1.0 for an unlooped arm."""
    rule: str | None
    """``plain``, ``budget-forcing``, ``repetition-stop``, ``budget-forcing+repetition-stop``, a foreign one's text; None: unknown."""
    budget_label: str
    """The token budget for tables: ``128``, or one per benchmark ``768/2048``, or ``-``."""
    budget_tokens: int | None
    """The budget where all benchmarks share it; for plotting against budgets use the label's order."""
    samples: int
    """Answers per item and seed."""
    votes: int | None
    """Samples in each majority vote; None where answers are averaged."""
    seeds: tuple[int, ...]
    num_items: int
    accuracy_percent: float
    """The unweighted mean over benchmarks (macro)."""
    accuracy_by_seed: tuple[SeedPoints, ...]
    """Macro accuracy of each seed, in percent."""
    finished_percent: float | None
    """Macro mean of the finish rates."""
    tasks: tuple[TaskScore, ...]
    costs: tuple[ArmCost, ...]
    """The measures that this arm's records support."""
    reserve_label: str | None = None
    """What budget forcing kept for the answer: ``512``, or one per benchmark ``512/128``; None where nothing is forced or known."""
    sources: tuple[str, ...] = ()
    """The files and folders that its answers were read from; those of a trial's report from the report's own folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedComparison:
    """Accuracy on the answers that **both** arms finish: does the loop help to answer, or only to end? (4.1, B.1)"""

    num_answers: int
    """Pairs of answers (item, seed, sample) that both arms finish."""
    share_percent: float
    """Of all pairs of answers; macro over benchmarks."""
    looped_percent: float
    other_percent: float
    delta_points: float
    ci95: tuple[float, float]
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """One benchmark's row of Table 8."""

    task: str
    num_items: int
    looped_percent: float
    other_percent: float
    delta_points: float
    ci95: tuple[float, float]
    ci90: tuple[float, float]
    p_value: float
    holm_p: float
    """Adjusted over the benchmarks of this comparison (the macro row is not among them)."""
    equivalent: bool
    """The 90 % interval lies within +-2 points."""
    discordant: tuple[int, int] | None
    """Items only the looped arm got right, items only the other did; None with several seeds or samples."""
    mcnemar_p: float | None
    """Exact McNemar test; None with several seeds or samples."""
    looped_finished_percent: float | None
    other_finished_percent: float | None
    both_finished: FinishedComparison | None
    """None where the records do not say what finished, or no answer is finished by both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A looped arm against another arm, paired by item and seed: one contrast with its uncertainty."""

    looped: str
    """Name of the looped arm."""
    other: str
    """Name of the arm it is compared with."""
    looped_percent: float
    """Macro accuracy."""
    other_percent: float
    delta_points: float
    ci95: tuple[float, float]
    """Percentile interval of the paired bootstrap, of the kind named by ``resampling``."""
    ci90: tuple[float, float]
    p_value: float
    """Two-sided, at least ``p_floor``."""
    p_floor: float
    """The smallest p-value that this many resamples and this many differing items could give."""
    standard_error_points: float
    equivalent: bool
    """The 90 % interval lies within +-2 points."""
    resampling: Resampling
    """``items``: conditional on the training seeds (A.5), the default. ``items and seeds``: seeds are drawn again too."""
    ci95_items_and_seeds: tuple[float, float] | None
    """Beside the other, the interval that resamples seeds too; None with one seed, or where it was not asked for."""
    p_items_and_seeds: float | None
    resamples: int
    num_items: int
    num_differing_items: int
    """Items on which the two arms differ in at least one seed and do not cancel out over seeds."""
    seeds: tuple[int, ...]
    seed_deltas: tuple[SeedPoints, ...]
    """Macro difference in each seed; empty where the two arms have other seeds."""
    seeds_favouring: int
    """Seeds in which the looped arm is ahead."""
    tasks: tuple[TaskComparison, ...]
    both_finished: FinishedComparison | None
    """Macro over benchmarks that have such answers."""
