"""What a run's header says: everything that another run must share to be the same run."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch
from transformers import PreTrainedModel

from ..cost import cost_of, read_shape
from ..decoding import DecodingRule
from ..loops import format_loops
from ..models import loops_of, model_hash, source_of
from ..tasks import Task
from .defaults import own_decoding

FORMAT = "loopwise-run/1"
SCORED_BY = {
    "letters": "next-token logit of the letters, fp32",
    "log-likelihood": "sum of the log-probabilities of each continuation's tokens, in the model's dtype",
}
"""How tasks are answered that decode nothing, by their kind."""


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    from .. import __version__

    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "math-verify")}
    return {"loopwise": __version__, "python": platform.python_version(), **packages}


def model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """The part of a header that describes the model and its loops."""
    source = source_of(model)
    name, weights = (source.name, source.weights) if source else (type(model).__name__, "in memory")
    shape = read_shape(model.config.to_dict())
    loops = loops_of(model)
    cost = cost_of(shape, loops)
    parameter = next(model.parameters())
    return {
        "model": name,
        "model_hash": model_hash(model),
        "weights": weights,
        "num_layers": shape.num_layers,
        "num_parameters": sum(one.numel() for one in model.parameters()),
        "loops": format_loops(loops),
        "looped": bool(loops),
        "layer_pass_ratio": cost.layer_pass_ratio,
        "flops_ratio": cost.flops_ratio,
        "flops_convention": cost.convention,
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": str(parameter.device) if parameter.device.type == "cpu" else torch.cuda.get_device_name(parameter.device),
    }


def run_header(
    facts: dict[str, Any],
    *,
    arm: str,
    task: Task,
    num_items: int,
    items_hash: str,
    rule: DecodingRule,
    budget_tokens: int,
    samples: int,
    seed: int,
    batch_size: int,
    fixed_rows: bool,
    engine: str,
    engine_versions: dict[str, str] | None = None,
    parity: dict[str, Any] | None,
) -> dict[str, Any]:
    """The whole header, as `loopwise.records.RunWriter` keeps it."""
    scored_by = SCORED_BY.get(task.kind)
    return {
        "format": FORMAT,
        "arm": arm,
        **facts,
        "task": task.name,
        "task_version": task.version,
        "num_items": num_items,
        "items_hash": items_hash,
        "rule": task.kind if scored_by else rule.name,
        "decoding": {"scored_by": scored_by} if scored_by else asdict(rule),
        "task_decoding": own_decoding(task),
        "budget_tokens": budget_tokens,
        "reserve_tokens": rule.reserve_tokens if rule.budget_forcing else None,
        "samples": samples,
        "seeds": [seed],
        "batch_size": batch_size,
        "batch_plan": "fixed-rows" if fixed_rows else "refill",
        "engine": engine,
        "threads": torch.get_num_threads(),
        "versions": versions() | (engine_versions or {}),
        "parity": parity,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
