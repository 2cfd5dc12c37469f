"""Student's t over training runs: what to say of paired differences when seeds are few."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .bootstrap import Estimate, StatsError, check_arrays


def mean_half_width(values: Sequence[float], level: float = 0.95) -> float | None:
    """Half the interval of a mean over training seeds; None with fewer than two."""
    if len(values) < 2:
        return None
    return _quantile(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def over_training_runs(differences: npt.ArrayLike) -> Estimate:
    """The mean of paired differences over training runs of this kind and items of this kind, by Student's t.

    The squared standard error is the seeds' variance over their number and the items' over theirs; chance in the items that the
    seeds share would else be missing. What single differences add by chance is in both, so that the interval is a little wide.
    The degrees of freedom are the seeds' less one: a bootstrap that draws two or three seeds again shows too little of their spread.

    Args:
        differences: [seeds, items], of at least two each.

    Raises:
        StatsError: fewer, or values that are not finite.
    """
    from scipy.stats import t  # takes seconds to import

    [array] = check_arrays([differences])
    seeds, items = array.shape
    if min(seeds, items) < 2:
        raise StatsError(f"{seeds} seeds and {items} items; an interval over both needs at least two of each")
    mean = float(array.mean())
    error = math.sqrt(float(array.mean(axis=1).var(ddof=1)) / seeds + float(array.mean(axis=0).var(ddof=1)) / items)
    p_value = float(2 * t.sf(abs(mean) / error, seeds - 1)) if error else float(mean == 0.0)
    ends = {level: error * _quantile(level, seeds - 1) for level in (0.95, 0.90)}
    return Estimate(
        value=mean,
        ci95=(mean - ends[0.95], mean + ends[0.95]),
        ci90=(mean - ends[0.90], mean + ends[0.90]),
        p_value=p_value,
        standard_error=error,
    )


def _quantile(level: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, freedom))
