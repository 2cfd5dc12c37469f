"""One process or many: who this process is, what all of them add up, and how the model is spread over them."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..nets.model import LoopedTransformer
from .settings import Execution, TrainingError, TrainSettings

LOSS_METHOD = "loopwise_summed_loss"
"""The forward method that a sharded model gets for its loss."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among all of them; by default it is alone."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def rows(self, num_sequences: int) -> range:
        """This process's rows of a batch.

        Raises:
            TrainingError: rows that cannot be shared out evenly.
        """
        if num_sequences % self.size:
            raise TrainingError(f"a batch of {num_sequences} sequences over {self.size} processes; give a multiple of {self.size}")
        each = num_sequences // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, of one shape, one after the other along the first dimension."""
        if self.size == 1:
            return tensor
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor)
        return torch.cat(found)

    def from_first(self, make: Callable[[], T]) -> T:
        """What ``make`` gives in the first process, in all of them; its error is raised in all of them too.

        Raises:
            ValueError, OSError: what ``make`` raises.
        """
        if self.size == 1:
            return make()
        made: list[Any] = [None]
        if self.rank == 0:
            try:
                made = [(make(), None)]
            except (ValueError, OSError) as raised:
                made = [(None, raised)]
        dist.broadcast_object_list(made, src=0)
        value, error = made[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def share_out(self, values: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """This process's part of some values; all processes get the same number, some of them one that does not count."""
        pending: list[T] = []
        for value in values:
            pending.append(value)
            if len(pending) == self.size:
                yield pending[self.rank], True
                pending = []
        if pending:
            yield pending[min(self.rank, len(pending) - 1)], self.rank < len(pending)


def join(device: str) -> Ranks:
    """Join the processes that torchrun started, if it started any: over gloo on CPUs, over NCCL on GPUs.

    Raises:
        TrainingError: CUDA where there is none.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device is cuda, and this torch sees no CUDA device; use cpu")
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    if size == 1:
        return Ranks(device=where)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    return Ranks(rank=dist.get_rank(), size=size, device=where)


def leave() -> None:
    """Leave the other processes, at a command's end."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_spread(model: nn.Module, settings: TrainSettings, execution: Execution, ranks: Ranks, *, own_objective: bool = False) -> None:
    """Check that a model can be spread as asked.

    Raises:
        TrainingError: FSDP2 with one process, with Muon, with an objective of its own, or with a model that is none of ``loopwise.nets``.
    """
    if not execution.fsdp:
        return
    if ranks.size == 1:
        raise TrainingError("fsdp shards over several processes, and this is the only one; start it with torchrun, or leave fsdp out")
    if own_objective:
        raise TrainingError("fsdp with an objective of its own: the weights are whole only within the loss; leave fsdp out")
    if settings.optimizer == "muon":
        raise TrainingError("muon with fsdp: on sharded rows of a matrix it is another optimizer; use adamw, or leave fsdp out")
    if not isinstance(model, LoopedTransformer):
        raise TrainingError(f"fsdp is for networks of nets:..., not for a {type(model).__name__}; leave fsdp out")


def shard(model: LoopedTransformer, loss: Callable[..., Tensor], ranks: Ranks, *, bf16: bool) -> None:
    """Shard a network in place (FSDP2).

    The branches of the looped span are one group that stays gathered after the forward pass, so that its weights are gathered once
    a step and not once a loop. Layers before and behind it are a group each. The embedding, the head that is tied to it, the value
    tables and the residual design belong to the root.

    Args:
        loss: becomes a forward method, within which the weights are whole.
    """
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
    options: dict[str, Any] = {"mesh": init_device_mesh(ranks.device.type, (ranks.size,)), "mp_policy": precision}
    start, stop = model.model.arch.span
    branches = [[layer.attention, layer.mlp] for layer in model.model.layers]  # a layer's own forward never runs
    for outside in branches[:start] + branches[stop:]:
        fully_shard(outside, **options)
    fully_shard([branch for layer in branches[start:stop] for branch in layer], reshard_after_forward=False, **options)
    fully_shard(model, **options)
    setattr(model, LOSS_METHOD, types.MethodType(loss, model))
    register_fsdp_forward_method(model, LOSS_METHOD)


def replicate(module: nn.Module, model: nn.Module, settings: TrainSettings, ranks: Ranks) -> nn.Module:
    """A module whose gradients are averaged over the processes (DDP); the module itself where there is one."""
    if ranks.size == 1:
        return module
    device_ids = [ranks.device.index] if ranks.device.type == "cuda" else None
    unused = _may_leave_unused(model, settings)
    return DistributedDataParallel(
        module, device_ids=device_ids, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused
    )


def _may_leave_unused(model: nn.Module, settings: TrainSettings) -> bool:
    """Whether a step may give a parameter no gradient: Parcae's transition at one loop, the depth queries of loops that did not run,
    and what lies before a loop without gradients."""
    if not isinstance(model, LoopedTransformer):
        return False
    cut = settings.recurrence is not None and settings.recurrence.backprop_loops is not None
    return cut or model.model.arch.design in ("parcae", "arloop")


def adding_up(module: nn.Module, model: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Within it gradients stay in their process, until the ``last`` micro-batch of a step, where they are averaged."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        return nullcontext()
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def full_tensor(tensor: Tensor) -> Tensor:
    """A sharded tensor whole, on every process; another as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def settle(model: nn.Module) -> None:
    """Give a sharded model's parameters back their sharded form, which a forward pass without a backward pass leaves whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
