"""Named sizes, and how a name such as ``nets:arloop-140m`` becomes an `Architecture`. No torch.

Where a paper gives no value, the comment beside it says "a guess".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .configuration import Architecture, NetError

PREFIX = "nets:"
"""What marks a name as one of these, where models are named."""

_CONTROLLED: dict[str, Any] = dict(  # ARLoop, Table 5; the rest from Parcae's code, whose dimensions and counts these are
    vocab_size=32768,
    head_dim=128,
    activation="relu2",
    qk_norm=True,
    rope_theta=50000.0,
    init="scaled_zero",
    value_embeddings=True,
    num_loops=4,
)
_LARGE: dict[str, Any] = dict(  # ARLoop, Table 12
    num_attention_heads=16,
    num_key_value_heads=4,
    activation="swiglu",
    vocab_size=100352,  # a guess: the totals of 642M and 1,288M fit the names
    max_position_embeddings=4096,  # a guess
    qk_norm=True,  # a guess
    rope_theta=500000.0,  # a guess
    init="scaled",  # a guess
    value_embeddings=False,  # a guess: the tables would add about as many parameters as the model has
    num_loops=3,
)

SIZES: Mapping[str, Architecture] = {
    "nano": Architecture(value_embeddings=True, num_loops=3),
    "140m": Architecture(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=6, **_CONTROLLED
    ),
    "370m": Architecture(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=8, **_CONTROLLED
    ),
    "0.6b": Architecture(hidden_size=1536, intermediate_size=4608, num_hidden_layers=18, head_dim=96, **_LARGE),
    "1.2b": Architecture(hidden_size=2048, intermediate_size=5632, num_hidden_layers=24, head_dim=128, **_LARGE),
}
"""Widths and depths by name, with plain pre-norm residuals and the depth that the paper evaluates most."""

_SW: dict[str, Any] = dict(design="arloop", window_blocks=3)
DESIGNS: Mapping[str, Mapping[str, Any]] = {
    "prenorm": dict(design="prenorm"),
    "sandwich": dict(design="sandwich"),
    "deeploop": dict(design="deeploop"),
    "parcae": dict(design="parcae", parcae_injection=True),
    "parcae-decay": dict(design="parcae", parcae_injection=False),
    "arloop-full": dict(design="arloop"),
    "arloop-sw": _SW,
    "arloop": _SW,
}
"""The residual designs of ARLoop's tables by name; ``parcae-decay`` is "Parcae w/o input injection", ``arloop`` is ``arloop-sw``."""

_FREE_LOOP: dict[str, Any] = dict(
    # no-free-loop, section 5 and C.4: 113M parameters, 12 layers; widths and vocabulary are guesses that give the paper's
    # parameter count and the cost ratios of its Table 6
    vocab_size=49152,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    activation="swiglu",
    qk_norm=False,  # "Llama-style"
    rope_theta=10000.0,  # a guess
    init="scaled",  # a guess
)
_SPAN: dict[str, Any] = dict(loop_start=4, loop_stop=8, num_loops=2)
_DAMPED: dict[str, Any] = dict(operator="damped", beta=0.5)  # beta is a guess: the paper gives none here

NAMED: Mapping[str, Architecture] = {
    "free-loop-113m": Architecture(**_FREE_LOOP, **_SPAN, **_DAMPED),
    "free-loop-113m-dense": Architecture(**_FREE_LOOP),
    "free-loop-113m-dense-16": Architecture(**_FREE_LOOP | dict(num_hidden_layers=16)),
    "free-loop-113m-repeat": Architecture(**_FREE_LOOP, **_SPAN),
    "free-loop-113m-injected": Architecture(**_FREE_LOOP, **_SPAN | dict(num_loops=4), input_injection=True),
}
"""The models of the Free-Loop paper's Table 6: looped (damped), dense, dense of 16 layers, plain repeat (random depth), injected."""


def names() -> tuple[str, ...]:
    """Every name that `named` knows, without the prefix."""
    return (*(f"{design}-{size}" for design in DESIGNS for size in SIZES), *NAMED)


def named(name: str, **changes: Any) -> Architecture:
    """The architecture ``nets:<design>-<size>`` (the prefix may be left out), with some fields changed.

    >>> named("arloop-140m", num_loops=3).window_blocks
    3

    Raises:
        NetError: no such name, or changes that cannot be.
    """
    plain = name.removeprefix(PREFIX)
    if plain in NAMED:
        return replace(NAMED[plain], **changes)
    design, _, size = plain.rpartition("-")
    if design not in DESIGNS or size not in SIZES:
        raise NetError(
            f"no network is called {name!r}; use <design>-<size> of {', '.join(DESIGNS)} and {', '.join(SIZES)}, or {', '.join(NAMED)}"
        )
    return replace(SIZES[size], **{**DESIGNS[design], **changes})
