"""A set's trial judged by its plan: the two tests for each pair of twins, and tables of the controls. No torch.

An unlooped control is a candidate of a pair's second test where its training took no more than the looped model's: "training only the
twin longer is not a fair test of the loop" (no-free-loop, B.2), while equal training compute is (A.2). Longer trained ones are shown
beside it. Looped controls of equal cost have a table against the looped model, as test depths have one against the twin. Where the trial
names one of the set before post-training, the difference of differences stands below.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .. import stats
from ..protocol import Bootstrap, LargerModel, Plan, TrialError, Verdict, judge, plan_from_json, verdict_to_json
from ..protocol.arms import Arm
from ..protocol.contrast import Contrasts
from ..protocol.files import from_json
from ..protocol.gather import SCORED_RULES, gather
from ..records import RecordsError, Run, read_json, read_run, write_json
from ..report import beside, render
from .learning_members import EQUAL_FLOPS, LOOPED, TWIN
from .set_before_after import BeforeRow, before_report, before_rows, check_before, not_judged_report
from .set_tables import PAIRS_FOLDER, ControlRow, set_report

SET_PLAN_FILE, SET_VERDICT_FILE, SET_REPORT_FILE = "set_plan.json", "set_verdict.json", "set_report.md"
FORMAT = "loopwise-set-trial/1"
_SAME_FLOPS = 1.001
"""Training FLOPs within this factor are equal: steps are whole."""

TriedRole = Literal["looped", "twin", "equal-flops", "placement", "depth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedMember:
    """A member of a set as a trial evaluates it."""

    name: str
    """Also the name of its folder under ``runs/``."""
    member: str
    """Of the set."""
    role: TriedRole
    """``depth`` is the looped member at another number of passes."""
    loops: str
    """``none`` without a loop."""
    token_factor: float
    training_flops: float | None
    """What it was charged, what it began with included, on average over seeds."""
    every_arm: bool
    """Whether it runs every arm of the plan's; else those under the deciding rule at the plan's budgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTrialPlan:
    """What a set's trial evaluates beside what its ``plan.json`` fixes."""

    folder: str
    """Of the set."""
    seeds: tuple[int, ...]
    members: tuple[TriedMember, ...]
    left_out: Mapping[str, str]
    """Members that are not evaluated, and why."""
    before: str | None = None
    """The folder of the trial of the set before post-training, from this trial's own; None: there is none."""
    before_added: bool = False
    """Whether that was named once this trial had begun; the report says so."""

    def candidates(self, looped: TriedMember) -> tuple[TriedMember, ...]:
        """The unlooped members that are candidates of a looped one's second test beside its own twin."""
        others = [one for one in self.members if one.role in (TWIN, EQUAL_FLOPS) and one != self.twin_of(looped)]
        return tuple(one for one in others if one.role == EQUAL_FLOPS or trained_no_more(one, looped))

    def twin_of(self, looped: TriedMember) -> TriedMember | None:
        """The unlooped member that was trained identically."""
        return next((one for one in self.members if one.role == TWIN and one.token_factor == looped.token_factor), None)

    def named(self, name: str) -> TriedMember:
        """A member by its name."""
        return next(one for one in self.members if one.name == name)


def trained_no_more(one: TriedMember, looped: TriedMember) -> bool:
    """Whether an unlooped member's training took at most the looped one's: by FLOPs, or by tokens where they are not known."""
    if one.training_flops is None or looped.training_flops is None:
        return one.token_factor <= looped.token_factor
    return one.training_flops <= _SAME_FLOPS * looped.training_flops


def set_plan_to_json(plan: SetTrialPlan) -> dict[str, Any]:
    """As plain JSON values."""
    values = {"format": FORMAT, **asdict(plan), "seeds": list(plan.seeds), "members": [asdict(one) for one in plan.members]}
    return values if plan.before_added else {name: value for name, value in values.items() if name != "before_added"}


