"""Which optimizer and which weight decay each parameter gets, and the optimizers themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from ..nets.linear import Linear
from ..nets.model import LoopedTransformer
from ..nets.residual import ResidualDesign
from .schedules import learning_rate_factor
from .settings import TrainingError, TrainSettings

Group = Literal["decay", "no_decay", "muon"]
_MATRICES = ("query_key", "value", "mlp", "output")
"""The roles of a network's matrices of attention and MLP."""
_ADAPTER_OF_LORA = "lora_"


def parameter_groups(model: nn.Module, optimizer: str) -> dict[str, Group]:
    """The group of every parameter that is trained, by its name; a tied one is there once, under its first name.

    ``muon``: the matrices of attention and MLP, and only with ``optimizer="muon"``. ``decay``: other matrices, AdamW with weight
    decay. ``no_decay``: AdamW without, for vectors, norms, gates, embeddings and a head tied to them, tables of value embeddings,
    convolutions, LoRA, and all that a residual design owns: depth queries and key gains (a stack of vectors though they look like a
    matrix: architectures of attention residuals, arXiv 2603.15031) and Parcae's A_log, dt_bias and B (its code).

    Raises:
        TrainingError: Muon for a model that is none of ``loopwise.nets``, or a model without anything to train.
    """
    if optimizer == "muon" and not isinstance(model, LoopedTransformer):
        raise TrainingError(f"muon is for networks of nets:..., not for a {type(model).__name__}, whose matrices are not known; use adamw")
    owners = {id(parameter): module for module in model.modules() for parameter in module.parameters(recurse=False)}
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters(recurse=False)}
    groups: dict[str, Group] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            looked_up = id(parameter) in tables
            groups[name] = "no_decay" if looked_up else _group(name, parameter, owners[id(parameter)], optimizer)
    if not groups:
        raise TrainingError(f"{type(model).__name__} has no parameter that is trained; set requires_grad")
    return groups


def _group(name: str, parameter: nn.Parameter, owner: nn.Module, optimizer: str) -> Group:
    is_vector = parameter.ndim < 2 or isinstance(owner, ResidualDesign | nn.Conv1d) or _ADAPTER_OF_LORA in name
    if is_vector or (isinstance(owner, Linear) and owner.role == "gate"):
        return "no_decay"
    if optimizer == "muon" and isinstance(owner, Linear) and owner.role in _MATRICES:
        return "muon"
    return "decay"


def make_optimizers(model: nn.Module, groups: dict[str, Group], settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon where it has parameters. Every group knows the peak of its learning rate as ``peak``.

    Muon is torch's: five Newton-Schulz steps, and a learning rate times sqrt(max(1, rows/columns)) (Parcae's code, whose cautious
    weight decay is not taken over).
    """
    named = dict(model.named_parameters())
    chosen = {kind: [named[name] for name, group in groups.items() if group == kind] for kind in ("decay", "no_decay", "muon")}
    decays = (("decay", settings.weight_decay), ("no_decay", 0.0))
    adamw: list[dict[str, Any]] = [
        {"params": chosen[kind], "weight_decay": decay, "peak": settings.learning_rate} for kind, decay in decays if chosen[kind]
    ]
    made: list[torch.optim.Optimizer] = []
    if adamw:
        made.append(torch.optim.AdamW(adamw, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True))
    if chosen["muon"]:
        peak = settings.muon_learning_rate or settings.learning_rate
        group = {"params": chosen["muon"], "weight_decay": settings.weight_decay, "peak": peak}
        made.append(torch.optim.Muon([group], lr=peak, momentum=settings.momentum))
    return made


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], settings: TrainSettings, step: int) -> float:
    """Give every group its learning rate for a step, counted from 0; returns the share of the peak times ``learning_rate``."""
    factor = learning_rate_factor(
        step,
        schedule=settings.schedule,
        num_steps=settings.num_steps,
        warmup_steps=settings.warmup_steps,
        final_factor=settings.final_factor,
        cooldown_share=settings.cooldown_share,
    )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
    return settings.learning_rate * factor


def fill_gradients(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Zeros where a step gave a parameter no gradient, e.g. the query of a loop that did not run.

    So that a parameter's moments are those of its true gradient, zero, and every state is there to be saved.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)


def optimizer_tensors(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    """The optimizers' state as ``NAME.KEY``, all of it: tensors that a checkpoint saves, and loads in place.

    State that is not there yet is made, by a step of zero gradients at a learning rate of zero, which changes no weight.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, torch.Tensor] = {}
    for optimizer in optimizers:
        if not optimizer.state:
            _make_state(optimizer)
        for parameter, state in optimizer.state.items():
            found |= {f"{names[id(parameter)]}.{key}": value for key, value in state.items()}
    return found


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
