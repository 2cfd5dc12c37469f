"""The contract, last part: models and forwards that loops are not made for are refused in one line, and left as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from looped import (
    EVERYTHING,
    assert_same_decoding,
    every_family,
    greedy_cached,
    greedy_recomputed,
    logits,
    looped_model,
    plain_model,
    with_cache,
)
from loopwise.loops import Loop, LoopError, parse_loops
from loopwise.models import ModelError, decoder_layers, find_decoder, insert, loops_of, remove
from tiny import FAMILIES, tiny_model, tokens

SMALL: dict[str, Any] = dict(
    vocab_size=128,
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


def refused(error: type[ValueError], words: str, function: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(error, match=words) as refusal:
        function(*args, **options)
    assert "\n" not in str(refusal.value)


def of_class(name: str, **changes: Any) -> Any:
    """A small random model of a family that is not in the table."""
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**(SMALL | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.15)
    return model.eval()


# --- Loops that this model cannot have ---------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("loops", ["4:7 x2", "6.mlp x2", "1:4 x2 + 3:5 x2", "3:3 x2", "4:2 x2", "1:3 x0", "1:3 x2 damped beta=1.5"])
def test_impossible_loops_are_refused_with_the_span_and_the_layer_count(family: str, loops: str) -> None:
    model, ids = plain_model(family), tokens(1, 5)
    before = logits(model, ids)
    refused(LoopError, loops.split(" ")[0].replace(".", r"\.") + r"\b.*6 layers", insert, model, loops)
    assert loops_of(model) == () and torch.equal(logits(model, ids), before)


def test_loops_are_taken_as_text_as_a_value_or_as_several() -> None:
    model, ids = plain_model("llama"), tokens(1, 5)
    expected = logits(looped_model("llama", "1:3 x2 + 4.mlp x2"), ids)
    values = (Loop(1, 3), Loop(4, 5, part="mlp"))
    for loops in ("1-2 x2 + 4.mlp x2", values, list(values), iter(values[::-1])):
        assert torch.equal(logits(insert(model, loops), ids), expected)
        assert loops_of(remove(model)) == ()
    assert loops_of(insert(model, values[0])) == values[:1]
    refused(LoopError, "4:9.*6 layers", insert, remove(model), Loop(4, 9))


def test_no_loop_leaves_the_model_alone() -> None:
    model = plain_model("llama")
    for nothing in ("none", "", ()):
        assert insert(model, nothing) is model
        assert type(decoder_layers(model)) is nn.ModuleList


def test_loops_are_put_in_once() -> None:
    model = looped_model("llama", "1:3 x2")
    refused(ModelError, "already has the loops 1:3 x2; remove them first", insert, model, "2:4 x2")
    assert loops_of(model) == parse_loops("1:3 x2")


def test_removal_from_a_plain_model_does_nothing() -> None:
    model = plain_model("llama")
    before = copy.deepcopy(vars(decoder_layers(model)))
    assert remove(model) is model and remove(nn.Linear(2, 2)) is not None
    assert vars(decoder_layers(model)).keys() == before.keys() and loops_of(model) == ()


def test_removal_leaves_other_peoples_hooks() -> None:
    model, seen = looped_model("llama", "2.mlp x3 damped beta=0.5"), []
    decoder_layers(model)[2].post_attention_layernorm.register_forward_pre_hook(lambda module, args: seen.append(1))
    logits(remove(model), tokens(1, 4))
    assert len(seen) == 1


def test_a_model_whose_layers_changed_is_refused() -> None:
    model = looped_model("llama", "1:3 x2")
    del model.model.layers._modules["5"]
    refused(ModelError, "now has 5 layers, its loops were made for 6; remove them first", logits, model, tokens(1, 4))


# --- Early exit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
def test_an_early_exit_inside_a_span_is_refused_and_elsewhere_right(family: str) -> None:
    model, ids = looped_model(family, "1:4 x2"), tokens(1, 5)
    unlooped = plain_model(family)
    for num_layers in (2, 3):
        model.config.num_hidden_layers = num_layers
        refused(ModelError, f"early exit after {num_layers} layers ends inside the looped layers 1:4", logits, model, ids)
    model.config.num_hidden_layers = unlooped.config.num_hidden_layers = 1
    assert torch.equal(logits(model, ids), logits(unlooped, ids))
    model.config.num_hidden_layers = 4
    shorter = plain_model(family)
    shorter.config.num_hidden_layers = 4
    assert (logits(model, ids) - logits(shorter, ids)).abs().max() > 0.01


# --- A forward that does something between two layers ------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.linear(hidden)


class LlamaModel(nn.Module):
    """A decoder by the name of a known one, whose forward ``between`` layers 1 and 2 is the test's to choose."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(4)])
        self.between = between

    def forward(self, hidden: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers[:4]):
            hidden = layer(hidden)
            if index == 1:
                hidden = self.between(hidden)
        return hidden


