"""Training a whole set: the looped model, its identical twin and the matched controls, over seeds, on the same batches in the same order.

A member's run lies in ``OUT/MEMBER/seed-N``. What is done is left, what was killed is gone on with, and a run that another process is
at is passed over, so the same command, started several times, shares the members out. A member that fails is written down and does
not take the set down.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..cost import cost_of
from ..data import Counts
from ..loops import with_passes
from ..records import read_json, write_json
from ..training import (
    DivergedError,
    LongFinetune,
    Problems,
    Ranks,
    Reporter,
    RunBusyError,
    StepFlops,
    TrainResult,
    join,
    read_measured_steps,
    read_metrics,
)
from ..training.long_finetune import measure_steps
from .learning_data import SetData, encode_data, evaluation_of, open_data
from .learning_equal import ControlError, done, factor_of, seconds_per_step
from .learning_files import LOCK_FILE, RESULT_FILE, STEPS_FILE, hold, read_result
from .learning_inputs import check_inputs
from .learning_members import LOOPED, Member
from .learning_recipes import LearningSettings, tuned
from .learning_set import LearningSet, SetPlan, bind_set, check_bound, plan_set, steps_of

DATA_FOLDER = "data"

ReporterOf = Callable[[Member, int], Reporter]
"""The reporter of a member's run with a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """Where a set tells what it does."""

    note: Callable[[str], None] = lambda text: None
    reporter: ReporterOf | None = None
    encoding: Callable[[Counts], None] | None = None


def learn(chosen: LearningSet, telling: Telling | None = None) -> tuple[str, ...]:
    """Train every member of a set, seed after seed; the same call goes on where a killed one stopped.

    Under torchrun every process makes this call: all of them train each member together, a part of the rows each.

    Returns:
        the runs that wait for another process, ``MEMBER/seed-N``; they are not done yet.

    Raises:
        TrainingError, DataError, ModelError, LoopError, CostError: bad input, before weights are read where it can be known then.
        OSError: the disk is full; what is done stays.
    """
    telling = telling or Telling()
    plan = plan_set(chosen)
    ranks = join(chosen.execution.device)
    ranks.rows(chosen.data.rows.num_sequences)  # what cannot be shared out is said before the folder is made
    folder = chosen.out / DATA_FOLDER
    problems = check_inputs(plan, telling.note)

    def prepare() -> None:
        handle = hold(chosen.out / LOCK_FILE, wait=True)
        try:
            check_bound(plan)
            encode_data(chosen.data, plan.source, folder, note=telling.note, progress=telling.encoding)
            bind_set(plan, open_data(chosen.data, plan.source, folder, note=telling.note).identity)
        finally:
            os.close(handle)

    ranks.from_first(prepare)
    data = open_data(chosen.data, plan.source, folder)
    _measure(plan, data, ranks, telling)
    busy = []
    for seed in chosen.seeds:
        for member in plan.members:
            if ranks.from_first(partial(_is_over, chosen.folder(member.name, seed))):
                continue
            if not _train_or_tell(_Run(plan, data, ranks, member, seed, problems), telling):
                busy.append(f"{member.name}/seed-{seed}")
    return tuple(busy)


@dataclass(frozen=True, slots=True)
class _Run:
    """One member with one seed."""

    plan: SetPlan
    data: SetData
    ranks: Ranks
    member: Member
    seed: int
    problems: Problems | None = None
    """Of recipes with reinforcement learning."""

    @property
    def folder(self) -> Path:
        return self.plan.chosen.folder(self.member.name, self.seed)


def _is_over(folder: Path) -> bool:
    found = read_result(folder)
    return found is not None and not found.get("again", False)


def _train_or_tell(run: _Run, telling: Telling) -> bool:
    """Whether the run is over; one that fails is."""
    member, ranks, where = run.member, run.ranks, run.folder
    telling.note(f"{member.name}, seed {run.seed}: {where}")
    try:
        reporter = None if telling.reporter is None else telling.reporter(member, run.seed)
        handle = ranks.from_first(lambda: hold(where.with_name(where.name + ".lock"), wait=False))
        try:
            if not ranks.from_first(lambda: _is_over(where)):  # by another process since
                _train(run, reporter)
        finally:
            if ranks.rank == 0:
                os.close(handle)
    except RunBusyError as error:
        telling.note(f"{member.name}, seed {run.seed}, waits: {error}")
        return False
    except (DivergedError, ControlError) as error:
        _keep_failure(run, telling, str(error), again=False)
    except RuntimeError as error:  # torch's word for a memory that does not hold it, or a device that fails
        if ranks.size > 1:  # the others would wait for this one
            raise
        _keep_failure(run, telling, " ".join(str(error).split())[:300], again=True)
    return True


def _keep_failure(run: _Run, telling: Telling, reason: str, *, again: bool) -> None:
    """Write down why a run failed.

    Args:
        again: whether the next call tries it again: what a machine failed at, another may do.
    """
    telling.note(f"{run.member.name}, seed {run.seed}, failed: {reason}")

    def write() -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_json(run.folder / RESULT_FILE, {"failed": reason, "again": again})

    run.ranks.from_first(write)


