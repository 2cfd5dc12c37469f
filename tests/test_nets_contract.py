"""What every looped network promises: the same tests for every design, and its own form without loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from loopwise.models import cache_argument, cache_of
from tiny_nets import DESIGNS, tiny_net, token_ids

BATCH, TOKENS = 2, 10
designs = pytest.mark.parametrize("design", DESIGNS)
_nets: dict[str, Any] = {}


def shared(design: str) -> Any:
    """The tiny network of a design, made once; tests leave it as it is."""
    if design not in _nets:
        _nets[design] = tiny_net(design)
    return _nets[design]


@torch.no_grad()
def logits(net: Any, ids: Tensor, **arguments: Any) -> Tensor:
    found: Tensor = net(ids, use_cache=False, **arguments).logits
    return found


def copy_weights(source: Any, target: Any, num_loops: int) -> None:
    """Fill a network that runs every layer once from one that loops: layer i from layer i modulo the source's."""
    layers, state = len(source.model.layers), dict(source.state_dict())
    filled = {}
    for name, value in target.state_dict().items():
        parts = name.split(".")
        if "layers" in parts or "value_tables" in parts:
            at = parts.index("layers" if "layers" in parts else "value_tables") + 1
            parts[at] = str(int(parts[at]) % layers)
        elif "norms" in parts or "norms_after" in parts:
            parts[-2] = str(int(parts[-2]) % (2 * layers))
        filled[name] = state[".".join(parts)]
        if name.endswith("queries") and value.shape != filled[name].shape:
            filled[name] = torch.cat([filled[name][: value.shape[0] - 1], filled[name][-1:]])
    target.load_state_dict(filled)
    assert num_loops * layers == len(target.model.layers)


ONCE = (
    *("prenorm", "sandwich", "deeploop", "parcae", "parcae-decay", "arloop-full", "arloop-sw", "value-residual"),
    *("span", "span-damped", "span-parcae", "span-parcae-decay"),
)


@pytest.mark.parametrize("design", ONCE)
def test_one_loop_is_the_network_without_loops(design: str) -> None:
    looped, plain = shared(design), tiny_net(design, seed=1, num_loops=1, loop_start=0, loop_stop=None)
    copy_weights(looped, plain, 1)
    if design == "deeploop":
        plain.model.design.alpha = looped.model.design.alpha  # it counts the visits of training
    ids = token_ids(BATCH, TOKENS)
    torch.testing.assert_close(logits(looped, ids, num_loops=1), logits(plain, ids), rtol=0, atol=0)
    assert (logits(looped, ids) - logits(plain, ids)).abs().max() > 0.1


@pytest.mark.parametrize("design", ("prenorm", "sandwich", "deeploop", "arloop-full", "arloop-sw", "value-residual"))
def test_loops_are_as_many_layers_with_the_same_weights(design: str) -> None:
    looped = shared(design)
    blocks = {"block_size_sublayers": 2} if design.startswith("arloop") else {}
    unrolled = tiny_net(design, seed=1, num_hidden_layers=6, num_loops=1, **blocks)
    copy_weights(looped, unrolled, 3)
    ids = token_ids(BATCH, TOKENS)
    torch.testing.assert_close(logits(looped, ids), logits(unrolled, ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("design", ("parcae", "parcae-decay", "span-parcae", "span-parcae-decay"))
def test_parcae_at_one_loop_is_prenorm(design: str) -> None:
    parcae, plain = shared(design), tiny_net("span" if design.startswith("span") else "prenorm", seed=1)
    plain.load_state_dict({name: value for name, value in parcae.state_dict().items() if name in plain.state_dict()})
    ids = token_ids(BATCH, TOKENS)
    assert torch.equal(logits(parcae, ids, num_loops=1), logits(plain, ids, num_loops=1))
    assert not torch.allclose(logits(parcae, ids), logits(plain, ids), atol=0.1)


def caches(net: Any) -> dict[str, Any]:
    return {
        "dynamic": DynamicCache(config=net.config),
        "bare": DynamicCache(),
        "static": StaticCache(config=net.config, max_cache_len=TOKENS),
    }


@designs
@pytest.mark.parametrize("kind", ("dynamic", "bare", "static"))
def test_cached_decoding_is_full_recompute(design: str, kind: str) -> None:
    net, ids = shared(design), token_ids(BATCH, TOKENS)
    cache, found = caches(net)[kind], []
    with torch.no_grad():
        for start, stop in ((0, 4), (4, 5), (5, 8), (8, 9), (9, 10)):
            output = net(ids[:, start:stop], **{cache_argument(net): cache}, use_cache=True)
            found.append(output.logits)
    assert cache_of(output) is cache
    torch.testing.assert_close(torch.cat(found, dim=1), logits(net, ids), rtol=0, atol=2e-5)
    assert len(cache.layers) == net.config.architecture.num_layer_visits
    assert all(layer.get_seq_length() == TOKENS for layer in cache.layers)


@designs
def test_generate_decodes_what_recompute_would(design: str) -> None:
    net, ids = shared(design), token_ids(BATCH, 5)
    expected = ids
    for _ in range(4):
        expected = torch.cat([expected, logits(net, expected, num_loops=2)[:, -1:].argmax(-1)], dim=1)
    found = net.generate(ids, max_new_tokens=4, do_sample=False, num_loops=2)
    assert torch.equal(found, expected)
    assert torch.equal(net.generate(ids, max_new_tokens=4, do_sample=False, num_loops=2, cache_implementation="static"), expected)


@designs
def test_left_padding_changes_nothing(design: str) -> None:
    net, ids, padding = shared(design), token_ids(BATCH, TOKENS), 3
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    alone = logits(net, ids[:1, padding:])
    torch.testing.assert_close(logits(net, ids, attention_mask=mask)[:1, padding:], alone, rtol=0, atol=2e-5)
    found = net.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False)[:1, padding:]
    assert torch.equal(found, net.generate(ids[:1, padding:], max_new_tokens=3, do_sample=False))


@designs
def test_no_token_sees_a_later_one(design: str) -> None:
    net, ids = shared(design), token_ids(1, TOKENS)
    changed = ids.clone()
    changed[0, 6] = 63 - changed[0, 6]
    before, after = logits(net, ids), logits(net, changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] - after[:, 6:]).abs().amax(dim=(0, 2)).min() > 1e-3


