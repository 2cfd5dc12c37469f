"""Divergences and likelihoods at a plain head, in chunks: two full tensors of logits are never held, nor one.

All functions take what the head reads, [tokens, d_model], and the head's matrix, [vocabulary, d_model]. Logits are made in chunks,
in the compute type of the head and from there in fp32, and made again in the backward pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import NO_LOSS
from .losses import chunked_loss, in_chunks


def summed_kl(teacher: Tensor, student: Tensor, weight: Tensor) -> Tensor:
    """The sum over tokens of KL(softmax(teacher's logits) || softmax(student's logits)), in nats: a scalar in fp32.

    No gradient flows into ``teacher``, nor through its logits into ``weight``. Equal hidden states give exactly zero.
    """
    teacher, student, weight = _computed(teacher.detach(), student, weight)

    def divergence(student: Tensor, teacher: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = _log_probabilities(teacher, weight)
        return F.kl_div(_log_probabilities(student, weight), wanted, reduction="sum", log_target=True)

    with torch.autocast(student.device.type, enabled=False):
        return chunked_loss(divergence, student, teacher, width=2 * weight.shape[0])


def gold_log_probabilities(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of each token's target, in nats: [tokens], in fp32. All targets are tokens."""
    hidden, weight = _computed(hidden, weight)

    def gold(hidden: Tensor, targets: Tensor) -> Tensor:
        return _log_probabilities(hidden, weight).gather(1, targets[:, None])[:, 0]

    with torch.autocast(hidden.device.type, enabled=False):
        return torch.cat(list(in_chunks(gold, hidden, targets, width=weight.shape[0])))


def with_targets(hidden: Tensor, targets: Tensor) -> Tensor:
    """The hidden states [rows, tokens, d_model] of the positions that have a target: [tokens with one, d_model]."""
    return hidden[targets != NO_LOSS]


def _computed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the type that products are made in."""
    device = tensors[0].device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensors[0].dtype
    return tuple(tensor.to(dtype) for tensor in tensors)


def _log_probabilities(hidden: Tensor, weight: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
