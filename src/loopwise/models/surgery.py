"""Loops in a model that somebody else wrote, without touching its parameters, its modules' names or its forward.

The decoder's forward walks its list of layers. The list's class is replaced by one that hands out, for the layers of a
looped span, recorders in their place: each keeps the arguments that the forward gives its layer (mask, rotary
embedding, cache), and the last one runs the whole span. All state of a pass lives in that call, so a looped model is as
re-entrant as the plain one, and `remove` gives the plain model back, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..loops import CallSite, LayerNode, Loop, Node, SpanNode, call_sites, check_loops, format_loops, loop_tree, parse_loops
from ..nets import MODEL_TYPE, own_loops
from .caches import cache_views
from .families import FAMILIES, Family, ModelError, find_decoder
from .operators import CaptureResidual, apply_loop, hidden_state, run_capturing
from .parity import layers_run, untested_family_difference

ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Surgery:
    """What a looped list of layers knows: nothing that changes while the model runs."""

    loops: tuple[Loop, ...]
    family: Family
    units: tuple[Node, ...]
    """The outermost nodes that hold a loop, in order."""
    sites: tuple[CallSite, ...]
    num_layers: int
    text: str
    """The loops in the notation."""


def insert(model: ModelT, loops: str | Loop | Iterable[Loop], *, untested_family: bool = False) -> ModelT:
    """Put loops into ``model``, in place, and return it.

    Args:
        loops: values or text in the loop notation.
        untested_family: also try a decoder that is not in `FAMILIES`: whole-layer loops only, and only if cached
            decoding then equals full recompute on random tokens.

    A network that was trained with loops of its own takes these and no others: they are part of its forward.

    Raises:
        LoopError: loops that cannot be, with the model's layer count.
        ModelError: an unknown family, a model that has loops already, or a failed parity check.
    """
    if own := own_loops_of(model):
        return _with_own_loops(model, own, loops)
    decoder, family = find_decoder(model, untested_family=untested_family)
    layers: Any = getattr(decoder, family.layers)
    num_layers = len(layers)
    if isinstance(layers, LoopedLayers):
        raise ModelError(f"{type(model).__name__} already has the loops {format_loops(loops_of(model))}; remove them first")
    if type(layers) is not nn.ModuleList:
        raise ModelError(f"{type(decoder).__name__} keeps its layers in a {type(layers).__name__}, not a plain ModuleList; cannot loop it")
    if isinstance(loops, str):
        checked = parse_loops(loops, num_layers)
    else:
        checked = check_loops([loops] if isinstance(loops, Loop) else loops, num_layers)
    if not checked:
        return model
    if not family.mlp_half and (mlp := next((loop for loop in checked if loop.part == "mlp"), None)):
        raise ModelError(f"loop {mlp.span}: the MLP half of a {type(decoder).__name__} layer is not known; use whole layers")
    untested = type(decoder).__name__ not in FAMILIES
    if untested and not layers_run(cast(Any, model), layers)[1]:
        raise ModelError(f"the layers of {type(decoder).__name__} return more than a tensor; loops cannot work in this family")
    looped = cast(LoopedLayers, layers)
    looped.__class__ = _LIST_CLASSES[family.walk]
    looped.surgery = plan_surgery(checked, family, num_layers)
    for loop in checked:
        if loop.part == "mlp" and loop.operator == "damped":
            for layer in range(loop.start, loop.stop):
                getattr(layers._modules[str(layer)], family.mlp_half[0]).register_forward_pre_hook(CaptureResidual())
    if untested:
        _try_untested(model, looped)
    return model


@lru_cache(maxsize=256)
def plan_surgery(loops: tuple[Loop, ...], family: Family, num_layers: int) -> Surgery:
    """What a list of layers has to know to run loops that `check_loops` let through."""
    units = tuple(node for node in loop_tree(loops, num_layers) if isinstance(node, SpanNode) or node.mlp_loop)
    return Surgery(loops, family, units, call_sites(loops, num_layers), num_layers, format_loops(loops))


def _with_own_loops(model: ModelT, own: tuple[Loop, ...], loops: str | Loop | Iterable[Loop]) -> ModelT:
    num_layers = cast(Any, model).config.num_hidden_layers
    values = [loops] if isinstance(loops, Loop) else loops
    given = parse_loops(values, num_layers) if isinstance(values, str) else check_loops(values, num_layers)
    if given not in ((), own):
        raise ModelError(
            f"{type(model).__name__} was trained with the loops {format_loops(own)}, not with {format_loops(given)}; leave loops out"
        )
    return model


def _try_untested(model: Any, layers: LoopedLayers) -> None:
    works = False
    try:
        _find_walk(model, layers)
        _check_parity(model)
        works = True
    finally:
        if not works:
            remove(model)


def _find_walk(model: Any, layers: LoopedLayers) -> None:
    """Find how an untested decoder's forward walks its layers: a loop must run what its call sites say, and not nothing."""
    expected = [site.layer for site in layers.surgery.sites]
    for list_class in _LIST_CLASSES.values():
        layers.__class__ = list_class
        if layers_run(model, layers)[0] == expected:
            return
    raise ModelError(
        f"{type(model).__name__} neither slices nor iterates its layers once in a forward pass, so the loop does not run as "
        f"{layers.surgery.text}; loops cannot work in this family"
    )


