"""The parts of a looped network against their equations, its depths, its start, and what the rest of the project sees of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from loopwise.evaluation import check_parity
from loopwise.models import SIDECAR, ModelError, insert, load, loops_of, remove, save
from loopwise.nets import Architecture, LoopedConfig, LoopedTransformer, NetError, Recurrence, named, own_loops
from loopwise.nets.attention import Attention, rotary
from loopwise.nets.designs import Parcae, deeploop_constants
from loopwise.nets.injection import InputInjection, hashed_uniform
from loopwise.nets.mlp import MLP
from tiny import tiny_tokenizer
from tiny_nets import tiny_architecture, tiny_net, token_ids

BATCH, TOKENS = 2, 7


def rms(x: Tensor, weight: Tensor | float = 1.0, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


# --- Branches ---------------------------------------------------------------------------------------------------------


def attention_by_hand(module: Attention, arch: Architecture, x: Tensor, embedded: Tensor | None, first: Tensor | None) -> Tensor:
    """One head and one token at a time, from the equations."""
    batch, tokens, size = x.shape[0], x.shape[1], arch.head_dim
    group = arch.num_attention_heads // arch.num_key_value_heads
    output = torch.zeros(batch, tokens, arch.num_attention_heads * size)
    for b in range(batch):
        values, keys = x[b] @ module.v_proj.weight.T, x[b] @ module.k_proj.weight.T
        queries = x[b] @ module.q_proj.weight.T
        for head in range(arch.num_attention_heads):
            kv = slice(head // group * size, head // group * size + size)
            q, k, v = queries[:, head * size : head * size + size], keys[:, kv], values[:, kv]
            if embedded is not None:
                gate = 2 * torch.sigmoid(x[b, :, : arch.value_embedding_channels] @ module.value_gate.proj.weight[head // group])
                v = v + gate[:, None] * embedded[b][:, kv]
            if arch.value_residual:
                v = module.value_mix[0] * (v if first is None else first[b, :, head // group]) + module.value_mix[1] * v
            q, k = (turned(t, arch) for t in (q, k))
            if arch.qk_norm:
                q, k = rms(q), rms(k)
            for t in range(tokens):
                weights = torch.softmax(k[: t + 1] @ q[t] / math.sqrt(size), dim=0)
                output[b, t, head * size : head * size + size] = weights @ v[: t + 1]
    return output @ module.o_proj.weight.T


def turned(x: Tensor, arch: Architecture) -> Tensor:
    """Channel i and i + size/2 as one complex number, turned by position * theta^(-2i/size)."""
    half = arch.head_dim // 2
    angles = torch.arange(x.shape[0])[:, None] * arch.rope_theta ** (-torch.arange(half) / half)
    numbers = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([numbers.real, numbers.imag], dim=1)


@pytest.mark.parametrize("name", ["prenorm", "value-residual"])
@pytest.mark.parametrize("first_visit", [True, False])
def test_attention_is_its_equations(name: str, first_visit: bool) -> None:
    arch = tiny_architecture(name)
    module = tiny_net(name).model.layers[1].attention
    x = torch.randn(BATCH, TOKENS, arch.hidden_size)
    embedded = torch.randn(BATCH, TOKENS, arch.num_key_value_heads * arch.head_dim) if arch.has_value_table(1) else None
    first = None if first_visit else torch.randn(BATCH, TOKENS, arch.num_key_value_heads, arch.head_dim)
    cos, sin = rotary(torch.arange(TOKENS)[None], arch.head_dim, arch.rope_theta, torch.float32)
    with torch.no_grad():
        found, _ = module(x, cos, sin, None, embedded, first)
        torch.testing.assert_close(found, attention_by_hand(module, arch, x, embedded, first), rtol=0, atol=1e-5)


def test_mlps_are_their_equations() -> None:
    x = torch.randn(BATCH, TOKENS, 32)
    swiglu, relu2 = MLP(tiny_architecture("span-damped")), MLP(tiny_architecture("prenorm"))
    assert swiglu.gate_proj is not None
    gate, up = x @ swiglu.gate_proj.weight.T, x @ swiglu.up_proj.weight.T
    torch.testing.assert_close(swiglu(x), (gate * torch.sigmoid(gate) * up) @ swiglu.down_proj.weight.T)
    torch.testing.assert_close(relu2(x), (0.5 * (x @ relu2.up_proj.weight.T).clamp(min=0) ** 2) @ relu2.down_proj.weight.T)


def test_value_tables_are_on_every_other_layer_from_the_last() -> None:
    for layers, owners in ((2, {"1"}), (5, {"0", "2", "4"}), (6, {"1", "3", "5"})):
        net = LoopedTransformer.from_architecture(tiny_architecture("prenorm", num_hidden_layers=layers))
        assert set(net.model.value_tables) == owners
        assert {str(i) for i, layer in enumerate(net.model.layers) if layer.attention.value_gate is not None} == owners


# --- Designs and loops, unrolled by hand ------------------------------------------------------------------------------


class ByHand:
    """The sublayers of a network as functions, for references that loop in their own words."""

    def __init__(self, net: Any, ids: Tensor) -> None:
        self.net, self.decoder, self.arch = net, net.model, net.config.architecture
        positions = torch.arange(ids.shape[1])[None]
        self.shared = (*rotary(positions, self.arch.head_dim, self.arch.rope_theta, torch.float32), None)
        self.tables = {int(i): table(ids) for i, table in self.decoder.value_tables.items()}
        self.embedding = self.decoder.embed_tokens(ids) * self.arch.embedding_scale
        self.norms = [norm.weight for norm in self.decoder.design.norms]
        self.end = self.decoder.design.final_norm.weight

    def branch(self, sublayer: int, x: Tensor) -> Tensor:
        layer = self.decoder.layers[sublayer // 2]
        if sublayer % 2:
            return layer.mlp(x)
        return layer.attention(x, *self.shared, self.tables.get(sublayer // 2), None)[0]

    def prenorm(self, x: Tensor, start: int, stop: int) -> Tensor:
        for sublayer in range(2 * start, 2 * stop):
            x = x + self.branch(sublayer, rms(x, self.norms[sublayer]))
        return x

    def sandwich(self, x: Tensor, start: int, stop: int) -> Tensor:
        for sublayer in range(2 * start, 2 * stop):
            after = self.decoder.design.norms_after[sublayer].weight
            x = rms(x + self.branch(sublayer, rms(x, self.norms[sublayer])), after)
        return x

    def head(self, x: Tensor) -> Tensor:
        return rms(x, self.end) @ self.net.lm_head.weight.T


def prenorm(by: ByHand) -> Tensor:
    x = by.embedding
    for _ in range(3):
        x = by.prenorm(x, 0, 2)
    return x


def sandwich(by: ByHand) -> Tensor:
    x = by.embedding
    for _ in range(3):
        x = by.sandwich(x, 0, 2)
    return x


def deeploop(by: ByHand) -> Tensor:
    x = by.embedding
    for _ in range(3):
        for sublayer in range(4):
            x = rms(math.sqrt(2 * 2 * 3) * x + by.branch(sublayer, x), by.norms[sublayer])
    return x


def parcae(by: ByHand, detach_before: int = 0) -> Tensor:
    design, (start, stop) = by.decoder.design, by.arch.span
    delta = torch.log1p(torch.exp(design.dt_bias))
    decay = torch.exp(-delta * torch.exp(design.A_log))
    e = by.prenorm(by.embedding, 0, start)
    injected = delta * (rms(e, design.input_norm.weight) @ design.B.T) if design.injects else 0.0
    x = by.prenorm(e, start, stop)
    for loop in range(1, 3):
        x = x.detach() if loop <= detach_before else x
        x = by.prenorm(decay * x + injected, start, stop)
    return by.prenorm(x, stop, by.arch.num_hidden_layers)


def span(by: ByHand) -> Tensor:
    x = by.prenorm(by.embedding, 0, 1)
    for _ in range(3):
        x = by.prenorm(x, 1, 3)
    return by.prenorm(x, 3, 4)


def span_damped(by: ByHand) -> Tensor:
    return damped(by, by.embedding, 3)


def damped(by: ByHand, embedding: Tensor, passes: int, detach_before: int = 0) -> Tensor:
    x = iterate = by.prenorm(embedding, 0, 1)
    for loop in range(passes):
        step = (by.prenorm(iterate, 1, 3) - iterate) / passes
        iterate = (iterate + step).detach() if loop < detach_before else iterate + step
    first = by.prenorm(x, 1, 3)
    first = first.detach() if detach_before else first
    return by.prenorm(0.3 * first + 0.7 * iterate, 3, 4)


def injected(by: ByHand, detach_before: int = 0) -> Tensor:
    e = by.sandwich(by.embedding, 0, 1)
    state = by.decoder.injection.initial_state(e, torch.arange(e.shape[1])[None])
    for loop in range(3):
        state = state.detach() if loop < detach_before else state
        state = by.sandwich(torch.cat([state, e], -1) @ by.decoder.injection.adapter.weight.T, 1, 3)
        state = state.detach() if loop < detach_before else state
    return by.sandwich(state, 3, 4)


REFERENCES = {
    "prenorm": prenorm,
    "sandwich": sandwich,
    "deeploop": deeploop,
    "parcae": parcae,
    "parcae-decay": parcae,
    "span-parcae": parcae,
    "span-parcae-decay": parcae,
    "span": span,
    "span-damped": span_damped,
    "injected": injected,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_designs_and_loops_are_their_equations(name: str) -> None:
    net, ids = tiny_net(name).double(), token_ids(BATCH, TOKENS)
    with torch.no_grad():
        by = ByHand(net, ids)
        torch.testing.assert_close(net(ids).logits, by.head(REFERENCES[name](by)), rtol=0, atol=1e-9)


TRUNCATED = {
    "injected": injected,
    "parcae": parcae,
    "span-parcae": parcae,
    "span-parcae-decay": parcae,
    "span-damped": lambda by, **cut: damped(by, by.embedding, 3, **cut),
}


@pytest.mark.parametrize("grad_loops", [1, 2])
@pytest.mark.parametrize("name", TRUNCATED)
def test_truncated_backpropagation_keeps_the_last_loops(name: str, grad_loops: int) -> None:
    net, ids = tiny_net(name).double(), token_ids(BATCH, TOKENS)
    weights = torch.randn(BATCH, TOKENS, 64, dtype=torch.float64)

    def gradients(logits: Tensor) -> dict[str, Tensor | None]:
        net.zero_grad()
        (logits * weights).sum().backward()
        return {key: None if parameter.grad is None else parameter.grad.clone() for key, parameter in net.named_parameters()}

    found = gradients(net(ids, grad_loops=grad_loops).logits)
    by = ByHand(net, ids)
    for key, wanted in gradients(by.head(TRUNCATED[name](by, detach_before=3 - grad_loops))).items():
        torch.testing.assert_close(found[key], wanted, rtol=1e-7, atol=1e-7, msg=key)
    looped = "model.layers.1.mlp.up_proj.weight"
    whole, cut = gradients(net(ids).logits)[looped], found[looped]
    assert whole is not None and cut is not None and not torch.allclose(whole, cut, rtol=0.1)


# --- The damped update with a depth for each sequence -----------------------------------------------------------------


def test_damped_sequences_step_by_their_own_depth() -> None:
    """Values and gradients of a batch with depths 2, 1, 3 are those of its rows by hand, each with its own K."""
    net, ids = tiny_net("span-damped").double(), token_ids(3, TOKENS)
    depths = torch.tensor([2, 1, 3])
    weights = torch.randn(3, TOKENS, 64, dtype=torch.float64)
    output = net(ids, depths=depths).logits
    (output * weights).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    net.zero_grad()
    for row, depth in enumerate(depths.tolist()):
        by = ByHand(net, ids[row : row + 1])
        wanted = by.head(damped(by, by.embedding, depth))
        torch.testing.assert_close(output[row : row + 1], wanted, rtol=0, atol=1e-9)
        (wanted * weights[row]).sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-7, atol=1e-7, msg=name)


@pytest.mark.parametrize("name", ["prenorm", "sandwich", "deeploop", "value-residual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_damped_depths_are_the_fixed_depth_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    net, ids = tiny_net(name, operator="damped", beta=0.25).to(dtype), token_ids(BATCH, TOKENS)
    for loops in (1, 2, 3, 5):
        fixed, same = (net(ids, num_loops=loops, depths=depths).logits for depths in (None, torch.full((BATCH,), loops)))
        assert torch.equal(fixed, same)
        wanted, found = (torch.autograd.grad(one.sum(), [*net.parameters()]) for one in (fixed, same))
        assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    deep = net(ids, num_loops=5, depths=torch.tensor([1, 5])).logits
    slack = 2e-5 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(deep[:1], net(ids[:1], num_loops=1).logits, rtol=0, atol=slack)


def test_truncated_damped_rows_of_depths_of_their_own() -> None:
    """The last loops of the batch keep gradients: a sequence that finished before has none in the span."""
    net, ids = tiny_net("span-damped").double(), token_ids(BATCH, TOKENS)
    for depths, has_gradient in (([1, 3], False), ([3, 1], True)):
        output = net(ids, depths=torch.tensor(depths), grad_loops=1).logits
        grads = torch.autograd.grad(output[0].sum(), [net.model.layers[1].mlp.up_proj.weight])
        assert bool(grads[0].abs().max() > 0) is has_gradient
        torch.testing.assert_close(output, net(ids, depths=torch.tensor(depths)).logits)


def test_depths_that_cannot_be() -> None:
    net, ids = tiny_net("prenorm"), token_ids(BATCH, TOKENS)
    for depths, message in (
        (torch.tensor([3]), r"shape \(1,\); give one whole number for each of 2 sequences"),
        (torch.tensor([1.0, 2.0]), "torch.float32 in the shape"),
        (torch.tensor([0, 3]), "depths go from 0 to 3; give whole numbers from 1 to num_loops, 3"),
        (torch.tensor([1, 4]), "depths go from 1 to 4"),
    ):
        with pytest.raises(NetError, match=message):
            net(ids, depths=depths)


def test_deeploop_constants_are_the_table() -> None:
    rows = {
        6: "3.464 .1443 4.899 .1021 6.000 .0833 6.928 .0722 7.746 .0645",
        12: "4.899 .1021 6.928 .0722 8.485 .0589 9.798 .0510 10.954 .0456",
        18: "6.000 .0833 8.485 .0589 10.392 .0481 12.000 .0417 13.416 .0373",
        24: "6.928 .0722 9.798 .0510 12.000 .0417 13.856 .0361 15.492 .0323",
    }
    for layers, row in rows.items():
        numbers = [float(number) for number in row.split()]
        for loops, (alpha, beta) in enumerate(zip(numbers[::2], numbers[1::2], strict=True), start=1):
            arch = named("deeploop-140m", num_hidden_layers=layers, num_loops=loops)
            assert deeploop_constants(arch.num_layer_visits) == (pytest.approx(alpha, abs=5e-4), pytest.approx(beta, abs=5e-5))


def test_parcae_starts_where_its_code_does_and_its_decay_stays_one() -> None:
    design = Parcae(tiny_architecture("parcae"))
    decay, delta = design.decay()
    torch.testing.assert_close(decay, torch.full((32,), math.sqrt(1 / 5)))
    torch.testing.assert_close(delta, torch.full((32,), -math.log(math.sqrt(1 / 5))))
    assert torch.equal(design.B, torch.eye(32))
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(design.parameters(), lr=8e-3, betas=(0.8, 0.95))
    for _ in range(1000):
        for parameter in design.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimiser.step()
    decay, _ = design.decay()
    assert decay.min() > 0 and decay.max() < 1 and decay.std() > 0.01


# --- The random first state -------------------------------------------------------------------------------------------


def test_the_first_state_is_truncated_normal_and_fixed_in_evaluation() -> None:
    arch = tiny_architecture("injected", hidden_size=512, head_dim=128)
    injection, e = InputInjection(arch).eval(), torch.zeros(2, 200, 512)
    state = injection.initial_state(e, torch.arange(200)[None])
    std = math.sqrt(2 / 5)
    assert spread(state) == pytest.approx(std * 0.9866, rel=0.01)  # a normal cut off at 3 sd
    assert state.mean().abs() < 0.01 and state.abs().max() <= 3.001 * std and state.abs().max() > 2.9 * std
    flat = state[0] / state[0].std()
    assert (flat[1:] * flat[:-1]).mean().abs() < 0.02 and (flat[:, 1:] * flat[:, :-1]).mean().abs() < 0.02
    assert torch.equal(state[0], state[1])
    later = injection.initial_state(e[:, :50], torch.arange(100, 150)[None])
    assert torch.equal(later, state[:, 100:150])
    other = hashed_uniform(torch.arange(200)[None], e, seed=6) - hashed_uniform(torch.arange(200)[None], e, seed=5)
    assert other.abs().mean() == pytest.approx(1 / 3, abs=0.01)  # two independent uniform numbers
    injection.train()
    fresh = injection.initial_state(e, torch.arange(200)[None])
    assert not torch.equal(fresh[0], fresh[1]) and fresh.std() == pytest.approx(std * 0.9866, rel=0.01)


# --- Depths -----------------------------------------------------------------------------------------------------------


def test_poisson_clamped_to_four_is_what_table_15_trains_on() -> None:
    recurrence = Recurrence(kind="poisson", mean=4, most=4, per_sequence=True)
    depth = recurrence.draw(seed=1, step=2, num_sequences=20000)
    assert depth.depths is not None and depth.num_loops == max(depth.depths) == 4 and depth.grad_loops is None
    shares = np.bincount(depth.depths, minlength=5)[1:] / 20000
    assert shares == pytest.approx([0.092, 0.147, 0.195, 0.567], abs=0.012)
    assert np.mean(depth.depths) == pytest.approx(3.24, abs=0.02)
    per_batch = [Recurrence(kind="poisson", mean=4, most=4).draw(seed=1, step=step, num_sequences=8) for step in range(2000)]
    assert all(one.depths is None for one in per_batch)
    assert np.mean([one.num_loops for one in per_batch]) == pytest.approx(3.24, abs=0.1)


def test_lognormal_poisson_is_huginns() -> None:
    draws = [
        Recurrence(kind="lognormal_poisson", mean=32, backprop_loops=8).draw(seed=0, step=step, num_sequences=4) for step in range(4000)
    ]
    loops = np.array([draw.num_loops for draw in draws])
    assert loops.mean() == pytest.approx(33, abs=1) and loops.min() < 12 and loops.max() > 80
    assert loops.std() == pytest.approx(math.sqrt(32 + 32**2 * (math.exp(0.25) - 1)), rel=0.08)
    assert all(draw.grad_loops == (8 if draw.num_loops > 8 else None) and draw.depths is None for draw in draws)


def test_random_one_to_three_and_fixed() -> None:
    loops = [Recurrence(kind="uniform", most=3).draw(seed=0, step=step, num_sequences=4).num_loops for step in range(3000)]
    assert np.bincount(loops)[1:] / 3000 == pytest.approx([1 / 3] * 3, abs=0.03)
    assert Recurrence(mean=4).draw(seed=0, step=9, num_sequences=2).num_loops == 4


def test_depth_is_a_function_of_seed_and_step() -> None:
    recurrence = Recurrence(kind="poisson", mean=4, most=8, per_sequence=True)
    draws = {(seed, step): recurrence.draw(seed=seed, step=step, num_sequences=16) for seed in (0, 1) for step in range(50)}
    assert all(recurrence.draw(seed=seed, step=step, num_sequences=16) == draw for (seed, step), draw in draws.items())
    assert len({draw.depths for draw in draws.values()}) == len(draws)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(kind="normal"), "recurrence 'normal' is unknown"),
        (dict(kind="uniform"), "needs its largest value"),
        (dict(kind="poisson", least=0), "from 0 to None"),
        (dict(kind="poisson", least=3, most=2), "from 3 to 2"),
        (dict(mean=2.5), "whole number"),
        (dict(kind="poisson", mean=-1.0), "mean above 0"),
        (dict(kind="poisson", most=4, per_sequence=True, backprop_loops=2), "one draw for the batch"),
    ],
)
def test_recurrences_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NetError, match=message):
        Recurrence(**values)


# --- The start --------------------------------------------------------------------------------------------------------


def spread(values: Tensor) -> float:
    return values.detach().std().item()


def fresh(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return LoopedTransformer.from_architecture(tiny_architecture(name, **{"hidden_size": 128, "intermediate_size": 256} | changes))


def test_networks_start_as_their_rule_says() -> None:
    std = math.sqrt(2 / (5 * 128))
    net = fresh("prenorm")
    layer = net.model.layers[1]
    for weight in (layer.attention.q_proj.weight, layer.attention.v_proj.weight, layer.mlp.up_proj.weight, net.model.embed_tokens.weight):
        assert spread(weight) == pytest.approx(std, rel=0.05) and weight.abs().max() <= 3 * std
    assert layer.attention.o_proj.weight.abs().max() == layer.mlp.down_proj.weight.abs().max() == 0
    assert spread(net.model.value_tables["1"].weight) == pytest.approx(1, rel=0.05)
    assert net.lm_head.weight is net.model.embed_tokens.weight
    scaled = fresh("span", init="scaled").model.layers[0]  # 4 layers, 2 of them three times: 8 visits
    assert spread(scaled.mlp.down_proj.weight) == pytest.approx(std / math.sqrt(16), rel=0.05)
    untied = fresh("value-residual")
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert spread(untied.lm_head.weight) == pytest.approx(std, rel=0.05)
    deep = fresh("deeploop").model.layers[0]
    beta = (8 * 6) ** -0.5
    for linear, gain in (
        (deep.attention.q_proj, 1.0),
        (deep.attention.v_proj, beta),
        (deep.attention.o_proj, beta),
        (deep.mlp.up_proj, beta),
    ):
        assert spread(linear.weight) == pytest.approx(gain * math.sqrt(2 / sum(linear.weight.shape)), rel=0.06)
    assert fresh("arloop-full").model.design.queries.abs().max() == 0


@pytest.mark.parametrize("name", ["prenorm", "sandwich", "deeploop", "parcae", "span-parcae", "arloop-sw", "injected", "span-damped"])
def test_a_few_steps_of_training_lower_the_loss(name: str) -> None:
    net, ids = fresh(name).train(), token_ids(4, 16)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = net(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


# --- What the rest of the project sees --------------------------------------------------------------------------------


def test_saved_networks_load_by_name_and_pass_the_parity_check(tmp_path: Path) -> None:
    net, ids = tiny_net("arloop-sw", vocab_size=128), token_ids(BATCH, TOKENS)
    save(net, tiny_tokenizer(), tmp_path)
    loaded, tokenizer = load(tmp_path)
    assert type(loaded) is LoopedTransformer and len(tokenizer) == 128
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, net(ids).logits)
    parity = check_parity(loaded, [[5, 6, 7], [9, 8, 7, 6, 5], [4] * 8], new_tokens=6)
    assert parity.ok and parity.max_abs_logit_difference < 1e-4
    own = own_loops(net.config.architecture)
    assert (
        loops_of(loaded) == own and insert(loaded, own) is loaded and loops_of(remove(loaded)) == own and not (tmp_path / SIDECAR).exists()
    )
    for refused in ("0:1 x2", "0:2 x9"):
        with pytest.raises(ModelError, match=r"was trained with the loops .* leave loops out"):
            insert(loaded, refused)
    plain = tiny_net("prenorm", num_loops=1)
    assert loops_of(plain) == ()
    with pytest.raises(ModelError, match="LoopedTransformer is not a family that loops are tested in"):
        insert(plain, "0:1 x2")


def test_configs_keep_every_field_and_refuse_what_cannot_be() -> None:
    config = LoopedConfig(**{k: v for k, v in named("arloop-140m").as_config().items() if k != "model_type"}, eos_token_id=7)
    saved = config.to_diff_dict()
    assert Architecture.from_config(saved) == named("arloop-140m") and saved["eos_token_id"] == 7
    assert named("arloop-140m").as_config().items() <= saved.items()
    with pytest.raises(NetError, match="num_loops is 0"):
        LoopedConfig(num_loops=0)


def test_runs_that_cannot_be_are_refused() -> None:
    net, ids = tiny_net("prenorm"), token_ids(1, 4)
    with pytest.raises(NetError, match="num_loops is 0"):
        net(ids, num_loops=0)
    with pytest.raises(NetError, match="value embeddings are looked up by token"):
        net(inputs_embeds=net.model.embed_tokens(ids))
    with pytest.raises(NetError, match="neither input_ids nor inputs_embeds"):
        net()
    cache = DynamicCache(config=net.config)
    net(ids, past_key_values=cache, num_loops=1)
    with pytest.raises(NetError, match="filled by 2 layer executions, this pass has 6"):
        net(ids, past_key_values=cache)


def test_depth_beyond_training_runs_and_logits_can_be_kept_few() -> None:
    for name in ("prenorm", "deeploop", "arloop-full", "injected"):
        net, ids = tiny_net(name), token_ids(BATCH, TOKENS)
        with torch.no_grad():
            deep = net(ids, num_loops=11).logits
            assert deep.isfinite().all() and not torch.allclose(deep, net(ids).logits, atol=1e-3)
            torch.testing.assert_close(net(ids, logits_to_keep=2).logits, net(ids).logits[:, -2:])


def test_the_loss_is_that_of_the_next_token() -> None:
    net, ids = tiny_net("sandwich"), token_ids(BATCH, TOKENS)
    with torch.no_grad():
        output = net(ids, labels=ids)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits[:, :-1].reshape(-1, 64), ids[:, 1:].reshape(-1)))
