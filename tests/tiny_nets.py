"""Tiny looped networks of every design, with weights that make every part count."""

from __future__ import annotations

from typing import Any

import torch

from loopwise.nets import Architecture, LoopedTransformer

VOCABULARY = 64
_COMMON: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    value_embeddings=True,
    value_embedding_channels=8,
    num_loops=3,
)
_SPAN: dict[str, Any] = dict(num_hidden_layers=4, loop_start=1, loop_stop=3)

DESIGNS: dict[str, dict[str, Any]] = {
    "prenorm": {},
    "sandwich": dict(design="sandwich"),
    "deeploop": dict(design="deeploop"),
    "parcae": dict(design="parcae"),
    "parcae-decay": dict(design="parcae", parcae_injection=False),
    "arloop-full": dict(design="arloop"),
    "arloop-sw": dict(design="arloop", window_blocks=2),
    "arloop-two-phase": dict(design="arloop", window_blocks=2, depth_backend="two_phase", depth_queries="physical"),
    "span": _SPAN,
    "span-damped": dict(**_SPAN, operator="damped", beta=0.3, activation="swiglu"),
    "span-parcae": dict(**_SPAN, design="parcae"),
    "span-parcae-decay": dict(**_SPAN, design="parcae", parcae_injection=False),
    "span-arloop": dict(**_SPAN, design="arloop", block_size_sublayers=2),
    "injected": dict(**_SPAN, design="sandwich", input_injection=True, embedding_scale=32**0.5, initial_state_seed=5),
    "value-residual": dict(value_embeddings=False, value_residual=True, tie_word_embeddings=False, qk_norm=False, init="scaled"),
}
"""Every residual design, everything that loops, and both switches around the values."""


def tiny_architecture(name: str, **changes: Any) -> Architecture:
    """The tiny architecture called ``name``."""
    return Architecture(**_COMMON | DESIGNS[name] | changes)


def tiny_net(name: str, seed: int = 0, **changes: Any) -> Any:
    """A tiny network in fp32, in evaluation mode; every parameter moved off its start, so that no zero hides a part."""
    torch.manual_seed(seed)
    net = LoopedTransformer.from_architecture(tiny_architecture(name, **changes), eos_token_id=None, pad_token_id=0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return net.eval()


def token_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random token ids [batch, length]."""
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
