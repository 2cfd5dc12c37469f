"""What the contract tests share: fresh tiny models, and decoding written out step by step."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from loopwise.models import cache_argument, cache_of, dynamic_cache, insert, static_cache
from tiny import FAMILIES, tiny_model

NUM_LAYERS = 6
TOLERANCE = 1e-4
"""Largest difference of fp32 logits between two ways to compute the same thing in another order of additions."""

every_family = pytest.mark.parametrize("family", list(FAMILIES))

EVERYTHING = "1:4 x2 damped beta=0.25 + 1.mlp x3 damped beta=0.5 in pass 1 + 5.mlp x2"
"""A loop of layers, a nested one of an MLP half in one pass, and an MLP loop outside any loop."""


@functools.cache
def _prototype(family: str) -> Any:
    model = tiny_model(family)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # biases are zero in a fresh model, which would hide one that is left out
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
            if "embed" in name and model.config.tie_word_embeddings:
                parameter.mul_(0.08)  # else a tied model only repeats its last token, whatever its layers do
    return model


def plain_model(family: str) -> Any:
    """A model of its own for each caller, with the same weights."""
    return copy.deepcopy(_prototype(family))


def looped_model(family: str, loops: str) -> Any:
    """The same model with loops."""
    return insert(plain_model(family), loops)


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one left-padded batch: ids and mask, both [batch, tokens]."""
    length = max(len(row) for row in rows)
    ids = torch.stack([torch.cat([row.new_zeros(length - len(row)), row]) for row in rows])
    mask = torch.stack([torch.cat([row.new_zeros(length - len(row)), torch.ones_like(row)]) for row in rows])
    return ids, mask


def positions(mask: Tensor) -> Tensor:
    """Position ids of left-padded rows."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """The argument that hands a model its cache, under the name that this version of transformers gives it."""
    return {cache_argument(model): cache}


@torch.no_grad()
def logits(model: Any, ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
    """Logits of one forward pass, without a cache unless one is given."""
    mask = torch.ones_like(ids) if mask is None else mask
    given = {} if cache is None else with_cache(model, cache)
    result: Tensor = model(ids, attention_mask=mask, position_ids=positions(mask), use_cache=cache is not None, **given).logits
    return result


@torch.no_grad()
def greedy_cached(model: Any, ids: Tensor, mask: Tensor, new_tokens: int, cache: Any = None) -> tuple[Tensor, Tensor]:
    """Greedy continuation from a cache: the new tokens [batch, new_tokens] and their logits [batch, new_tokens, vocabulary].

    Args:
        cache: the cache to fill; None lets the model make its own.
    """
    chosen: list[Tensor] = []
    scores: list[Tensor] = []
    step = ids
    for _ in range(new_tokens):
        place = positions(mask)[:, mask.shape[1] - step.shape[1] :]
        output = model(step, attention_mask=mask, position_ids=place, use_cache=True, **with_cache(model, cache))
        cache = cache_of(output)
        scores.append(output.logits[:, -1])
        step = scores[-1].argmax(-1, keepdim=True)
        chosen.append(step)
        mask = torch.cat([mask, torch.ones_like(step)], dim=1)
    return torch.cat(chosen, dim=1), torch.stack(scores, dim=1)


def greedy_recomputed(model: Any, ids: Tensor, mask: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """The same, every token from a forward pass over the whole text without a cache."""
    scores: list[Tensor] = []
    for _ in range(new_tokens):
        scores.append(logits(model, ids, mask)[:, -1])
        step = scores[-1].argmax(-1, keepdim=True)
        ids, mask = torch.cat([ids, step], dim=1), torch.cat([mask, torch.ones_like(step)], dim=1)
    return ids[:, -new_tokens:], torch.stack(scores, dim=1)


def assert_same_decoding(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], tolerance: float = TOLERANCE) -> None:
    """Token by token and in logits."""
    difference = (one[1] - other[1]).abs().max().item()
    assert torch.equal(one[0], other[0]), f"other tokens; logits differ by up to {difference:.2g}"
    assert difference <= tolerance


CACHES: dict[str, Callable[[Any, int], Any]] = {
    "the model's own": lambda model, max_tokens: None,
    "dynamic": lambda model, max_tokens: dynamic_cache(model),
    "dynamic without config": lambda model, max_tokens: DynamicCache(),
    "static": static_cache,
}
"""Ways to give a model its cache, by name; each takes the model and the most tokens."""


def caches_of(family: str) -> list[str]:
    """The kinds of cache that the plain model of a family can use: one without config knows no recurrent states."""
    return [name for name in CACHES if not (family.startswith("qwen3_5") and name == "dynamic without config")]