BETWEEN = {
    "adds": lambda hidden: hidden + 1.0,
    "adds in place": lambda hidden: hidden.add_(1.0),
    "sets some in place": lambda hidden: hidden.index_fill_(0, torch.tensor([0]), 0.0),
    "copies": lambda hidden: hidden.clone(),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_a_forward_that_changes_the_state_inside_a_span_is_refused(what: str) -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for loops in ("1:3 x2", "0:4 x2 damped beta=0.5", "1:3 x1"):
            model = insert(LlamaModel(BETWEEN[what]), loops)
            refused(ModelError, r"changes the hidden state between layers 1 and 2, inside the looped span", model, x.clone())
        for loops in ("0:2 x2", "2:4 x3 damped beta=0.5", "0:2 x2 + 2:4 x2"):  # on either side of it
            model = LlamaModel(BETWEEN[what])
            plain = model(x.clone())
            assert (insert(model, loops)(x.clone()) - plain).abs().max() > 0.01


def test_a_forward_that_only_looks_inside_a_span_is_taken() -> None:
    x = torch.randn(3, 8)
    model = insert(LlamaModel(lambda hidden: hidden), "1:3 x2")
    first, second, third, fourth = model.layers._modules.values()
    with torch.no_grad():
        assert torch.equal(model(x), fourth(third(second(third(second(first(x)))))))


def test_a_list_of_layers_of_a_kind_of_its_own_is_refused() -> None:
    class Special(nn.ModuleList):
        pass

    model = LlamaModel(lambda hidden: hidden)
    model.layers = Special(model.layers)
    refused(ModelError, "in a Special, not a plain ModuleList", insert, model, "1:3 x2")


# --- Families that are not in the table --------------------------------------------------------------------------------


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    for name in ("Cohere", "StableLm"):
        model = of_class(name)
        refused(ModelError, f"{name}ForCausalLM is not a family .*LlamaModel.*untested_family=True", insert, model, "1:3 x2")
        assert type(model.model.layers) is nn.ModuleList
    refused(ModelError, "Linear is not a family", insert, nn.Linear(2, 2), "1:3 x2")
    refused(ModelError, "Linear is not a family", insert, nn.Linear(2, 2), "1:3 x2", untested_family=True)


@pytest.mark.parametrize("name", ["Cohere", "Granite", "StableLm", "GPTNeoX"])
@pytest.mark.parametrize("loops", ["1:4 x2", "0:5 x2 damped beta=0.25 + 2:3 x3 in pass 2", "1:3 x1"])
def test_an_untested_family_loops_whether_it_slices_or_iterates_its_layers(name: str, loops: str) -> None:
    model = of_class(name)
    ids, mask = tokens(2, 10), torch.ones(2, 10, dtype=torch.long)
    plain, layers = logits(model, ids), find_decoder(model, untested_family=True)[0].layers
    model.train()
    layers[0].training = False  # a mode that the check must leave as it is
    assert insert(model, loops, untested_family=True) is model
    assert model.training and not layers[0].training and layers[1].training
    model.eval()
    assert ((logits(model, ids) - plain).abs().max() > 0.01) == (loops != "1:3 x1")
    assert_same_decoding(greedy_cached(model, ids, mask, 5), greedy_recomputed(model, ids, mask, 5))
    assert torch.equal(logits(remove(model), ids), plain)


def test_an_untested_family_that_is_in_the_table_is_simply_tested() -> None:
    assert loops_of(insert(plain_model("gpt2"), EVERYTHING, untested_family=True)) == parse_loops(EVERYTHING)


def test_the_mlp_half_of_an_untested_family_is_refused() -> None:
    model = of_class("Cohere")
    refused(ModelError, r"loop 2\.mlp: the MLP half .* is not known; use whole layers", insert, model, "2.mlp x2", untested_family=True)
    assert type(model.model.layers) is nn.ModuleList


UNFIT = {
    "Mamba": ({}, "cached decoding with the loop differs from full recompute"),
    "FalconH1": (dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8), "return more than a tensor"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_untested_family_in_which_loops_do_not_work_is_refused(name: str) -> None:
    changes, reason = UNFIT[name]
    model = of_class(name, **changes)
    ids = tokens(2, 10)
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
    refused(ModelError, reason, insert, model, "1:4 x2", untested_family=True)
    layers = find_decoder(model, untested_family=True)[0].layers
    assert type(layers) is nn.ModuleList and not hasattr(layers, "surgery")
    with torch.no_grad():
        assert torch.equal(model(ids, use_cache=False).logits, before)


@pytest.mark.parametrize("what", ["walks by number", "walks twice", "by keyword", "between"])
def test_an_untested_forward_that_passes_by_the_loop_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop would not run, or not as its call sites say, and cached decoding would still equal recompute."""
    cohere = transformers.models.cohere.modeling_cohere.CohereModel
    reasons = {
        "walks by number": "neither slices nor iterates its layers once",
        "walks twice": "neither slices nor iterates its layers once",
        "by keyword": "hidden state by keyword",
        "between": "changes the hidden state between layers 1 and 2",
    }

    def forward(self: Any, input_ids: Tensor, **options: Any) -> Any:
        hidden = self.embed_tokens(input_ids)
        places = torch.arange(input_ids.shape[1])[None]
        extra = dict(position_embeddings=self.rotary_emb(hidden, position_ids=places), attention_mask=None, position_ids=places)
        count = len(self.layers)
        walks = [[self.layers[index] for index in range(count)]] if what == "walks by number" else [self.layers[:count]]
        for layers in walks * (2 if what == "walks twice" else 1):
            for index, layer in enumerate(layers):
                hidden = layer(hidden_states=hidden, **extra) if what == "by keyword" else layer(hidden, **extra)
                hidden = hidden * 1.1 if what == "between" and index == 1 else hidden
        return transformers.modeling_outputs.BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))

    model = of_class("Cohere")
    monkeypatch.setattr(cohere, "forward", forward)
    refused(ModelError, reasons[what], insert, model, "1:4 x2", untested_family=True)
    assert loops_of(model) == () and type(model.model.layers) is nn.ModuleList


# --- Models with more than a text decoder ------------------------------------------------------------------------------


def gemma3_with_vision() -> Any:
    text = tiny_model("gemma3").config.to_dict()
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=14)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(0)
    return transformers.Gemma3ForConditionalGeneration(config).eval()


def qwen3_5_with_vision() -> Any:
    text = tiny_model("qwen3_5").config.to_dict()
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}
    vision = dict(depth=3, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=14)
    torch.manual_seed(0)
    return transformers.Qwen3_5ForConditionalGeneration(transformers.Qwen3_5Config(text_config=text, vision_config=vision)).eval()


@pytest.mark.parametrize("build", [gemma3_with_vision, qwen3_5_with_vision])
def test_only_the_text_layers_of_a_vision_language_model_are_counted(build: Any) -> None:
    model = build()
    assert len(decoder_layers(model)) == 6
    refused(LoopError, "5:7.*6 layers", insert, model, "5:7 x2")
    ids = tokens(2, 10)
    mask = torch.ones_like(ids)
    options = dict(attention_mask=mask, use_cache=False)
    with torch.no_grad():
        plain = model(ids, **options).logits
        looped = insert(model, "1:4 x2 damped beta=0.25 + 1.mlp x3 in pass 2")(ids, **options).logits
        cache = transformers.DynamicCache(config=model.config)
        model(ids[:, :7], attention_mask=mask[:, :7], use_cache=True, **with_cache(model, cache))
        steps = [
            model(ids[:, n : n + 1], attention_mask=mask[:, : n + 1], use_cache=True, **with_cache(model, cache)).logits
            for n in range(7, 10)
        ]
        assert (torch.cat(steps, dim=1) - looped[:, 7:]).abs().max() <= 1e-4
        assert torch.equal(remove(model)(ids, **options).logits, plain)
    assert (looped - plain).abs().max() > 1e-3


def test_a_model_with_two_decoders_is_refused_and_each_of_them_taken() -> None:
    both = nn.ModuleList([plain_model("llama"), plain_model("qwen3")])
    refused(ModelError, "holds 2 decoders; pass the one that is to be looped", insert, both, "1:3 x2")
    insert(both[1], "1:3 x2")
    assert loops_of(both[0]) == () and loops_of(both[1]) == parse_loops("1:3 x2")
