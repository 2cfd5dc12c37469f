"""What a vLLM process is to run: the loops that its configuration asks for, and the ways of running that they were not written for."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from torch import nn

from ..loops import Loop, format_loops, parse_loops
from ..models import ModelError, read_sidecar
from ..models.sidecar import check_base
from .looping import loop_layers

LOOPS = "loopwise_loops"
"""The key of vLLM's ``additional_config`` that gives loops in place of the folder's; ``none`` is no loop. vLLM hashes that value, so
compiled graphs of other loops are never taken for these."""


def put_loops(decoder: nn.Module, vllm_config: Any) -> None:
    """Put the loops that were asked for, or those of the model's folder, into a decoder that vLLM has just made.

    Raises:
        LoopError: loops that the model cannot have.
        ModelError: a damaged sidecar, a base changed since its loop was put in, or a way of running that loops were not written for.
    """
    layers: Any = decoder.layers
    loops = loops_asked_for(vllm_config, len(layers))
    if not loops:
        return
    check_way(vllm_config)
    registry: MutableMapping[str, Any] = vllm_config.compilation_config.static_forward_context
    # In the tree of modules, so that vLLM prepares them after loading as it does the others; they have no weights of their own.
    decoder.loop_caches = nn.ModuleDict(loop_layers(layers, loops, registry))
    vllm_config.additional_config[LOOPS] = format_loops(loops)


def loops_asked_for(vllm_config: Any, num_layers: int) -> tuple[Loop, ...]:
    """The loops of ``additional_config``, else those of the folder's ``loop.json``; its base is checked by the first rank alone."""
    given = vllm_config.additional_config.get(LOOPS) if isinstance(vllm_config.additional_config, dict) else None
    if given is not None:
        return parse_loops(given, num_layers)
    folder = Path(vllm_config.model_config.model)
    sidecar = read_sidecar(folder) if folder.is_dir() else None
    if sidecar is None:
        return ()
    if sidecar.num_layers != num_layers:
        raise ModelError(f"{folder}: its loop was put into {sidecar.num_layers} layers, the model has {num_layers}; insert the loop again")
    if vllm_config.parallel_config.rank == 0:
        check_base(folder, sidecar)
    return sidecar.loops


def check_way(vllm_config: Any) -> None:
    """Refuse what would run another model than the looped one.

    Raises:
        ModelError: naming the setting.
    """
    ways = {
        "pipeline parallelism (a span may not be split)": vllm_config.parallel_config.pipeline_parallel_size > 1,
        "LoRA (it would reach the first pass only)": vllm_config.lora_config is not None,
        "speculative decoding (the draft does not know the loop)": vllm_config.speculative_config is not None,
        "quantised weights": vllm_config.quant_config is not None,
        "an additional_config that is no dictionary": not isinstance(vllm_config.additional_config, dict),
    }
    for way, on in ways.items():
        if on:
            raise ModelError(f"loops in vLLM were not written for {way}; turn it off")
