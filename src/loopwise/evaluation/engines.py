"""Who decodes an evaluation, the own engine or vLLM, and the check of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from transformers import PreTrainedModel

from ..decoding import ENGINES, DecodingError, DecodingRule, Engine, check_static
from ..models import Source, source_of
from ..serving import EngineGap, ServingError, VllmEngine, VllmHost, check_temperature, check_vllm, measure_gap
from ..tasks import Task
from .conversations import longest_tokens
from .parity import NEW_TOKENS, Parity, ParityError, check_parity, choose_prompts

EvaluationEngine = Engine | Literal["vllm"]
Check = Parity | EngineGap | Callable[[], Parity | EngineGap]
"""The check of a model's decoding, or what makes it once it is needed."""


def check_engine(engine: EvaluationEngine, model: PreTrainedModel, rule: DecodingRule, *, fixed_rows: bool, num_ranks: int) -> None:
    """Refuse what an engine cannot run, before it starts.

    Raises:
        DecodingError: an engine that is unknown, or of fixed shapes for a model without static caches.
        DecodingError, ModelError, ServingError: as `check_vllm_way`.
    """
    if engine == "vllm":
        source = source_of(model)
        check_vllm_way([source] if source else [], temperature=rule.temperature, fixed_rows=fixed_rows, num_ranks=num_ranks)
    elif engine not in ENGINES:
        raise DecodingError(f"engine {engine!r} is unknown; use {', '.join(ENGINES)}, vllm")
    elif engine != "eager":
        check_static(model)


def check_vllm_way(sources: Sequence[Source], *, temperature: float = 0.0, fixed_rows: bool, num_ranks: int) -> None:
    """Refuse what vLLM cannot be asked for, of every model that it is to run.

    Raises:
        DecodingError: a temperature that it does not draw at.
        ModelError, ServingError: as `check_vllm`; or fixed rows, or several processes.
    """
    check_temperature(temperature)
    if fixed_rows:
        raise ServingError("engine 'vllm' gives a row to the next prompt as it ends; leave --fixed-rows out, or use the own engine")
    if num_ranks > 1:
        raise ServingError(f"engine 'vllm' in {num_ranks} processes: it spreads over devices by itself; start it without torchrun")
    for source in sources:
        check_vllm(source)


def start_vllm(
    host: VllmHost, model: PreTrainedModel, task: Task, prompts: Sequence[Sequence[int]], budget_tokens: int, rows: int
) -> VllmEngine:
    """The engine of a task's prompts and budget.

    Raises:
        ModelError, ServingError: as `VllmHost.on`.
        TaskError: as `longest_tokens`.
    """
    return host.on(model, max_tokens=longest_tokens(task, model, prompts, budget_tokens), max_rows=rows)


def make_ready(
    model: PreTrainedModel,
    task: Task,
    prompts: Sequence[Sequence[int]],
    budget_tokens: int,
    rows: int,
    check: Check | None,
    host: VllmHost | None,
) -> tuple[VllmEngine | None, Parity | EngineGap]:
    """What decodes, vLLM where a host is given, and the check of it.

    Raises:
        ModelError, ServingError, TaskError, ParityError: as `start_vllm` and `check_decoding`.
    """
    made = check() if callable(check) else check  # first: it may start vLLM for longer sequences
    vllm = start_vllm(host, model, task, prompts, budget_tokens, rows) if host else None
    return vllm, made or check_decoding(model, prompts, vllm)


def check_decoding(model: PreTrainedModel, prompts: Sequence[Sequence[int]], vllm: VllmEngine | None = None) -> Parity | EngineGap:
    """The check that precedes an evaluation: of the own engine's cached decoding, or of vLLM's against Hugging Face's recompute.

    Raises:
        ParityError: what would be decoded is not the model that was meant.
    """
    if vllm is None:
        return check_parity(model, prompts)
    chosen = choose_prompts(prompts)
    gap = measure_gap(vllm, model, chosen, new_tokens=min(NEW_TOKENS, vllm.max_tokens - max(map(len, chosen))))
    if not gap.ok:
        raise ParityError(
            f"vLLM's log-probabilities differ from Hugging Face's by {gap.mean_abs_nats:.3g} nats in the mean, {gap.max_abs_nats:.3g} "
            f"at most (vLLM in {gap.dtype}, {len(chosen)} prompts, {gap.new_tokens} new tokens): this model is not decoded exactly there; "
            "use the own engine, and report its family and the loop"
        )
    return gap


def parity_json(parity: Parity | EngineGap) -> dict[str, Any]:
    """The check as a run's header keeps it."""
    facts = {**asdict(parity), "prompt_tokens": list(parity.prompt_tokens), "ok": parity.ok}
    if not isinstance(parity, EngineGap):
        return {"compared": "cached greedy decoding against full recompute, left-padded batch", **facts}
    compared = "log-probabilities of vLLM's greedy decoding against Hugging Face's full recompute"
    return {
        "compared": compared,
        **facts,
        "tolerance": parity.tolerance_nats,
        "tolerance_from": "of the largest" if parity.in_fp32 else "of the mean",
    }
