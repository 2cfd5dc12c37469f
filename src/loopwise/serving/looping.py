"""Loops inside a decoder of vLLM: which module runs at which call site, and what a span does in place of its layers.

vLLM's layers hand on a pair, hidden state and residual, whose sum is the state that Hugging Face hands on, and add in place. A span
begins and ends with the sum, so every pass restarts the pair. Keys, values and recurrent states belong to the module that makes them,
found by its name: each further execution of a layer gets a copy of the layer that shares every weight and has a cache of its own,
whose layer number is the call site's slot. vLLM then counts, allocates and frees it like any layer. Nothing here imports vllm.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..loops import CallSite, LayerNode, Loop, Node, SpanNode, call_sites, loop_tree
from ..models import ModelError
from ..models.operators import apply_loop

ModuleT = TypeVar("ModuleT", bound=nn.Module)

Visits = tuple[nn.Module, ...]
"""The modules of one layer's executions, in order: the layer itself, then its copies."""


class LoopedLayers(nn.ModuleList):
    """A decoder's layers, of which iteration gives spans where loops are; every module, name and parameter is the plain list's own."""

    steps: tuple[Any, ...]
    """What a forward pass calls, in order: layers, and a `Span` for each outermost loop."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.steps)


class Span:
    """One outermost loop of layers, or one layer whose MLP half loops, called like a layer of vLLM."""

    def __init__(self, unit: Node, visits: dict[int, Visits]) -> None:
        self.unit = unit
        self.visits = visits

    def __call__(self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the span; the pair's sum is its output. Shapes: [tokens, d_model]; positions [tokens] or [3, tokens]."""
        state = hidden_states if residual is None else hidden_states + residual
        state = _SpanCall(self.visits, positions).run(self.unit, state, None)
        return torch.zeros_like(state), state


class _SpanCall:
    """A span in one forward pass. What it hands a layer is overwritten there, so what is needed again is copied first."""

    def __init__(self, visits: dict[int, Visits], positions: Tensor) -> None:
        self.visits = visits
        self.positions = positions
        self.done: dict[int, int] = {}

    def run(self, node: Node, state: Tensor, pass_number: int | None) -> Tensor:
        if isinstance(node, LayerNode):
            return self.run_layer(node, state, pass_number)
        passes = node.passes_in(pass_number)
        body = partial(self.run_body, node, keep=node.loop.operator == "damped" and passes > 1)
        return apply_loop(node.loop, passes, body, state, body(state, 1))

    def run_body(self, node: SpanNode, state: Tensor, number: int, *, keep: bool) -> Tensor:
        state = state.clone() if keep else state
        for inner in node.body:
            state = self.run(inner, state, number)
        return state

    def run_layer(self, node: LayerNode, state: Tensor, pass_number: int | None) -> Tensor:
        visit = self.done.get(node.layer, 0)
        self.done[node.layer] = visit + 1
        layer: Any = self.visits[node.layer][visit]
        branch, middle = layer(positions=self.positions, hidden_states=state, residual=None)
        output: Tensor = branch + middle
        loop = node.mlp_loop_in(pass_number)
        if loop is None or loop.passes == 1:
            return output
        # The residual that comes back is what the MLP half read, so the damped operator needs no hook here.
        return apply_loop(loop, loop.passes, lambda half_state, _: _mlp_half(layer, half_state), middle, output)


def _mlp_half(layer: Any, state: Tensor) -> Tensor:
    output: Tensor = state + layer.mlp(layer.post_attention_layernorm(state))
    return output


def loop_layers(layers: nn.ModuleList, loops: Iterable[Loop], registry: MutableMapping[str, Any]) -> dict[str, nn.Module]:
    """Put loops into a decoder's list of layers, in place.

    Args:
        registry: vLLM's ``static_forward_context``: its layers with a cache, by name.

    Returns:
        The further modules that keep keys and values or a recurrent state, by slot. They share their weights with the layers that
        they are copies of.

    Raises:
        LoopError: loops that the layers cannot have.
        ModelError: layers of another make than those that this was written for.
    """
    num_layers = len(layers)
    tree = loop_tree(loops, num_layers)
    sites = [site for site in call_sites(loops, num_layers) if site.part == "layer"]
    for layer in layers:
        _check_layer(layer)
    visits: dict[int, Visits] = {number: (layer,) for number, layer in enumerate(layers)}
    caches: dict[str, nn.Module] = {}
    for site in sorted((site for site in sites if site.visit > 0), key=lambda site: site.slot or 0):
        layer, cache = _copy_for(layers[site.layer], site, registry)
        visits[site.layer] += (layer,)
        caches[str(site.slot)] = cache
    looped: Any = layers
    looped.__class__ = LoopedLayers
    looped.steps = tuple(_step(node, visits) for node in tree)
    return caches


def _step(node: Node, visits: dict[int, Visits]) -> Any:
    if isinstance(node, LayerNode) and node.mlp_loop is None:
        return visits[node.layer][0]
    return Span(node, visits)


def _check_layer(layer: nn.Module) -> None:
    known = all(hasattr(layer, name) for name in ("input_layernorm", "post_attention_layernorm", "mlp"))
    if not known or hasattr(layer, "self_attn") == hasattr(layer, "linear_attn"):
        raise ModelError(f"a layer of vLLM's is a {type(layer).__name__}, which loops were not written for")
    if "forward" in layer.__dict__:
        raise ModelError("vLLM offloads this model's layers to the CPU, and their copies would run as the originals; turn offloading off")
    if getattr(layer, "layer_scale", False):
        raise ModelError("the model scales the halves of its layers (layer_scale), which loops in vLLM do not do; use the own engine")


def _copy_for(layer: nn.Module, site: CallSite, registry: MutableMapping[str, Any]) -> tuple[nn.Module, nn.Module]:
    """The layer as ``site`` runs it, and the module in it that keeps the site's keys and values or recurrent state."""
    copied: Any = share(layer)
    if hasattr(layer, "linear_attn"):
        cache = copied.linear_attn = share(copied.linear_attn)
        name = "prefix"
    else:
        copied.self_attn = share(copied.self_attn)
        cache = copied.self_attn.attn = share(copied.self_attn.attn)
        name = "layer_name"
        cache.impl = _share_plain(cache.impl)
    old = getattr(cache, name)
    new = old.replace(f".{site.layer}.", f".{site.slot}.", 1)
    if new == old or new in registry or registry.get(old) is not _original(layer):
        raise ModelError(f"vLLM's layer {old!r} cannot get a cache of its own for slot {site.slot}; use the vLLM that the docs name")
    setattr(cache, name, new)
    if hasattr(cache, "layer_idx"):
        cache.layer_idx = site.slot
    registry[new] = cache
    return copied, cache


def _original(layer: Any) -> Any:
    return layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn.attn


def share(module: ModuleT) -> ModuleT:
    """A module of the same class with the same parameters, buffers and submodules, whose own attributes can be set apart."""
    copied: ModuleT = _share_plain(module)
    for name in ("_parameters", "_buffers", "_modules"):
        copied.__dict__[name] = dict(module.__dict__[name])
    return copied


def _share_plain(value: Any) -> Any:
    copied = object.__new__(type(value))
    for name, kept in value.__dict__.items():
        bound_to_it = isinstance(kept, types.MethodType) and kept.__self__ is value
        method: Callable[..., Any] = kept
        copied.__dict__[name] = types.MethodType(method.__func__, copied) if bound_to_it else kept  # type: ignore[attr-defined]
    return copied
