"""An arm's arrays as the plain values that a verdict carries."""

from __future__ import annotations

import numpy as np

from .arms import Arm
from .contrast import finished_percent
from .costs import cost_per_answer, cost_ratio, mean_generated_tokens
from .values import MEASURES, ArmCost, ArmSummary, SeedPoints, TaskScore


def summarise_arm(arm: Arm, looped: Arm, twin: Arm) -> ArmSummary:
    """The summary of one arm; its costs are set beside those of the deciding looped arm and of its twin."""
    budgets = set(arm.budgets_tokens.values())
    scores = tuple(_task_score(arm, task) for task in arm.tasks)
    finished = [score.finished_percent for score in scores if score.finished_percent is not None]
    return ArmSummary(
        name=arm.name,
        side=arm.side,
        model=arm.model,
        num_parameters=arm.num_parameters,
        loops=arm.loops,
        layer_pass_ratio=arm.layer_pass_ratio,
        rule=arm.rule,
        budget_label=arm.budget_label,
        budget_tokens=budgets.pop() if len(budgets) == 1 else None,
        samples=max(arm.votes or len(table.samples) for table in arm.tables.values()),
        votes=arm.votes,
        seeds=arm.seeds,
        num_items=arm.num_items,
        accuracy_percent=arm.accuracy_percent(),
        accuracy_by_seed=_accuracy_by_seed(arm),
        finished_percent=float(np.mean(finished)) if len(finished) == len(scores) else None,
        tasks=scores,
        costs=_costs(arm, looped, twin),
        reserve_label=_reserve_label(arm),
        sources=arm.sources,
    )


def _reserve_label(arm: Arm) -> str | None:
    values = list(arm.reserves_tokens.values())
    if all(value is None for value in values):
        return None
    return str(values[0]) if len(set(values)) == 1 else "/".join("-" if value is None else str(value) for value in values)


def _task_score(arm: Arm, task: str) -> TaskScore:
    table = arm.tables[task]
    return TaskScore(
        task=task,
        num_items=len(table.items),
        accuracy_percent=100 * float(table.correct.mean()),
        finished_percent=finished_percent(table),
        budget_tokens=table.budget_tokens,
        mean_generated_tokens=mean_generated_tokens(arm, task),
    )


def _accuracy_by_seed(arm: Arm) -> tuple[SeedPoints, ...]:
    if any(table.seeds != arm.seeds for table in arm.tables.values()):
        return ()
    by_seed = 100 * np.mean([table.accuracy().mean(axis=1) for table in arm.tables.values()], axis=0)
    return tuple(SeedPoints(seed=seed, points=float(value)) for seed, value in zip(arm.seeds, by_seed, strict=True))


def _costs(arm: Arm, looped: Arm, twin: Arm) -> tuple[ArmCost, ...]:
    costs = []
    for measure in MEASURES:
        cost = cost_per_answer(arm, measure)
        if cost is not None:
            ratios = [cost_ratio(arm, reference, measure) for reference in (looped, twin)]
            costs.append(ArmCost(measure=measure, per_answer=cost, ratio_to_loop=ratios[0], ratio_to_twin=ratios[1]))
    return tuple(costs)