def _check_parity(model: Any) -> None:
    difference = untested_family_difference(model)
    tolerance = 1e-3 if next(model.parameters()).dtype == torch.float32 else 0.1
    if not difference <= tolerance:
        raise ModelError(
            f"{type(model).__name__}: cached decoding with the loop differs from full recompute by {difference:.2g} in logits "
            f"(at most {tolerance:g}); loops do not work in this family as it is"
        )


def remove(model: ModelT) -> ModelT:
    """Take all loops out of ``model``, in place, and return it: the plain model, bit for bit. Without loops, nothing happens."""
    layers: Any = looped_layers(model)
    if layers is None:
        return model
    for module in layers.modules():
        for key in [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, CaptureResidual)]:
            del module._forward_pre_hooks[key]
    del layers.surgery
    layers.__dict__.pop("running", None)
    layers.__class__ = nn.ModuleList
    return model


def loops_of(model: nn.Module) -> tuple[Loop, ...]:
    """The loops in ``model``, in canonical order, put in or of its own; empty for a plain one."""
    return inserted_loops(model) or own_loops_of(model)


def inserted_loops(model: nn.Module) -> tuple[Loop, ...]:
    """The loops that `insert` put into ``model``: those that `remove` takes out."""
    layers = looped_layers(model)
    return () if layers is None else layers.surgery.loops


def own_loops_of(model: nn.Module) -> tuple[Loop, ...]:
    """The loops that a network of ``loopwise.nets`` was trained with, empty for every other model; nothing takes them out."""
    config = getattr(model, "config", None)
    return own_loops(config.architecture) if getattr(config, "model_type", None) == MODEL_TYPE else ()  # type: ignore[union-attr]


def looped_layers(model: nn.Module) -> LoopedLayers | None:
    """The list of layers that `insert` put loops into, or None."""
    return next((module for module in model.modules() if isinstance(module, LoopedLayers)), None)


class LoopedLayers(nn.ModuleList):
    """A decoder's layers with loops; every module, name and parameter is the plain list's own."""

    surgery: Surgery
    running: Surgery | None = None
    """What runs in its place for a while: `loop_passes`."""

    def walk(self, stop: int) -> list[Any]:
        """What a forward that runs the first ``stop`` layers is to call, in order.

        Raises:
            ModelError: an early exit that ends inside a looped span.
        """
        surgery = self.running or self.surgery
        modules = list(self._modules.values())
        if len(modules) != surgery.num_layers:
            raise ModelError(f"the model now has {len(modules)} layers, its loops were made for {surgery.num_layers}; remove them first")
        steps: list[Any] = modules[:stop]
        views: list[tuple[Cache, ...]] = []
        for unit in surgery.units:
            first, last = extent(unit)
            if first >= stop:
                break
            if last > stop:
                raise ModelError(
                    f"an early exit after {stop} layers ends inside the looped layers {first}:{last}; remove the loop or exit elsewhere"
                )
            span = SpanCall(surgery, unit, modules, views)
            steps[first:last] = [_Recorder(span, layer) for layer in range(first, last)]
        return steps

    def __getitem__(self, index: Any) -> Any:
        return nn.ModuleList(list(self._modules.values())[index]) if isinstance(index, slice) else super().__getitem__(index)


class _SlicedLayers(LoopedLayers):
    """For decoders that walk ``self.layers[:n]``; any other slice, and iteration, gives the plain modules."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.step is None and index.start in (None, 0):
            return self.walk(len(range(len(self))[index]))
        return super().__getitem__(index)


class _IteratedLayers(LoopedLayers):
    """For decoders that walk ``for block in self.h``."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.walk(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} layers, {format_loops(self.surgery.loops)})"


_LIST_CLASSES: dict[str, type[LoopedLayers]] = {"slice": _SlicedLayers, "iterate": _IteratedLayers}


