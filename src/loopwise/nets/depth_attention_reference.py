"""A depth read in plain operations: what the other backends must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """What reads compute in: single precision at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def inverse_rms(source: Tensor, eps: float) -> Tensor:
    """(mean(v^2) + eps)^-1/2 of every token [batch, tokens]."""
    return torch.rsqrt(source.to(compute_dtype(source)).square().mean(-1) + eps)


def softmax_over_sources(scores: Sequence[Tensor], visible: Sequence[Tensor | None]) -> list[Tensor]:
    """The weight of every source [batch, tokens] each; a source that a sequence does not see weighs exactly 0.

    Summed source by source, so that one that nobody sees changes no bit.
    """
    seen = [score if mask is None else score.masked_fill(~mask[:, None], -torch.inf) for score, mask in zip(scores, visible, strict=True)]
    top = seen[0]
    for score in seen[1:]:
        top = torch.maximum(top, score)
    weights = [torch.exp(score - top) for score in seen]
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    return [weight / total for weight in weights]


def read_reference(
    sources: Sequence[Tensor],
    query: Tensor,
    norm_weight: Tensor,
    *,
    key_eps: float,
    norm_eps: float,
    value_norm: bool,
    visible: Sequence[Tensor | None],
) -> Tensor:
    """RMSNorm(sum_n softmax_n(w . k_n) v_n) with k_n = v_n (mean(v_n^2) + eps)^-1/2 (arXiv 2603.15031).

    Args:
        sources: v_n [batch, tokens, d_model] each.
        query: w, with the key gain and the scale in it [d_model].
        norm_weight: the gain of the sublayer's own norm [d_model].
        visible: which sequences see a source [batch]; None where all do.
    """
    dtype = compute_dtype(sources[0])
    values = [source.to(dtype) for source in sources]
    keys = [value * inverse_rms(value, key_eps)[..., None] for value in values]
    weights = softmax_over_sources([(key * query).sum(-1) for key in keys], visible)
    mixed = sum(weight[..., None] * value for weight, value in zip(weights, keys if value_norm else values, strict=True))
    assert isinstance(mixed, Tensor)
    normed = mixed * inverse_rms(mixed, norm_eps)[..., None] * norm_weight
    return normed.to(sources[0].dtype)
