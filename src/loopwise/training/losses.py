"""The loss of a language model without its logits ever being held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from ..data import NO_LOSS, TokenBatch
from ..nets.configuration import MODEL_TYPE
from .distributed import LOSS_METHOD, Ranks
from .settings import TrainingError

PLAIN_HEADS = frozenset({MODEL_TYPE, "llama", "mistral", "qwen2", "qwen3", "qwen3_5_text", "olmo2", "olmo3", "smollm3"})
"""The ``model_type`` of models whose logits are their hidden states times the head's matrix and nothing else (no bias, cap or scale)."""

_CHUNK_LOGITS = 1 << 24
"""Logits that are held at once: 64 MiB in fp32."""


def summed_loss(model: nn.Module, input_ids: Tensor, targets: Tensor, **arguments: Any) -> Tensor:
    """The sum of the cross entropies of all targets, in nats: a scalar in fp32.

    Args:
        input_ids: [rows, tokens].
        targets: [rows, tokens], the token that follows each input, or -100.
        arguments: what else the model's forward takes, e.g. ``position_ids`` or ``num_loops``.
    """
    if isinstance(model, FSDPModule):  # its weights are whole only within its own forward methods
        found: Tensor = getattr(model, LOSS_METHOD)(input_ids, targets, **arguments)
        return found
    return loss_in_forward(model, input_ids, targets, **arguments)


def loss_in_forward(model: Any, input_ids: Tensor, targets: Tensor, **arguments: Any) -> Tensor:
    """`summed_loss`, where the weights are whole."""
    if model.config.model_type in PLAIN_HEADS:
        hidden = head_inputs(model, input_ids, arguments)
        return head_loss(hidden.flatten(0, 1), model.lm_head.weight, targets.flatten())
    logits = model(input_ids, use_cache=False, **arguments).logits
    return chunked_loss(_logits_loss, logits.flatten(0, 1), targets.flatten())


def head_inputs(model: Any, input_ids: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """What a plain head reads, [rows, tokens, d_model]."""
    hidden: Tensor = model.model(input_ids, use_cache=False, **arguments).last_hidden_state
    return hidden


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The summed cross entropy of a plain head.

    In fp32 it is torch's ``linear_cross_entropy`` where torch has it (core since 2.13). In bf16 that would give the sum in bf16 as
    well, so there, and with an older torch, chunks of logits are made, turned to fp32, and made again in the backward pass.

    Args:
        hidden: [tokens, d_model].
        weight: [vocabulary, d_model].
        targets: [tokens].
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        if dtype == torch.float32 and torch.is_grad_enabled() and hasattr(F, "linear_cross_entropy"):
            return _core_loss(hidden, weight, targets)

        def loss(chunk: Tensor, targets: Tensor) -> Tensor:
            return _logits_loss(F.linear(chunk, weight), targets)

        return chunked_loss(loss, hidden, targets, width=weight.shape[0])


def chunked_loss(loss: Callable[[Tensor, Tensor], Tensor], rows: Tensor, targets: Tensor, *, width: int | None = None) -> Tensor:
    """The sum of ``loss`` over chunks of rows, in each of which it makes at most `_CHUNK_LOGITS` logits of ``width`` a row.

    Where gradients are kept, a chunk's logits are not: they are made again.
    """
    total = torch.zeros((), device=rows.device)
    for part in in_chunks(loss, rows, targets, width=width or rows.shape[1]):
        total = total + part
    return total


def in_chunks(make: Callable[..., Tensor], *rows: Tensor, width: int) -> Iterator[Tensor]:
    """What ``make`` gives for each chunk of rows, of which one tensor of ``width`` columns has at most `_CHUNK_LOGITS` numbers.

    Where gradients are kept, nothing within ``make`` is: it is called again.
    """
    size = max(_CHUNK_LOGITS // width, 1)
    for chunk in zip(*(part.split(size) for part in rows), strict=True):
        if torch.is_grad_enabled():
            yield checkpoint(make, *chunk, use_reentrant=False, preserve_rng_state=False)
        else:
            yield make(*chunk)


def _logits_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=NO_LOSS, reduction="sum")


def _core_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()  # type: ignore[attr-defined]  # chunks sized by the shapes
    core: Callable[..., Tensor] = F.linear_cross_entropy  # type: ignore[attr-defined]
    return core(hidden, weight, targets, ignore_index=NO_LOSS, reduction="sum", options=options)


def to_device(batch: TokenBatch, device: torch.device) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Inputs, targets and what else the model takes of a batch, as tensors."""
    tensors = [torch.from_numpy(array) for array in (batch.input_ids, batch.targets, batch.positions) if array is not None]
    if device.type == "cuda":
        tensors = [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
    inputs, targets, *rest = tensors
    return inputs, targets, {"position_ids": rest[0]} if rest else {}


@torch.no_grad()
def row_losses(
    model: nn.Module, batches: Iterable[TokenBatch], *, num_loops: int | None = None, dtype: str = "fp32"
) -> tuple[list[float], list[int]]:
    """The summed loss of every row of held-out batches in nats, and its targets: what paired intervals are made of.

    Args:
        num_loops: of a network of ``loopwise.nets``; None is its own.
        dtype: ``fp32``, or ``bf16`` for autocast.
    """
    arguments: dict[str, Any] = {} if num_loops is None else {"num_loops": num_loops}
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    sums: list[float] = []
    counts: list[int] = []
    try:
        for batch in batches:
            inputs, targets, more = to_device(batch, device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bf16"):
                sums += [float(loss) for loss in _losses_by_row(model, inputs, targets, more | arguments)]
            counts += (targets != NO_LOSS).sum(dim=1).tolist()
    finally:
        model.train(was_training)
    return sums, counts


def _losses_by_row(model: Any, inputs: Tensor, targets: Tensor, arguments: dict[str, Any]) -> list[Tensor]:
    if model.config.model_type in PLAIN_HEADS:
        hidden = model.model(inputs, use_cache=False, **arguments).last_hidden_state
        return [head_loss(one, model.lm_head.weight, wanted) for one, wanted in zip(hidden, targets, strict=True)]
    logits = model(inputs, use_cache=False, **arguments).logits
    return [_logits_loss(one, wanted) for one, wanted in zip(logits, targets, strict=True)]


@torch.no_grad()
def held_out_loss(
    model: nn.Module, batches: Iterable[TokenBatch], *, num_loops: int | None = None, ranks: Ranks | None = None, dtype: str = "fp32"
) -> float:
    """The mean loss of a model on held-out batches, in nats per target.

    Args:
        batches: at least one, the same on every rank; ranks share them out.
        num_loops: of a network of ``loopwise.nets``; None is its own.
        ranks: the processes of the run; None: this one alone.
        dtype: ``fp32``, or ``bf16`` for autocast.

    Raises:
        TrainingError: no target at all.
    """
    ranks = ranks or Ranks()
    arguments: dict[str, Any] = {} if num_loops is None else {"num_loops": num_loops}
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=device)
    try:
        for batch, counts in ranks.share_out(batches):  # with FSDP every process has to take part in every pass
            inputs, targets, more = to_device(batch, device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bf16"):
                loss = summed_loss(model, inputs, targets, **more, **arguments)
            if counts:
                total += torch.stack([loss.double(), (targets != NO_LOSS).sum().double()])
    finally:
        model.train(was_training)
    loss_sum, num_targets = ranks.sum(total).tolist()
    if not num_targets:
        raise TrainingError("the held-out batches have no target; give some text")
    return float(loss_sum / num_targets)
