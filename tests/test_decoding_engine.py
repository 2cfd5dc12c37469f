"""The engine against Hugging Face's own: the same tokens for every kind of cache, batched or alone, rows leaving or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from loopwise.decoding import DecodingRule, generate
from loopwise.decoding.cache import GrowingLayer, GrowingSlidingLayer, decoding_cache, keep_rows
from loopwise.loops import parse_loops
from loopwise.models import cache_argument, insert
from parrot import char_tokenizer
from tiny import FAMILIES, tiny_model, tokens

LENGTHS = (9, 4, 13, 1, 6)
BUDGET = 24
ENDS = list(range(2, 20))
"""Tokens that end a text: enough of them that rows end at different steps."""
DRAWN = DecodingRule(temperature=1.0)
"""Draws move with the logits, where a greedy token of a random model may survive a wrong cache."""
KINDS = ("llama", "gemma3", "gpt2", "qwen3", "qwen3_5")
"""Full attention, sliding windows shorter than the text, learned positions, query and key norms, recurrent states."""


def prompts() -> list[list[int]]:
    return [tokens(1, length, seed=length)[0].tolist() for length in LENGTHS]


def ending_model(family: str, seed: int = 0) -> Any:
    model = tiny_model(family, seed=seed, tie_word_embeddings=False)  # tied random ones say one word for ever
    model.generation_config.eos_token_id = ENDS
    return model


def decode(model: Any, some: list[list[int]] | None = None, **options: Any) -> list[tuple[int, ...]]:
    done = generate(model, char_tokenizer(None, tags=False), some or prompts(), budget_tokens=BUDGET, **options)
    return [completion.token_ids for completion in done]


def left_padded(some: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, some))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in some])
    return ids, torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in some])


def hugging_face(model: Any, some: list[list[int]]) -> list[tuple[int, ...]]:
    ids, mask = left_padded(some)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=BUDGET, do_sample=False, pad_token_id=0)[:, ids.shape[1] :].tolist()
    ends = [next((place + 1 for place, token in enumerate(row) if token in ENDS), len(row)) for row in out]
    return [tuple(row[:end]) for row, end in zip(out, ends, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_hugging_faces(family):
    model = ending_model(family)
    ours = decode(model)
    assert ours == hugging_face(model, prompts())
    assert len({token for row in ours for token in row}) >= 8


@pytest.mark.parametrize("family", KINDS)
def test_a_batch_is_its_rows_alone_and_leaving_changes_nothing(family):
    model = ending_model(family, seed=1)
    together = decode(model, rule=DRAWN)
    assert together == decode(model, rule=DRAWN, fixed_rows=True)
    assert together == [decode(model, [prompt], rule=DRAWN, keys=[(0, place)])[0] for place, prompt in enumerate(prompts())]
    assert len({len(row) for row in together}) > 2  # rows that end apart, so that some leave


@pytest.mark.parametrize("family", KINDS)
def test_looped_models_too(family):
    model = ending_model(family, seed=2)
    plain = decode(model)
    insert(model, parse_loops("1:4 x2 damped beta=0.5 + 2.mlp x2"))
    looped = decode(model)
    assert looped != plain and looped == hugging_face(model, prompts())
    together = decode(model, rule=DRAWN)
    assert together == decode(model, rule=DRAWN, fixed_rows=True)
    assert together == [decode(model, [prompt], rule=DRAWN, keys=[(0, place)])[0] for place, prompt in enumerate(prompts())]


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_logits_after_rows_and_padding_left_are_those_of_full_recompute(family):
    """The columns dropped with the rows shift every index but the positions, sliding windows included."""
    model = tiny_model(family)
    some = [tokens(1, n, seed=n)[0].tolist() for n in (20, 5, 9)]
    ids, mask = left_padded(some)
    cache = decoding_cache(model)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    given = {cache_argument(model): cache}
    with torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **given)
        dropped = keep_rows(cache, torch.tensor([2, 1]), 11)
        assert dropped == 11
        ids, mask, positions = ids[[2, 1], 11:], mask[[2, 1], 11:], positions[[2, 1], -1:]
        for step in range(12):
            new = tokens(2, 1, seed=100 + step)
            ids, mask, positions = torch.cat([ids, new], 1), torch.cat([mask, torch.ones_like(new)], 1), positions + 1
            cached = model(input_ids=new, attention_mask=mask, position_ids=positions, use_cache=True, **given).logits[:, -1]
            for row in range(2):
                alone = model(input_ids=ids[row : row + 1, mask[row].bool()], use_cache=False).logits[0, -1]
                torch.testing.assert_close(cached[row], alone, rtol=1e-4, atol=1e-4)


# --- growing slots


@pytest.mark.parametrize("window", [None, 5, 64])
def test_growing_slots_hold_what_dynamic_slots_hold(window):
    theirs: Any = DynamicLayer() if window is None else DynamicSlidingWindowLayer(sliding_window=window)
    ours: Any = GrowingLayer() if window is None else GrowingSlidingLayer(sliding_window=window)
    generator = torch.Generator().manual_seed(0)
    rows = 3
    for step, length in enumerate([7, 1, 1, 9, 1, 1, 1, 30, 1, 120, 1, 1, 1]):
        new = [torch.randn(rows, 2, length, 4, generator=generator) for _ in range(2)]
        assert ours.get_mask_sizes(length) == theirs.get_mask_sizes(length)
        for mine, other in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, other)
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
        assert ours.get_seq_length() == theirs.get_seq_length()
        if step == 4:
            kept = torch.tensor([2, 0])
            rows = 2
            ours.reorder_cache(kept), theirs.reorder_cache(kept)


def test_growing_slots_do_not_copy_at_every_token():
    layer = GrowingLayer()
    new = torch.zeros(1, 1, 1, 4)
    stores = {layer.update(new, new)[0].untyped_storage().data_ptr() for _ in range(1000)}
    assert len(stores) < 8


def test_the_cache_has_growing_slots_for_attention_only():
    cache = decoding_cache(tiny_model("qwen3_5"))
    assert [isinstance(layer, GrowingLayer) for layer in cache.layers] == [False, False, True] * 2
    plain = DynamicCache(config=tiny_model("gemma3").config)
    kinds = [layer.is_sliding for layer in decoding_cache(tiny_model("gemma3")).layers]
    assert kinds == [layer.is_sliding for layer in plain.layers] == [True, False] * 3


# --- what the model is asked for


def test_only_the_last_positions_logits_are_computed():
    model = ending_model("llama")
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    decode(model, rule=DecodingRule(temperature=0.5))
    assert set(seen) == {1}


def test_adapters_decode_like_the_model_they_are_merged_into():
    peft = pytest.importorskip("peft")
    model = ending_model("llama")
    plain = decode(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, lora_alpha=64))
    drawn = decode(adapted)
    assert drawn != plain
    assert drawn == decode(adapted.merge_and_unload())
