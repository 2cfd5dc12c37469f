"""The reads of one residual block in two phases (arXiv 2603.15031): exact, with finished blocks read once a block, not once a sublayer.

Queries are parameters, so all queries w_s of a block can be scored against the finished blocks b_n before its first sublayer runs::

    between blocks   l_sn = w_s . k_n      L_s = logsumexp_n l_sn      O_s = sum_n exp(l_sn - L_s) b_n
    within the block c = w_s . k(running)  h_s = (exp(L_s - m) O_s + exp(c - m) running) / (exp(L_s - m) + exp(c - m)),  m = max(L_s, c)

The second line is the online softmax. Each O_s is kept for the backward pass: one tensor a sublayer more than `read_fused` keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .depth_attention_fused import Source, mix, norm_backward, softmax_backward
from .depth_attention_reference import compute_dtype, inverse_rms

if TYPE_CHECKING:
    from .depth_attention_functions import ReadFunctions

Rows = tuple[tuple[int, ...], ...]


class BlockReads:
    """The part of a block's reads that its finished blocks give, ready to be merged with the running block."""

    def __init__(
        self,
        sources: Sequence[Source],
        seen: Sequence[tuple[int, ...]],
        queries: Tensor,
        *,
        norm_eps: float,
        value_norm: bool,
        functions: ReadFunctions,
    ) -> None:
        """Run the first phase.

        Args:
            sources: the finished blocks that any of the reads sees, the embedding among them.
            seen: for each read the places in ``sources`` that it sees; none where a window holds the running block alone.
            queries: the reads' queries [reads, d_model].
        """
        self.queries, self.norm_eps, self.value_norm, self.functions = queries.unbind(0), norm_eps, value_norm, functions
        self.with_finished = [place for place, row in enumerate(seen) if row]
        sees = tuple(tuple(n in seen[place] for n in range(len(sources))) for place in self.with_finished)
        self.mixtures, self.levels = functions.between(sources, queries[self.with_finished], sees, value_norm=value_norm)

    def read(self, place: int, running: Source | None, norm_weight: Tensor) -> Tensor:
        """The normed input of the block's sublayer number ``place`` (from 0)."""
        if place not in self.with_finished:
            assert running is not None
            return self._alone(running, place, norm_weight, value_norm=self.value_norm)
        column = self.with_finished.index(place)
        mixture = self.mixtures[column]
        if running is None:
            return self._alone(Source(mixture, self.levels[..., column].detach()), place, norm_weight, value_norm=False)
        flags = {"norm_eps": self.norm_eps, "value_norm": self.value_norm}
        return self.functions.merge(mixture, self.levels[..., column], running, self.queries[place], norm_weight, **flags)

    def _alone(self, source: Source, place: int, norm_weight: Tensor, *, value_norm: bool) -> Tensor:
        flags = {"norm_eps": self.norm_eps, "value_norm": value_norm, "visible": [None]}
        return self.functions.fused([source], self.queries[place], norm_weight, **flags)


def between_blocks(
    sources: Sequence[Source], queries: Tensor, sees: Sequence[Sequence[bool]], *, value_norm: bool
) -> tuple[list[Tensor], Tensor]:
    """The first phase: O_s of every query [batch, tokens, d_model] each, and L_s [batch, tokens, queries].

    Args:
        sees: for each query whether it sees each source. Not their numbers: compiled code takes numbers that change for variables.
    """
    rows = tuple(tuple(n for n, one in enumerate(row) if one) for row in sees)
    values, scales = [source.value for source in sources], [source.inverse_rms for source in sources]
    *mixtures, levels = _BetweenBlocks.apply(queries, rows, value_norm, len(sources), *values, *scales)
    return mixtures, levels


def merge_running(
    mixture: Tensor, level: Tensor, running: Source, query: Tensor, norm_weight: Tensor, *, norm_eps: float, value_norm: bool
) -> Tensor:
    """The second phase: h_s of one query, normed [batch, tokens, d_model]."""
    return _Merge.apply(mixture, level, *running, query, norm_weight, norm_eps, value_norm)  # type: ignore[no-any-return]


