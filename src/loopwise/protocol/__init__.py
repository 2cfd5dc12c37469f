"""The protocol of the two tests: plan, compare, judge. No torch."""

from ..stats import Bootstrap
from .decide import threshold_effect_points
from .files import (
    loss_verdict_from_json,
    loss_verdict_to_json,
    plan_from_json,
    plan_to_json,
    verdict_from_json,
    verdict_to_json,
)
from .judging import compare, judge
from .loss_values import MARGIN_MILLINATS, LossComparison, LossModel, LossRow, LossTest, LossVerdict
from .losses import judge_losses
from .plan import Plan, PlannedArm, PlannedTask, make_plan
from .post_training import BeforeAfter, TaskChange, before_after, judge_before_after
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
    "MARGIN_MILLINATS",
    "ArmCost",
    "ArmSummary",
    "BeforeAfter",
    "Bootstrap",
    "ComparatorRow",
    "Comparison",
    "ExcludedArm",
    "FinishedComparison",
    "LargerModel",
    "LossComparison",
    "LossModel",
    "LossRow",
    "LossTest",
    "LossVerdict",
    "MeasureOutcome",
    "Plan",
    "PlannedArm",
    "PlannedTask",
    "SeedPoints",
    "TaskChange",
    "TaskComparison",
    "TaskScore",
    "TestOutcome",
    "ThresholdEffect",
    "TrialError",
    "Verdict",
    "before_after",
    "compare",
    "judge",
    "judge_before_after",
    "judge_losses",
    "loss_verdict_from_json",
    "loss_verdict_to_json",
    "make_plan",
    "plan_from_json",
    "plan_to_json",
    "threshold_effect_points",
    "verdict_from_json",
    "verdict_to_json",
]