def _train(run: _Run, reporter: Reporter | None) -> None:
    plan, chosen, member, seed = run.plan, run.plan.chosen, run.member, run.seed
    before = run.ranks.from_first(lambda: _spent_before(plan, member, seed))
    settings = _settings_of(run)
    more: dict[str, Any] = {"steps_file": chosen.out / STEPS_FILE} if isinstance(settings, LongFinetune) else {}
    if run.problems is not None:
        more["problems"] = run.problems
    result = plan.recipe.train(
        plan.base(member, seed),
        member.loops or None,
        run.data.source(seed),
        settings,
        run.folder,
        execution=chosen.execution,
        evaluate=evaluation_of(run.data, run.ranks, settings.tuning.dtype),
        reporter=reporter,
        **more,
    )
    run.ranks.from_first(lambda: _keep(run, result, before))


def _settings_of(run: _Run) -> LearningSettings:
    """The recipe's settings with the member's own number of steps and its seed."""
    chosen, seed = run.plan.chosen, run.seed
    base = run.ranks.from_first(lambda: _base_steps(run.plan, run.data, seed))
    factor = run.ranks.from_first(lambda: factor_of(run.plan, run.member))
    settings = tuned(chosen.settings, seed=seed, num_tokens=steps_of(base, factor) * chosen.data.rows.step_tokens)
    return replace(settings, budget_seconds=None) if isinstance(settings, LongFinetune) else settings


def _base_steps(plan: SetPlan, data: SetData, seed: int) -> int:
    """The looped model's steps: by its tokens, or as measured."""
    settings = plan.chosen.settings
    if isinstance(settings, LongFinetune) and settings.budget_seconds is not None:
        measured = read_measured_steps(plan.chosen.out / STEPS_FILE)
        assert measured is not None  # `_measure` came before
        return measured.num_steps
    return data.num_steps(seed, settings.tuning.num_tokens)


def _measure(plan: SetPlan, data: SetData, ranks: Ranks, telling: Telling) -> None:
    """The measured phase of a long fine-tune: the looped model's throughput, once for the whole set."""
    chosen, settings = plan.chosen, plan.chosen.settings
    if not (isinstance(settings, LongFinetune) and settings.budget_seconds is not None):
        return
    handle = ranks.from_first(lambda: hold(chosen.out / LOCK_FILE, wait=True))
    try:
        file, seed = chosen.out / STEPS_FILE, chosen.seeds[0]
        if ranks.from_first(lambda: read_measured_steps(file)) is not None:
            return
        telling.note("measuring the looped model's throughput")
        looped, most = plan.member(LOOPED), data.num_steps(seed, settings.tuning.num_tokens)
        capped = replace(settings, tuning=replace(settings.tuning, seed=seed, num_tokens=most * chosen.data.rows.step_tokens))
        found = measure_steps(
            plan.base(looped, seed), looped.loops, data.source(seed), capped, chosen.out / "measured", execution=chosen.execution
        )
        ranks.from_first(lambda: write_json(file, asdict(found)))
    finally:
        if ranks.rank == 0:
            os.close(handle)


def _spent_before(plan: SetPlan, member: Member, seed: int) -> float | None:
    """The training FLOPs of the model that a member begins with; 0 of a set's base, which is free to all.

    Raises:
        RunBusyError: that one is not trained yet.
        DivergedError: its training failed.
    """
    if member.begins_with is None:
        return 0.0
    folder = done(Path(plan.base(member, seed)).parent)
    found = read_json(folder / RESULT_FILE)
    own, before = found["training_flops"], found["training_flops_before"]
    return None if own is None or before is None else own + before


def _keep(run: _Run, result: TrainResult, before: float | None) -> None:
    tokens, answers = run.data.counts(run.seed, result.state.step)
    steps = read_metrics(run.folder)
    tail = [step.loss for step in steps[-max(1, len(steps) // 10) :]]
    values = {
        "num_steps": result.state.step,
        "input_tokens": result.state.tokens,
        "tokens": tokens,
        "answer_tokens": answers,
        "training_flops": result.state.flops,
        "training_flops_before": before,
        "seconds": result.state.seconds,
        "seconds_per_step": seconds_per_step(run.folder),
        "layer_pass_ratio": _layer_pass_ratio(run, [step.passes for step in steps]),
        "loss_nats": statistics.fmean(tail),
        "evaluation": result.evaluation,
    }
    write_json(run.folder / RESULT_FILE, values)


def _layer_pass_ratio(run: _Run, drawn: Sequence[int | None]) -> float:
    """Layer passes over the plain model's, on average over steps: by the passes that each of them drew."""
    shape, loops = StepFlops(run.plan.config).shape, run.member.loops
    ratios = {passes: cost_of(shape, loops if passes is None else with_passes(loops, passes)).layer_pass_ratio for passes in set(drawn)}
    return statistics.fmean(ratios[passes] for passes in drawn)
