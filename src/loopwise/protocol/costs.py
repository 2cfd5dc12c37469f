"""What an arm spends, under three named measures, over the same items and seeds as its accuracy."""

from __future__ import annotations

import numpy as np

from .arms import Arm
from .gather import SAME_SIZE
from .values import MEASURES, Measure

COST_FIELDS: dict[Measure, str] = {"layer-passes": "generated_tokens", "flops": "flops", "seconds": "seconds"}
"""The field of a record that each measure rests on."""


def cost_per_answer(arm: Arm, measure: Measure) -> float | None:
    """Mean cost of one item in one seed; None where any record, or the loop's layer-pass ratio, is not known, or where all cost 0:
    then nobody measured.

    ``layer-passes``: (N+m)/N times generated tokens (no-free-loop, section 3). ``flops``, ``seconds``: as recorded. Several
    sampled answers are averaged like their accuracy; a vote pays for all of its samples.
    """
    name = COST_FIELDS[measure]
    arrays = [getattr(table, name) for table in arm.tables.values()]
    if any(array is None for array in arrays):
        return None
    total = sum(array.mean(axis=2).sum() for array in arrays) / sum(array[:, :, 0].size for array in arrays)
    if not total:
        return None
    if measure != "layer-passes":
        return float(total)
    return None if arm.layer_pass_ratio is None else float(arm.layer_pass_ratio * total)


def cost_ratio(arm: Arm, reference: Arm, measure: Measure) -> float | None:
    """An arm's cost over another's; None where one is unknown, or where layer passes of two models would be compared."""
    if measure == "layer-passes" and not same_size(arm, reference):
        return None
    cost, base = cost_per_answer(arm, measure), cost_per_answer(reference, measure)
    return None if cost is None or base is None else cost / base


def same_size(arm: Arm, other: Arm) -> bool:
    """Whether two arms run models with the same number of parameters, as far as is known."""
    if arm.num_parameters is None or other.num_parameters is None:
        return True
    return bool(1 / SAME_SIZE <= arm.num_parameters / other.num_parameters <= SAME_SIZE)


def known_measures(looped: Arm) -> tuple[Measure, ...]:
    """The measures under which the looped arm's cost is known."""
    return tuple(measure for measure in MEASURES if cost_per_answer(looped, measure) is not None)


def unknown_cost_reason(arm: Arm, measure: Measure) -> str:
    """What an arm's records lack for a measure."""
    field = COST_FIELDS[measure]
    if any(getattr(table, field) is None for table in arm.tables.values()):
        return f"cost unknown: some of its records have no {field}"
    if all(not getattr(table, field).any() for table in arm.tables.values()):
        return f"cost unknown: {field} is 0 in all of its records"
    return "cost not comparable: layer passes of another model"


def mean_generated_tokens(arm: Arm, task: str) -> float | None:
    """Per item and seed; for a vote the sum over its samples."""
    tokens = arm.tables[task].generated_tokens
    return None if tokens is None else float(np.mean(tokens))