def _weights_between(rows: Rows, logits: Sequence[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
    """For each row exp(l_n - L) of the sources that it sees, and L."""
    weights, levels = [], []
    for column, row in enumerate(rows):
        scores = torch.stack([logits[n][..., column] for n in row])
        level = torch.logsumexp(scores, 0)
        levels.append(level)
        weights.append(list(torch.exp(scores - level)))
    return weights, levels


class _BetweenBlocks(torch.autograd.Function):
    """Queries, flags, N sources and N inverse root mean squares to the mixtures, one a row, and their levels [batch, tokens, rows]."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, rows: Rows, value_norm: bool, num: int, first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        # The first value by name: without gradients Dynamo takes a call of as many arguments as names for one without ctx.
        tensors = (first, *others)
        values, scales = tensors[:num], tensors[num:]
        dtype = compute_dtype(values[0])
        logits = [(value.to(dtype) @ queries.T) * scale[..., None] for value, scale in zip(values, scales, strict=True)]
        weights, levels = _weights_between(rows, logits)
        mixtures = []
        for row, row_weights in zip(rows, weights, strict=True):
            factors = [weight * scales[n] for weight, n in zip(row_weights, row, strict=True)] if value_norm else row_weights
            mixtures.append(mix(factors, [values[n] for n in row]).to(values[0].dtype))
        ctx.rows, ctx.value_norm, ctx.num = rows, value_norm, num
        ctx.save_for_backward(queries, torch.stack(logits), *values, *scales, *mixtures)
        return (*mixtures, torch.stack(levels, -1))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, value_norm, num = ctx.rows, ctx.value_norm, ctx.num
        queries, logits, *rest = ctx.saved_tensors
        values, scales, mixtures = rest[:num], rest[num : 2 * num], rest[2 * num :]
        weights, _ = _weights_between(rows, logits.unbind(0))
        dtype, width = logits.dtype, values[0].shape[-1]
        grad_mixtures = [grad.to(dtype) for grad in grads[:-1]]
        means = [(grad * mixture).sum(-1) for grad, mixture in zip(grad_mixtures, mixtures, strict=True)]
        grad_queries, grad_values = torch.zeros_like(queries), []
        for n, (value, scale) in enumerate(zip(values, scales, strict=True)):
            readers = [column for column, row in enumerate(rows) if n in row]
            factors, pull = [], torch.zeros_like(scale)
            along = torch.zeros_like(logits[0])
            for column in readers:
                weight = weights[column][rows[column].index(n)]
                dot = (grad_mixtures[column] * value).sum(-1)
                gain = dot * scale if value_norm else dot
                along[..., column] = grad_logit = weight * (gain - means[column] + grads[-1][..., column])
                pull = pull - grad_logit * logits[n][..., column] * scale.square()
                factors.append(weight * scale if value_norm else weight)
                if value_norm:
                    pull = pull - weight * scale**3 * dot
            along = along * scale[..., None]
            grad_queries = grad_queries + along.flatten(0, -2).T @ value.flatten(0, -2).to(dtype)
            mixed = mix(factors, [grad_mixtures[column] for column in readers])
            grad_values.append((mixed + along @ queries + (pull / width)[..., None] * value).to(value.dtype))
        return (grad_queries, None, None, None, *grad_values, *(None for _ in scales))


class _Merge(torch.autograd.Function):
    """The second phase and the norm; ``mixture`` is a source whose score ``level`` is given."""

    @staticmethod
    def forward(
        ctx: Any,
        mixture: Tensor,
        level: Tensor,
        running: Tensor,
        scale: Tensor,
        query: Tensor,
        norm_weight: Tensor,
        norm_eps: float,
        value_norm: bool,
    ) -> Tensor:
        score = (running.to(level.dtype) @ query) * scale
        total = torch.logaddexp(level, score)
        weights = torch.exp(level - total), torch.exp(score - total)
        mixed = mix((weights[0], weights[1] * scale if value_norm else weights[1]), (mixture, running))
        inverse = inverse_rms(mixed, norm_eps)
        ctx.value_norm = value_norm
        ctx.save_for_backward(mixture, running, scale, query, norm_weight, score, *weights, inverse)
        return (mixed * inverse[..., None] * norm_weight).to(running.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mixture, running, scale, query, norm_weight, score, old, new, inverse = ctx.saved_tensors
        factor = new * scale if ctx.value_norm else new
        grad_mixed, grad_weight = norm_backward(grad, mix((old, factor), (mixture, running)), inverse, norm_weight)
        dots = [(grad_mixed * value).sum(-1) for value in (mixture, running)]
        gains = [dots[0], dots[1] * scale if ctx.value_norm else dots[1]]
        grad_level, grad_score = softmax_backward(gains, (old, new))
        pull = -grad_score * score * scale.square()
        if ctx.value_norm:
            pull = pull - new * scale**3 * dots[1]
        along = grad_score * scale
        grad_running = factor[..., None] * grad_mixed + along[..., None] * query + (pull / running.shape[-1])[..., None] * running
        grad_query = along.flatten() @ running.flatten(0, -2).to(along.dtype)
        grads = ((old[..., None] * grad_mixed).to(mixture.dtype), grad_level, grad_running.to(running.dtype), None)
        return (*grads, grad_query, grad_weight, None, None)
