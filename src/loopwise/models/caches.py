"""One cache slot per call site, inside Hugging Face's own cache objects.

The first execution of a layer uses the slot it has in the plain model. Each further execution gets a slot of its own,
appended as a copy of the layer's fresh slot, so that reordering, cropping, selecting and resetting the cache reach it.
A layer finds its slot by its own ``layer_idx`` in a view of the cache, whose list of slots is permuted for that visit.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache, StaticSlidingWindowLayer

from ..loops import CallSite
from .families import ModelError

CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")


def cache_argument(model: nn.Module) -> str:
    """The name under which ``model.forward`` takes its cache (``cache`` since transformers 5.20).

    Raises:
        ModelError: it takes none.
    """
    parameters = inspect.signature(model.forward).parameters
    for name in CACHE_ARGUMENTS:
        if name in parameters:
            return name
    raise ModelError(f"{type(model).__name__} takes no cache; its forward has no argument named {' or '.join(CACHE_ARGUMENTS)}")


def cache_of(output: Any) -> Cache:
    """The cache in a model's output, under whichever name this version of transformers gives it."""
    for name in CACHE_ARGUMENTS:
        if (cache := getattr(output, name, None)) is not None:
            assert isinstance(cache, Cache)
            return cache
    raise ModelError("the model returned no cache; call it with use_cache=True")


def dynamic_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache that grows, with the slot types of the model's layers."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def static_cache(model: PreTrainedModel, max_tokens: int) -> StaticCache:
    """An empty cache of fixed size, with the slot types of the model's layers."""
    return StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=max_tokens)


def cache_views(cache: Cache, sites: Sequence[CallSite], num_layers: int, loops: str, first: int) -> tuple[Cache, ...]:
    """One view per visit; in view v, slot ``i`` is the one of layer i's v-th execution. The first view is the cache itself.

    Called before any looped layer has run in a forward pass; an empty cache is first given the further slots, and keeps
    the loops that it was made for.

    Args:
        sites: all call sites of the model.
        loops: the model's loops as text.
        first: the first looped layer; this one and those after it have not run yet in this forward pass.

    Raises:
        ModelError: the cache was filled by the plain model or under other loops, it offloads its slots, or it is one of an
            encoder and a decoder.
    """
    if isinstance(cache, EncoderDecoderCache):
        raise ModelError("an encoder-decoder cache cannot serve loops; they are for decoder-only models")
    if getattr(cache, "offloading", False):
        raise ModelError("an offloading cache prefetches by layer and cannot serve loops; use a dynamic or static cache")
    whole = [site for site in sites if site.slot is not None]
    if getattr(cache, "slots_of_loops", None) != loops:
        _append_slots(cache, whole, num_layers, loops, first)
    views = [cache]
    for visit in range(1, 1 + max(site.visit for site in whole)):
        slots = list(cache.layers[:num_layers])
        for site in whole:
            if site.visit == visit and site.slot is not None:
                slots[site.layer] = cache.layers[site.slot]
        views.append(Cache(layers=slots))
    return tuple(views)


def _append_slots(cache: Any, whole: Sequence[CallSite], num_layers: int, loops: str, first: int) -> None:
    before = getattr(cache, "slots_of_loops", None)
    if any(_is_filled(slot) for slot in cache.layers[first:]):
        by = "by the plain model" if before is None else f"under the loops {before}"
        raise ModelError(f"the cache was filled {by}, so it holds another past than the loops {loops} need; start a new one")
    if before is not None:
        del cache.layers[num_layers:]
    if len(cache.layers) > num_layers:
        raise ModelError(f"the cache has {len(cache.layers)} slots for {num_layers} layers: it belongs to another model; start a new one")
    while len(cache.layers) < num_layers:  # a DynamicCache() without config grows layer by layer
        if cache.layer_class_to_replicate is None:
            raise ModelError(f"the cache has {len(cache.layers)} slots for {num_layers} layers; start a new one")
        cache.layers.append(cache.layer_class_to_replicate())
    further = sorted((site for site in whole if site.visit > 0), key=lambda site: site.slot or 0)
    cache.layers.extend([_fresh_copy(cache.layers[site.layer]) for site in further])
    cache.slots_of_loops = loops


def _fresh_copy(slot: Any) -> Any:
    if not torch.compiler.is_compiling():
        return copy.deepcopy(slot)
    # Dynamo cannot copy the tensors that sliding and static slots keep, so inside a compiled region the slot is made anew.
    arguments = {name: getattr(slot, name) for name in ("max_cache_len", "sliding_window", "number_of_states") if hasattr(slot, name)}
    if isinstance(slot, StaticSlidingWindowLayer):
        arguments["sliding_window"] = slot.max_cache_len  # the smaller of both, which is all that it keeps of them
    made = type(slot)(**arguments)
    for name in ("record_past", "_is_croppable"):
        if hasattr(slot, name):
            setattr(made, name, getattr(slot, name))
    return made


def _is_filled(slot: Any) -> bool:
    if any(getattr(slot, "has_previous_state", {}).values()):  # convolution and recurrent states
        return True
    return bool(hasattr(slot, "get_seq_length") and slot.get_seq_length() > 0)
