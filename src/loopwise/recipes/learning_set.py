"""A set as it is planned: its members, what each of them is charged, and the file that binds the folder. No weights are read.

`learning` trains what is planned here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ..loops import Loop, format_loops
from ..models import Source, find_decoder, resolve, resolve_loops, trained_loops
from ..training import (
    MODEL_FOLDER,
    Execution,
    LongFinetune,
    LoraGrpo,
    LoraSettings,
    StepFlops,
    TrainingError,
    read_measured_steps,
)
from ..training.adapters import lora_targets
from .learning_checks import check_data, check_passes
from .learning_data import LearningData
from .learning_files import FORMAT, SET_FILE, STEPS_FILE, bind, merged, read_set
from .learning_members import LOOPED, Controls, Member, beginning, make_members
from .learning_recipes import LearningRecipe, LearningSettings, Scale, expected_flops, lora_of, passes_of, recipe_named


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSet:
    """What is to be trained.

    Raises:
        TrainingError: no seed, one twice or below 0; not exactly one of model and beginning; a recipe that there is not.
    """

    recipe: str
    loops: str
    data: LearningData
    out: Path
    settings: LearningSettings
    scale: Scale = "paper"
    model: str | None = None
    """The base of all members; None with ``begins``."""
    begins: Path | None = None
    """An earlier set, whose members theirs counterparts here begin with, or one member of it, ``SET/MEMBER``, with which all begin."""
    seeds: tuple[int, ...] = (0,)
    """Of the order of the data, an adapter's first weights and drawn passes: all members of a seed share all three."""
    controls: Controls = field(default_factory=Controls)
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        recipe_named(self.recipe)
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise TrainingError(f"seeds are {' '.join(map(str, self.seeds)) or 'none'}; give different ones, from 0 on")
        if (self.model is None) == (self.begins is None):
            raise TrainingError(f"the base is {self.model} and the set before {self.begins}; give --model or --from, one of the two")

    def folder(self, member: str, seed: int) -> Path:
        """Where a member's run with a seed lies."""
        return self.out / member / f"seed-{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPlan:
    """A set, resolved and checked."""

    chosen: LearningSet
    recipe: LearningRecipe
    source: Source
    """The base, or the model that the looped member of the first seed begins with."""
    loops: tuple[Loop, ...]
    members: tuple[Member, ...]
    flops_ratio: float
    """The looped model's training FLOPs over the twin's, as counted; with reinforcement learning, those of the first stage."""
    config: Mapping[str, Any]
    """Of the model, as the cost room reads it."""
    trained_share: float
    """Of the parameters, an adapter's own among them."""

    def base(self, member: Member, seed: int) -> Path | str:
        """The model that a member begins with."""
        if member.begins_with is None:
            assert self.chosen.model is not None
            return self.chosen.model
        return _set_before(self.chosen)[0] / member.begins_with / f"seed-{seed}" / MODEL_FOLDER

    def member(self, name: str) -> Member:
        """A member by its name."""
        return next(member for member in self.members if member.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEstimate:
    """What a member will be charged, as far as it is known before anything runs. None is not known."""

    member: Member
    num_steps: int | None
    tokens: int | None
    """Inputs, padding included."""
    flops: float | None


def plan_set(chosen: LearningSet) -> SetPlan:
    """Resolve and check a set, by the files of its model and its data alone.

    Raises:
        TrainingError, DataError, ModelError, LoopError, CostError: bad input.
    """
    recipe = recipe_named(chosen.recipe)
    check_data(chosen.data, recipe, evaluate_every=chosen.execution.evaluate_every_steps)
    source = _first_source(chosen)
    loops = resolve_loops(source, chosen.loops)
    check_passes(recipe, loops, passes_of(chosen.settings))
    if own := trained_loops(source):
        raise TrainingError(f"{source.name} was trained with loops of its own ({format_loops(own)}); give a model without")
    config, share = _trained_share(source, lora_of(chosen.settings))
    nominal = max(1, chosen.settings.tuning.num_tokens // chosen.data.rows.step_tokens)
    looped, twin = (
        expected_flops(chosen.settings, StepFlops(config, these, trained_share=share), looped=bool(these), num_steps=nominal)
        for these in (loops, ())
    )
    known = None if isinstance(chosen.settings, LoraGrpo) else looped / twin  # of answers nobody knows before how long they are
    members = make_members(loops, StepFlops(config).shape, chosen.controls, flops_ratio=known)
    if chosen.begins is not None:
        _, there, one = _set_before(chosen)
        members = tuple(beginning(member, there, one) for member in members)
    plan = SetPlan(
        chosen=chosen,
        recipe=recipe,
        source=source,
        loops=loops,
        members=members,
        flops_ratio=looped / twin,
        config=config,
        trained_share=share,
    )
    check_bound(plan)
    return plan


def estimate_set(plan: SetPlan) -> tuple[MemberEstimate, ...]:
    """What each member will be charged, by budgets and counted FLOPs; rows are taken to be full.

    Raises:
        CostError: a model whose cost is not known.
    """
    chosen = plan.chosen
    settings, step_tokens = chosen.settings, chosen.data.rows.step_tokens
    base: int | None = max(1, settings.tuning.num_tokens // step_tokens)
    if isinstance(settings, LongFinetune) and settings.budget_seconds is not None:
        measured = read_measured_steps(chosen.out / STEPS_FILE)
        base = None if measured is None else measured.num_steps
    found = []
    for member in plan.members:
        steps = None if base is None or member.token_factor is None else steps_of(base, member.token_factor)
        flops = None
        if steps is not None:
            each = StepFlops(plan.config, member.loops, trained_share=plan.trained_share)
            flops = expected_flops(settings, each, looped=not member.unlooped, num_steps=steps) * step_tokens
        tokens = None if steps is None else steps * step_tokens
        found.append(MemberEstimate(member=member, num_steps=steps, tokens=tokens, flops=flops))
    return tuple(found)


def steps_of(base_steps: int, factor: float) -> int:
    """The steps of a member, from those of the looped model."""
    return max(1, round(base_steps * factor))


def check_bound(plan: SetPlan) -> None:
    """Check that the folder is new or holds this very set.

    Raises:
        TrainingError: it holds another one, with the first field that differs.
    """
    file = plan.chosen.out / SET_FILE
    if file.exists():
        merged(plan.chosen.out, read_set(plan.chosen.out), set_values(plan))


def bind_set(plan: SetPlan, data: Mapping[str, Any]) -> None:
    """Write what binds the folder; members and seeds of earlier calls stay in it.

    Raises:
        TrainingError: the folder holds another set.
    """
    bind(plan.chosen.out, set_values(plan) | {"data": json.loads(json.dumps(data))})


def set_values(plan: SetPlan) -> dict[str, Any]:
    """What a set is bound to, its data apart."""
    chosen = plan.chosen
    values = {
        "format": FORMAT,
        "recipe": chosen.recipe,
        "scale": chosen.scale,
        "model": chosen.model,
        "from": None if chosen.begins is None else str(chosen.begins),
        "loops": format_loops(plan.loops),
        "settings": asdict(chosen.settings),
        "rows": asdict(chosen.data.rows),
        "flops_ratio": plan.flops_ratio,
        "equal": chosen.controls.equal,
        "members": {member.name: asdict(member) | {"loops": format_loops(member.loops)} for member in plan.members},
        "seeds": list(chosen.seeds),
    }
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def _set_before(chosen: LearningSet) -> tuple[Path, tuple[str, ...], str | None]:
    """The folder of the set that this one begins with, its members, and the one member that was named."""
    assert chosen.begins is not None
    for folder, one in ((chosen.begins, None), (chosen.begins.parent, chosen.begins.name)):
        if (folder / SET_FILE).is_file():
            return folder, tuple(read_set(folder)["members"]), one
    raise TrainingError(f"--from {chosen.begins}: neither a set (with {SET_FILE}) nor a member of one; give SET or SET/MEMBER")


def _first_source(chosen: LearningSet) -> Source:
    if chosen.model is not None:
        return resolve(chosen.model)
    folder, there, one = _set_before(chosen)
    name = one or LOOPED
    if name not in there:
        raise TrainingError(f"--from {chosen.begins}: the set has no member {name}; it has {', '.join(there)}")
    found = folder / name / f"seed-{chosen.seeds[0]}" / MODEL_FOLDER
    if not found.is_dir():
        raise TrainingError(f"--from {chosen.begins}: {found} is not there; train that member with seed {chosen.seeds[0]} first")
    source = resolve(found)
    return replace(source, name=str(chosen.begins))


def _trained_share(source: Source, lora: LoraSettings | None) -> tuple[dict[str, Any], float]:
    """The model's configuration, and the share of its parameters that is trained, an adapter's own among them.

    Raises:
        ModelError: a family that loops are not tested in.
        TrainingError: no language model, or LoRA targets that it lacks.
    """
    try:
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            shape: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(f"{source.name}: is no causal language model ({' '.join(str(error).split())[:160]})") from None
    find_decoder(shape)
    if lora is None:
        return shape.config.to_dict(), 1.0
    added = sum(lora.rank * sum(shape.get_submodule(name).weight.shape) for name in lora_targets(shape, lora))
    return shape.config.to_dict(), added / (added + sum(parameter.numel() for parameter in shape.parameters()))
