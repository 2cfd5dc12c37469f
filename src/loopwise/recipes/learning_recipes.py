"""The learning recipes by name: their numbers at two scales, and how each trains a member (no-free-loop, A.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ..training import (
    AnchoredRecurrentDepth,
    ContinuedPretraining,
    Conversion,
    LongFinetune,
    LoraGrpo,
    LoraSettings,
    NextToken,
    Objective,
    PassSchedule,
    ShortFinetune,
    StepFlops,
    TrainingError,
    TrainResult,
    Tuning,
    train_anchored,
    train_continued,
    train_conversion,
    train_long_finetune,
    train_lora_grpo,
    train_short_finetune,
)

Scale = Literal["paper", "nano"]
Reads = Literal["traces", "text"]
LearningSettings = ShortFinetune | LongFinetune | Conversion | AnchoredRecurrentDepth | ContinuedPretraining | LoraGrpo


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The batches of a recipe.

    Raises:
        TrainingError: a number below 1.
    """

    num_sequences: int
    """Rows of a step. A guess, but for conversion, whose 2,000 steps on 33M tokens make about 16k tokens a step."""
    sequence_tokens: int
    """Inputs of a row. A guess: the longest trace that is kept has one token more."""

    def __post_init__(self) -> None:
        for name in ("num_sequences", "sequence_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TrainingError(f"{name} is {value}; give a whole number, at least 1")

    @property
    def step_tokens(self) -> int:
        """Inputs of a step, padding included."""
        return self.num_sequences * self.sequence_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRecipe:
    """One recipe of the paper."""

    name: str
    what: str
    """One line, with its place in the paper."""
    reads: tuple[Reads, ...]
    """What it can be trained on."""
    train: Callable[..., TrainResult]
    """Trains one member: model, loops, source, settings and folder, as ``train_short_finetune``."""
    settings: Mapping[Scale, Callable[[], LearningSettings]]
    rows: Mapping[Scale, Rows]


def _lora_finetune() -> ShortFinetune:
    return ShortFinetune(tuning=Tuning(num_tokens=100_000_000, learning_rate=1e-4), lora=LoraSettings())


def _nano_lora_finetune() -> ShortFinetune:
    return replace(ShortFinetune.nano(learning_rate=1e-3), lora=LoraSettings(rank=16, alpha=32.0))


_NANO = Rows(num_sequences=16, sequence_tokens=256)

RECIPES: dict[str, LearningRecipe] = {
    recipe.name: recipe
    for recipe in (
        LearningRecipe(
            name="short-ft",
            what="full fine-tuning on 100M tokens of reasoning traces (A.3, Short fine-tune)",
            reads=("traces",),
            train=train_short_finetune,
            settings={"paper": ShortFinetune, "nano": ShortFinetune.nano},
            rows={"paper": Rows(num_sequences=32, sequence_tokens=4096), "nano": _NANO},
        ),
        LearningRecipe(
            name="long-ft",
            what="full fine-tuning on long traces, as many steps as the looped model makes in a fixed time (A.3, Long fine-tune)",
            reads=("traces",),
            train=train_long_finetune,
            settings={"paper": LongFinetune, "nano": LongFinetune.nano},
            rows={"paper": Rows(num_sequences=16, sequence_tokens=16384), "nano": _NANO},
        ),
        LearningRecipe(
            name="conversion",
            what="LoRA near the unmodified model, the loop introduced over the first third (A.3, Conversion)",
            reads=("traces",),
            train=train_conversion,
            settings={"paper": Conversion, "nano": Conversion.nano},
            rows={"paper": Rows(num_sequences=4, sequence_tokens=4096), "nano": _NANO},
        ),
        LearningRecipe(
            name="anchored",
            what="anchored recurrent depth: a core applied K times, tied to the original at one pass (4.4 and A.3, ARD)",
            reads=("traces", "text"),
            train=train_anchored,
            settings={"paper": AnchoredRecurrentDepth, "nano": AnchoredRecurrentDepth.nano},
            rows={"paper": Rows(num_sequences=16, sequence_tokens=4096), "nano": _NANO},
        ),
        LearningRecipe(
            name="continued",
            what="continued pretraining, a random 1 to 3 passes a batch, constant rate (section 5 and A.3)",
            reads=("text",),
            train=train_continued,
            settings={"paper": ContinuedPretraining, "nano": ContinuedPretraining.nano},
            rows={"paper": Rows(num_sequences=256, sequence_tokens=2048), "nano": _NANO},
        ),
        LearningRecipe(
            name="lora-ft",
            what="LoRA fine-tuning on reasoning traces, the first half of the recipe with reinforcement learning (A.3)",
            reads=("traces",),
            train=train_short_finetune,
            settings={"paper": _lora_finetune, "nano": _nano_lora_finetune},
            rows={"paper": Rows(num_sequences=32, sequence_tokens=4096), "nano": _NANO},
        ),
        LearningRecipe(
            name="lora-grpo",
            what="LoRA fine-tuning on reasoning traces, then GRPO on training problems (A.3)",
            reads=("traces",),
            train=train_lora_grpo,
            settings={"paper": LoraGrpo, "nano": LoraGrpo.nano},
            rows={"paper": Rows(num_sequences=32, sequence_tokens=4096), "nano": _NANO},
        ),
    )
}
"""Every recipe by its name."""


def recipe_named(name: str) -> LearningRecipe:
    """A recipe.

    Raises:
        TrainingError: there is none of this name.
    """
    if name not in RECIPES:
        raise TrainingError(f"no recipe is called {name!r}; use {', '.join(RECIPES)}")
    return RECIPES[name]


def check_scale(scale: str) -> Scale:
    """A scale by its name.

    Raises:
        TrainingError: there is none.
    """
    if scale not in get_args(Scale):
        raise TrainingError(f"scale is {scale!r}; use {' or '.join(get_args(Scale))}")
    return scale  # type: ignore[return-value]  # checked


def tuned(settings: LearningSettings, **changes: Any) -> LearningSettings:
    """The settings with fields of their `Tuning` changed; what is None stays."""
    return replace(settings, tuning=replace(settings.tuning, **{name: value for name, value in changes.items() if value is not None}))


def with_rank(settings: LearningSettings, rank: int) -> LearningSettings:
    """The settings with adapters of another rank, whose products count as before.

    Raises:
        TrainingError: a recipe without adapters.
    """
    lora = lora_of(settings)
    if lora is None:
        raise TrainingError(f"a rank of {rank} is for recipes with LoRA; this one trains all weights: leave it out")
    assert not isinstance(settings, LongFinetune | ContinuedPretraining)
    return replace(settings, lora=replace(lora, rank=rank, alpha=lora.alpha / lora.rank * rank))


def lora_of(settings: LearningSettings) -> LoraSettings | None:
    """The adapter of a recipe, or None."""
    return None if isinstance(settings, LongFinetune | ContinuedPretraining) else settings.lora


def passes_of(settings: LearningSettings) -> PassSchedule | None:
    """The passes of a looped member by step; None is the loops as they were put in."""
    return None if isinstance(settings, ShortFinetune | LoraGrpo) else settings.passes


def objective_of(settings: LearningSettings) -> Objective:
    """What a step minimises."""
    return settings.objective if isinstance(settings, Conversion | AnchoredRecurrentDepth) else NextToken()


def expected_passes(schedule: PassSchedule | None, num_steps: int) -> dict[int | None, float]:
    """How many steps of a run draw each number of passes, on average over seeds."""
    if schedule is None or schedule.kind == "fixed":
        return {None if schedule is None else schedule.most: float(num_steps)}
    found: dict[int | None, float] = {}
    for step in range(num_steps):
        for passes, share in _shares(schedule, step, num_steps).items():
            found[passes] = found.get(passes, 0.0) + share
    return {passes: count for passes, count in found.items() if count}


def _shares(schedule: PassSchedule, step: int, num_steps: int) -> dict[int | None, float]:
    """How likely a step draws each number of passes."""
    if schedule.kind == "introduced":
        share = schedule.probability(step, num_steps)
        return {schedule.most: share, 1: 1 - share}
    ceiling = schedule.ceiling(step, num_steps)
    return dict.fromkeys(range(schedule.least, ceiling + 1), 1 / (ceiling - schedule.least + 1))


def expected_flops(settings: LearningSettings, flops: StepFlops, *, looped: bool, num_steps: int) -> float:
    """The training FLOPs of ``num_steps`` steps of one token each, by what they can be expected to draw; of `LoraGrpo` its first stage
    alone: how long answers will be is not known."""
    objective = objective_of(settings)
    drawn = expected_passes(passes_of(settings) if looped else None, num_steps)
    return sum(count * flops.of_forwards(objective.forwards(passes)) for passes, count in drawn.items())