def set_plan_from_json(values: Mapping[str, Any], file: Path) -> SetTrialPlan:
    """What `set_plan_to_json` wrote.

    Raises:
        TrialError: something else.
    """
    try:
        if values["format"] != FORMAT:
            raise TrialError(f"{file}: format {values['format']!r} is not {FORMAT!r}; try the set in a new --out")
        members = tuple(TriedMember(**one) for one in values["members"])
        return SetTrialPlan(
            folder=str(values["folder"]),
            seeds=tuple(values["seeds"]),
            members=members,
            left_out=dict(values["left_out"]),
            before=values.get("before"),
            before_added=bool(values.get("before_added")),
        )
    except (KeyError, TypeError) as error:
        raise TrialError(f"{file}: damaged ({type(error).__name__}: {str(error)[:80]}); try the set in a new --out") from None


def judge_set(folder: str | Path) -> Verdict:
    """Judge every pair of a set's trial by its plan and compare the controls; writes verdicts, reports and tables anew.

    Returns:
        The verdict of the loop under test; those of longer trained pairs lie under ``pairs/``.

    Raises:
        TrialError: no plan, a planned arm without a run, or runs that do not belong together; or a trial before that cannot be
            compared, which is said after all else is written.
        RecordsError: a damaged run.
    """
    folder = Path(folder)
    plan, tested = read_plans(folder)
    larger_file = folder / "larger.json"
    larger = from_json(LargerModel, read_json(larger_file), str(larger_file)) if larger_file.exists() else None
    runs = {one.name: _runs_of(folder, one) for one in tested.members}
    verdicts = {}
    for looped in (one for one in tested.members if one.role == LOOPED):
        twin = tested.twin_of(looped)
        assert twin is not None  # the set's plan has both or neither
        unlooped = [run for one in tested.candidates(looped) for run in runs[one.name]]
        where = folder if looped.name == LOOPED else folder / PAIRS_FOLDER / looped.name
        verdict = judge(looped=runs[looped.name], twin=runs[twin.name], unlooped=unlooped, plan=plan, larger=larger)
        verdict = beside(verdict, where)
        where.mkdir(parents=True, exist_ok=True)
        write_json(where / "verdict.json", verdict_to_json(verdict))
        render(verdict, where, plan=plan, headers=[run.header for run in (*runs[looped.name], *runs[twin.name], *unlooped)])
        verdicts[looped.name] = verdict
    rows = _control_rows(tested, runs, plan)
    changes, their_lines, fault = _against_before(folder, tested, runs, plan)
    values = {
        "pairs": {name: one.sentence for name, one in verdicts.items()},
        "controls": [asdict(row) for row in rows],
        "before_after": [asdict(row) for row in changes],
        "before_after_fault": fault or None,
    }
    write_json(folder / SET_VERDICT_FILE, values)
    (folder / SET_REPORT_FILE).write_text(set_report(tested, verdicts, rows, their_lines), encoding="utf-8")
    if fault:
        raise TrialError(f"before and after were not judged, all else is in {folder / SET_REPORT_FILE}: {fault}")
    return verdicts[LOOPED]


def read_plans(folder: Path) -> tuple[Plan, SetTrialPlan]:
    """Both plans of a set's trial.

    Raises:
        TrialError: it is no set's trial.
    """
    file = folder / SET_PLAN_FILE
    if not file.exists():
        raise TrialError(f"{folder}: holds no trial of a set; give the --out of a loopwise trial SET")
    return plan_from_json(read_json(folder / "plan.json")), set_plan_from_json(read_json(file), file)


def read_before(plan: Plan, where: Path) -> tuple[Plan, SetTrialPlan]:
    """Both plans of the trial of the set before post-training, checked against this trial's plan.

    Raises:
        TrialError: no finished trial of a set, or one of other items or decoding.
    """
    found = read_plans(where)
    if not (where / SET_VERDICT_FILE).exists():
        raise TrialError(f"{where}: the trial before is not finished; finish it with its own command first")
    check_before(plan, found[0], where)
    return found


def arms_before(tested: SetTrialPlan, plan: Plan, where: Path) -> tuple[SetTrialPlan, dict[str, Arm]]:
    """The trial before, and its deciding arm of every member that this one has too.

    Raises:
        TrialError: as `read_before`, or an arm without a complete run.
        RecordsError: a damaged run.
    """
    _, its = read_before(plan, where)
    ours = {one.name for one in tested.members}
    return its, deciding_arms(where, [one.name for one in its.members if one.name in ours])


