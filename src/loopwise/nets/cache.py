"""Room for every execution of a layer in transformers' own cache objects."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration import NetError

_OUTPUT_NAME = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
_MASK_NAME = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
_MASK_WANTS_CACHE_POSITION = "cache_position" in inspect.signature(create_causal_mask).parameters


def as_output(cache: Cache | None) -> Mapping[str, Any]:
    """The cache under the name that outputs of this version of transformers give it (``cache`` since 5.20)."""
    return {_OUTPUT_NAME: cache}


def cache_in(output: Any) -> Cache | None:
    """The cache of an output made with `as_output`."""
    cache: Cache | None = getattr(output, _OUTPUT_NAME)
    return cache


def causal_mask(config: Any, embedding: torch.Tensor, attention_mask: Any, cache: Cache | None, positions: torch.Tensor) -> Any:
    """transformers' mask for these tokens behind what the cache holds; None where plain causality says it all."""
    arguments: dict[str, Any] = {_MASK_NAME: cache}
    if _MASK_WANTS_CACHE_POSITION:
        seen = 0 if cache is None else cache.get_seq_length()
        arguments["cache_position"] = torch.arange(embedding.shape[1], device=embedding.device) + seen
    return create_causal_mask(config=config, inputs_embeds=embedding, attention_mask=attention_mask, position_ids=positions, **arguments)


def grow(cache: Cache, num_slots: int) -> None:
    """Give an empty cache a slot for every execution of a layer: copies of its first, which caches make one a physical layer.

    Raises:
        NetError: the cache offloads its slots, or was filled by a forward pass with fewer loops.
    """
    if getattr(cache, "offloading", False):
        raise NetError("an offloading cache prefetches by layer and cannot serve loops; use a dynamic or static cache")
    if len(cache.layers) >= num_slots or getattr(cache, "layer_class_to_replicate", None) is not None:
        return
    if cache.get_seq_length() > 0:
        raise NetError(f"the cache was filled by {len(cache.layers)} layer executions, this pass has {num_slots}; start a new one")
    first = cache.layers[0]
    for _ in range(num_slots - len(cache.layers)):
        cache.layers.append(_fresh(first))


def _fresh(slot: Any) -> Any:
    if not torch.compiler.is_compiling():
        return copy.deepcopy(slot)
    arguments = {"max_cache_len": slot.max_cache_len} if hasattr(slot, "max_cache_len") else {}  # Dynamo copies no tensors
    return type(slot)(**arguments)
