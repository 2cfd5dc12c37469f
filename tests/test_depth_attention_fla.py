"""Depth reads by flash-linear-attention: what is handed to its kernels, beside the other backends; the kernels themselves where they are.

Without CUDA the kernels run in Triton's interpreter (``make test-fla``); where the package is not installed, a stand-in with its signature
takes their place, written from the equations alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwise.nets import Architecture, LoopedTransformer, NetError
from loopwise.nets import depth_attention_fla as fla
from loopwise.nets.depth_attention import DepthAttention
from loopwise.nets.depth_attention_options import DepthAttentionOptions
from loopwise.training.preparing import check_model

TINY: dict[str, Any] = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
TINY |= dict(num_key_value_heads=1, design="arloop", num_loops=3, block_size_sublayers=2)


def stand_in(
    query: Tensor,
    residuals: Sequence[Tensor],
    rms_weight: Tensor,
    output_rms_weight: Tensor | None = None,
    rms_eps: float = 1e-6,
    scale: float = 1.0,
    return_weights: bool = False,
    checkpoint_level: int = 1,
) -> Tensor:
    """attnres of fla-core 0.6, from the equations."""
    v = torch.stack(tuple(residuals)).float()
    k = v / (v.pow(2).mean(-1, keepdim=True) + rms_eps).sqrt() * rms_weight
    p = ((k * query).sum(-1, keepdim=True) * scale).softmax(0)
    h = (p * v).sum(0)
    assert output_rms_weight is not None
    return (h / (h.pow(2).mean(-1, keepdim=True) + rms_eps).sqrt() * output_rms_weight).to(residuals[0].dtype)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The backend at work on CPU tensors, by the stand-in; the number of sources of each of its reads."""
    reads: list[int] = []

    def counted(query: Tensor, residuals: Sequence[Tensor], *args: Any, **flags: Any) -> Tensor:
        reads.append(len(residuals))
        return stand_in(query, residuals, *args, **flags)

    monkeypatch.setattr(fla, "_kernels", lambda: counted)
    monkeypatch.setattr("loopwise.nets.depth_attention.reads_by_fla", lambda source: True)
    return reads


def network(backend: str, **changes: Any) -> LoopedTransformer:
    torch.manual_seed(0)
    net = LoopedTransformer.from_architecture(Architecture(**{**TINY, "depth_backend": backend, **changes}))
    for name, parameter in net.named_parameters():
        if name.endswith(("queries", "key_gains", "o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(parameter, std=0.5)
    return net


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, torch.float32),
        ({"window_blocks": 2}, torch.float32),
        ({"block_size_sublayers": 1}, torch.float32),
        ({"depth_key_gain": True, "depth_scale": 0.25}, torch.float32),
        ({}, torch.bfloat16),
    ],
)
def test_the_kernels_are_asked_for_the_same_reads(changes: dict[str, Any], dtype: torch.dtype, on_cpu: list[int]) -> None:
    ids = torch.arange(12).view(2, 6)
    outputs, gradients = [], []
    for backend in ("fused", "fla"):
        net = network(backend, **changes).to(dtype)
        logits = net(ids, use_cache=False).logits
        logits.float().square().mean().backward()
        outputs.append(logits)
        gradients.append([parameter.grad for parameter in net.parameters() if parameter.grad is not None])
    assert len(on_cpu) == 3 * 4 + 1, "every sublayer's read and the output's"
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(outputs[1], outputs[0], rtol=tolerance, atol=tolerance)
    for got, want in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(got, want, rtol=100 * tolerance, atol=tolerance * float(want.abs().max() + 1e-3))


def test_sequences_of_unequal_depths_are_read_without_the_kernels_after_the_loops(on_cpu: list[int]) -> None:
    ids, depths = torch.arange(12).view(2, 6), torch.tensor([1, 3])
    with torch.no_grad():
        want = network("fused")(ids, depths=depths, num_loops=3, use_cache=False).logits
        got = network("fla")(ids, depths=depths, num_loops=3, use_cache=False).logits
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert len(on_cpu) == 3 * 4, "all but the output's"


def test_on_a_cpu_it_computes_as_fused() -> None:
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        assert torch.equal(network("fla")(ids).logits, network("fused")(ids).logits)


