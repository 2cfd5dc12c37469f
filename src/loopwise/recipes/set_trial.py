"""The trial of a set: every member and seed of what ``loopwise learn`` trained is evaluated, then judged. Killed anywhere, it goes on.

Training seeds are the replicates: a record's ``seed`` is the seed of the model that gave the answer.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..evaluation import items_hash
from ..loops import format_loops, parse_loops, with_passes
from ..models import Source, load, resolve, resolve_loops
from ..protocol import Plan, PlannedArm, TrialError, Verdict
from ..records import read_json, write_json
from ..serving import VllmHost
from ..tasks import Task, permit, tasks_named
from ..training import MODEL_FOLDER
from .arm_runner import ArmRunner, Pair
from .learning_files import read_result, read_set
from .learning_members import LOOPED, TWIN
from .learning_summary import shared_alarms
from .set_before_after import Questions, check_questions
from .set_judging import SET_PLAN_FILE, SetTrialPlan, TriedMember, arms_before, judge_set, set_plan_to_json
from .trial import check_answering, keep_plan, plan_trial
from .trial_settings import Progress, TrialSettings


def set_trial(
    folder: str | Path,
    *,
    out: str | Path,
    tasks: Sequence[str] = ("ladder",),
    budgets: Sequence[int] = (),
    depths: Sequence[int] = (),
    before: str | Path | None = None,
    progress: Progress | None = None,
    settings: TrialSettings | None = None,
) -> Verdict:
    """Judge a set with real runs; the same call goes on where a killed one stopped.

    ``plan.json`` and ``set_plan.json`` are written before the first answer. Runs lie under ``runs/MEMBER/ARM/seed-N``. The looped model
    and its twin run every arm of the plan, and so does every longer trained pair; controls run under the deciding rule at every budget.

    Args:
        folder: what ``loopwise learn`` wrote.
        depths: further numbers of passes that the looped model is evaluated at; by default every one that anchored recurrent depth was
            trained at, and none of other recipes.
        before: the finished trial of the set before post-training, on the same items: the difference of differences is judged too. It may
            be named, or another one in its place, when this trial has begun or is finished; the report says so. None keeps the one that
            was named before.

    Raises:
        TrialError: a set that is not done or whose twins did not share their batches, a plan that cannot be, or ``out`` holds another
            trial.
        TaskError, ModelError, DataError, ParityError: bad input, before anything long begins.
    """
    settings, folder, out = settings or TrialSettings(), Path(folder), Path(out)
    check_set_settings(folder, settings)
    chosen = [permit(task, settings.allow_code_execution) for task in tasks_named(tasks)]
    for task in chosen:
        task.load(settings.data, settings.limit)  # fails before a model is loaded
    tested = plan_members(folder, depths)
    source = resolve(model_folder(tested, tested.named(LOOPED), tested.seeds[0]))
    check_answering(settings, [source], chosen)
    plan = plan_set(tested, source, chosen, budgets, settings)
    if before is not None:
        tested = _with_before(tested, plan, chosen, Path(before), out, settings)
    tested = _checked_against_plan(out, tested)
    keep_plan(out, plan, settings)
    write_json(out / SET_PLAN_FILE, set_plan_to_json(tested))
    _Evaluating(tested, plan, {task.name: task for task in chosen}, out, settings, progress).run()
    return judge_set(out)


def check_set_settings(folder: Path, settings: TrialSettings) -> None:
    """Refuse what only the trial of one model can have.

    Raises:
        TrialError: such a setting.
    """
    if settings.larger_model is not None or settings.noise_floor_of:
        raise TrialError(f"{folder} is a set: leave out --larger-model and --noise-floor-of; a larger model's figures go with --larger")
    if settings.placement is not None or settings.noise_floor or settings.seed:
        raise TrialError(f"{folder} is a set, whose seeds and loops are its own: leave out --placement, --noise-floor and --seed")


def plan_set(tested: SetTrialPlan, source: Source, tasks: Sequence[Task], budgets: Sequence[int], settings: TrialSettings) -> Plan:
    """The plan that all members share, from the looped model's config.json and the tasks alone.

    Raises:
        As `plan_trial`.
    """
    loops = resolve_loops(source, tested.named(LOOPED).loops)
    return replace(plan_trial(source, loops, tasks, budgets, settings), model=tested.folder, seeds=tested.seeds)


def member_arms(plan: Plan, member: TriedMember) -> Iterator[PlannedArm]:
    """The arms that a member runs with each seed, under its own name."""
    looped = member.role not in (TWIN, "equal-flops")
    for arm in plan.arms():
        decides = arm.purpose == "pair" and arm.rule == plan.deciding_rule and not arm.further_reserve
        if arm.applicable and arm.looped is looped and (member.every_arm or decides):
            yield replace(arm, name=f"{member.name}-{arm.name.partition('-')[2]}", looped=member.loops != "none")


def _with_before(tested: SetTrialPlan, plan: Plan, tasks: Sequence[Task], before: Path, out: Path, settings: TrialSettings) -> SetTrialPlan:
    """The set's plan with the trial before, which asked just what this one is about to ask.

    Raises:
        TrialError: another trial, or one that asked otherwise.
    """
    if before.resolve() == out.resolve():
        raise TrialError(f"{out}: a trial cannot be its own before; give the trial of the set before post-training")
    _, arms = arms_before(tested, plan, before)
    items = {task.name: task.load(settings.data, settings.limit) for task in tasks}
    asked = {name: Questions(golds={item.name: item.gold for item in of}) for name, of in items.items()}
    check_questions(asked, arms.values(), before)  # needs no model
    looped = tested.named(LOOPED)
    model, tokenizer = load(model_folder(tested, looped, tested.seeds[0]), loops=looped.loops, dtype=settings.dtype, device="cpu")
    for task in tasks:
        found = items_hash(model, tokenizer, task, items[task.name], thinking=settings.thinking)
        asked[task.name] = replace(asked[task.name], items_hash=found)
    check_questions(asked, arms.values(), before, sum(one.numel() for one in model.parameters()))
    return replace(tested, before=os.path.relpath(before.resolve(), out.resolve()))


def plan_members(folder: Path, depths: Sequence[int] = ()) -> SetTrialPlan:
    """What of a set is evaluated: seeds whose looped model and twin are done, and the members that are done with all of these.

    Raises:
        TrialError: members that are not over, no seed of a whole pair, other batches than the twin's, or depths that cannot be.
    """
    values = read_set(folder)
    found = {name: {seed: read_result(folder / name / f"seed-{seed}") for seed in values["seeds"]} for name in values["members"]}
    for name, runs in found.items():
        for seed, one in runs.items():
            if one is None or one.get("again"):
                raise TrialError(f"{folder}: {name}, seed {seed}, is not done; finish the set with loopwise learn before it is tried")
    done = {name: {seed: one for seed, one in runs.items() if one and "failed" not in one} for name, runs in found.items()}
    seeds = tuple(seed for seed in values["seeds"] if seed in done[LOOPED] and seed in done[TWIN])
    if not seeds:
        raise TrialError(f"{folder}: the looped model or its twin failed with every seed; there is nothing to judge")
    left_out = {f"seed {seed}": "the looped model or its twin failed" for seed in values["seeds"] if seed not in seeds}
    alarms = shared_alarms(folder, {name: [seed for seed in seeds if seed in done[name]] for name in done}, values)
    members = []
    for name, member in values["members"].items():
        reason = _why_left_out(done[name], seeds, alarms[name])
        if reason and name in (LOOPED, TWIN):
            raise TrialError(f"{folder}: {name} {reason}; twins must share both, so there is no fair test: train the set anew")
        if reason:
            left_out[name] = reason
        else:
            members.append(_tested(name, member, [done[name][seed] for seed in seeds], base_steps=done[LOOPED][seeds[0]]["num_steps"]))
    members += _at_depths(members, values, depths)
    return _paired(SetTrialPlan(folder=str(folder), seeds=seeds, members=tuple(members), left_out=left_out))


def _why_left_out(done: dict[int, dict[str, Any]], seeds: Sequence[int], alarms: Sequence[str]) -> str:
    missing = [seed for seed in seeds if seed not in done]
    return f"failed with seed {', '.join(map(str, missing))}" if missing else alarms[0] if alarms else ""


def _tested(name: str, member: dict[str, Any], runs: Sequence[dict[str, Any]], *, base_steps: int) -> TriedMember:
    spent = [(run["training_flops"], run["training_flops_before"]) for run in runs]
    known = [own + before for own, before in spent if own is not None and before is not None]
    factor = member["token_factor"]
    return TriedMember(
        name=name,
        member=name,
        role=member["role"],
        loops=member["loops"],
        token_factor=runs[0]["num_steps"] / base_steps if factor is None else factor,
        training_flops=statistics.fmean(known) if len(known) == len(spent) else None,
        every_arm=member["role"] in (LOOPED, TWIN),
    )


def _paired(plan: SetTrialPlan) -> SetTrialPlan:
    """A longer looped member whose twin failed is left out; a twin without its looped member runs as a control."""
    members, left_out = [], dict(plan.left_out)
    factors = {one.token_factor for one in plan.members if one.role == LOOPED}
    for one in plan.members:
        if one.role == LOOPED and plan.twin_of(one) is None:
            left_out[one.name] = "its twin failed"
        elif one.role == TWIN and one.token_factor not in factors:
            members.append(replace(one, every_arm=False))
        else:
            members.append(one)
    return replace(plan, members=tuple(members), left_out=left_out)


def _at_depths(members: Sequence[TriedMember], values: dict[str, Any], depths: Sequence[int]) -> list[TriedMember]:
    """The looped member at other numbers of passes."""
    looped = next(one for one in members if one.name == LOOPED)
    loops = parse_loops(looped.loops)
    most = values["settings"]["passes"]["most"] if values["recipe"] == "anchored" else 0
    wanted = tuple(depths) or tuple(range(1, most + 1))
    if bad := [depth for depth in wanted if depth < 1]:
        raise TrialError(f"a test depth of {bad[0]} passes; give at least 1 (the looped model's weights without the loop)")
    found = []
    for depth in dict.fromkeys(wanted):
        at = with_passes(loops, depth)
        if at != loops:
            text = "none" if depth == 1 else format_loops(at)
            found.append(replace(looped, name=f"{LOOPED}-k{depth}", role="depth", loops=text, every_arm=False))
    return found


def _checked_against_plan(out: Path, tested: SetTrialPlan) -> SetTrialPlan:
    """Refuse a folder that holds another trial: a plan is fixed before its trial runs.

    A trial before changes nothing that is asked or decided: it may be named later, or another one in its place, and then the plan says
    so. Where none is named, the one that is there stays.
    """
    file = out / SET_PLAN_FILE
    if (out / "plan.json").exists() and not file.exists():
        raise TrialError(f"{out} holds a trial of one model; give a new --out")
    if not file.exists():
        return tested
    there = read_json(file)
    named, added = there.get("before"), bool(there.get("before_added"))
    if tested.before is None:
        tested = replace(tested, before=named, before_added=added)
    elif added or tested.before != named:
        tested = replace(tested, before_added=True)
        there = {**there, "before": tested.before, "before_added": True}
    for name, ours in set_plan_to_json(tested).items():
        if there.get(name) != ours:
            raise TrialError(
                f"{out} holds a trial of a set whose plan has another {name}; a plan is fixed before its trial runs: give a new --out"
            )
    return tested


def model_folder(tested: SetTrialPlan, member: TriedMember, seed: int) -> Path:
    """Where a member's model of one seed lies."""
    return Path(tested.folder) / member.member / f"seed-{seed}" / MODEL_FOLDER


