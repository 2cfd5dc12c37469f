"""The cost from a config.json against the models themselves: transformers' defaults, counts, caches, and torch's FLOP counter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, DynamicCache

from loopwise.cost import COMPOSITES, FAMILIES, Cost, ModelShape, answer_flops, cost_of, read_shape
from loopwise.cost.config import read_fields
from loopwise.loops import Loop, call_sites, parse_loops
from loopwise.models import cache_argument, dynamic_cache, insert, static_cache
from tiny import FAMILIES as TINY
from tiny import tiny_config, tiny_model, tokens

# --- transformers' defaults -------------------------------------------------------------------------------------------

_NOT_FIELDS = {"full_attention_interval", "sliding_window_pattern"}
"""Read from the file by transformers without a field of their own; the resolved layer types below hold their defaults."""
_LISTS = {"mlp_only_layers", "no_rope_layers"}
"""Lists that transformers fills in where they are absent; what they decide is held by the layer types and parameter counts."""

# Files as they stand on hubs: sparse, with windows on and off, with biases, with layer types given or left to the family.
SPARSE: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in FAMILIES),
    ("llama", dict(num_hidden_layers=3, attention_bias=True, mlp_bias=True, num_key_value_heads=8, tie_word_embeddings=True)),
    ("llama", dict(hidden_size=512, num_attention_heads=8, head_dim=48)),
    ("mistral", dict(sliding_window=None, num_hidden_layers=2)),
    ("qwen2", dict(num_hidden_layers=30, use_sliding_window=True)),
    ("qwen2", dict(num_hidden_layers=5, use_sliding_window=True, max_window_layers=3, sliding_window=100, num_key_value_heads=None)),
    ("qwen2", dict(num_hidden_layers=5, max_window_layers=3)),
    ("qwen3", dict(num_hidden_layers=4, attention_bias=True, use_sliding_window=True, max_window_layers=0)),
    ("qwen3_moe", dict(num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=8)),
    ("qwen3_moe", dict(num_hidden_layers=2, num_local_experts=6, use_sliding_window=True, attention_bias=True, head_dim=128)),
    ("qwen3_5_text", dict(num_hidden_layers=7, full_attention_interval=3, linear_num_value_heads=48, attention_bias=True)),
    ("qwen3_5_moe_text", dict(num_hidden_layers=5, layer_types=["full_attention"] + ["linear_attention"] * 4)),
    ("gemma2", dict(num_hidden_layers=3, sliding_window=64, attention_bias=True, tie_word_embeddings=False)),
    ("gemma3_text", dict(num_hidden_layers=8, sliding_window_pattern=3, attention_bias=True)),
    ("olmo2", dict(num_hidden_layers=2, num_key_value_heads=8, attention_bias=True)),
    ("olmo3", dict(num_hidden_layers=6, layer_types=["full_attention", "sliding_attention"] * 3, num_key_value_heads=8)),
    ("smollm3", dict(num_hidden_layers=6, use_sliding_window=True, sliding_window=32, no_rope_layer_interval=3, mlp_bias=True)),
    ("smollm3", dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=32, no_rope_layers=[0, 1, 1])),
    ("phi3", dict(num_hidden_layers=2, sliding_window=2047, num_key_value_heads=8)),
    ("gpt2", dict(n_layer=3, n_embd=64, n_head=4, n_inner=100, n_positions=77, tie_word_embeddings=False)),
    ("gpt2", dict(num_hidden_layers=3, hidden_size=64, num_attention_heads=4)),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_of_defaults_is_transformers_own(name: str) -> None:
    family, there = FAMILIES[name], {f.name: f.default for f in dataclasses.fields(CONFIG_MAPPING[name])}
    for field, default in family.defaults.items():
        file_name = next((n for n in (family.aliases.get(field, field), field) if n in there), None)
        if file_name is not None:
            assert there[file_name] == default, field
        elif field not in _NOT_FIELDS:
            assert default is None or default is False, f"{field} is no field of {name}, so its default must change nothing"


@pytest.mark.parametrize(("name", "given"), SPARSE)
def test_sparse_and_saved_files_resolve_as_transformers_resolves_them(name: str, given: dict[str, Any]) -> None:
    family, config = FAMILIES[name], AutoConfig.for_model(name, **given)
    _, ours = read_fields({"model_type": name, **given})
    for field, value in ours.items():
        theirs = getattr(config, family.aliases.get(field, field), getattr(config, field, None))
        if theirs is not None and field not in _NOT_FIELDS | _LISTS:
            assert theirs == value, field
    assert read_shape(config.to_dict()) == read_shape({"model_type": name, **given})


@pytest.mark.parametrize(("name", "given"), SPARSE)
def test_layers_keep_what_transformers_caches(name: str, given: dict[str, Any]) -> None:
    cache = DynamicCache(config=AutoConfig.for_model(name, **given))
    shape = read_shape({"model_type": name, **given})
    assert [getattr(layer, "sliding_window", None) for layer in cache.layers] == [layer.window_tokens for layer in shape.layers]
    linear = [type(layer).__name__ == "LinearAttentionLayer" for layer in cache.layers]
    assert linear == [layer.mixer == "linear_attention" for layer in shape.layers]


# --- Parameter counts -------------------------------------------------------------------------------------------------


def meta_parameters(config: Any) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "given"), SPARSE)
def test_parameters_are_those_of_the_real_model(name: str, given: dict[str, Any]) -> None:
    """At full size: the model is built without storage."""
    # Few layers suffice, as long as the pattern of layers and the layer lists stay whole.
    small = given if {"num_hidden_layers", "n_layer"} & given.keys() else given | {"num_hidden_layers": 6}
    config = AutoConfig.for_model(name, **small)
    assert read_shape({"model_type": name, **small}).num_parameters == meta_parameters(config)


@pytest.mark.parametrize("family", TINY)
def test_parameters_of_the_tiny_models(family: str) -> None:
    model = tiny_model(family)
    assert read_shape(model.config.to_dict()).num_parameters == model.num_parameters()


@pytest.mark.parametrize(("tied", "whole_tied"), [(True, True), (False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", COMPOSITES)
def test_only_the_language_part_of_a_composite_counts(name: str, tied: bool, whole_tied: bool) -> None:
    text = dict(num_hidden_layers=4, hidden_size=64, vocab_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    text |= dict(intermediate_size=96, tie_word_embeddings=tied) | (dict(num_experts=4, num_experts_per_tok=2) if "moe" in name else {})
    vision = dict(hidden_size=32, intermediate_size=32, num_attention_heads=2, num_heads=2, num_hidden_layers=2, depth=2)
    given = {"model_type": name, "text_config": text, "vision_config": vision, "tie_word_embeddings": whole_tied}
    config = AutoConfig.for_model(**given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    outside = ("vision", "visual", "multi_modal_projector", "mtp")
    counted = {id(p): p.numel() for n, p in model.named_parameters() if not any(part in n for part in outside)}
    for source in (given, config.to_dict()):
        shape = read_shape(source)
        assert shape.num_layers == 4
        assert shape.num_parameters == sum(counted.values())


# --- torch's FLOP counter ---------------------------------------------------------------------------------------------
#
# The counter sees matrix products (mm, addmm, bmm) and convolutions. Under eager attention and eager experts that is:
#   mm, addmm    two FLOPs per matrix parameter per token: the matrix convention, convolutions apart;
#   convolution  two per tap over T + kernel - 1 positions, since the padded ones are computed too;
#   bmm          attention scores over the full rectangle of T queries by T keys, causal or not, windowed or not; and in
#                Gated DeltaNet layers the chunk rule, see `chunk_rule_flops`. Its triangular solve, its decays and the
#                token-by-token rule (element-wise) are not seen.

CHUNK = 64


def counted(model: Any, *args: Any, **kwargs: Any) -> dict[str, int]:
    """FLOPs by operator of one forward, without those of the rotary table."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*args, **kwargs)
    counts = counter.get_flop_counts()
    rotary: dict[Any, int] = next((ops for name, ops in counts.items() if name.endswith("rotary_emb")), {})
    return {str(op).removeprefix("aten."): n - rotary.get(op, 0) for op, n in counts["Global"].items()}


