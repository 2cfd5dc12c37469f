"""A tiny random model of every family, the same weights at every call."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = 128
_COMMON: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_MOE: dict[str, Any] = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_QWEN35: dict[str, Any] = dict(
    head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
)
_WINDOWS = ["sliding_attention", "full_attention"] * 3

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", dict(sliding_window=7)),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", dict(head_dim=8)),
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=8, decoder_sparse_step=1, mlp_only_layers=[], **_MOE)),
    "qwen3_5": ("Qwen3_5Text:Qwen3_5", _QWEN35),
    "qwen3_5_moe": ("Qwen3_5MoeText:Qwen3_5Moe", _QWEN35 | _MOE | dict(shared_expert_intermediate_size=16)),
    "gemma2": ("Gemma2", dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=7, layer_types=_WINDOWS)),
    "gemma3": ("Gemma3Text:Gemma3", dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=7, layer_types=_WINDOWS)),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", dict(sliding_window=7, layer_types=_WINDOWS)),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 1, 1, 0, 1, 1])),
    "phi3": ("Phi3", dict(original_max_position_embeddings=512)),
    "gpt2": ("GPT2", dict(n_embd=32, n_layer=6, n_head=4, n_inner=48, n_positions=512)),
}
HYBRIDS = ("qwen3_5", "qwen3_5_moe")


def tiny_config(family: str, **changes: Any) -> Any:
    """The configuration of the tiny model of ``family``."""
    names, own = FAMILIES[family]
    common = {k: v for k, v in _COMMON.items() if k.endswith("token_id") or k == "vocab_size"} if family == "gpt2" else _COMMON
    return getattr(transformers, names.split(":")[0] + "Config")(**(common | own | changes))


def tiny_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A tiny random causal language model of ``family`` in fp32, in evaluation mode.

    Weights are larger than usual initialisations so that logits, and the effect of a loop, are of order one.
    """
    names, _ = FAMILIES[family]
    config = tiny_config(family, **changes)
    torch.manual_seed(seed)
    model = getattr(transformers, names.split(":")[-1] + ("LMHeadModel" if family == "gpt2" else "ForCausalLM"))(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.15 if "embed" not in name else 1.0))
            elif "norm" in name or "ln_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random token ids [batch, length] without the special ones."""
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Words w0 to w127 as tokens 0 to 127; w2 ends a text."""
    words = {f"w{n}": n for n in range(128)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2", pad_token="w0")
