"""A loss trial's folder judged by its plan. No torch: a verdict and its report can be made anew anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..protocol import Bootstrap, LossVerdict, TrialError, judge_losses, loss_verdict_to_json
from ..records import LossRun, read_json, read_loss_run, write_json
from ..report import render_losses

LOSS_PLAN_FILE = "loss_plan.json"
LOSS_PLAN_FORMAT = "loopwise loss plan 1"


def judge_loss_trial(folder: str | Path) -> LossVerdict:
    """Judge a loss trial's runs by its plan, and write verdict and report anew.

    Raises:
        TrialError: no plan, another version's, or runs that do not belong together.
        RecordsError: a run that is missing or damaged.
    """
    folder = Path(folder)
    if not (folder / LOSS_PLAN_FILE).exists():
        raise TrialError(f"{folder} holds no {LOSS_PLAN_FILE}; give a folder that loopwise trial --loss wrote")
    plan = read_json(folder / LOSS_PLAN_FILE)
    if plan.get("format") != LOSS_PLAN_FORMAT:
        raise TrialError(f"{folder / LOSS_PLAN_FILE}: format is {plan.get('format')!r}, not {LOSS_PLAN_FORMAT!r}; run the trial again")
    groups: dict[tuple[str, int], list[LossRun]] = {}
    for member in plan["members"]:
        run = read_loss_run(folder / "runs" / member["folder"])
        _check_planned(run, plan)
        groups.setdefault((member["side"], member["group"]), []).append(run)
    looped, twin, *others = groups.values()
    verdict = judge_losses(
        looped=looped,
        twin=twin,
        unlooped=others,
        alpha=plan["alpha"],
        margin_millinats=plan["margin_millinats"],
        bootstrap=Bootstrap(resamples=plan["resamples"], resampling=plan["resampling"]),
    )
    write_json(folder / "verdict.json", loss_verdict_to_json(verdict))
    render_losses(verdict, folder, headers=[run.header for runs in groups.values() for run in runs])
    return verdict


def _check_planned(run: LossRun, plan: dict[str, Any]) -> None:
    for field in ("text_hash", "tokens_hash", "context_tokens", "stride_tokens"):
        if run.header.get(field) != plan[field]:
            raise TrialError(
                f"{run.source}: {field} is {run.header.get(field)!r}, the plan has {plan[field]!r}; run the trial in a new --out"
            )
