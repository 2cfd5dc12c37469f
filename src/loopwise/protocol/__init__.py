"""The protocol of the two tests: plan, compare, judge. No torch."""

from ..stats import Bootstrap
from .decide import threshold_effect_points
from .files import plan_from_json, plan_to_json, verdict_from_json, verdict_to_json
from .judging import compare, judge
from .plan import Plan, PlannedArm, PlannedTask, make_plan
from .values import (
    ArmCost,
    ArmSummary,
    ComparatorRow,
    Comparison,
    ExcludedArm,
    FinishedComparison,
    LargerModel,
    MeasureOutcome,
    SeedPoints,
    TaskComparison,
    TaskScore,
    TestOutcome,
    ThresholdEffect,
    TrialError,
    Verdict,
)

__all__ = [
    "ArmCost",
    "ArmSummary",
    "Bootstrap",
    "ComparatorRow",
    "Comparison",
    "ExcludedArm",
    "FinishedComparison",
    "LargerModel",
    "MeasureOutcome",
    "Plan",
    "PlannedArm",
    "PlannedTask",
    "SeedPoints",
    "TaskComparison",
    "TaskScore",
    "TestOutcome",
    "ThresholdEffect",
    "TrialError",
    "Verdict",
    "compare",
    "judge",
    "make_plan",
    "plan_from_json",
    "plan_to_json",
    "threshold_effect_points",
    "verdict_from_json",
    "verdict_to_json",
]