def deciding_arms(where: Path, names: Collection[str]) -> dict[str, Arm]:
    """The deciding arms of members of a set's trial.

    Raises:
        TrialError: it is no set's trial, or an arm has no complete run.
        RecordsError: a damaged run.
    """
    plan, tested = read_plans(where)
    return {one.name: _deciding(_runs_of(where, one), plan) for one in tested.members if one.name in names}


def _against_before(
    folder: Path, tested: SetTrialPlan, runs: Mapping[str, Sequence[Run]], plan: Plan
) -> tuple[tuple[BeforeRow, ...], Sequence[str], str]:
    """The differences of differences against the trial before, their table, and why there are none; nothing without such a trial."""
    if tested.before is None:
        return (), (), ""
    try:
        its, arms = arms_before(tested, plan, folder / tested.before)
        bootstrap = Bootstrap(resamples=plan.resamples, seed=plan.resampling_seed, resampling=plan.resampling)
        rows = before_rows(tested, its, lambda name: _deciding(runs[name], plan), arms.__getitem__, bootstrap, plan.alpha)
    except (TrialError, RecordsError) as error:  # what was evaluated is judged all the same
        return (), not_judged_report(str(error)), str(error)
    return rows, before_report(rows, its, added=tested.before_added), ""


def _runs_of(folder: Path, member: TriedMember) -> list[Run]:
    found = [read_run(header.parent) for header in sorted((folder / "runs" / member.name).rglob("header.json"))]
    if not found:
        raise TrialError(f"{folder / 'runs' / member.name}: the planned member has no run; finish the trial before it is judged")
    return found


def _control_rows(tested: SetTrialPlan, runs: Mapping[str, Sequence[Run]], plan: Plan) -> tuple[ControlRow, ...]:
    contrasts = Contrasts(Bootstrap(resamples=plan.resamples, seed=plan.resampling_seed, resampling=plan.resampling))
    looped = tested.named(LOOPED)
    fair = tested.candidates(looped)
    longer = [one for one in tested.members if one.role == TWIN and one.token_factor > 1 and one not in fair]
    tables: dict[Literal["placements", "depths", "longer twins"], list[tuple[str, str, TriedMember]]] = {
        "placements": [(LOOPED, one.name, one) for one in tested.members if one.role == "placement"],
        "depths": [(one.name, TWIN, one) for one in tested.members if one.role == "depth"],
        "longer twins": [(LOOPED, one.name, one) for one in longer],
    }
    rows = []
    for table, pairs in tables.items():
        found = [contrasts.of(_deciding(runs[ours], plan), _deciding(runs[other], plan), with_seeds=True) for ours, other, _ in pairs]
        adjusted = stats.holm([one.comparison.p_value for one in found]) if found else []
        for (ours, other, member), one, p in zip(pairs, found, adjusted, strict=True):
            rows.append(ControlRow(table=table, ours=ours, other=other, loops=member.loops, comparison=one.comparison, holm_p=float(p)))
    return tuple(rows)


def _deciding(runs: Sequence[Run], plan: Plan) -> Arm:
    """The arm under the plan's deciding rule and budget.

    Raises:
        TrialError: it has no complete run.
    """
    side: Literal["looped", "twin"] = "looped" if runs[0].header.get("looped") else "twin"
    budgets = plan.deciding_budgets_tokens()
    arms = [arm for arm in gather(runs, side) if arm.rule in (plan.deciding_rule, "plain" if _scored(runs) else None)]
    reserves = plan.deciding_reserves_tokens()
    found = [arm for arm in arms if arm.budgets_tokens == budgets and all(arm.reserves_tokens[t] in (None, r) for t, r in reserves.items())]
    if not found:
        raise TrialError(f"{runs[0].source}: there is no run under {plan.deciding_rule} at {budgets}; finish the trial before it is judged")
    return found[0]


def _scored(runs: Sequence[Run]) -> bool:
    return all(run.header.get("rule") in SCORED_RULES for run in runs)
