"""The contract, third part: Hugging Face's own ``generate`` on a looped model. Every family passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from looped import EVERYTHING, every_family, greedy_cached, looped_model, padded, plain_model, with_cache
from loopwise.models import cache_of
from tiny import tokens
from unrolled import unrolled_model

UNDAMPED, ORDER = "1:5 x2 + 2:4 x2 in pass 1", (0, 1, 2, 3, 2, 3, 4, 1, 2, 3, 4, 5)
ROWS = [tokens(1, length, seed=length)[0] for length in (12, 7)]
NEW_TOKENS = 10
CACHES = (None, "static")
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": dict(do_sample=True, temperature=1.5, top_k=40, top_p=0.95),
    "beam search": dict(num_beams=3),
    "beam search, several": dict(num_beams=4, num_return_sequences=2),
    "sampling, several": dict(do_sample=True, temperature=1.5, num_return_sequences=3),
}


def generate(model: Any, cache_implementation: str | None = None, **mode: Any) -> Tensor:
    ids, mask = padded(ROWS)
    torch.manual_seed(7)
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "cache_implementation": cache_implementation}
    result: Tensor = model.generate(ids, attention_mask=mask, **(options | mode))
    return result


@every_family
@pytest.mark.parametrize("mode", MODES)
def test_generate_gives_the_tokens_of_the_unrolled_model(family: str, mode: str) -> None:
    looped, deeper = looped_model(family, UNDAMPED), unrolled_model(plain_model(family), ORDER)
    plain = generate(plain_model(family), **MODES[mode])
    for implementation in CACHES:
        ours = generate(looped, implementation, **MODES[mode])
        assert torch.equal(ours, generate(deeper, implementation, **MODES[mode]))
        assert not torch.equal(ours, plain)


@every_family
def test_generate_decodes_damped_and_mlp_loops(family: str) -> None:
    model = looped_model(family, EVERYTHING)
    ids, mask = padded(ROWS)
    model.generation_config.eos_token_id = None
    expected, _ = greedy_cached(model, ids, mask, NEW_TOKENS)
    for implementation in CACHES:
        ours = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, cache_implementation=implementation, eos_token_id=None
        )
        assert torch.equal(ours[:, ids.shape[1] :], expected)
    without = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=False, eos_token_id=None)
    assert torch.equal(without[:, ids.shape[1] :], expected)


def test_generate_goes_on_from_a_returned_cache() -> None:
    model, ids = looped_model("llama", EVERYTHING), tokens(1, 9)
    options: dict[str, Any] = dict(do_sample=False, eos_token_id=None, return_dict_in_generate=True)
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, **options).sequences
    first = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, **options)
    rest = model.generate(
        first.sequences, attention_mask=torch.ones_like(first.sequences), max_new_tokens=4, **with_cache(model, cache_of(first)), **options
    ).sequences
    assert torch.equal(rest, whole)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("way", ["assisted", "prompt lookup", "prefill in chunks", "inference mode"])
def test_other_ways_to_the_greedy_answer_are_the_greedy_answer(family: str, way: str) -> None:
    """Assisted decoding takes rejected tokens back out of every slot; the unlooped model drafts for the looped one."""
    model, ids = looped_model(family, EVERYTHING), tokens(1, 12)
    ids = torch.cat([ids, ids], dim=1)
    greedy: dict[str, Any] = dict(attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    ways: dict[str, dict[str, Any]] = {
        "assisted": dict(assistant_model=plain_model(family)),
        "prompt lookup": dict(prompt_lookup_num_tokens=3),
        "prefill in chunks": dict(prefill_chunk_size=5),
        "inference mode": {},
    }
    expected = model.generate(ids, **greedy)
    with torch.inference_mode(way == "inference mode"):
        assert torch.equal(model.generate(ids, **greedy, **ways[way]), expected)
