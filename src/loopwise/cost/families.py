"""The families whose cost is known: what transformers assumes where a config.json is silent, and how their layers are built.

A config.json often leaves fields out; the model's class then falls back on its own defaults. Those defaults stand here,
under one name for all families, and a test holds every one of them against transformers. To add a family, add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"

Fields = Mapping[str, Any]


def every_layer_full(fields: Fields) -> list[str]:
    """Full attention everywhere."""
    return [FULL] * fields["num_hidden_layers"]


def every_layer_windowed(fields: Fields) -> list[str]:
    """The window, where one is set, on every layer (Mistral, Phi-3, Qwen3-MoE)."""
    return [FULL if _window(fields) is None else SLIDING] * fields["num_hidden_layers"]


def window_above(fields: Fields) -> list[str]:
    """The window from layer ``max_window_layers`` on (Qwen2, Qwen3)."""
    windowed = _window(fields) is not None
    return [SLIDING if windowed and i >= fields["max_window_layers"] else FULL for i in range(fields["num_hidden_layers"])]


def window_without_rope(fields: Fields) -> list[str]:
    """The window on the layers without rotary embedding (SmolLM3)."""
    interval, count = fields["no_rope_layer_interval"], fields["num_hidden_layers"]
    rope = fields["no_rope_layers"] or [int((i + 1) % interval != 0) for i in range(count)]
    return [SLIDING if _window(fields) is not None and not rope[i] else FULL for i in range(count)]


def full_every(interval: int | str, other: str = SLIDING) -> Callable[[Fields], list[str]]:
    """Full attention on every ``interval``-th layer, ``other`` between; the interval may be a field of the config."""

    def layers(fields: Fields) -> list[str]:
        step = fields[interval] if isinstance(interval, str) else interval
        return [other if (i + 1) % step else FULL for i in range(fields["num_hidden_layers"])]

    return layers


def _window(fields: Fields) -> int | None:
    """The window, unless a ``use_sliding_window`` of false switches it off."""
    window: int | None = fields["sliding_window"]
    return window if fields.get("use_sliding_window", True) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one ``model_type`` builds its decoder layers."""

    defaults: Fields
    """Every field that the cost reads, with the value of a config.json that leaves it out. None: derived from other fields,
    or (``sliding_window``) absent."""
    layer_types: Callable[[Fields], list[str]]
    """The kind of every layer where the config has no ``layer_types``."""
    reads_layer_types: bool = False
    """Whether the family's configuration has the field ``layer_types``."""
    norms: int = 2
    """Norms of the hidden width in a layer."""
    norm_vectors: int = 1
    """Vectors in a norm: 1 for RMSNorm, 2 for LayerNorm."""
    qk_norm: Literal["none", "head", "width"] = "none"
    """Norms of queries and keys: none, over one head, or over all heads together."""
    qkv_bias: bool | str = False
    """Whether the query, key and value projections have biases, or the field that says so; likewise the next two."""
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    mlp_matrices: int = 3
    """3 for a gated MLP (gate, up, down), 2 for a plain one."""
    output_gate: bool = False
    """Whether the query projection is twice as wide, its second half gating the attention's output."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names under which a config.json may give a field."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Fields that must be false or absent, each with the reason."""


_ATTENTION_BIAS: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
_CAUSAL_ONLY = {"use_bidirectional_attention": "a bidirectional encoder, not a causal decoder"}
_LINEAR_HEADS: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}


def _base(vocab_size: int, hidden: int, intermediate: int | None, layers: int, heads: int, kv_heads: int | None) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "sliding_window": None,
        "layer_types": None,
    }


