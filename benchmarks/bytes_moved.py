"""What a training step moves and keeps, in bytes, and how fast this machine moves bytes and multiplies matrices.

Bytes of operations that run eagerly are their inputs and outputs, views left out; those of compiled code are what the compiler counts
for each of its kernels. Both count a tensor once per operation, wherever it lies: caches make the true number smaller.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor
from torch._inductor import compile_fx, metrics
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class CountBytes(TorchDispatchMode):
    """Adds up what operations read and write; views move nothing. Compiled graphs add what the compiler counted."""

    running: CountBytes | None = None

    def __init__(self) -> None:
        super().__init__()
        self.total = self.in_graphs = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs under this mode, too."""
        return True

    def __enter__(self) -> CountBytes:
        super().__enter__()
        CountBytes.running = self
        return self

    def __exit__(self, *exception: Any) -> None:
        CountBytes.running = None
        super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten.detach.default:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            self.total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def counting_compiler(graph: Any, inputs: Any) -> Any:
    """Inductor, with graphs that tell what they move when they run."""
    return compile_fx.compile_fx(graph, inputs, inner_compile=_counted)


def _counted(graph: Any, inputs: Any, **options: Any) -> Any:
    before = metrics.num_bytes_accessed
    compiled: Any = compile_fx.compile_fx_inner(graph, inputs, **options)
    num_bytes = metrics.num_bytes_accessed - before

    def run(arguments: list[Any]) -> Any:
        count = CountBytes.running
        if count is None:
            return compiled(arguments)
        count.total += num_bytes
        count.in_graphs += num_bytes
        with _disable_current_modes():  # a compiled graph may call operations
            return compiled(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def let_the_compiler_count(kernels: Path | None) -> None:
    """It counts bytes for its log only; a folder where graphs are kept between runs must hold none that was not counted.

    Call it before anything is compiled.
    """
    if kernels is None:
        torch._inductor.config.force_disable_caches = True
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kernels.resolve())
        torch._functorch.config.enable_autograd_cache = False  # it would hand out graphs past `_counted`
    log = compile_fx.inductor_metrics_log
    log.setLevel(logging.INFO)
    log.handlers, log.propagate = [logging.NullHandler()], False


class Kept:
    """What a forward pass keeps for the backward pass, each storage once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.tensors: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is kept; it is held, so that no address is used twice."""
        self.tensors[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def num_bytes(self) -> int:
        """All of it, parameters left out."""
        return sum(tensor.untyped_storage().nbytes() for at, tensor in self.tensors.items() if at not in self.parameters)


def bandwidth(device: str) -> float:
    """Bytes a second of adding two tensors that no cache holds."""
    left, right = (torch.ones(64 * 2**20, device=device) for _ in range(2))
    out = torch.empty_like(left)
    seconds = [timed(lambda: torch.add(left, right, out=out), device) for _ in range(4)]
    return 3 * left.numel() * left.element_size() / min(seconds)


def timed(step: Callable[[], object], device: str) -> float:
    """The seconds of one step."""
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def matrix_speed(device: str, dtype: torch.dtype) -> float:
    """FLOPs a second of the backward pass of a small matrix product, which some CPUs have no fast code for in half precision."""
    weight, grad = torch.ones(1024, 512, device=device, dtype=dtype), torch.ones(64, 1024, device=device, dtype=dtype)
    seconds = [timed(lambda: grad @ weight, device) for _ in range(3)]
    return 2 * 64 * 1024 * 512 / min(seconds)
