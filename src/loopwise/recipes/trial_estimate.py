"""What a trial would take and could show, before anything is spent: arms, items, tokens, FLOPs, time, the smallest gain it finds.

Weights are not loaded: costs follow from config.json, prompts from the tokenizer, lengths and speed from earlier runs where there are some.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from .. import stats
from ..cost import ModelShape, answer_flops, cost_of, read_shape
from ..decoding import DecodingRule, generate
from ..decoding.chat import Chat
from ..loops import Loop
from ..models import ModelError, Source, load, resolve, resolve_loops
from ..protocol import Plan, PlannedArm, TrialError
from ..protocol.prior import Prior, Throughput, read_prior
from ..tasks import Item, Task, permit, tasks_named
from .arm_runner import deciding_twin
from .noise_floor import arms_repeated
from .selection import loops_of_study
from .trial import plan_trial
from .trial_settings import TrialSettings

ASSUMED_DISCORDANCES = (0.05, 0.1, 0.2, 0.3)
"""Shares of items on which the arms of a pair differ, for which the smallest gain is told where no earlier pair is known. A guess: pairs of
no-free-loop's Table 8 with one seed differ on some 3 (GSM8K at 9B) to 13 % (GPQA-Diamond), as the widths of their intervals imply;
small models differ more."""
POWER = 0.8
PROBE_TOKENS = 32
"""Tokens of each answer that a probe decodes. A guess: seconds on a CPU, and longer than what the first steps cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmEstimate:
    """What one arm would take, all of its benchmarks together."""

    name: str
    purpose: str
    num_answers: int
    most_tokens: int
    """Every answer up to its budget."""
    expected_tokens: float | None
    """From earlier runs; None where a benchmark has none."""
    most_flops: float
    expected_flops: float | None
    seconds: float | None
    """For the expected tokens, or where these are not known for the most; None where the throughput is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestGain:
    """The smallest gain of one comparison, named beforehand, that the items would show."""

    discordance: float
    """Share of items on which the two arms differ."""
    points: float | None
    """None: no gain could be shown, not even one on every item that differs."""
    measured: bool
    """Whether the discordance was measured on earlier runs of both arms; else it is assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEstimate:
    """A plan with what it would take and could show."""

    plan: Plan
    num_items: Mapping[str, int]
    prompt_tokens: Mapping[str, float]
    """Mean tokens of a benchmark's prompts."""
    arms: tuple[ArmEstimate, ...]
    repeated: tuple[str, ...]
    """Arms that run twice for their noise floor; counted twice in the totals."""
    throughput: Throughput | None
    num_prior_runs: int
    smallest_gains: tuple[SmallestGain, ...]
    one_sided_points: float | None
    """The smallest gain that could be shown if no answer got worse; None: too few items."""

    def total(self, field: str) -> float | None:
        """The sum of a field of `ArmEstimate` over all arms, repeated ones twice; None where it is not known for one of them."""
        values = [getattr(arm, field) for arm in self.arms for _ in range(1 + (arm.name in self.repeated))]
        return None if any(value is None for value in values) else float(sum(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is told of throughput and earlier runs."""

    prior: tuple[Path, ...] = ()
    """Folders of earlier runs."""
    tokens_per_second: float | None = None
    """Of the plain model, as its user knows it."""
    probe: bool = False
    """Load the model and measure."""


def estimate_trial(
    model: str | Path,
    *,
    out: str | Path,
    loops: str | Loop | Sequence[Loop] | None = None,
    tasks: Sequence[str] = ("ladder",),
    budgets: Sequence[int] = (),
    settings: TrialSettings | None = None,
    known: Known | None = None,
) -> TrialEstimate:
    """What `trial` with the same arguments would take. Nothing is written, and no weights are read unless a probe is asked for.

    Args:
        out: the trial's folder: runs that are there count as earlier runs where no others are named.

    Raises:
        TrialError, LoopError, TaskError, ModelError, CostError: as `trial`, before it loads a model.
    """
    settings, known, out = settings or TrialSettings(), known or Known(), Path(out)
    check_known(known, settings)
    chosen = estimated_tasks(tasks, settings)
    items = {task.name: task.load(settings.data, settings.limit) for task in chosen}
    source = resolve(model, weights=known.probe)
    study = settings.placement
    checked = resolve_loops(source, loops) if loops is not None or study is None else loops_of_study(source, study, out)
    if not checked:
        raise TrialError(f"{model} has no loop; give loops, e.g. '10:14 x2'")
    plan = plan_trial(source, checked, chosen, budgets, settings)
    repeated = arms_repeated(plan, deciding_twin(plan).name, deciding=settings.noise_floor, others=settings.noise_floor_of)
    prior = read_prior(known.prior or ((out,) if out.is_dir() else ()))
    shapes = Shapes(source, checked, settings)
    throughput = throughput_of(known, prior, plan, source, chosen[0], settings)
    asked = [(task, items[task.name]) for task in chosen]
    arms = tuple(arm_estimate(arm, plan, asked, shapes, prior, throughput) for arm in plan.arms() if arm.applicable)
    counts = {name: len(of) for name, of in items.items()}
    one_sided = stats.smallest_one_sided(sum(counts.values()), alpha=plan.alpha, power=POWER)
    return TrialEstimate(
        plan=plan,
        num_items=counts,
        prompt_tokens=shapes.mean_prompts(asked),
        arms=arms,
        repeated=repeated,
        throughput=throughput,
        num_prior_runs=len(prior.runs),
        smallest_gains=smallest_gains(plan, counts, prior),
        one_sided_points=None if one_sided is None else 100 * one_sided,
    )


def estimated_tasks(names: Sequence[str], settings: TrialSettings) -> list[Task]:
    """The tasks of these names, whose cost can be told beforehand.

    Raises:
        TaskError: no such task, or one that runs code without permission; TrialError: one is of conversations.
    """
    chosen = [permit(task, settings.allow_code_execution) for task in tasks_named(names)]
    if held := next((task.name for task in chosen if task.begin), None):
        raise TrialError(f"{held} is of conversations, and how many answers one takes is not known beforehand; estimate the other tasks")
    return chosen


def check_known(known: Known, settings: TrialSettings) -> None:
    """Refuse a throughput that cannot be, or that is told twice.

    Raises:
        TrialError: the fault.
    """
    if known.probe and known.tokens_per_second is not None:
        raise TrialError("a throughput is measured by a probe or given, not both; leave one out")
    if known.probe and settings.engine != "eager":
        raise TrialError(f"a probe decodes eagerly and says nothing of engine {settings.engine!r}; give a throughput")
    _given(known)


def throughput_of(known: Known, prior: Prior, plan: Plan, source: Source, task: Task, settings: TrialSettings) -> Throughput | None:
    """As given, as probed, or as the earlier runs' meters say; None where nothing does."""
    if known.probe:
        return _probe(source, task, task.load(settings.data, settings.limit), settings)
    return _given(known) or prior.throughput(plan.batch_size, engine=settings.engine)


def _given(known: Known) -> Throughput | None:
    if known.tokens_per_second is None:
        return None
    return Throughput(tokens_per_second=known.tokens_per_second, source="as given")


class Shapes:
    """The models' shapes and tokenizers, read once."""

    def __init__(self, source: Source, loops: tuple[Loop, ...], settings: TrialSettings) -> None:
        self.settings = settings
        self.loops = loops
        self.plain = (read_shape(source.folder), _chat(source))
        larger = settings.larger_model
        big = None if larger is None else resolve(larger, weights=False)
        self.larger = self.plain if big is None else (read_shape(big.folder), _chat(big))
        self.kept: dict[tuple[str, bool], list[int]] = {}

    def with_loops(self, loops: tuple[Loop, ...]) -> Shapes:
        """The same model with other loops; prompts that were counted stay counted."""
        other = copy(self)
        other.loops = loops
        return other

    def mean_prompts(self, asked: Sequence[tuple[Task, Sequence[Item]]]) -> dict[str, float]:
        """Mean tokens of each benchmark's prompts."""
        return {task.name: sum(lengths) / len(lengths) for task, items in asked if (lengths := self.prompts(items, task))}

    def of(self, arm: PlannedArm) -> tuple[ModelShape, tuple[Loop, ...], float]:
        """An arm's shape and loops, and what a token of it costs in tokens of the plain model."""
        if arm.purpose == "larger model":
            ratio = cost_of(self.larger[0], ()).flops_per_token / cost_of(self.plain[0], ()).flops_per_token
            return self.larger[0], (), ratio
        loops = self.loops if arm.looped else ()
        return self.plain[0], loops, cost_of(self.plain[0], loops).layer_pass_ratio

    def prompts(self, items: Sequence[Item], task: Task, *, larger: bool = False) -> list[int]:
        """The tokens of each prompt."""
        key = (task.name, larger)
        if key not in self.kept:
            chat = (self.larger if larger else self.plain)[1]
            thinking = self.settings.thinking or task.thinking
            asked = [item.asked(in_chat=chat.template is not None) for item in items]
            self.kept[key] = [len(chat.encode(item.prompt, thinking=thinking)) for item in asked]
        return self.kept[key]


def _chat(source: Source) -> Chat:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {source.name!r}: its tokenizer does not load ({' '.join(str(error).split())[:160]})") from None
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    return Chat(tokenizer, template, None, frozenset(), 0)  # prompts only: what ends a text is not asked


def arm_estimate(
    arm: PlannedArm,
    plan: Plan,
    asked: Sequence[tuple[Task, Sequence[Item]]],
    shapes: Shapes,
    prior: Prior,
    throughput: Throughput | None,
) -> ArmEstimate:
    """What one arm would take with one seed.

    Args:
        asked: every benchmark with its items.
    """
    tasks, items = {task.name: task for task, _ in asked}, {task.name: of for task, of in asked}
    shape, loops, ratio = shapes.of(arm)
    answers, most, expected, most_flops, expected_flops = 0, 0, 0.0, 0.0, 0.0
    known = True
    for name, budget in arm.budgets_tokens:
        samples = plan.draws(arm, name)[0]
        prompts = shapes.prompts(items[name], tasks[name], larger=arm.purpose == "larger model")
        length = prior.expected_tokens(name, looped=arm.looped, rule=arm.rule, budget_tokens=budget)
        known = known and length is not None
        answers += samples * len(prompts)
        most += samples * len(prompts) * budget
        expected += samples * len(prompts) * (length or 0.0)
        most_flops += samples * sum(_flops(shape, loops, tokens, budget) for tokens in prompts)
        expected_flops += samples * sum(_flops(shape, loops, tokens, length or 0.0) for tokens in prompts)
    tokens = expected if known else most
    return ArmEstimate(
        name=arm.name,
        purpose=arm.purpose,
        num_answers=answers,
        most_tokens=most,
        expected_tokens=expected if known else None,
        most_flops=most_flops,
        expected_flops=expected_flops if known else None,
        seconds=None if throughput is None else ratio * tokens / throughput.tokens_per_second,
    )


def _flops(shape: ModelShape, loops: tuple[Loop, ...], prompt_tokens: int, generated_tokens: float) -> float:
    """`answer_flops` for a mean length: it is linear from one token on."""
    one, two = (answer_flops(shape, loops, prompt_tokens=prompt_tokens, generated_tokens=n) for n in (1, 2))
    return one + (max(generated_tokens, 1.0) - 1) * (two - one)


def smallest_gains(plan: Plan, counts: Mapping[str, int], prior: Prior) -> tuple[SmallestGain, ...]:
    """By the discordance of earlier pairs where every benchmark has one, else for each of the assumed ones."""
    measured = [prior.discordance(task.name) for task in plan.tasks]
    shares = [share for share in measured if share is not None]
    known = len(shares) == len(measured) and any(shares)
    found = []
    for discordance in (sum(shares) / len(shares),) if known else ASSUMED_DISCORDANCES:
        gain = stats.smallest_gain(list(counts.values()), discordance, num_seeds=len(plan.seeds), alpha=plan.alpha, power=POWER)
        found.append(SmallestGain(discordance=discordance, points=None if gain is None else 100 * gain, measured=known))
    return tuple(found)


def _probe(source: Source, task: Task, items: Sequence[Item], settings: TrialSettings) -> Throughput:
    """Decode some tokens of one batch of the plain model, the second time measured."""
    loaded: Any = load(source.folder, loops="none", dtype=settings.dtype, device=settings.device)
    prompts = [item.prompt for item in items][: settings.batch_size]
    rule = DecodingRule(thinking=settings.thinking or task.thinking)
    rates = []
    for _ in range(2):
        began = time.perf_counter()
        done = generate(loaded.model, loaded.tokenizer, prompts, budget_tokens=PROBE_TOKENS, rule=rule, batch_size=settings.batch_size)
        rates.append(sum(one.generated_tokens for one in done) / (time.perf_counter() - began))
    words = f"a probe of {len(prompts)} prompts of {task.name}, {PROBE_TOKENS} tokens each, in one batch on {settings.device}"
    return Throughput(tokens_per_second=rates[1], source=words)
