"""A depth read and its RMSNorm as one autograd function: it keeps no mixture, only the sources, which all reads share, and scalars.

With s_n = r_n (w . v_n), r_n = (mean(v_n^2) + eps)^-1/2, p = softmax(s), h = sum_n p_n v_n, y = g h (mean(h^2) + eps)^-1/2 = g h t and
a = g dy, the backward pass recomputes h and then

    dh   = t (a - h t^2 mean(a h))
    ds_n = p_n (dh . v_n - dh . h)
    dv_n = p_n dh + ds_n r_n w - ds_n s_n r_n^2 / d v_n
    dw   = sum over tokens and n of ds_n r_n v_n

r_n belongs to the source, so it is computed once, when the source is made, and handed to every read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .depth_attention_reference import compute_dtype, inverse_rms, softmax_over_sources


class Source(NamedTuple):
    """A residual source and what every read of it needs."""

    value: Tensor
    """v [batch, tokens, d_model]."""
    inverse_rms: Tensor
    """r [batch, tokens], a constant to autograd: the reads' backward passes account for it."""


def as_source(value: Tensor, key_eps: float) -> Source:
    """The source of a tensor; its root mean square is taken once, for all reads."""
    return Source(value, inverse_rms(value.detach(), key_eps))


def read_fused(
    sources: Sequence[Source],
    query: Tensor,
    norm_weight: Tensor,
    *,
    norm_eps: float,
    value_norm: bool,
    visible: Sequence[Tensor | None],
) -> Tensor:
    """As `read_reference`, to rounding; second derivatives are refused."""
    masks = tuple(mask for mask in visible if mask is not None)
    given = tuple(mask is not None for mask in visible)
    values, scales = [source.value for source in sources], [source.inverse_rms for source in sources]
    return _Read.apply(query, norm_weight, norm_eps, value_norm, given, *values, *scales, *masks)  # type: ignore[no-any-return]


def mix(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """sum_n p_n v_n, in the weights' dtype."""
    mixed = weights[0][..., None] * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        mixed = torch.addcmul(mixed, weight[..., None], value.to(mixed.dtype))
    return mixed


def norm_backward(grad: Tensor, mixed: Tensor, inverse: Tensor, norm_weight: Tensor) -> tuple[Tensor, Tensor]:
    """dh and dg of y = g h t, for ``mixed`` h and ``inverse`` t."""
    grad = grad.to(mixed.dtype)
    grad_weight = (grad * mixed * inverse[..., None]).flatten(0, -2).sum(0)
    scaled = grad * norm_weight
    shrink = inverse.square() * (scaled * mixed).mean(-1)
    return inverse[..., None] * (scaled - mixed * shrink[..., None]), grad_weight.to(norm_weight.dtype)


class _Read(torch.autograd.Function):
    """Inputs after the flags: N sources, N inverse root mean squares, and the masks that were given."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        norm_weight: Tensor,
        norm_eps: float,
        value_norm: bool,
        given: tuple[bool, ...],
        first: Tensor,
        *others: Tensor,
    ) -> Tensor:
        # The first value by name: without gradients Dynamo takes a call of as many arguments as names for one without ctx.
        num, tensors = len(given), (first, *others)
        values, scales, masks = tensors[:num], tensors[num : 2 * num], iter(tensors[2 * num :])
        dtype = compute_dtype(values[0])
        if num == 1:  # one source weighs 1, whatever its score
            scores = [torch.zeros_like(scales[0])]
            weights = [torch.ones_like(scales[0])]
        else:
            scores = [(value.to(dtype) @ query) * scale for value, scale in zip(values, scales, strict=True)]
            weights = softmax_over_sources(scores, [next(masks) if one else None for one in given])
        factors = [weight * scale for weight, scale in zip(weights, scales, strict=True)] if value_norm else weights
        mixed = mix(factors, values)
        inverse = inverse_rms(mixed, norm_eps)
        ctx.num, ctx.value_norm = num, value_norm
        scalars = (torch.stack(scores), torch.stack(weights)) if num > 1 else ()
        ctx.save_for_backward(query, norm_weight, inverse, *values, *scales, *scalars)
        return (mixed * inverse[..., None] * norm_weight).to(values[0].dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        num, value_norm = ctx.num, ctx.value_norm
        query, norm_weight, inverse, *rest = ctx.saved_tensors
        values, scales = rest[:num], rest[num : 2 * num]
        scores, weights = rest[2 * num :] if num > 1 else (torch.zeros_like(scales[0])[None], torch.ones_like(scales[0])[None])
        factors = [weight * scale for weight, scale in zip(weights, scales, strict=True)] if value_norm else list(weights)
        grad_mixed, grad_weight = norm_backward(grad, mix(factors, values), inverse, norm_weight)
        dots = [(grad_mixed * value).sum(-1) for value in values]
        gains = [dot * scale for dot, scale in zip(dots, scales, strict=True)] if value_norm else dots
        grad_scores = softmax_backward(gains, weights)
        grad_query = torch.zeros_like(query)
        grad_values = []
        for index, (value, scale) in enumerate(zip(values, scales, strict=True)):
            pull = -grad_scores[index] * scores[index] * scale.square()
            if value_norm:
                pull = pull - factors[index] * scale.square() * dots[index]
            along_query = grad_scores[index] * scale
            grad_value = factors[index][..., None] * grad_mixed + (pull / value.shape[-1])[..., None] * value
            if num > 1:
                grad_value = grad_value + along_query[..., None] * query
                grad_query = grad_query + along_query.flatten() @ value.flatten(0, -2).to(grad_query.dtype)
            grad_values.append(grad_value.to(value.dtype))
        return (grad_query, grad_weight, None, None, None, *grad_values, *(None for _ in range(len(ctx.needs_input_grad) - 5 - num)))


def softmax_backward(gains: Sequence[Tensor], weights: Sequence[Tensor] | Tensor) -> list[Tensor]:
    """ds_n = p_n (u_n - sum_m p_m u_m), for ``gains`` u."""
    mean = weights[0] * gains[0]
    for weight, gain in zip(weights[1:], gains[1:], strict=True):
        mean = mean + weight * gain
    return [weight * (gain - mean) for weight, gain in zip(weights, gains, strict=True)]
