"""What a forward pass of a looped model costs: layer passes, FLOPs, KV bytes and recurrent state, from its call sites.

Two conventions for FLOPs, because the literature uses both:

``matrix``
    Two FLOPs for every matrix parameter at every call site that runs it, and for the head; embeddings and norms are free.
    The convention of "There Is No Free Loop" (its 1.16 for Qwen3.5-0.8B and all of Table 6 come out). The attention scores
    are left out unless a context is given.
``6nd``
    Training takes 6 N D R FLOPs for N parameters, D tokens and R recurrences, embeddings included and the head looped too
    (ARLoop, Table 3); a forward pass is a third of it, 2 N R a token. For a loop over a part of the model R is its
    layer-pass ratio; for experts N counts the active parameters.

Training costs three forward passes in both (the backward pass takes two).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from loopwise.loops import CallSite, Loop, call_sites

from .config import CostError
from .shape import ModelShape

Convention = Literal["matrix", "6nd"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)

RECURRENT_BYTES = 4
"""transformers computes and keeps the state of the gated delta rule in fp32, whatever the model's dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """FLOPs per token by sublayer, over all call sites; they sum to ``Cost.flops_per_token``."""

    attention: float
    """Projections of softmax attention."""
    linear_attention: float
    """Projections and convolutions of linear attention."""
    mlp: float
    """MLPs: with experts the router, the chosen and the shared ones."""
    head: float
    """The output head, once."""
    scores: float
    """Attention scores, and the state updates of linear attention; 0 without a context."""
    injection: float
    """What runs at the start of every pass (``ModelShape.pass_parameters``), and once in a pass that loops (``once_parameters``)."""

    @property
    def total(self) -> float:
        """The sum of all."""
        return self.attention + self.linear_attention + self.mlp + self.head + self.scores + self.injection


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one model with one set of loops; every ratio is against the same model without them."""

    convention: Convention
    num_layers: int
    """Decoder layers, N: the passes of the plain model."""
    layer_passes: float
    """N + m: every execution of a layer, a further MLP run counted by its share of the layer's matrix parameters."""
    layer_pass_ratio: float
    """c = (N + m)/N (no-free-loop, equation 1)."""
    flops_per_token: float
    """Forward FLOPs of one token, head included."""
    flops_ratio: float
    head_share: float | None
    """The head's share of ``flops_per_token``; None in the 6nd convention, which does not tell it apart."""
    breakdown: Breakdown | None
    """None in the 6nd convention."""
    kv_bytes_per_token: int
    """Keys and values of one more token, every call site of a layer in its own slot, while no window is full."""
    kv_bytes_ratio: float
    context_tokens: int | None
    """The context at which scores and ``kv_bytes`` are counted; None leaves both out."""
    kv_bytes: int | None
    """Keys and values of one sequence of ``context_tokens``; a sliding-window layer holds at most its window."""
    state_bytes: int
    """Recurrent (fp32) and convolution (KV dtype) states of one sequence."""
    state_bytes_ratio: float
    parameters: int
    """Parameters stored; loops add none."""
    active_parameters: int
    """Parameters that one token meets: fewer than stored only with experts."""

    @property
    def passes_text(self) -> str:
        """Layer passes as a table prints them: ``32 -> 41 (1.289x)``."""
        return f"{self.num_layers} -> {self.layer_passes:.0f} ({self.layer_pass_ratio:.4g}x)"


