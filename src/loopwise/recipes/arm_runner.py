"""The arms of a plan, run one after the other on every task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..decoding import DecodingRule, read_chat
from ..evaluation import Parity, Ranks, check_decoding, evaluate, parity_prompts, start_vllm, task_rule
from ..loops import Loop
from ..models import Loaded, insert, load, remove
from ..protocol import Plan, PlannedArm
from ..serving import EngineGap, VllmHost
from ..tasks import Task
from .noise_floor import NOISE_FOLDER, arms_repeated, keep_noise_floor, other_batch_size
from .trial_settings import Progress, TrialSettings


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
        self,
        out: Path,
        plan: Plan,
        tasks: dict[str, Task],
        pair: Pair,
        settings: TrialSettings,
        progress: Progress | None,
        ranks: Ranks | None = None,
        host: VllmHost | None = None,
    ) -> None:
        """``host`` keeps vLLM, where that answers, running from arm to arm."""
        self.out = out
        self.plan = plan
        self.tasks = tasks
        self.pair = pair
        self.settings = settings
        self.progress = progress
        self.ranks = ranks or Ranks()
        self.host = host or VllmHost()
        self.parities: dict[tuple[bool, str], Parity | EngineGap] = {}
        self.done = 0.0
        self.total = sum(self.work(arm) for arm in plan.arms() if arm.applicable)
        repeated = arms_repeated(plan, deciding_twin(plan).name, deciding=settings.noise_floor, others=settings.noise_floor_of)
        self.total += sum(self.work(arm) for arm in plan.arms() if arm.name in repeated)

    def work(self, arm: PlannedArm) -> float:
        """Layer passes times tokens at most: what the time left is estimated from."""
        ratio = self.plan.layer_pass_ratio if arm.looped else 1.0
        return sum(ratio * self.plan.draws(arm, name)[0] * budget for name, budget in arm.budgets_tokens)

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
                engine=self.settings.engine,
                host=self.host,
                arm=arm.name,
                parity=partial(self.parity, arm, task),
                ranks=self.ranks,
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
            reserve_tokens=dict(arm.reserves_tokens).get(task.name, max(1, task.reserve_tokens)),
            thinking=self.settings.thinking,
        )

    def parity(self, arm: PlannedArm, task: Task) -> Parity | EngineGap:
        """The check of this arm's model on this task's prompts: once for all its rules and budgets."""
        key = (arm.looped, task.name)
        if key not in self.parities:
            label = f"checking the {'looped model' if arm.looped else 'twin'}'s cached decoding on {task.name}"
            if self.progress:
                self.progress(label, 0.0, 1.0)
            model, tokenizer = self.pair.ready(looped=arm.looped)
            items = task.load(self.settings.data, self.plan.limit)
            if task.kind == "log-likelihood":
                prompts = parity_prompts(model, tokenizer, items)
            else:
                chat = read_chat(model, tokenizer)
                thinking = self.settings.thinking or task.thinking
                asked = [item.asked(in_chat=chat.template is not None) for item in items]
                prompts = [chat.encode(item.prompt, thinking=thinking) for item in asked]
            vllm = None
            if self.settings.engine == "vllm" and task.kind == "generate":
                vllm = start_vllm(self.host, model, task, prompts, self.most_tokens(task), self.plan.batch_size)
            self.parities[key] = check_decoding(model, prompts, vllm)
            if self.progress:
                self.progress(label, 1.0, 1.0)
        return self.parities[key]

    def most_tokens(self, task: Task) -> int:
        """The largest budget of any arm."""
        return max(dict(arm.budgets_tokens)[task.name] for arm in self.plan.arms() if arm.applicable)

    def report(self, share: float, part: float) -> None:
        if self.progress:
            self.progress("answering", self.done + part * share, self.total)

    def noise_floor(self, arm: PlannedArm) -> None:
        """An arm once more, in batches of half the size: nothing changes but what batching changes."""
        size = self.plan.batch_size
        self.run(arm, folder=self.out / NOISE_FOLDER / arm.name, batch_size=other_batch_size(size))
        if not self.ranks.rank:
            keep_noise_floor(self.out, arm.name, size, deciding=arm == deciding_twin(self.plan))

    def take_larger_model(self) -> None:
        """Run the larger model from now on; the pair's memory is free again."""
        if self.pair.loops:
            assert self.settings.larger_model is not None  # the plan has its arm
            del self.pair
            self.host.stop()
            self.parities = {}
            larger = load(self.settings.larger_model, loops="none", dtype=self.settings.dtype, device=self.settings.device)
            self.pair = Pair(larger, larger, ())


def deciding_twin(plan: Plan) -> PlannedArm:
    """The twin's arm that the first test rests on."""
    budgets = tuple(plan.deciding_budgets_tokens().items())
    return next(
        arm
        for arm in plan.arms()
        if not arm.looped
        and arm.purpose == "pair"
        and arm.rule == plan.deciding_rule
        and arm.budgets_tokens == budgets
        and not arm.further_reserve
    )


def _folder_name(task: str) -> str:
    return task.replace(":", "-")
