"""Depth attention: its equations, its schedule of sources, its backends against one another, and what they keep for the backward pass."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from loopwise.nets.configuration import Architecture, DepthBackend, NetError
from loopwise.nets.depth_attention import DepthAttention
from loopwise.nets.depth_attention_fused import as_source, read_fused
from loopwise.nets.depth_attention_options import DepthAttentionOptions
from loopwise.nets.depth_attention_reference import read_reference
from loopwise.nets.schedule import Site

BACKENDS: tuple[DepthBackend, ...] = ("reference", "fused", "two_phase")
WIDTH, SUBLAYERS = 8, 4


class Net(torch.nn.Module):
    """Four tanh sublayers under depth attention, everything random; the queries are not zero."""

    def __init__(self, num_loops: int = 2, *, span: tuple[int, int] | None = None, seed: int = 0, **options: Any) -> None:
        super().__init__()
        start, stop = span or (0, SUBLAYERS)
        self.num_loops = num_loops
        values = DepthAttentionOptions(**{"block_size_sublayers": 2, **options})
        self.design = DepthAttention(values, d_model=WIDTH, num_sublayers=SUBLAYERS, num_loops=2, looped_sublayers=(start, stop))
        self.matrices = torch.nn.ParameterList(torch.zeros(WIDTH, WIDTH) for _ in range(SUBLAYERS))
        generator = torch.Generator().manual_seed(seed)
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def sites(self, num_loops: int) -> list[Site]:
        runs = enumerate(self.design.runs(num_loops))
        return [Site(index=index, sublayer=p, layer=p // 2, loop=loop, is_mlp=p % 2 == 1) for index, (p, loop) in runs]

    def branch(self, site: Site, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.matrices[site.sublayer])

    def forward(self, embedding: Tensor, num_loops: int | None = None, depths: Tensor | None = None) -> Tensor:
        loops = num_loops or self.num_loops
        stream = self.design.begin(embedding, loops, depths)
        for site in self.sites(loops):
            stream.push(site, self.branch(site, stream.read(site)))
        return stream.output()


def embedding(tokens: int = 3, *, batch: int = 2) -> Tensor:
    values = torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return values.requires_grad_()


def gradients(net: Net, output: Tensor, x: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    wanted = [x, *net.parameters()]
    grads = torch.autograd.grad((output * weights).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(one) if grad is None else grad for grad, one in zip(grads, wanted, strict=True)]


def rms(x: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


# ---------------------------------------------------------------------------------------------------------------- equations


def attention_residuals(net: Net, e: Tensor) -> Tensor:
    """Full attention residuals from the equations: v_0 = e, h_l = sum_i softmax_i(w_l . RMSNorm(v_i)) v_i, v_l = f_l(RMSNorm_l(h_l))."""
    design, v = net.design, [e]

    def h(w: Tensor) -> Tensor:
        stacked = torch.stack(v, -2)
        a = torch.softmax(torch.einsum("btnd,d->btn", rms(stacked), w), -1)
        return torch.einsum("btn,btnd->btd", a, stacked)

    for l in range(SUBLAYERS * net.num_loops):  # noqa: E741
        p = l % SUBLAYERS
        norm = design.norms[p].weight
        v.append(torch.tanh(rms(h(design.queries[l])) * norm @ net.matrices[p]))
    return rms(h(design.queries[-1])) * design.final_norm.weight


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_one_sublayer_are_attention_residuals(backend: DepthBackend) -> None:
    net, x = Net(block_size_sublayers=1, backend=backend), embedding()
    want, got = attention_residuals(net, x), net(x)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(net, got, x), gradients(net, want, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_queries_give_the_mean_of_the_sources(backend: DepthBackend) -> None:
    net, x = Net(num_loops=1, backend=backend), embedding()
    torch.nn.init.zeros_(net.design.queries)
    stream = net.design.begin(x, 1)
    branches = [torch.randn_like(x) for _ in range(3)]
    sites = net.sites(1)
    for site, branch in zip(sites, branches, strict=False):
        stream.read(site)
        stream.push(site, branch)
    mean = (x + (branches[0] + branches[1]) + branches[2]) / 3  # embedding, first block, running block
    torch.testing.assert_close(stream.read(sites[3]), rms(mean) * net.design.norms[3].weight)


def test_a_key_has_no_length() -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(2, 3, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3)]
    query, weight = torch.randn(WIDTH, generator=generator, dtype=torch.float64), torch.ones(WIDTH, dtype=torch.float64)
    probabilities = torch.softmax(torch.stack([rms(value, 0.0) @ query for value in values]), 0)
    factors = (3.0, 0.25, 40.0)
    want = rms(sum(f * p[..., None] * v for f, p, v in zip(factors, probabilities, values, strict=True)), 1e-5)  # type: ignore[arg-type]
    scaled = [as_source(factor * value, 1e-30) for factor, value in zip(factors, values, strict=True)]
    got = read_fused(scaled, query, weight, norm_eps=1e-5, value_norm=False, visible=[None] * 3)
    torch.testing.assert_close(got, want)


def test_a_gain_acts_as_a_factor_of_the_query_and_so_does_the_scale() -> None:
    plain, gained, x = Net(scale=0.5), Net(key_gain=True), embedding()
    assert gained.design.key_gains is not None
    with torch.no_grad():
        for one, other in zip(gained.matrices, plain.matrices, strict=True):
            one.copy_(other)
        for name in ("norms", "final_norm"):
            getattr(gained.design, name).load_state_dict(getattr(plain.design, name).state_dict())
        gained.design.queries.copy_(0.5 * plain.design.queries / gained.design.key_gains)
    torch.testing.assert_close(gained(x), plain(x))
    assert not torch.allclose(Net(scale=1.0)(x), plain(x))


def test_a_token_reads_its_own_sources_only() -> None:
    net, x = Net(), embedding(tokens=5)
    changed = x.detach().clone()
    changed[:, 2] += 1
    difference = (net(changed) - net(x)).abs().amax((0, 2))
    assert difference[2] > 0.01 and difference[[0, 1, 3, 4]].max() == 0


# ----------------------------------------------------------------------------------------------------------------- schedule


def test_the_sources_of_a_window() -> None:
    full = DepthAttentionOptions(block_size_sublayers=2)
    assert [full.sources(n) for n in range(5)] == [(0,), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2)]
    counted = DepthAttentionOptions(block_size_sublayers=2, window_blocks=2)
    extra = DepthAttentionOptions(block_size_sublayers=2, window_blocks=2, running_block_in_window=False)
    assert counted.sources(8) == extra.sources(8) == (0, 3, 4)
    assert counted.sources(9) == (0, 4, 5) and extra.sources(9) == (0, 3, 4, 5)
    assert DepthAttentionOptions(block_size_sublayers=2, window_blocks=2, keep_embedding=False).sources(2) == (0, 1)
    assert DepthAttentionOptions(block_size_sublayers=2, window_blocks=2, keep_embedding=False).sources(4) == (1, 2)
    open_end = DepthAttentionOptions(block_size_sublayers=2, window_blocks=2, window_output=False)
    assert open_end.sources(8) == (0, 3, 4) and open_end.sources(8, is_output=True) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("counts", [True, False])
def test_a_window_as_long_as_the_history_is_the_full_history(counts: bool) -> None:
    x = embedding()
    for loops, enough in ((1, 2), (2, 4)):  # two blocks a loop
        full = Net(loops)(x)
        assert torch.equal(Net(loops, window_blocks=enough, running_block_in_window=counts)(x), full)
        assert not torch.allclose(Net(loops, window_blocks=enough - 1, running_block_in_window=counts)(x), full)


def prefix_sum_schedule(net: Net, e: Tensor) -> Tensor:
    """One running sum, committed by the read that opens the next block rather than by the push that fills the last."""
    design, states, prefix = net.design, [e], None
    queries, size = design.effective_queries(), design.options.block_size_sublayers

    def mix(row: int, norm: Tensor) -> Tensor:
        sources = states if prefix is None else [*states, prefix]
        flags: dict[str, Any] = {"key_eps": 1e-5, "norm_eps": 1e-5, "value_norm": False, "visible": [None] * len(sources)}
        return read_reference(sources, queries[row], norm, **flags)

    for site in net.sites(net.num_loops):
        x = mix(design.query_row(site.sublayer, site.loop), design.norms[site.sublayer].weight)
        if site.index % size == 0 and prefix is not None:
            states, prefix = [*states, prefix], None
        z = net.branch(site, x)
        prefix = z if prefix is None else prefix + z
    return mix(-1, design.final_norm.weight)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_prefix_sum_schedule_is_the_list_schedule(size: int) -> None:
    net, x = Net(block_size_sublayers=size, backend="reference"), embedding()
    assert torch.equal(net(x), prefix_sum_schedule(net, x))


def test_blocks_out_of_sight_are_let_go() -> None:
    net, x = Net(window_blocks=2), embedding()
    stream = net.design.begin(x, 6)
    for site in net.sites(6):
        stream.push(site, net.branch(site, stream.read(site)))
        assert sum(block is not None for block in stream.blocks) <= 3  # the embedding and the window


def test_queries_of_loops_beyond_the_trained_ones() -> None:
    effective, physical = Net().design, Net(queries="physical").design
    assert [effective.query_row(p, loop) for loop in (1, 2, 3, 9) for p in (0, 3)] == [0, 3, 4, 7, 4, 7, 4, 7]
    assert [physical.query_row(p, loop) for loop in (1, 2, 3) for p in (0, 3)] == [0, 3] * 3
    assert len(effective.queries) == 9 and len(physical.queries) == 5
    around = Net(span=(1, 3)).design
    assert [around.query_row(*run) for run in around.runs(2)] == [0, 1, 2, 4, 5, 3] and len(around.queries) == 7
    assert DepthAttention(DepthAttentionOptions(), d_model=WIDTH, num_sublayers=4, num_loops=2).queries.abs().max() == 0


# ----------------------------------------------------------------------------------------------------------------- backends

SWITCHES = [
    {"block_size_sublayers": size, "window_blocks": window, **more}
    for size, window, more in itertools.product(
        [1, 2, 3],
        [None, 1, 2],
        [{}, {"running_block_in_window": False}, {"keep_embedding": False, "queries": "physical"}, {"value_norm": True, "key_gain": True}],
    )
]


@pytest.mark.parametrize("backend", ["fused", "two_phase"])
def test_backends_equal_the_reference_with_every_switch(backend: DepthBackend) -> None:
    x = embedding()
    for switches in SWITCHES:
        naive, fast = Net(backend="reference", **switches), Net(backend=backend, **switches)
        want, got = naive(x), fast(x)
        assert (want - got).abs().max() < 1e-12, switches
        for one, other in zip(gradients(fast, got, x), gradients(naive, want, x), strict=True):
            assert (one - other).norm() <= 1e-11 * (1 + other.norm()), switches


@pytest.mark.parametrize("value_norm", [False, True])
def test_the_fused_read_has_the_gradient_of_its_differences(value_norm: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((6,), (6,), (2, 2, 6), (2, 2, 6), (2, 2, 6))]
    mask = torch.tensor([True, False])

    def read(query: Tensor, weight: Tensor, *values: Tensor) -> Tensor:
        sources = [as_source(value, 1e-2) for value in values]
        return read_fused(sources, query, weight, norm_eps=1e-2, value_norm=value_norm, visible=[None, mask, None])

    assert torch.autograd.gradcheck(read, [one.requires_grad_() for one in given])


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_whole(backend: DepthBackend, compiler: str) -> None:
    net, x = Net(1, window_blocks=1, backend=backend), embedding()
    torch._dynamo.reset()
    want = net(x)
    got = torch.compile(net, fullgraph=True, backend=compiler)(x)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    for one, other in zip(gradients(net, got, x), gradients(net, want, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointed(backend: DepthBackend) -> None:
    net, x = Net(backend=backend), embedding()
    want, got = net(x), checkpoint(net, x, use_reentrant=False)
    assert torch.equal(got, want)
    for one, other in zip(gradients(net, got, x), gradients(net, want, x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_sources_are_read_in_single(backend: DepthBackend) -> None:
    """Against the read of the same sources in double precision: only the result is rounded, autocast or not."""
    generator = torch.Generator().manual_seed(0)
    e, first, second = (torch.randn(2, 300, WIDTH, generator=generator).bfloat16() for _ in range(3))
    exact, half = Net(backend="reference", block_size_sublayers=1), Net(backend=backend, block_size_sublayers=1).float()
    results = []
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for net, dtype in ((exact, torch.float64), (half, torch.bfloat16)):
            stream, sites = net.design.begin(e.to(dtype), 1), net.sites(1)
            for site, branch in zip(sites, (first, second), strict=False):
                stream.push(site, branch)
            results.append(stream.read(sites[2]))
    want, got = results
    assert got.dtype == torch.bfloat16
    slack = 3 if backend == "two_phase" else 1  # its mixture of finished blocks is rounded on its own
    torch.testing.assert_close(got.double(), want, rtol=slack * 2**-8, atol=slack * 1e-5)


# ------------------------------------------------------------------------------------------------------------------- depths


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("span", [(0, 4), (2, 3)])
@pytest.mark.parametrize("switches", [{}, {"window_blocks": 1}, {"window_blocks": 2, "running_block_in_window": False}])
def test_depths_by_sequence(backend: DepthBackend, span: tuple[int, int], switches: dict[str, Any]) -> None:
    net, x = Net(span=span, backend=backend, **({"block_size_sublayers": 1} if span != (0, 4) else {}), **switches), embedding()
    fixed = net(x, 3)
    same = net(x, 3, torch.tensor([3, 3]))
    assert torch.equal(same, fixed)
    for one, other in zip(gradients(net, same, x), gradients(net, fixed, x), strict=True):
        assert torch.equal(one, other)
    mixed = net(x, 3, torch.tensor([1, 3]))
    assert torch.equal(mixed[1], fixed[1])
    torch.testing.assert_close(mixed[0], net(x, 1)[0], rtol=1e-12, atol=1e-13)


def test_a_finished_sequence_asks_nothing_of_later_loops() -> None:
    net, x = Net(), embedding()
    output = net(x, 2, torch.tensor([1, 2]))
    (grad,) = torch.autograd.grad(output[0].sum(), [net.design.queries])
    assert grad[:4].abs().sum() > 0 and grad[4:8].abs().max() == 0  # loop 2's rows


# ------------------------------------------------------------------------------------------------------------------- memory


class _Norm(torch.autograd.Function):
    """RMSNorm that keeps its input and one scalar a token: the least that a plain residual stream can do with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        return x * inverse * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        raise NotImplementedError  # only what is kept is measured


