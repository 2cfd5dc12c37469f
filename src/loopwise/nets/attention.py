"""The attention branch: grouped queries, rotary embedding, value embeddings and value residuals, one cache slot per execution."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration import Architecture
from .linear import Linear


def rotary(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding at ``positions`` [batch or 1, tokens]: each [batch or 1, 1, tokens, head_dim]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to [batch, heads, tokens, head_dim], halves paired as in Llama."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class ValueGate(nn.Module):
    """2 sigmoid(W_g x[:channels]), one gate for each KV head (Parcae's code)."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.channels = channels
        self.proj = Linear(channels, num_heads, "gate")

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: [batch, tokens, d_model] -> [batch, tokens, kv_heads, 1]."""
        return 2 * torch.sigmoid(self.proj(x[..., : self.channels]))[..., None]


class ValueTable(nn.Embedding):
    """VE: a second embedding of the tokens, in the width of a layer's values [vocabulary, kv_heads * head_dim]."""


class Attention(GradientCheckpointingLayer):
    """Causal softmax attention of a normed input; no norm of the residual and no add.

    Values are v = W_v x, plus gate * VE(token) where the layer has a table of value embeddings, and with value residuals
    v <- l1 V_1 + l2 v, V_1 being those of the first layer in the first loop (l1 = l2 = 1/2 at first).
    """

    is_causal = True

    def __init__(self, arch: Architecture, layer: int) -> None:
        super().__init__()
        heads, kv_heads, size, width = arch.num_attention_heads, arch.num_key_value_heads, arch.head_dim, arch.hidden_size
        self.head_dim, self.qk_norm, self.eps = size, arch.qk_norm, arch.rms_norm_eps
        self.num_key_value_groups = heads // kv_heads
        self.q_proj = Linear(width, heads * size, "query_key")
        self.k_proj = Linear(width, kv_heads * size, "query_key")
        self.v_proj = Linear(width, kv_heads * size, "value")
        self.o_proj = Linear(heads * size, width, "output")
        self.value_gate = ValueGate(arch.value_embedding_channels, kv_heads) if arch.has_value_table(layer) else None
        self.value_mix = nn.Parameter(torch.full((2,), 0.5)) if arch.value_residual else None

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        value_embedding: Tensor | None,
        first_values: Tensor | None,
        cache: Any = None,
        slot: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """The branch output and this execution's own values before mixing.

        Args:
            x: the normed input [batch, tokens, d_model].
            mask: as transformers' mask utilities make it; None is plainly causal.
            value_embedding: the layer's table at the tokens [batch, tokens, kv_heads * head_dim], or None.
            first_values: V_1 [batch, tokens, kv_heads, head_dim]; None in the very first execution.
            slot: the cache slot of this execution.
        """
        heads = (*x.shape[:2], -1, self.head_dim)
        queries, keys, values = (proj(x).view(heads) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self.value_gate is not None and value_embedding is not None:
            values = values + self.value_gate(x) * value_embedding.view(heads).to(values.dtype)
        own = values
        if self.value_mix is not None:
            mix = self.value_mix.to(values.dtype)
            values = mix[0] * (own if first_values is None else first_values) + mix[1] * values
        queries, keys, values = queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        queries, keys = rotate(queries, cos.to(queries.dtype), sin.to(queries.dtype)), rotate(keys, cos.to(keys.dtype), sin.to(keys.dtype))
        if self.qk_norm:
            queries = F.rms_norm(queries, (self.head_dim,), eps=self.eps)
            keys = F.rms_norm(keys, (self.head_dim,), eps=self.eps)
        if cache is not None:
            keys, values = cache.update(keys, values, slot)
        mixed, _ = sdpa_attention_forward(self, queries, keys, values, mask)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1)), own