class _Recorder:
    """Stands where a layer of a span stood in one forward pass."""

    def __init__(self, span: SpanCall, layer: int) -> None:
        self._span = span
        self._layer = layer

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if not args:
            raise ModelError(f"the forward hands layer {self._layer} its hidden state by keyword; loops cannot work in this family")
        return self._span.record(self._layer, args[0], args[1:], kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._span.modules[self._layer], name)


class SpanCall:
    """One outermost looped unit in one forward pass."""

    def __init__(self, surgery: Surgery, unit: Node, modules: list[nn.Module], views: list[tuple[Cache, ...]]) -> None:
        self.surgery = surgery
        self.unit = unit
        self.modules = modules
        self.views = views  # shared by the units of one forward pass: the first to run makes them
        self.first, self.last = extent(unit)
        self.arguments: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.visits: dict[int, int] = {}
        self.entry: Tensor | None = None
        self.entry_version = 0

    def record(self, layer: int, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if layer == self.first:
            self.entry, self.entry_version = hidden, _version(hidden)
        elif hidden is not self.entry or _version(hidden) != self.entry_version:
            raise ModelError(
                f"the forward changes the hidden state between layers {layer - 1} and {layer}, inside the looped span "
                f"{self.first}:{self.last}; loop the layers on one side of it"
            )
        self.arguments[layer] = (args, kwargs)
        if layer < self.last - 1:
            return hidden
        return self.run(self.unit, hidden, None)

    def run(self, node: Node, hidden: Tensor, pass_number: int | None) -> Tensor:
        """Run one node in pass ``pass_number`` of the loop around it."""
        if isinstance(node, LayerNode):
            return self.run_layer(node, hidden, pass_number)
        first = self.run_body(node, hidden, 1)
        return apply_loop(node.loop, node.passes_in(pass_number), partial(self.run_body, node), hidden, first)

    def run_body(self, node: SpanNode, hidden: Tensor, number: int) -> Tensor:
        """What a loop repeats, in its pass ``number``."""
        for inner in node.body:
            hidden = self.run(inner, hidden, number)
        return hidden

    def run_layer(self, node: LayerNode, hidden: Tensor, pass_number: int | None) -> Tensor:
        args, kwargs = self.arguments[node.layer]
        visit = self.visits.get(node.layer, 0)
        self.visits[node.layer] = visit + 1
        if any(isinstance(value, Cache) for value in (*args, *kwargs.values())):
            args = tuple(self.view(value, visit) for value in args)
            kwargs = {name: self.view(value, visit) for name, value in kwargs.items()}
        loop = node.mlp_loop_in(pass_number)
        if loop is None or loop.passes == 1:
            return self.call_layer(node.layer, hidden, args, kwargs)
        return self.run_mlp_loop(loop, node.layer, hidden, args, kwargs)

    def call_layer(self, index: int, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """One whole layer as it is."""
        return hidden_state(self.modules[index](hidden, *args, **kwargs))

    def run_mlp_loop(self, loop: Loop, index: int, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The layer, whose own MLP run is the first, then the further runs of its MLP half."""
        layer: Any = self.modules[index]
        if loop.operator == "repeat":  # goes on from the layer's output; only damped needs the state that the MLP half read
            first = residual = self.call_layer(index, hidden, args, kwargs)
        else:
            first, residual = run_capturing(loop, layer, hidden, args, kwargs)
        half = [getattr(layer, name) for name in self.surgery.family.mlp_half]

        def again(state: Tensor) -> Tensor:
            branch = state
            for module in half:
                branch = hidden_state(module(branch))
            return state + branch

        checkpoints = getattr(layer, "gradient_checkpointing", False) and layer.training and torch.is_grad_enabled()

        def run(state: Tensor, _: int) -> Tensor:
            output: Tensor = layer._gradient_checkpointing_func(again, state) if checkpoints else again(state)
            return output

        return apply_loop(loop, loop.passes, run, residual, first)

    def view(self, value: Any, visit: int) -> Any:
        """The cache as the layer's ``visit``-th execution is to see it; anything else as it is."""
        if not isinstance(value, Cache):
            return value
        if not self.views:
            self.views.append(cache_views(value, self.surgery.sites, self.surgery.num_layers, self.surgery.text, self.first))
        return self.views[0][visit]


def extent(node: Node) -> tuple[int, int]:
    return (node.loop.start, node.loop.stop) if isinstance(node, SpanNode) else (node.layer, node.layer + 1)


def _version(hidden: Tensor) -> int:
    """Counts changes in place; inference tensors and compiled regions do not tell."""
    return 0 if torch.compiler.is_compiling() or hidden.is_inference() else hidden._version