def kept_bytes(arch: Architecture, monkeypatch: pytest.MonkeyPatch, *, compiled: bool = False) -> int:
    """What a decoder keeps for its backward pass, each storage once and without its parameters."""
    from loopwise.nets.model import LoopedTransformer
    from loopwise.nets.norms import RMSNorm

    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: _Norm.apply(x, self.weight, self.eps))
    torch.manual_seed(0)
    decoder = LoopedTransformer.from_architecture(arch).model.train()
    if compiled:  # by the compiler's own rule of what is kept, without making kernels
        torch._dynamo.reset()
        decoder.design.compile_reads(backend="aot_eager_decomp_partition")
    parameters = {one.untyped_storage().data_ptr() for one in decoder.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    tokens = torch.randint(arch.vocab_size, (1, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = decoder(input_ids=tokens, use_cache=False).last_hidden_state
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in parameters)


def wide() -> Architecture:
    """The widths and layers of ARLoop's 140M, at two loops."""
    shape = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6}
    return Architecture(**shape, head_dim=128, vocab_size=64, num_loops=2, qk_norm=False)  # type: ignore[arg-type]


def test_the_default_keeps_what_a_plain_stream_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = wide()
    base = kept_bytes(plain, monkeypatch)
    ratios = {}
    for name, window in (("full", None), ("sw", 3)):
        for backend in BACKENDS:
            ratios[name, backend] = (
                kept_bytes(replace(plain, design="arloop", window_blocks=window, depth_backend=backend), monkeypatch) / base
            )
    assert DepthAttentionOptions().backend == "fused" == Architecture().depth_backend
    assert max(ratios["full", "fused"], ratios["sw", "fused"]) <= 1.02, ratios
    assert ratios["full", "reference"] > ratios["full", "two_phase"] > 1.05, ratios  # so the count tells them apart


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 3])
def test_reads_that_are_compiled_one_by_one_keep_no_more(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kept_bytes(replace(wide(), design="arloop", window_blocks=window), monkeypatch, compiled=True)
    assert compiled <= 1.02 * kept_bytes(wide(), monkeypatch)


# ----------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_size_sublayers": 0}, "block_size_sublayers is 0; give at least 1"),
        ({"window_blocks": 0}, "window_blocks is 0; give 1 or more, or None"),
        ({"key_eps": 0.0}, "key_eps is 0.0; give a positive"),
        ({"scale": 0.0}, "scale is 0.0; give a positive"),
        ({"queries": "layer"}, "queries is 'layer'; use effective or physical"),
        ({"backend": "quick"}, "backend is 'quick'; use reference, fused, two_phase, fla"),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(NetError, match=message):
        DepthAttentionOptions(**wrong)


def test_use_that_cannot_be() -> None:
    with pytest.raises(NetError, match=r"loops of the sublayers 0:9; give .* in 0:4"):
        DepthAttention(DepthAttentionOptions(), d_model=4, num_sublayers=4, num_loops=1, looped_sublayers=(0, 9))
    net, x = Net(block_size_sublayers=3), embedding()
    with pytest.raises(NetError, match="blocks of 3 sublayers straddle the loops"):
        net(x, 2, torch.tensor([1, 2]))
    with pytest.raises(NetError, match="sublayer 1 is read after 0 outputs"):
        net.design.begin(x, 1).read(net.sites(1)[1])