_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_QWEN35_TEXT = _base(248320, 4096, 12288, 32, 16, 4) | _LINEAR_HEADS | {"head_dim": 256}
_QWEN35_MOE = _base(248320, 2048, None, 40, 16, 2) | _LINEAR_HEADS | {"head_dim": 256}
_GEMMA = {"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        defaults=_base(32000, 4096, 11008, 32, 32, None) | {"mlp_bias": False},
        layer_types=every_layer_full,
        mlp_bias="mlp_bias",
        **_ATTENTION_BIAS,
    ),
    "mistral": Family(defaults=_base(32000, 4096, 14336, 32, 32, 8) | {"sliding_window": 4096}, layer_types=every_layer_windowed),
    "qwen2": Family(
        defaults=_base(151936, 4096, 22016, 32, 32, 32) | _QWEN_WINDOW,
        layer_types=window_above,
        reads_layer_types=True,
        qkv_bias=True,
    ),
    "qwen3": Family(
        defaults=_base(151936, 4096, 22016, 32, 32, 32) | _QWEN_WINDOW | {"head_dim": 128},
        layer_types=window_above,
        reads_layer_types=True,
        qk_norm="head",
        **_ATTENTION_BIAS,
    ),
    "qwen3_moe": Family(
        defaults=_base(151936, 2048, 6144, 24, 32, 4)
        | {"use_sliding_window": False, "sliding_window": 4096, "decoder_sparse_step": 1, "mlp_only_layers": None}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        layer_types=every_layer_windowed,
        qk_norm="head",
        aliases={"num_experts": "num_local_experts"},
        **_ATTENTION_BIAS,
    ),
    "qwen3_5_text": Family(
        defaults=_QWEN35_TEXT,
        layer_types=full_every("full_attention_interval", LINEAR),
        reads_layer_types=True,
        qk_norm="head",
        output_gate=True,
        **_ATTENTION_BIAS,
    ),
    "qwen3_5_moe_text": Family(
        defaults=_QWEN35_MOE
        | {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
        layer_types=full_every("full_attention_interval", LINEAR),
        reads_layer_types=True,
        qk_norm="head",
        output_gate=True,
        **_ATTENTION_BIAS,
    ),
    "gemma2": Family(
        defaults=_base(256000, 2304, 9216, 26, 8, 4) | _GEMMA,
        layer_types=full_every(2),
        reads_layer_types=True,
        norms=4,
        refused=_CAUSAL_ONLY,
        **_ATTENTION_BIAS,
    ),
    "gemma3_text": Family(
        defaults=_base(262208, 2304, 9216, 26, 8, 4) | _GEMMA | {"sliding_window_pattern": 6},
        layer_types=full_every("sliding_window_pattern"),
        reads_layer_types=True,
        norms=4,
        qk_norm="head",
        refused=_CAUSAL_ONLY,
        **_ATTENTION_BIAS,
    ),
    "olmo2": Family(defaults=_base(50304, 4096, 11008, 32, 32, None), layer_types=every_layer_full, qk_norm="width", **_ATTENTION_BIAS),
    "olmo3": Family(
        defaults=_base(50304, 4096, 11008, 32, 32, None) | {"sliding_window": 4096},
        layer_types=full_every(4),
        reads_layer_types=True,
        qk_norm="width",
        **_ATTENTION_BIAS,
    ),
    "smollm3": Family(
        defaults=_base(128256, 2048, 11008, 36, 16, 4)
        | {
            "tie_word_embeddings": True,
            "mlp_bias": False,
            "use_sliding_window": False,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        layer_types=window_without_rope,
        reads_layer_types=True,
        mlp_bias="mlp_bias",
        **_ATTENTION_BIAS,
    ),
    "phi3": Family(defaults=_base(32064, 3072, 8192, 32, 32, None), layer_types=every_layer_windowed),
    "gpt2": Family(
        defaults=_base(50257, 768, None, 12, 12, None) | {"n_positions": 1024, "tie_word_embeddings": True},
        layer_types=every_layer_full,
        norm_vectors=2,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        mlp_matrices=2,
        aliases={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "n_positions": "max_position_embeddings",
        },
        refused={"add_cross_attention": "a decoder of an encoder-decoder pair"},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """A ``model_type`` that nests its language model in ``text_config``, beside a vision tower that is never counted."""

    text: str
    """The family of the nested part."""
    tied_by: Literal["text", "whole"]
    """Which part's ``tie_word_embeddings`` transformers obeys when it loads the causal language model."""


COMPOSITES: Mapping[str, Composite] = {
    "qwen3_5": Composite(text="qwen3_5_text", tied_by="text"),
    "qwen3_5_moe": Composite(text="qwen3_5_moe_text", tied_by="text"),
    "gemma3": Composite(text="gemma3_text", tied_by="whole"),
}