@pytest.mark.parametrize(("dtype", "wanted"), [(torch.bfloat16, True), (torch.float64, False)])
def test_what_the_kernels_read(dtype: torch.dtype, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "has_fla", lambda: True)

    class OnCuda:
        is_cuda = True

        def __init__(self) -> None:
            self.dtype = dtype

    assert fla.reads_by_fla(OnCuda()) is wanted  # type: ignore[arg-type]
    monkeypatch.setattr(fla, "has_fla", lambda: False)
    assert not fla.reads_by_fla(OnCuda())  # type: ignore[arg-type]


def test_training_with_kernels_that_are_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetError, match=r"fla backend is for CUDA, and this runs on cpu; use depth_backend=fused"):
        fla.check_fla(torch.device("cpu"))
    monkeypatch.setattr(fla, "has_fla", lambda: False)
    with pytest.raises(NetError, match=r"needs fla-core >= 0.6 and Triton; pip install 'loopwise\[fla\]'"):
        fla.check_fla(torch.device("cuda"))

    class Ranks:
        device = torch.device("cpu")

    with pytest.raises(NetError, match="runs on cpu"):
        check_model(network("fla"), None, None, Ranks())  # type: ignore[arg-type]


def test_what_the_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(NetError, match="the fla backend does not normalise values; use fused"):
        DepthAttentionOptions(backend="fla", value_norm=True)
    with pytest.raises(NetError, match=r"one eps for keys and output, and these are 1e-05 and 1e-06; make them equal, or use fused"):
        DepthAttention(DepthAttentionOptions(backend="fla"), d_model=8, num_sublayers=4, num_loops=1, norm_eps=1e-6)
    with pytest.raises(NetError, match="d_model is 20; the fla backend needs a multiple of 8, or use fused"):
        DepthAttention(DepthAttentionOptions(backend="fla"), d_model=20, num_sublayers=4, num_loops=1)


@pytest.mark.parametrize(("installed", "wanted"), [("0.5.1", False), ("0.6.0", True), (None, False)])
def test_an_older_package_without_the_kernels_is_none(installed: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise fla.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(fla, "version", version)
    monkeypatch.setattr(fla, "find_spec", lambda name: object())
    fla.has_fla.cache_clear()
    assert fla.has_fla() is wanted
    fla.has_fla.cache_clear()


INTERPRETED = """
import builtins
import torch
torch.Tensor.is_cuda = True  # the package asks; the interpreter does not care
import fla.ops.attnres.fused as fused
from triton.runtime.interpreter import _implicit_cvt
bound = lambda given: int(getattr(given, "value", given))
fused.range = lambda *bounds: map(_implicit_cvt, builtins.range(*map(bound, bounds)))  # a compiled loop counts in tensors
for kernel in (fused.attnres_fwd_kernel, fused.attnres_bwd_kernel_dv, fused.attnres_bwd_kernel_dqdw):
    tuned = kernel
    while not hasattr(tuned, "configs"):
        tuned = tuned.fn
    tuned.configs = tuned.configs[:1]  # tuning needs a device to time on
from loopwise.nets.depth_attention_fla import read_fla, _bare
from loopwise.nets.depth_attention_fused import as_source, read_fused
torch.manual_seed(0)
for count, width, dtype, tolerance in ((1, 16, torch.float32, 1e-5), (5, 48, torch.float32, 1e-5), (9, 16, torch.bfloat16, 2e-2)):
    values = [torch.randn(2, 3, width).to(dtype).requires_grad_() for _ in range(count)]
    query, weight = torch.randn(width, requires_grad=True), torch.randn(width, requires_grad=True)
    wanted = [*values, query, weight]
    flags = dict(norm_eps=1e-5, value_norm=False, visible=[None] * count)
    results = []
    for read, source in ((read_fused, as_source), (read_fla, _bare)):
        output = read([source(value, 1e-5) for value in values], query, weight, **flags)
        results.append([output, *torch.autograd.grad((output.float() * torch.linspace(-1, 1, width)).sum(), wanted)])
    for got, want in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance * float(want.float().abs().max()))
print("equal")
"""


@pytest.mark.skipif(find_spec("fla") is None or find_spec("triton") is None, reason="needs fla-core and Triton: make test-fla")
def test_the_real_kernels_read_as_fused_does(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "FLA_CACHE_RESULTS": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, timeout=600)
    assert ran.stdout.strip().endswith("equal"), ran.stderr[-2000:]
