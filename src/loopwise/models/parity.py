"""Cached decoding against full recompute: the check that what is decoded is the model that was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from .caches import cache_argument, cache_of, dynamic_cache


@torch.no_grad()
def cached_logits(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, prompt_tokens: int) -> Tensor:
    """Logits of the tokens from ``prompt_tokens - 1`` on, the prompt in one step and then token by token from the cache.

    Args:
        input_ids: [batch, tokens], left-padded.
        attention_mask: [batch, tokens], 0 on padding.

    Returns:
        [batch, tokens - prompt_tokens + 1, vocabulary], in fp32.
    """
    name = cache_argument(model)
    cache: Cache = dynamic_cache(model)
    positions = positions_of(attention_mask)
    steps, start = [], 0
    for stop in range(prompt_tokens, input_ids.shape[1] + 1):
        output = model(
            input_ids=input_ids[:, start:stop],
            attention_mask=attention_mask[:, :stop],
            position_ids=positions[:, start:stop],
            use_cache=True,
            **{name: cache},
        )
        cache = cache_of(output)
        steps.append(output.logits[:, -1:].float())
        start = stop
    return torch.cat(steps, dim=1)


@torch.no_grad()
def greedy_tokens(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, new_tokens: int) -> tuple[Tensor, Tensor]:
    """Continue every row greedily from the cache, past any end of text, and keep the logits of each step.

    Args:
        input_ids: [batch, tokens], left-padded.
        attention_mask: [batch, tokens], 0 on padding.

    Returns:
        The rows with their continuation [batch, tokens + new_tokens], and fp32 logits [batch, new_tokens, vocabulary].
    """
    name = cache_argument(model)
    cache: Cache = dynamic_cache(model)
    step, logits = input_ids, []
    for _ in range(new_tokens):
        positions = positions_of(attention_mask)[:, -step.shape[1] :]
        output = model(input_ids=step, attention_mask=attention_mask, position_ids=positions, use_cache=True, **{name: cache})
        cache = cache_of(output)
        logits.append(output.logits[:, -1].float())
        step = logits[-1].argmax(-1, keepdim=True)
        input_ids = torch.cat([input_ids, step], dim=1)
        attention_mask = torch.cat([attention_mask, torch.ones_like(step)], dim=1)
    return input_ids, torch.stack(logits, dim=1)


@torch.no_grad()
def recomputed_logits(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, prompt_tokens: int) -> Tensor:
    """The same logits, each from a forward pass without a cache over all tokens before it.

    One pass over the whole sequence gives them all: the model is causal, which the contract tests hold.
    """
    output = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions_of(attention_mask), use_cache=False)
    logits: Tensor = output.logits[:, prompt_tokens - 1 :].float()
    return logits


def positions_of(attention_mask: Tensor) -> Tensor:
    """Position ids of left-padded rows, [batch, tokens]: the first real token is 0."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def untested_family_difference(model: PreTrainedModel) -> float:
    """Largest difference of logits between cached decoding and recompute on random tokens, for a family without tests."""
    tokens = _random_tokens(model)
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    with _evaluating(model):
        difference = cached_logits(model, tokens, mask, 12) - recomputed_logits(model, tokens, mask, 12)
    return difference.abs().max().item()


@torch.no_grad()
def layers_run(model: PreTrainedModel, layers: nn.ModuleList) -> tuple[list[int], bool]:
    """Which of ``layers`` one forward pass runs, in order, and whether each returns a plain tensor."""
    ran: list[int] = []
    tensors: list[bool] = []

    def note(layer: int) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _args: object, output: object) -> None:
            ran.append(layer)
            tensors.append(isinstance(output, Tensor))

        return hook

    modules = [module for module in layers._modules.values() if module is not None]
    handles = [module.register_forward_hook(note(layer)) for layer, module in enumerate(modules)]
    try:
        with _evaluating(model):
            model(input_ids=_random_tokens(model), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return ran, all(tensors)


def _random_tokens(model: PreTrainedModel) -> Tensor:
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    tokens = torch.randint(0, vocabulary, (2, 24), generator=torch.Generator().manual_seed(0))
    return tokens.to(next(model.parameters()).device)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode for a while; every module then has its own mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