def chunk_rule_flops(shape: ModelShape, loops: tuple[Loop, ...], config: Any, length: int) -> int:
    """What the counter sees of the chunked gated delta rule over ``length`` tokens, padded to whole chunks of 64.

    A head with keys of width k and values of width v spends, for each padded token, 6kv on its state (the read by key, the
    write and the read by query, as `LayerShape.score_flops` counts them) and, within its chunk of C, 4Ck on the products of
    keys and queries with keys and 2Cv on their weighted sum: the score-like part, quadratic within a chunk only.
    """
    key, value, heads = config.linear_key_head_dim, config.linear_value_head_dim, config.linear_num_value_heads
    padded = -(-length // CHUNK) * CHUNK
    sites = [s for s in layer_sites(shape, loops) if shape.layers[s].mixer == "linear_attention"]
    return len(sites) * padded * heads * (6 * key * value + 4 * CHUNK * key + 2 * CHUNK * value)


def layer_sites(shape: ModelShape, loops: tuple[Loop, ...]) -> list[int]:
    return [site.layer for site in call_sites(loops, shape.num_layers) if site.part == "layer"]


def expected(shape: ModelShape, loops: tuple[Loop, ...], config: Any, length: int) -> dict[str, int]:
    """What the counter must see of a forward over ``length`` tokens without a cache."""
    parts = cost_of(shape, loops).breakdown
    assert parts is not None
    layers = [shape.layers[index] for index in layer_sites(shape, loops)]
    linear = [layer for layer in layers if layer.mixer == "linear_attention"]
    taps = sum(layer.conv_size for layer in linear)
    counts = {
        "mm": int(parts.total) * length - 2 * taps * length,
        "convolution": 2 * taps * (length + config.linear_conv_kernel_dim - 1) if linear else 0,
        "bmm": sum(4 * layer.score_width * length * length for layer in layers)
        + (chunk_rule_flops(shape, loops, config, length) if linear else 0),
    }
    return {op: n for op, n in counts.items() if n}


def eager(family: str, **changes: Any) -> Any:
    model = tiny_model(family, **changes)
    model.set_attn_implementation("eager")
    if "moe" in family:
        model.set_experts_implementation("eager")
    return model


def merged(counts: dict[str, int]) -> dict[str, int]:
    """GPT-2 and biased projections use addmm for the same product."""
    counts = dict(counts)
    counts["mm"] = counts.get("mm", 0) + counts.pop("addmm", 0)
    return {op: n for op, n in counts.items() if n}


UNEVEN = dict(linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=6)
VARIANTS = [
    *((family, {}) for family in TINY),
    ("qwen3_5", UNEVEN),
    ("qwen3_moe", dict(decoder_sparse_step=2, mlp_only_layers=[1], num_experts_per_tok=3)),
    ("llama", dict(attention_bias=True, mlp_bias=True, head_dim=20)),
    ("gpt2", dict(n_inner=None)),
]


@pytest.mark.parametrize("length", [6, 20, 70])
@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_the_flop_counter_agrees_operator_by_operator(family: str, changes: dict[str, Any], length: int) -> None:
    model = eager(family, **changes)
    shape = read_shape(model.config.to_dict())
    assert merged(counted(model, tokens(1, length))) == expected(shape, (), model.config, length)


@pytest.mark.parametrize("family", [f for f in TINY if "qwen3_5" not in f])
def test_one_forward_is_that_many_tokens_at_that_context(family: str) -> None:
    """The convention as users meet it: T tokens cost T times one token that sees T tokens, for T within every window."""
    model = eager(family)
    total = sum(counted(model, tokens(1, 6)).values())
    assert total == 6 * cost_of(read_shape(model.config.to_dict()), (), context_tokens=6).flops_per_token


@pytest.mark.parametrize("family", TINY)
def test_a_cached_step_costs_one_token_at_its_context(family: str) -> None:
    """After 12 tokens, beyond the windows of 7: a window's layer computes scores over its window only."""
    model = eager(family)
    shape, ids = read_shape(model.config.to_dict()), tokens(1, 13)
    cached = {cache_argument(model): dynamic_cache(model)}
    with torch.no_grad():
        model(ids[:, :12], **cached)
    step = merged(counted(model, ids[:, 12:], **cached))
    answer = cost_of(shape, (), context_tokens=13)
    linear = [layer for layer in shape.layers if layer.mixer == "linear_attention"]
    # The token-by-token delta rule is element-wise, so its state updates go unseen; so does padding in the convolution.
    step.pop("convolution", None)
    unseen = sum(6 * layer.recurrent_size + 2 * layer.conv_size for layer in linear)
    assert sum(step.values()) == answer.flops_per_token - unseen


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3", "qwen3_5", "gpt2"])
def test_answer_flops_are_those_of_a_prefill_and_its_steps(family: str) -> None:
    model = eager(family)
    shape, ids = read_shape(model.config.to_dict()), tokens(1, 9)
    cached = {cache_argument(model): dynamic_cache(model)}
    runs = [merged(counted(model, ids[:, :5], logits_to_keep=1, **cached))]
    runs += [merged(counted(model, ids[:, t : t + 1], **cached)) for t in range(5, 8)]
    answer = answer_flops(shape, (), prompt_tokens=5, generated_tokens=4)
    taps = sum(layer.conv_size for layer in shape.layers)
    assert sum(run["mm"] for run in runs) == answer - 2 * taps * 8


# --- Caches -----------------------------------------------------------------------------------------------------------


def cache_bytes(cache: Any) -> tuple[int, int]:
    """Bytes of keys and values, and of recurrent and convolution states."""
    kept, state = 0, 0
    for layer in cache.layers:
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            kept += 0 if tensor is None else tensor.numel() * tensor.element_size()
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            state += sum(t.numel() * t.element_size() for t in states.values() if t is not None)
    return kept, state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "changes"), [*((family, {}) for family in TINY), ("qwen3_5", UNEVEN)])
