"""Depth reads by flash-linear-attention's Triton kernels (``fla.ops.attnres``, extra ``fla``), for CUDA.

They compute what `read_fused` does and keep what it keeps (the sources and scalars), each read one kernel forward and two backward.
They sum in single precision whatever the sources are. What they do not know is left to `read_fused`: sources that some sequences do not
see, tensors that are not on CUDA, and double precision. They normalise keys and output with one eps, and values never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from packaging.version import Version
from torch import Tensor

from .configuration import NetError
from .depth_attention_functions import ReadFunctions
from .depth_attention_fused import Source, as_source, read_fused

FIRST_VERSION = Version("0.6")
"""Of fla-core, with ``fla.ops.attnres``."""
ROW_ELEMENTS = 8
"""The kernels read rows that begin at multiples of 16 bytes, which in half precision are so many elements."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def has_fla() -> bool:
    """Whether a package that has the kernels is installed; it is not imported."""
    try:
        return Version(version("fla-core")) >= FIRST_VERSION and find_spec("triton") is not None
    except PackageNotFoundError:
        return False


def reads_by_fla(sources_like: Tensor) -> bool:
    """Whether the kernels can read sources such as this one."""
    return sources_like.is_cuda and sources_like.dtype in KERNEL_DTYPES and has_fla()


def check_fla(device: torch.device) -> None:
    """Check that a model that asks for the kernels can have them where it is to run.

    Raises:
        NetError: not a CUDA device, or no package.
    """
    if device.type != "cuda":
        raise NetError(f"depth attention: the fla backend is for CUDA, and this runs on {device.type}; use depth_backend=fused")
    if not has_fla():
        raise NetError("depth attention: the fla backend needs fla-core >= 0.6 and Triton; pip install 'loopwise[fla]', or use fused")


@cache
def _kernels() -> Callable[..., Tensor]:
    from fla.ops.attnres import fused_attnres  # imports Triton, and asks the driver what there is

    return fused_attnres  # type: ignore[no-any-return]


def _bare(value: Tensor, key_eps: float) -> Source:
    """A source alone: the kernels take its root mean square as they read it."""
    return Source(value, value.new_empty(0))


def _add_bare(running: Tensor, branch: Tensor, key_eps: float) -> Source:
    return _bare(running + branch, key_eps)


def read_fla(
    sources: Sequence[Source],
    query: Tensor,
    norm_weight: Tensor,
    *,
    norm_eps: float,
    value_norm: bool,
    visible: Sequence[Tensor | None],
) -> Tensor:
    """As `read_fused`, of sources without their root mean squares; ``norm_eps`` is the keys', too."""
    assert not value_norm, "refused by DepthAttentionOptions"
    if any(mask is not None for mask in visible):
        whole = [as_source(source.value, norm_eps) for source in sources]
        return read_fused(whole, query, norm_weight, norm_eps=norm_eps, value_norm=value_norm, visible=visible)
    ones = torch.ones_like(query)  # the gain of the keys' norm is in the query
    return _kernels()(query, [source.value for source in sources], ones, norm_weight, rms_eps=norm_eps, scale=1.0, checkpoint_level=1)


FLA = ReadFunctions(source=_bare, add=_add_bare, fused=read_fla)
"""Never compiled: the kernels are, and the package keeps ``torch.compile`` out of them."""
