"""A whole trial: the plan first, then every arm of it, then the verdict and its report. Killed anywhere, it goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..cost import cost_of, read_shape
from ..evaluation import Ranks, check_conversations, check_vllm_way, items_hash, task_budget_tokens
from ..loops import Loop, format_loops
from ..models import Loaded, Source, load, resolve, resolve_loops, trained_loops
from ..protocol import (
    Plan,
    PlannedTask,
    TrialError,
    Verdict,
    make_plan,
    plan_from_json,
    plan_to_json,
)
from ..records import read_json, write_json
from ..serving import VllmHost
from ..tasks import Task, permit, tasks_named
from .arm_runner import ArmRunner, Pair, deciding_twin
from .judging import judge_trial
from .noise_floor import arms_repeated
from .scored_trial import check_scored, only_scored
from .selection import check_apart, keep_selection, loops_of_study
from .trial_arms import budgets_of, check_larger, in_arm_set, reserves_of
from .trial_settings import Progress, TrialSettings


def trial(
    model: str | Path,
    *,
    out: str | Path,
    loops: str | Loop | Sequence[Loop] | None = None,
    tasks: Sequence[str] = ("ladder",),
    budgets: Sequence[int] = (),
    twin: str | Path | None = None,
    progress: Progress | None = None,
    settings: TrialSettings | None = None,
) -> Verdict:
    """Judge a loop against its twin, with real runs; the same call goes on where a killed one stopped.

    ``plan.json`` is written before the first answer and fixes alpha, the deciding budget and the deciding rule. Every arm's
    run lies under ``runs/``; ``verdict.json``, ``report.html``, ``report.md`` and the figures follow.

    Args:
        model: the looped model, as for `loopwise.load`.
        loops: default the folder's own, or the best of the study that the settings name.
        budgets: tokens an answer can have; default half, once and twice each task's own.
        twin: the identically trained twin's weights; default the same weights without the loop (a training-free loop). A network
            that was trained with loops of its own needs one.

    Raises:
        TrialError: a plan that cannot be, ``out`` holds a trial with another plan, or an item is in the text of the study
            that chose the loops.
        LoopError, TaskError, ModelError, StudyError, DataError, ParityError: bad input, before anything long begins.
    """
    answer_trial(model, out=out, loops=loops, tasks=tasks, budgets=budgets, twin=twin, progress=progress, settings=settings)
    return judge_trial(out)


def answer_trial(
    model: str | Path,
    *,
    out: str | Path,
    loops: str | Loop | Sequence[Loop] | None = None,
    tasks: Sequence[str] = ("ladder",),
    budgets: Sequence[int] = (),
    twin: str | Path | None = None,
    progress: Progress | None = None,
    settings: TrialSettings | None = None,
    ranks: Ranks | None = None,
) -> None:
    """A trial up to its last answer, which `judge_trial` then judges.

    Args:
        ranks: processes that share out every arm's batches, as for `evaluate`; the first one writes and reports progress.

    Raises:
        As `trial`.
    """
    settings = settings or TrialSettings()
    ranks = ranks or Ranks()
    out = Path(out)
    chosen = [permit(task, settings.allow_code_execution) for task in tasks_named(tasks)]
    for task in chosen:
        task.load(settings.data, settings.limit)  # fails before a model is loaded
    study = settings.placement
    selection = check_apart(study, chosen, data=settings.data, limit=settings.limit) if study else None
    source = resolve(model)
    checked = resolve_loops(source, loops) if loops is not None or study is None else loops_of_study(source, study, out)
    if not checked:
        raise TrialError(f"{model} has no loop; give loops, e.g. '10:14 x2'")
    _check_twin(source, twin)
    check_answering(settings, [source, *([] if twin is None else [resolve(twin)])], chosen, ranks)
    plan = plan_trial(source, checked, chosen, budgets, settings)
    repeated = arms_repeated(plan, deciding_twin(plan).name, deciding=settings.noise_floor, others=settings.noise_floor_of)
    if ranks.rank == 0:
        keep_selection(out, selection)
        keep_plan(out, plan, settings)
    else:
        progress = None
    looped = load(model, loops=checked, dtype=settings.dtype, device=settings.device)
    other = looped if twin is None else load(twin, loops="none", dtype=settings.dtype, device=settings.device)
    if twin is not None:
        _check_asked(looped, other, chosen, settings)
    with VllmHost() as host:
        pair = Pair(looped, other, checked)
        del looped, other  # a larger model may need their memory
        runner = ArmRunner(out, plan, {task.name: task for task in chosen}, pair, settings, progress, ranks, host)
        del pair
        for arm in sorted(plan.arms(), key=lambda arm: not arm.looped):  # vLLM starts anew for another model
            if arm.applicable:
                if arm.purpose == "larger model":
                    runner.take_larger_model()
                runner.run(arm)
                if arm.name in repeated:
                    runner.noise_floor(arm)


def check_answering(settings: TrialSettings, sources: Sequence[Source], tasks: Sequence[Task], ranks: Ranks | None = None) -> None:
    """Refuse an engine that cannot answer, before a model is loaded.

    Raises:
        As `loopwise.evaluation.check_vllm_way` and `check_conversations`; TrialError: no task with anything to decode.
    """
    for task in tasks:
        check_conversations(task, settings.engine)
    if settings.engine == "vllm":
        if all(task.kind != "generate" for task in tasks):
            raise TrialError(f"engine 'vllm' has nothing to decode: {tasks[0].name} is answered by options; leave --engine out")
        larger = [] if settings.larger_model is None else [resolve(settings.larger_model, weights=False)]
        check_vllm_way([*sources, *larger], fixed_rows=settings.fixed_rows, num_ranks=ranks.size if ranks else 1)


def _check_twin(source: Source, twin: str | Path | None) -> None:
    """A network that was trained with loops has a twin that was trained without, in a folder of its own."""
    if twin is None:
        if trained_loops(source):
            raise TrialError(
                f"{source.name} was trained with its loops and cannot run without; give the twin that was trained without them"
            )
    elif others := trained_loops(resolve(twin)):
        raise TrialError(f"{twin} was trained with loops of its own, {format_loops(others)}; a twin has none: compare the two with judge")


def _check_asked(looped: Loaded, twin: Loaded, tasks: Sequence[Task], settings: TrialSettings) -> None:
    """Refuse twins that read the same questions otherwise: judging would, after every answer."""
    for task in tasks:
        items = task.load(settings.data, settings.limit)
        one, other = (items_hash(*pair, task, items, thinking=settings.thinking) for pair in (looped, twin))
        if one != other:
            raise TrialError(f"{task.name}: the twin's tokenizer or chat template is not the looped model's; give both folders the same")


def plan_trial(source: Source, loops: Sequence[Loop], tasks: Sequence[Task], budgets: Sequence[int], settings: TrialSettings) -> Plan:
    """The plan of a trial of one seed, from the model's config.json and the tasks alone.

    Raises:
        TrialError: a plan that cannot be.
        CostError: a model whose cost is not known.
    """
    settings = in_arm_set(settings)
    if settings.larger_model is not None:
        check_larger(source, resolve(settings.larger_model, weights=False))
    check_scored(tasks, budgets=budgets, rules=settings.rules, votes=settings.vote_samples, thinking=settings.thinking)
    planned = []
    for task in tasks:
        own = task_budget_tokens(task, thinking=settings.thinking)
        multiples = (1,) if task.kind != "generate" else budgets_of(own, settings)
        reserve, *further = reserves_of(task, settings)
        planned.append(
            PlannedTask(
                name=task.name,
                version=task.version,
                budgets_tokens=tuple(budgets or multiples),
                reserve_tokens=reserve,
                further_reserves_tokens=tuple(further),
                samples=task.samples if task.samples > 1 else None,
                temperature=task.temperature if task.temperature > 0 else None,
                thinking=task.thinking,
            )
        )
    return make_plan(
        model=source.name,
        loops=format_loops(loops),
        layer_pass_ratio=cost_of(read_shape(source.folder), loops).layer_pass_ratio,
        tasks=planned,
        rules=settings.rules,
        seeds=(settings.seed,),
        deciding=(settings.deciding_rule, settings.deciding_budget),
        alpha=settings.alpha,
        limit=settings.limit,
        batch_size=settings.batch_size,
        vote_samples=settings.vote_samples,
        thinking=settings.thinking,
        larger_model=None if settings.larger_model is None else str(settings.larger_model),
        **({"longer_twin_ratio": None} if only_scored(tasks) else {}),
    )


def keep_plan(out: Path, plan: Plan, settings: TrialSettings) -> None:
    """Write the plan before anything runs; a folder with another plan is refused."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "plan.json"
    if not file.exists():
        if settings.larger:
            write_json(out / "larger.json", asdict(settings.larger))
        write_json(file, plan_to_json(plan))
        return
    # Read as a plan first: one of an earlier version lacks what is new, and means its defaults.
    there, ours = (json.loads(json.dumps(plan_to_json(one))) for one in (plan_from_json(read_json(file)), plan))
    for name in ours:
        if there.get(name) != ours[name]:
            raise TrialError(
                f"{out} holds a trial whose plan has another {name} ({there.get(name)!r}, now {ours[name]!r}); "
                "a plan is fixed before its trial runs: give a new --out"
            )