def test_kv_and_state_bytes_are_those_of_the_caches(family: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    model = tiny_model(family, **changes).to(dtype)
    shape, size = read_shape(model.config.to_dict()), dtype.itemsize

    def kept(cache: Any, length: int) -> tuple[int, int]:
        with torch.no_grad():
            model(tokens(1, length), **{cache_argument(model): cache})
        return cache_bytes(cache)

    def ours(length: int) -> tuple[int | None, int]:
        answer = cost_of(shape, (), context_tokens=length, kv_dtype_bytes=size)
        return answer.kv_bytes, answer.state_bytes

    assert kept(dynamic_cache(model), 6) == ours(6)
    # Beyond a window of 7 a static cache holds 7 tokens; a dynamic one drops the oldest between steps and holds 6.
    assert kept(static_cache(model, 20), 20) == ours(20)


# --- Looped forwards --------------------------------------------------------------------------------------------------

LOOPS = ["1:4 x2", "2:5 x3 damped beta=0.5", "3.mlp x3", "1:5 x2 + 2:4 x2 + 3.mlp x3 in pass 1"]


def looped(family: str, text: str) -> tuple[Any, ModelShape, tuple[Loop, ...]]:
    model = eager(family)
    loops = parse_loops(text)
    shape = read_shape(model.config.to_dict())
    return insert(model, loops), shape, loops


@pytest.mark.parametrize("text", LOOPS)
@pytest.mark.parametrize("family", TINY)
def test_the_flop_counter_agrees_on_looped_forwards(family: str, text: str) -> None:
    model, shape, loops = looped(family, text)
    assert merged(counted(model, tokens(1, 20))) == expected(shape, loops, model.config, 20)


@pytest.mark.parametrize("text", LOOPS)
@pytest.mark.parametrize("family", TINY)
def test_looped_caches_hold_what_the_cost_says(family: str, text: str) -> None:
    model, shape, loops = looped(family, text)
    cache = dynamic_cache(model)
    with torch.no_grad():
        model(tokens(1, 6), **{cache_argument(model): cache})
    answer: Cost = cost_of(shape, loops, context_tokens=6, kv_dtype_bytes=4)
    assert cache_bytes(cache) == (answer.kv_bytes, answer.state_bytes)


def test_tiny_configs_name_every_family() -> None:
    """The models above cover the table: a family added to it must get its tiny model too."""
    assert {tiny_config(family).model_type for family in TINY} == set(FAMILIES)