def cost_of(
    shape: ModelShape,
    loops: Iterable[Loop],
    *,
    convention: Convention = "matrix",
    context_tokens: int | None = None,
    kv_dtype_bytes: int = 2,
) -> Cost:
    """The cost of ``shape`` with ``loops``.

    Args:
        loops: none for the plain model, or for what an architecture with loops of its own runs by itself.
        context_tokens: count the attention scores of a token that sees this many tokens, itself included, and the cache then.
        kv_dtype_bytes: bytes of a number in the KV cache and the convolution states (2 for bf16).

    Raises:
        CostError: an unknown convention, or scores asked of the 6nd convention, which has none.
        LoopError: loops that the model cannot have.
    """
    if convention not in CONVENTIONS:
        raise CostError(f"unknown FLOPs convention {convention!r}; use {' or '.join(CONVENTIONS)}")
    if convention == "6nd" and context_tokens is not None:
        raise CostError("the 6nd convention has no attention-score term; leave context_tokens out or use matrix")
    if context_tokens is not None and context_tokens < 1:
        raise CostError(f"context_tokens is {context_tokens}; a token sees at least itself, give 1 or more")
    sites, plain = call_sites(shape.loops_run(loops), shape.num_layers), call_sites((), shape.num_layers)
    passes = _layer_passes(shape, sites)
    parts = _breakdown(shape, sites, context_tokens) if convention == "matrix" else None
    flops, plain_flops = (_flops_per_token(shape, s, convention, context_tokens) for s in (sites, plain))
    kv, plain_kv = (_kv_bytes(shape, s, kv_dtype_bytes, 1) for s in (sites, plain))
    state, plain_state = (_state_bytes(shape, s, kv_dtype_bytes) for s in (sites, plain))
    return Cost(
        convention=convention,
        num_layers=shape.num_layers,
        layer_passes=passes,
        layer_pass_ratio=passes / shape.num_layers,
        flops_per_token=flops,
        flops_ratio=flops / plain_flops,
        head_share=None if parts is None else parts.head / flops,
        breakdown=parts,
        kv_bytes_per_token=kv,
        kv_bytes_ratio=_ratio(kv, plain_kv),
        context_tokens=context_tokens,
        kv_bytes=None if context_tokens is None else _kv_bytes(shape, sites, kv_dtype_bytes, context_tokens),
        state_bytes=state,
        state_bytes_ratio=_ratio(state, plain_state),
        parameters=shape.num_parameters,
        active_parameters=shape.num_active_parameters,
    )


def _layer_passes(shape: ModelShape, sites: Iterable[CallSite]) -> float:
    return float(sum(1.0 if site.part == "layer" else shape.layers[site.layer].mlp_share for site in sites))


def _flops_per_token(shape: ModelShape, sites: tuple[CallSite, ...], convention: Convention, context_tokens: int | None) -> float:
    if convention == "matrix":
        return _breakdown(shape, sites, context_tokens).total
    return 2.0 * shape.num_active_parameters * _layer_passes(shape, sites) / shape.num_layers


def _breakdown(shape: ModelShape, sites: tuple[CallSite, ...], context_tokens: int | None) -> Breakdown:
    flops = {"attention": 0, "linear_attention": 0, "mlp": 0, "scores": 0}
    for site in sites:
        layer = shape.layers[site.layer]
        flops["mlp"] += 2 * layer.mlp_parameters
        if site.part == "layer":
            flops[layer.mixer] += 2 * layer.mixer_parameters
            flops["scores"] += 0 if context_tokens is None else layer.score_flops(context_tokens)
    injection = 2 * shape.pass_parameters * _passes_begun(sites) if shape.pass_parameters else 0
    injection += 2 * shape.once_parameters if len(sites) > shape.num_layers else 0
    return Breakdown(head=2 * shape.head_parameters, injection=injection, **flops)


def _passes_begun(sites: tuple[CallSite, ...]) -> int:
    """How often a pass of a loop begins. Only defined where loops of layers are not nested."""
    begun = 0
    before: tuple[int, ...] = ()
    for site in sites:
        if site.part == "mlp":
            continue
        if len(site.passes) > 1:
            raise CostError("pass_parameters run at the start of a pass, which nested loops leave open; use loops that are not nested")
        begun += site.passes != before and site.passes != ()
        before = site.passes
    return begun


def _kv_bytes(shape: ModelShape, sites: Iterable[CallSite], dtype_bytes: int, num_tokens: int) -> int:
    layers = (shape.layers[site.layer] for site in sites if site.slot is not None)
    return sum(layer.kv_width * layer.kept_tokens(num_tokens) for layer in layers) * dtype_bytes


def _state_bytes(shape: ModelShape, sites: Iterable[CallSite], dtype_bytes: int) -> int:
    layers = (shape.layers[site.layer] for site in sites if site.slot is not None)
    return sum(layer.recurrent_size * RECURRENT_BYTES + layer.conv_size * dtype_bytes for layer in layers)


def _ratio(looped: int, plain: int) -> float:
    """1 where the plain model keeps nothing: a loop multiplies nothing."""
    return looped / plain if plain else 1.0
