"""What a verdict prints on the console."""

from __future__ import annotations

import textwrap
from pathlib import Path

from ..protocol import ArmSummary, LargerModel, TestOutcome, Verdict
from .console import UsageError, table


def summary(verdict: Verdict, folder: Path | None = None) -> str:
    """The verdict in a sentence, both tests, every arm, and where the report lies."""
    lines = [verdict.verdict.upper(), *textwrap.wrap(verdict.sentence, 110), ""]
    lines += _test("test 1, equal parameters", verdict.equal_parameters)
    if verdict.equal_flops:
        lines += _test("test 2, equal FLOPs", verdict.equal_flops)
    else:
        lines.append(f"test 2, equal FLOPs: none: {verdict.equal_flops_reason}")
    lines += ["", table([_arm(arm) for arm in verdict.arms], ("arm", "accuracy %", "finished %", "tokens", "cost, loop = 1"))]
    lines += [f"{one.name}: {one.reason}" for one in verdict.excluded]
    lines += ["", *textwrap.wrap(verdict.advice, 110)]
    if folder is not None:
        lines += ["", f"report: {folder / 'report.html'}"]
    return "\n".join(lines)


def _test(name: str, outcome: TestOutcome) -> list[str]:
    low, high = outcome.ci95
    return [
        f"{name}: {outcome.result}",
        f"  {outcome.comparator} {outcome.comparator_percent:.1f} % -> {outcome.looped} {outcome.looped_percent:.1f} %, "
        f"{outcome.delta_points:+.1f} points [{low:+.1f}, {high:+.1f}], p = {outcome.deciding_p:.3g}",
        "  no gain can be found by trials of this size: too few items"
        if outcome.smallest_detectable_points > 100
        else f"  a gain of {outcome.smallest_detectable_points:.1f} points would be found in 4 of 5 trials of this size",
    ]


def _arm(arm: ArmSummary) -> list[str]:
    tokens = [task.mean_generated_tokens for task in arm.tasks if task.mean_generated_tokens is not None]
    ratio = next((cost.ratio_to_loop for cost in arm.costs if cost.ratio_to_loop is not None), None)
    return [
        arm.name,
        f"{arm.accuracy_percent:.1f}",
        "" if arm.finished_percent is None else f"{arm.finished_percent:.1f}",
        f"{sum(tokens) / len(tokens):.1f}" if tokens else "",
        "" if ratio is None else f"{ratio:.2f}",
    ]


def larger_model(name: str | None, parameters: float | None, accuracy: float | None) -> LargerModel | None:
    """The larger model that three options describe, or None without any of them.

    Raises:
        UsageError: some of the three are missing.
    """
    if name is None and parameters is None and accuracy is None:
        return None
    if name is None or parameters is None or accuracy is None:
        raise UsageError("--larger, --larger-parameters and --larger-accuracy go together")
    return LargerModel(name=name, num_parameters=parameters, accuracy_percent=accuracy)
