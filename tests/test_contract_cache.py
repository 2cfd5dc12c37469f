"""The contract, second part: what is decoded from a cache is the model that a full forward computes. Every family passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from looped import (
    CACHES,
    EVERYTHING,
    NUM_LAYERS,
    assert_same_decoding,
    caches_of,
    every_family,
    greedy_cached,
    greedy_recomputed,
    logits,
    looped_model,
    padded,
    plain_model,
    with_cache,
)
from loopwise.loops import call_sites, parse_loops
from loopwise.models import ModelError, dynamic_cache, insert, remove, static_cache, surgery
from tiny import FAMILIES, HYBRIDS, tiny_model, tokens

LOOPS = (EVERYTHING, "0:5 x2 + 2:4 x3 in pass 2 + 5.mlp x3 damped beta=0.1", "0:2 x3 damped beta=0.5 + 3:6 x2")
ROWS = [tokens(1, length, seed=length)[0] for length in (13, 9, 2)]
NEW_TOKENS = 12
with_caches = pytest.mark.parametrize(("family", "kind"), [(family, kind) for family in FAMILIES for kind in caches_of(family)])


@with_caches
def test_cached_greedy_decoding_is_full_recompute(family: str, kind: str) -> None:
    ids, mask = padded(ROWS)
    for loops in LOOPS:
        model = looped_model(family, loops)
        cache = CACHES[kind](model, ids.shape[1] + NEW_TOKENS)
        cached = greedy_cached(model, ids, mask, NEW_TOKENS, cache)
        assert_same_decoding(cached, greedy_recomputed(model, ids, mask, NEW_TOKENS))


@every_family
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_left_padded_batch_is_its_single_rows(family: str, kind: str) -> None:
    model = looped_model(family, EVERYTHING)
    ids, mask = padded(ROWS)
    together = greedy_cached(model, ids, mask, NEW_TOKENS, CACHES[kind](model, ids.shape[1] + NEW_TOKENS))
    for place, row in enumerate(ROWS):
        alone = greedy_cached(model, row[None], torch.ones_like(row[None]), NEW_TOKENS)
        assert_same_decoding((together[0][place : place + 1], together[1][place : place + 1]), alone)


@pytest.mark.parametrize("length", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("family", HYBRIDS)
def test_linear_attention_decodes_after_prompts_around_its_chunk_of_64(family: str, kind: str, length: int) -> None:
    ids = tokens(2, length, seed=length)
    mask = torch.ones_like(ids)
    for loops in ("0:2 x3", EVERYTHING):
        model = looped_model(family, loops)
        cached = greedy_cached(model, ids, mask, 4, CACHES[kind](model, length + 4))
        assert_same_decoding(cached, greedy_recomputed(model, ids, mask, 4))


@every_family
def test_a_prompt_in_two_steps_is_the_prompt_in_one(family: str) -> None:
    model, ids = looped_model(family, EVERYTHING), tokens(2, 16)
    cache = dynamic_cache(model)
    logits(model, ids[:, :11], cache=cache)
    with torch.no_grad():
        second = model(ids[:, 11:], use_cache=True, **with_cache(model, cache)).logits
    assert (second - logits(model, ids)[:, 11:]).abs().max() <= 1e-4


# --- The slots ---------------------------------------------------------------------------------------------------------


def filled_tokens(slot: Any) -> int | None:
    """How many tokens a slot of keys and values has seen; None for one of linear attention that has a state."""
    if hasattr(slot, "has_previous_state"):
        assert all(slot.has_previous_state.values())
        return None
    return int(slot.get_seq_length())


@every_family
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_every_execution_of_a_layer_has_a_filled_slot_of_its_layers_type(family: str, kind: str) -> None:
    loops = "0:5 x2 + 2:4 x3 in pass 2 + 5.mlp x3"
    model, ids = looped_model(family, loops), tokens(1, 11)
    cache = CACHES[kind](model, 20)
    greedy_cached(model, ids, torch.ones_like(ids), 5, cache)
    whole = [site for site in call_sites(parse_loops(loops), NUM_LAYERS) if site.part == "layer"]
    assert len(cache.layers) == len(whole) == 6 + 5 + 4
    assert len({id(slot) for slot in cache.layers}) == len(cache.layers)
    for site in whole:
        assert site.slot is not None
        slot = cache.layers[site.slot]
        assert type(slot) is type(cache.layers[site.layer])
        assert filled_tokens(slot) in (None, 11 + 4)
        assert (filled_tokens(slot) is None) == (family in HYBRIDS and site.layer not in (2, 5))


@every_family
def test_slots_hold_what_the_unrolled_pass_computes_and_no_two_the_same(family: str) -> None:
    model, ids = looped_model(family, "0:3 x3"), tokens(1, 9)
    cache = dynamic_cache(model)
    logits(model, ids, cache=cache)
    states = [slot.recurrent_states[0] if hasattr(slot, "recurrent_states") else slot.keys for slot in cache.layers]
    for one, state in enumerate(states):
        for other in states[one + 1 :]:
            assert state.shape != other.shape or (state - other).abs().max() > 1e-3


def emptied(cache: Any) -> None:
    cache.reset()
    if any(int(slot.get_seq_length()) > 0 for slot in cache.layers if hasattr(slot, "get_seq_length")):
        pytest.skip("in this version of transformers a reset dynamic cache keeps its length, in the plain model too")


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_reset_cache_serves_again(family: str, kind: str) -> None:
    model, mask = looped_model(family, EVERYTHING), torch.ones(2, 10, dtype=torch.long)
    cache = CACHES[kind](model, 16)
    greedy_cached(model, tokens(2, 10, seed=1), mask, 5, cache)
    emptied(cache)
    again = greedy_cached(model, tokens(2, 10, seed=2), mask, 5, cache)
    assert_same_decoding(again, greedy_recomputed(model, tokens(2, 10, seed=2), mask, 5))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_reordering_moves_every_slot(family: str, kind: str) -> None:
    model, ids = looped_model(family, EVERYTHING), tokens(3, 10)
    order = torch.tensor([2, 0, 0])
    cache = CACHES[kind](model, 12)
    logits(model, ids, cache=cache)
    cache.reorder_cache(order)
    step = tokens(3, 1, seed=5)
    with torch.no_grad():
        after = model(step, use_cache=True, **with_cache(model, cache)).logits[:, -1]
    assert (after - logits(model, torch.cat([ids[order], step], dim=1))[:, -1]).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_selecting_and_repeating_rows_reach_every_slot(family: str) -> None:
    model, ids = looped_model(family, EVERYTHING), tokens(3, 6)
    cache = dynamic_cache(model)
    logits(model, ids, cache=cache)
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    rows, step = torch.tensor([2, 2, 0, 0]), tokens(4, 1, seed=5)
    with torch.no_grad():
        after = model(step, use_cache=True, **with_cache(model, cache)).logits[:, -1]
    assert (after - logits(model, torch.cat([ids[rows], step], dim=1))[:, -1]).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_cropping_reaches_every_slot(family: str) -> None:
    model, ids = looped_model(family, EVERYTHING), tokens(2, 6)
    cache = dynamic_cache(model)
    logits(model, ids, cache=cache)
    cache.crop(-2)
    step = tokens(2, 1, seed=5)
    with torch.no_grad():
        after = model(step, use_cache=True, **with_cache(model, cache)).logits[:, -1]
    assert (after - logits(model, torch.cat([ids[:, :4], step], dim=1))[:, -1]).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_filled_cache_is_copied_with_its_slots(kind: str) -> None:
    model, ids = looped_model("llama", EVERYTHING), tokens(2, 6)
    cache = CACHES[kind](model, 16)
    logits(model, ids, cache=cache)
    mask = torch.ones(2, 7, dtype=torch.long)
    step = tokens(2, 1)
    twice = [model(step, attention_mask=mask, use_cache=True, **with_cache(model, one)).logits for one in (cache, copy.deepcopy(cache))]
    twice.append(model(step, attention_mask=mask, use_cache=True, **with_cache(model, dynamic_filled(model, ids))).logits)
    assert torch.equal(twice[0], twice[1])
    assert (twice[0] - twice[2]).abs().max() <= 1e-4


def dynamic_filled(model: Any, ids: Tensor) -> DynamicCache:
    cache = dynamic_cache(model)
    logits(model, ids, cache=cache)
    return cache


# --- Caches that cannot be right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loops", ["1:3 x2", "3.mlp x2", "3.mlp x2 damped beta=0.5", "0:6 x2", "5:6 x2"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5", "gpt2"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_filled_by_the_plain_model_is_refused(family: str, kind: str, loops: str) -> None:
    model, ids = plain_model(family), tokens(1, 5)
    cache = CACHES[kind](model, 9)
    logits(model, ids, cache=cache)
    insert(model, loops)
    with pytest.raises(ModelError, match=r"filled by the plain model.*start a new one$") as refusal:
        model(ids[:, :1], **with_cache(model, cache))
    assert "\n" not in str(refusal.value)


def test_a_plain_cache_is_refused_where_all_that_tells_is_a_recurrent_state() -> None:
    model = tiny_model("qwen3_5", layer_types=["full_attention"] * 3 + ["linear_attention"] * 3)
    cache = dynamic_cache(model)
    logits(model, tokens(1, 5), cache=cache)
    for loops in ("3:5 x2", "5.mlp x2"):
        insert(remove(model), loops)
        with pytest.raises(ModelError, match="filled by the plain model"):
            model(tokens(1, 1), **with_cache(model, cache))


def test_a_plain_cache_without_config_is_refused() -> None:
    model, cache = plain_model("llama"), DynamicCache()
    logits(model, tokens(1, 5), cache=cache)
    insert(model, "2:4 x2")
    with pytest.raises(ModelError, match="filled by the plain model"):
        model(tokens(1, 1), **with_cache(model, cache))


@pytest.mark.parametrize("others", ["2:4 x2", "1:3 x2 damped beta=0.5", "1:3 x3", "2.mlp x2", "1:3 x2 + 1.mlp x2"])
@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_of_other_loops_is_refused(family: str, kind: str, others: str) -> None:
    model, ids = looped_model(family, "1:3 x2"), tokens(1, 5)
    cache = CACHES[kind](model, 9)
    logits(model, ids, cache=cache)
    insert(remove(model), others)
    with pytest.raises(ModelError, match="filled under the loops 1:3 x2") as refusal:
        model(ids[:, :1], **with_cache(model, cache))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("others", ["2:4 x2", "1:3 x3", "2.mlp x2", "0:1 x2"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_an_emptied_cache_of_other_loops_is_made_anew(kind: str, others: str) -> None:
    model, ids = looped_model("llama", "1:3 x2"), tokens(1, 8)
    mask = torch.ones_like(ids)
    cache = CACHES[kind](model, 14)
    logits(model, ids, cache=cache)
    emptied(cache)
    insert(remove(model), others)
    assert_same_decoding(greedy_cached(model, ids, mask, 5, cache), greedy_recomputed(model, ids, mask, 5))


def test_a_cache_of_a_deeper_or_shallower_model_is_refused() -> None:
    model = looped_model("llama", "1:3 x2")
    for num_layers, reason in ((8, "8 slots for 6 layers"), (4, "4 slots for 6 layers")):
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = num_layers
        config.layer_types = ["full_attention"] * num_layers
        with pytest.raises(ModelError, match=reason):
            model(tokens(1, 4), **with_cache(model, DynamicCache(config=config)))


class Offloading(DynamicCache):
    """A cache that moves its slots to the CPU; its real kind needs an accelerator to be made."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.offloading = True


