"""A whole trial: the plan first, then every arm of it, then the verdict and its report. Killed anywhere, it goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from ..cost import cost_of, read_shape
from ..decoding import DecodingRule, read_chat
from ..evaluation import Parity, check_parity, evaluate, task_budget_tokens, task_rule
from ..loops import Loop, format_loops
from ..models import Loaded, Source, insert, load, remove, resolve, resolve_loops, trained_loops
from ..protocol import (
    LargerModel,
    Plan,
    PlannedArm,
    PlannedTask,
    TrialError,
    Verdict,
    make_plan,
    plan_to_json,
)
from ..records import Record, Run, read_json, read_run, write_json
from ..tasks import Task, permit, tasks_named
from .judging import judge_trial
from .selection import check_apart, keep_selection, loops_of_study

Progress = Callable[[str, float, float], None]
"""Called with what is being done, the work done and all the work."""
BUDGET_MULTIPLES = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """How a trial runs and how it will be judged; every field has a default."""

    rules: tuple[str, ...] = ("plain", "budget-forcing")
    """Decoding rules, each on both arms."""
    thinking: bool = False
    """Use the chat template's thinking mode, and the tasks' budgets for it."""
    limit: int | None = None
    """Only the first items of each task."""
    vote_samples: int = 0
    """Also let the twin answer this often at every budget and take the majority; 0: not."""
    seed: int = 0
    """Of the draws of repeated sampling; greedy arms do not depend on it."""
    alpha: float = 0.05
    deciding_rule: str | None = None
    """Default: budget forcing where it is among the rules."""
    deciding_budget: int | None = None
    """Default: the largest."""
    larger: LargerModel | None = None
    """A larger model's size and accuracy on these tasks, for Delta* and the rule of section 4.5."""
    noise_floor: bool = False
    """Repeat the twin's deciding arm in batches of another size and count the answers that change."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    placement: Path | None = None
    """The study that chose the loops: no item may be in its text, and without loops its best ones are taken."""
    batch_size: int = 16
    fixed_rows: bool = False
    """Keep every batch as it began; finished rows are carried along."""
    allow_code_execution: bool = False
    """Let tasks that need it run the code that the models write, behind walls."""
    dtype: str = "auto"
    device: str = "cpu"


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
    settings = settings or TrialSettings()
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
    plan = plan_trial(source, checked, chosen, budgets, settings)
    keep_selection(out, selection)
    keep_plan(out, plan, settings)
    looped = load(model, loops=checked, dtype=settings.dtype, device=settings.device)
    other = looped if twin is None else load(twin, loops="none", dtype=settings.dtype, device=settings.device)
    runner = ArmRunner(out, plan, {task.name: task for task in chosen}, Pair(looped, other, checked), settings, progress)
    for arm in plan.arms():
        if arm.applicable:
            runner.run(arm)
    if settings.noise_floor:
        runner.noise_floor()
    return judge_trial(out)


def _check_twin(source: Source, twin: str | Path | None) -> None:
    """A network that was trained with loops has a twin that was trained without, in a folder of its own."""
    if twin is None:
        if trained_loops(source):
            raise TrialError(
                f"{source.name} was trained with its loops and cannot run without; give the twin that was trained without them"
            )
    elif others := trained_loops(resolve(twin)):
        raise TrialError(f"{twin} was trained with loops of its own, {format_loops(others)}; a twin has none: compare the two with judge")


def plan_trial(source: Source, loops: Sequence[Loop], tasks: Sequence[Task], budgets: Sequence[int], settings: TrialSettings) -> Plan:
    """The plan of a trial of one seed, from the model's config.json and the tasks alone.

    Raises:
        TrialError: a plan that cannot be.
        CostError: a model whose cost is not known.
    """
    planned = []
    for task in tasks:
        own = task_budget_tokens(task, thinking=settings.thinking)
        multiples = [1] if task.kind == "letters" else sorted({math.ceil(multiple * own) for multiple in BUDGET_MULTIPLES})
        reserve = max(1, task.reserve_tokens)
        planned.append(
            PlannedTask(
                name=task.name,
                version=task.version,
                budgets_tokens=tuple(budgets or multiples),
                reserve_tokens=reserve,
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
    there, ours = read_json(file), json.loads(json.dumps(plan_to_json(plan)))
    for name in ours:
        if there.get(name) != ours[name]:
            raise TrialError(
                f"{out} holds a trial whose plan has another {name} ({there.get(name)!r}, now {ours[name]!r}); "
                "a plan is fixed before its trial runs: give a new --out"
            )


@dataclass(frozen=True, slots=True)
class Pair:
    """The looped model and its twin; of a training-free loop both are the same weights, and the loop goes in and out."""

    looped: Loaded
    twin: Loaded
    loops: tuple[Loop, ...]

    def ready(self, *, looped: bool) -> Loaded:
        """One of the two, with its loops as they are to be."""
        if self.looped is self.twin:
            remove(self.looped.model)
            if looped:
                insert(self.looped.model, self.loops)
        return self.looped if looped else self.twin


class ArmRunner:
    """Runs planned arms one after the other and keeps count of the work."""

    def __init__(
        self, out: Path, plan: Plan, tasks: dict[str, Task], pair: Pair, settings: TrialSettings, progress: Progress | None
    ) -> None:
        self.out = out
        self.plan = plan
        self.tasks = tasks
        self.pair = pair
        self.settings = settings
        self.progress = progress
        self.parities: dict[tuple[bool, str], Parity] = {}
        self.done = 0.0
        self.total = sum(self.work(arm) for arm in plan.arms() if arm.applicable)
        if settings.noise_floor:
            self.total += self.work(self.deciding_twin())

    def work(self, arm: PlannedArm) -> float:
        """Layer passes times tokens at most: what the time left is estimated from."""
        ratio = self.plan.layer_pass_ratio if arm.looped else 1.0
        return sum(ratio * self.plan.draws(arm, name)[0] * budget for name, budget in arm.budgets_tokens)

    def deciding_twin(self) -> PlannedArm:
        """The twin's arm that the first test rests on."""
        budgets = tuple(self.plan.deciding_budgets_tokens().items())
        return next(
            arm
            for arm in self.plan.arms()
            if not arm.looped and arm.purpose == "pair" and arm.rule == self.plan.deciding_rule and arm.budgets_tokens == budgets
        )

    def run(self, arm: PlannedArm, *, folder: Path | None = None, batch_size: int | None = None) -> None:
        """Run one arm on every task."""
        model, tokenizer = self.pair.ready(looped=arm.looped)
        for name, budget in arm.budgets_tokens:
            task = self.tasks[name]
            share = self.work(replace(arm, budgets_tokens=((name, budget),)))
            where = folder or self.out / "runs" / arm.name
            evaluate(
                model,
                tokenizer,
                task,
                out=where / _folder_name(name) if len(self.tasks) > 1 else where,
                rule=self.rule(arm, task),
                budget_tokens=budget,
                samples=self.plan.draws(arm, name)[0],
                seed=self.settings.seed,
                limit=self.plan.limit,
                data=self.settings.data,
                batch_size=batch_size or self.plan.batch_size,
                fixed_rows=self.settings.fixed_rows,
                arm=arm.name,
                parity=self.parity(arm, task),
                progress=partial(self.report, share),
            )
            self.done += share

    def rule(self, arm: PlannedArm, task: Task) -> DecodingRule:
        names = arm.rule.split("+")
        return task_rule(
            task,
            temperature=self.plan.draws(arm, task.name)[1],
            budget_forcing="budget-forcing" in names,
            repetition_stop="repetition-stop" in names,
            reserve_tokens=max(1, task.reserve_tokens),
            thinking=self.settings.thinking,
        )

    def parity(self, arm: PlannedArm, task: Task) -> Parity:
        """The check of this arm's model on this task's prompts: once for all its rules and budgets."""
        key = (arm.looped, task.name)
        if key not in self.parities:
            label = f"checking the {'looped model' if arm.looped else 'twin'}'s cached decoding on {task.name}"
            if self.progress:
                self.progress(label, 0.0, 1.0)
            model, tokenizer = self.pair.ready(looped=arm.looped)
            chat = read_chat(model, tokenizer)
            items = task.load(self.settings.data, self.plan.limit)
            thinking = self.settings.thinking or task.thinking
            asked = [item.asked(in_chat=chat.template is not None) for item in items]
            self.parities[key] = check_parity(model, [chat.encode(item.prompt, thinking=thinking) for item in asked])
            if self.progress:
                self.progress(label, 1.0, 1.0)
        return self.parities[key]

    def report(self, share: float, part: float) -> None:
        if self.progress:
            self.progress("answering", self.done + part * share, self.total)

    def noise_floor(self) -> None:
        """The twin's deciding arm once more, in batches of half the size: nothing changes but what batching changes."""
        arm = self.deciding_twin()
        size = max(1, self.plan.batch_size // 2) if self.plan.batch_size > 1 else 2
        self.run(arm, folder=self.out / "noise-floor", batch_size=size)
        once = [record for run in _runs_below(self.out / "runs" / arm.name) for record in run.records]
        again = {record.key: record for run in _runs_below(self.out / "noise-floor") for record in run.records}
        changed = [(record, again[record.key]) for record in once]
        write_json(
            self.out / "noise_floor.json",
            {
                "arm": arm.name,
                "batch_sizes": [self.plan.batch_size, size],
                "num_answers": len(changed),
                "changed_texts": sum(_text_of(a) != _text_of(b) for a, b in changed),
                "changed_answers": sum(a.answer != b.answer for a, b in changed),
                "changed_grades": sum(a.correct != b.correct for a, b in changed),
                "accuracy_points": 100 * sum(b.correct - a.correct for a, b in changed) / len(changed),
            },
        )


def _text_of(record: Record) -> str | None:
    """An answer's text, or its hash where the text may not be kept."""
    return record.extra.get("text_sha256") if record.text is None else record.text


def _runs_below(folder: Path) -> list[Run]:
    return [read_run(header.parent) for header in sorted(folder.rglob("header.json"))]


def _folder_name(task: str) -> str:
    return task.replace(":", "-")
