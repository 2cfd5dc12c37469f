"""Statistics of paired evaluations: pure functions over arrays. numpy at import, scipy inside functions."""

from .bootstrap import (
    Bootstrap,
    Estimate,
    Resampling,
    StatsError,
    difference_of_differences,
    estimate,
    macro_bootstrap,
    macro_mean,
    percentile_interval,
    resample_means,
    resample_ratios,
    two_sided_p,
)
from .correlation import RankCorrelation, score_accuracy_rho
from .effects import (
    Correlation,
    detectable_effect,
    equivalent,
    items_for_equivalence,
    per_seed,
    planned_standard_error,
    smallest_detectable,
    spearman,
)
from .exact import holm, mcnemar_exact, sign_floor
from .planning import smallest_gain, smallest_gain_over_training_runs, smallest_one_sided
from .student import mean_half_width, over_training_runs

__all__ = [
    "Bootstrap",
    "Correlation",
    "Estimate",
    "RankCorrelation",
    "Resampling",
    "StatsError",
    "detectable_effect",
    "difference_of_differences",
    "equivalent",
    "estimate",
    "holm",
    "items_for_equivalence",
    "macro_bootstrap",
    "macro_mean",
    "mcnemar_exact",
    "mean_half_width",
    "over_training_runs",
    "per_seed",
    "percentile_interval",
    "planned_standard_error",
    "resample_means",
    "resample_ratios",
    "score_accuracy_rho",
    "sign_floor",
    "smallest_detectable",
    "smallest_gain",
    "smallest_gain_over_training_runs",
    "smallest_one_sided",
    "spearman",
    "two_sided_p",
]