def test_an_offloading_cache_is_refused() -> None:
    model = looped_model("llama", "0:3 x2")
    with pytest.raises(ModelError, match=r"an offloading cache .* use a dynamic or static cache"):
        model(tokens(1, 4), **with_cache(model, Offloading(model.config)))


def test_an_encoder_decoder_cache_is_refused() -> None:
    from transformers import EncoderDecoderCache

    model = looped_model("gpt2", "1:3 x2")
    with pytest.raises(ModelError, match="decoder-only"):
        model(tokens(1, 4), **with_cache(model, EncoderDecoderCache(DynamicCache(), DynamicCache())))


# --- Negative control --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@every_family
def test_the_checks_fail_where_all_passes_share_a_slot(family: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    views = surgery.cache_views

    def one_slot_for_all_passes(cache: Any, *others: Any) -> tuple[Any, ...]:
        return (cache,) * len(views(cache, *others))

    monkeypatch.setattr(surgery, "cache_views", one_slot_for_all_passes)
    ids, mask = padded(ROWS)
    model = looped_model(family, "1:4 x2")
    cache = CACHES[kind](model, 2 * (ids.shape[1] + NEW_TOKENS))
    full = greedy_recomputed(model, ids, mask, NEW_TOKENS)
    try:
        cached = greedy_cached(model, ids, mask, NEW_TOKENS, cache)
    except RuntimeError:  # masks and keys of different lengths
        return
    with pytest.raises(AssertionError):
        assert_same_decoding(cached, full, tolerance=0.1)


def test_the_checks_pass_without_the_sabotage() -> None:
    """What the negative control measures is the sabotage: the same loops, rows and lengths pass as they are."""
    ids, mask = padded(ROWS)
    for family in FAMILIES:
        model = looped_model(family, "1:4 x2")
        cache = static_cache(model, 2 * (ids.shape[1] + NEW_TOKENS))
        assert_same_decoding(greedy_cached(model, ids, mask, NEW_TOKENS, cache), greedy_recomputed(model, ids, mask, NEW_TOKENS))