@dataclass(frozen=True, slots=True)
class _Evaluating:
    """Evaluates the members one after the other, each of them loaded once for a seed."""

    tested: SetTrialPlan
    plan: Plan
    tasks: dict[str, Task]
    out: Path
    settings: TrialSettings
    progress: Progress | None

    def run(self) -> None:
        """Run every arm of every member and seed."""
        queue = [(member, seed) for seed in self.tested.seeds for member in self.tested.members]
        work = [sum(self._work(arm) for arm in member_arms(self.plan, member)) for member, _ in queue]
        done = 0.0
        with VllmHost() as host:
            for (member, seed), share in zip(queue, work, strict=True):
                self._member(member, seed, done, sum(work), host)
                done += share

    def _member(self, member: TriedMember, seed: int, done: float, total: float, host: VllmHost) -> None:
        source = model_folder(self.tested, member, seed)
        host.stop()  # the memory of the one before
        loaded = load(source, loops=member.loops, dtype=self.settings.dtype, device=self.settings.device)
        loops = resolve_loops(resolve(source), member.loops)
        report = None if self.progress is None else partial(self._report, done, total)
        settings = replace(self.settings, seed=seed)
        runner = ArmRunner(self.out, self.plan, self.tasks, Pair(loaded, loaded, loops), settings, report, host=host)
        for arm in member_arms(self.plan, member):
            runner.run(arm, folder=self.out / "runs" / member.name / arm.name / f"seed-{seed}")

    def _work(self, arm: PlannedArm) -> float:
        """Layer passes times tokens at most, as `ArmRunner.work`."""
        ratio = self.plan.layer_pass_ratio if arm.looped else 1.0
        return sum(ratio * self.plan.draws(arm, name)[0] * budget for name, budget in arm.budgets_tokens)

    def _report(self, before: float, total: float, label: str, done: float, of: float) -> None:
        assert self.progress is not None
        if label == "answering":
            self.progress(label, before + done, total)
        else:
            self.progress(label, done, of)