@designs
def test_saved_and_loaded_by_the_auto_class(design: str, tmp_path: Path) -> None:
    net, ids = shared(design), token_ids(BATCH, TOKENS)
    net.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(net) and not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.architecture == net.config.architecture
    assert torch.equal(logits(loaded, ids), logits(net, ids))


def gradients(net: Any, ids: Tensor, **arguments: Any) -> dict[str, Tensor]:
    torch.manual_seed(3)  # the random first state of input injection
    net.zero_grad()
    net(ids, labels=ids, **arguments).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


@designs
def test_checkpointing_leaves_gradients_alone(design: str) -> None:
    net, ids = tiny_net(design).train(), token_ids(BATCH, TOKENS)
    plain = gradients(net, ids)
    assert plain.keys() == {name for name, _ in net.named_parameters()}
    ran: list[int] = []
    net.model.layers[-1].mlp.up_proj.register_forward_hook(lambda *_: ran.append(1))
    enable = getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    checkpointed = gradients(net, ids)
    visits = 1 if net.config.architecture.loop_stop else 3
    assert len(ran) == 2 * visits, "every visit runs again in the backward pass"
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-5, atol=1e-6, msg=name)


@designs
def test_equal_depths_are_the_fixed_depth(design: str) -> None:
    net, ids = shared(design), token_ids(BATCH, TOKENS)
    for depth in (1, 2, 3):
        fixed = logits(net, ids, num_loops=depth)
        assert torch.equal(logits(net, ids, num_loops=depth, depths=torch.tensor([depth, depth])), fixed)
        torch.testing.assert_close(logits(net, ids, depths=torch.tensor([depth, depth])), fixed, rtol=0, atol=2e-5)
        mixed = logits(net, ids, depths=torch.tensor([depth, 3]))
        torch.testing.assert_close(mixed[:1], logits(net, ids[:1], num_loops=depth), rtol=0, atol=2e-5)
        torch.testing.assert_close(mixed[1:], logits(net, ids[1:], num_loops=3), rtol=0, atol=2e-5)


QUICK = ("prenorm", "arloop-sw")


@pytest.mark.parametrize("design", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DESIGNS])
def test_compiles_to_one_graph(design: str) -> None:
    net, ids = shared(design), token_ids(BATCH, TOKENS)
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="eager")(ids, use_cache=False)
    torch.testing.assert_close(compiled.logits.detach(), logits(net, ids), rtol=0, atol=1e-5)


@pytest.mark.slow
@designs
def test_compiled_decoding_is_one_graph(design: str) -> None:
    net, ids = shared(design), token_ids(BATCH, TOKENS)
    torch.compiler.reset()
    compiled, found = torch.compile(net, fullgraph=True, backend="eager"), []
    cache = StaticCache(config=net.config, max_cache_len=TOKENS)
    with torch.no_grad():
        for start, stop in ((0, 8), (8, 9), (9, 10)):
            found.append(compiled(ids[:, start:stop], **{cache_argument(net): cache}).logits)
    torch.testing.assert_close(torch.cat(found, dim=1), logits(net, ids), rtol=0, atol=2e-5)


@pytest.mark.slow
@designs
def test_trains_as_one_compiled_graph(design: str) -> None:
    net, ids = tiny_net(design).train(), token_ids(BATCH, TOKENS)
    plain = gradients(net, ids)
    torch.compiler.reset()
    torch.manual_seed(3)
    net.zero_grad()
    torch.compile(net, fullgraph=True, backend="aot_eager")(ids, labels=ids).loss.backward()
    for name, parameter in net.named_parameters():
        if "injected" not in design:  # its noise is drawn elsewhere in a compiled graph
            torch.testing.assert_close(parameter.grad, plain[name], rtol=1e-4, atol=1e-5, msg=name)
        assert parameter.grad is not None
