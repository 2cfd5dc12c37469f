"""The contract, fourth part: gradients through a loop, checkpointing, and LoRA. Every family passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from looped import EVERYTHING, TOLERANCE, every_family, logits, looped_model, plain_model, with_cache
from loopwise.models import ModelError, decoder_layers, dynamic_cache, insert, loops_of, remove
from reference import FORMULAS, Halves
from tiny import tiny_model, tokens
from unrolled import unrolled_model

LOOPS = (
    "1:4 x3",
    "1:4 x2 damped beta=0.25",
    "1:3.mlp x3 damped beta=0.5",
    "0:5 x2 + 1:3 x3 damped beta=0.6 in pass 2 + 2.mlp x2 damped beta=0.2 + 4.mlp x2",
)


def gradients(model: Any, ids: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad(set_to_none=True)
    model.train()
    model(ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def checkpointing(model: Any, *, use_reentrant: bool = False) -> Any:
    model = copy.deepcopy(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    return model


def without_dropout(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def assert_equal_gradients(one: dict[str, Tensor | None], other: dict[str, Tensor | None], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, ours in one.items():
        theirs = other[name]
        assert (ours is None) == (theirs is None), name
        if ours is not None and theirs is not None:
            assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item()), name


@every_family
def test_gradients_with_and_without_checkpointing_are_equal(family: str) -> None:
    ids = tokens(2, 10)
    for loops in LOOPS:
        model = without_dropout(looped_model(family, loops))
        plain, saved = gradients(model, ids), gradients(checkpointing(model), ids)
        assert_equal_gradients(saved, plain, 1e-6)
        assert all(value is not None and value.abs().max() > 0 for name, value in plain.items() if "layers.2." in name or "h.2." in name)


@every_family
def test_a_shared_weights_gradient_is_the_sum_over_its_passes(family: str) -> None:
    """Against the unrolled model, whose copies of a layer each keep their own share."""
    ids, order = tokens(2, 10), (0, 1, 2, 3, 2, 3, 4, 1, 2, 3, 2, 3, 4, 5)
    ours = gradients(without_dropout(looped_model(family, "1:5 x2 + 2:4 x2")), ids)
    theirs = gradients(without_dropout(unrolled_model(plain_model(family), order)), ids)
    prefix = "transformer.h." if family == "gpt2" else "model.layers."
    for name, gradient in ours.items():
        if not name.startswith(prefix):
            continue
        layer, rest = name.removeprefix(prefix).split(".", 1)
        shares = [theirs[f"{prefix}{place}.{rest}"] for place, source in enumerate(order) if source == int(layer)]
        total = sum(share for share in shares if share is not None)
        assert gradient is not None and isinstance(total, Tensor)
        assert (gradient - total).abs().max() <= 1e-5 * max(1.0, total.abs().max().item()), name


@every_family
@pytest.mark.parametrize(
    "loops",
    [
        "1:4 x3 damped beta=0.25",
        "2:5.mlp x3 damped beta=0.5",
        "1:4 x2 damped beta=0.25 + 2.mlp x3 damped beta=0.5 in pass 2",
        "0:4 x2 + 0.mlp x3 in pass 1",
    ],
)
def test_gradients_are_those_of_the_formula(family: str, loops: str) -> None:
    """Autograd through the formula written out by hand, for every weight."""
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    plain, model = plain_model(family), looped_model(family, loops)
    halves = Halves(family, plain, ids, mask)
    halves.logits(FORMULAS[loops](halves, halves.entry)).square().mean().backward()
    model(ids, attention_mask=mask, use_cache=False).logits.square().mean().backward()
    theirs = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert_equal_gradients({name: parameter.grad for name, parameter in model.named_parameters()}, theirs, 1e-5)


@pytest.mark.parametrize("family", ["phi3", "gpt2"])
@pytest.mark.parametrize("loops", ["2.mlp x3", "2.mlp x3 damped beta=0.5"])
def test_every_run_of_an_mlp_half_goes_through_its_dropout(family: str, loops: str) -> None:
    """With everything dropped, no half adds anything, however often it runs."""
    others = dict(embd_pdrop=0.0, attn_pdrop=0.0) if family == "gpt2" else {}
    model, ids = tiny_model(family, resid_pdrop=1.0, **others).train(), tokens(2, 10)
    before = logits(model, ids)
    assert torch.equal(logits(insert(model, loops), ids), before)


@pytest.mark.parametrize("family", ["phi3", "gpt2"])
def test_checkpointing_repeats_the_dropout_of_each_pass(family: str) -> None:
    ids = tokens(2, 10)
    changes = dict(resid_pdrop=0.3) if family == "phi3" else dict(resid_pdrop=0.3, attn_pdrop=0.1)
    for loops in ("1:4 x2 damped beta=0.25", "1:3.mlp x3 damped beta=0.5"):
        model = insert(tiny_model(family, **changes), loops)
        torch.manual_seed(3)
        plain = gradients(model, ids)
        torch.manual_seed(3)
        assert_equal_gradients(gradients(checkpointing(model), ids), plain, 1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma2", "gpt2"])
@pytest.mark.parametrize("loops", ["1:4 x2", "1:4 x3 damped beta=0.25", "2.mlp x3", "1:4 x2 + 1:3.mlp x2 in pass 2"])
def test_reentrant_checkpointing_is_right_where_it_is_taken(family: str, loops: str) -> None:
    ids = tokens(2, 10)
    model = without_dropout(looped_model(family, loops))
    # Convolutions round otherwise when they run again on processors without AVX-512: by 1.6e-6 of the largest gradient.
    assert_equal_gradients(gradients(checkpointing(model, use_reentrant=True), ids), gradients(model, ids), 1e-5)


@every_family
def test_reentrant_checkpointing_of_a_damped_mlp_loop_is_refused(family: str) -> None:
    model = checkpointing(looped_model(family, "2.mlp x3 damped beta=0.5"), use_reentrant=True)
    with pytest.raises(ModelError, match=r"loop 2\.mlp: .*reentrant checkpointing \(set use_reentrant=False\)") as refusal:
        gradients(model, tokens(2, 10))
    assert "\n" not in str(refusal.value)
    with torch.no_grad():
        model(tokens(2, 10))  # nothing is checkpointed here


@pytest.mark.parametrize("loops", ["2.mlp x3 damped beta=0.5", "1:4 x2 damped beta=0.25 + 2.mlp x2 damped beta=0.5 in pass 1"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_the_mlp_alone_below_which_nothing_has_a_gradient(loops: str, checkpointed: bool) -> None:
    ids = tokens(2, 10)
    model = looped_model("llama", loops)
    every = gradients(model, ids)
    model = checkpointing(model) if checkpointed else model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".2.mlp" in name)
    for name, gradient in gradients(model, ids).items():
        assert (gradient is None) == (".2.mlp" not in name)
        expected = every[name]
        assert gradient is None or (expected is not None and (gradient - expected).abs().max() <= 1e-6)


@every_family
def test_the_training_loss_is_the_teacher_forced_loss_from_a_cache(family: str) -> None:
    model, ids = without_dropout(looped_model(family, EVERYTHING)), tokens(2, 14)
    model.train()
    with torch.no_grad():
        trained = model(ids, attention_mask=torch.ones_like(ids), labels=ids).loss.item()
    model.eval()
    cache, scores = dynamic_cache(model), []
    with torch.no_grad():
        for place in range(ids.shape[1] - 1):
            mask = torch.ones(2, place + 1, dtype=torch.long)
            scores.append(model(ids[:, place : place + 1], attention_mask=mask, use_cache=True, **with_cache(model, cache)).logits[:, -1])
    cached = torch.nn.functional.cross_entropy(torch.stack(scores, dim=1).flatten(0, 1), ids[:, 1:].flatten()).item()
    assert abs(trained - cached) <= 1e-5


@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_leaves_no_tensor_behind(checkpointed: bool) -> None:
    from loopwise.models import operators

    model = looped_model("olmo2", "1:4 x2 damped beta=0.25 + 2.mlp x3 damped beta=0.5 in pass 1")
    gradients(checkpointing(model) if checkpointed else model, tokens(2, 10))
    assert operators._captured.residual is None


# --- LoRA --------------------------------------------------------------------------------------------------------------


SPAN = (1, 2, 3)
RANK = 4


def with_adapter(model: Any) -> Any:
    """LoRA on every linear module of the layers in `SPAN`, with weights that do something."""
    from peft import LoraConfig, get_peft_model

    linear = (torch.nn.Linear, Conv1D)
    targets = sorted({name.rsplit(".", 1)[-1] for name, module in decoder_layers(model).named_modules() if isinstance(module, linear)})
    torch.manual_seed(5)
    transposed = "c_attn" in targets
    config = LoraConfig(r=RANK, lora_alpha=16, target_modules=targets, layers_to_transform=list(SPAN), fan_in_fan_out=transposed)
    wrapped = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return wrapped.eval()


def parameters_of_one_adapter(model: Any) -> int:
    """Rank times inputs and outputs of every linear module of the span, counted once."""
    modules = [module for layer in SPAN for module in decoder_layers(model)[layer].modules()]
    shapes = [module.weight.shape for module in modules if isinstance(module, (torch.nn.Linear, Conv1D))]
    return sum(RANK * (shape[0] + shape[1]) for shape in shapes)


def adapter(model: Any) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if "lora_" in name}


@every_family
def test_lora_is_one_adapter_for_all_passes_and_merges_exactly(family: str) -> None:
    loops, ids = "1:4 x2 damped beta=0.25 + 1.mlp x3 damped beta=0.5 in pass 1", tokens(2, 12)
    without_loops = with_adapter(plain_model(family))
    model = with_adapter(looped_model(family, loops))
    assert sum(value.numel() for value in adapter(model).values()) == parameters_of_one_adapter(plain_model(family)) > 0
    assert list(adapter(model)) == list(adapter(without_loops))

    looped = logits(model, ids)
    assert (looped - logits(looped_model(family, loops), ids)).abs().max() > 0.01, "the adapter does something"
    adapted = logits(without_loops, ids)
    assert torch.equal(logits(insert(without_loops, loops), ids), looped), "before or after the loop is the same"
    gradients(model, ids)
    assert all(value.grad is not None and value.grad.abs().max() > 0 for value in adapter(model).values())

    merged = model.eval().merge_and_unload()
    assert not adapter(merged) and loops_of(merged)
    assert (logits(merged, ids) - looped).abs().max() <= TOLERANCE
    assert (logits(remove(merged), ids) - adapted).abs().max() <= TOLERANCE
    assert list(merged.state_dict()) == list(plain_model(family).state_dict())


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_every_pass_runs_through_the_adapter(family: str) -> None:
    """Against the unrolled model with the merged weights: an adapter on the first pass alone would differ."""
    ids = tokens(2, 12)
    model = with_adapter(looped_model(family, "1:4 x3"))
    looped = logits(model, ids)
    merged = remove(model.merge_and_unload())
    deeper = unrolled_model(merged, (0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 5))
    assert (looped - logits(deeper, ids)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("loops", ["1:4 x2 damped beta=0.25", "2.mlp x3 damped beta=0.5", EVERYTHING])
def test_lora_with_checkpointing_has_the_same_gradients(loops: str) -> None:
    ids = tokens(2, 12)
    model = with_adapter(looped_model("llama", loops))
    plain = gradients(model, ids)
    saved = checkpointing(model)
    saved.enable_input_require_grads()
    assert_equal_gradients(gradients(saved, ids), plain, 1e-6)


def test_an_adapter_that_is_switched_off_gives_the_looped_base() -> None:
    ids = tokens(2, 12)
    model = with_adapter(looped_model("llama", EVERYTHING))
    with model.disable_adapter():
        assert torch.equal(logits(model, ids), logits(looped_model("llama", EVERYTHING), ids))
