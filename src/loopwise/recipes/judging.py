"""A trial's folder judged by its plan. No torch: a verdict and its report can be made anew anywhere."""

from __future__ import annotations

from pathlib import Path

from ..protocol import LargerModel, TrialError, Verdict, judge, plan_from_json, verdict_to_json
from ..protocol.files import from_json
from ..records import Run, read_json, read_run, write_json
from ..report import beside, render
from .noise_floor import read_noise_floors
from .set_judging import SET_PLAN_FILE, judge_set


def judge_trial(folder: str | Path) -> Verdict:
    """Judge a trial's runs by its plan, and write verdict and report anew; of a trial of a set, all of its verdicts and tables.

    Raises:
        TrialError: no plan, a planned arm without a run, or runs that do not belong together.
        RecordsError: a damaged run.
    """
    folder = Path(folder)
    if (folder / SET_PLAN_FILE).exists():
        return judge_set(folder)
    plan_file = folder / "plan.json"
    if not plan_file.exists():
        raise TrialError(f"{folder} holds no plan.json; give a folder that loopwise trial wrote")
    plan = plan_from_json(read_json(plan_file))
    larger_arms = {arm.name for arm in plan.arms() if arm.purpose == "larger model"}
    runs: dict[str, list[Run]] = {"looped": [], "twin": [], "unlooped": []}
    for header in sorted((folder / "runs").rglob("header.json")):
        run = read_run(header.parent)
        side = "looped" if run.header.get("looped") else "unlooped" if run.header.get("arm") in larger_arms else "twin"
        runs[side].append(run)
    larger_file = folder / "larger.json"
    larger = from_json(LargerModel, read_json(larger_file), str(larger_file)) if larger_file.exists() else None
    verdict = judge(looped=runs["looped"], twin=runs["twin"], unlooped=runs["unlooped"], plan=plan, larger=larger)
    verdict = beside(verdict, folder)
    write_json(folder / "verdict.json", verdict_to_json(verdict))
    render(
        verdict,
        folder,
        plan=plan,
        headers=[run.header for side in runs.values() for run in side],
        noise_floor=read_noise_floors(folder),
    )
    return verdict
