"""The learning recipes on tiny models: every one trains, is killed and goes on, and is saved as a member that loads with its loop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learning_cases import CPU, LOOPS, LORA, STEP_TOKENS, STEPS, TRACES, TUNING, recipes, tiny_folder
from looped import logits
from loopwise.loops import LoopError, format_loops
from loopwise.models import ModelError, load, loop_passes, loops_of
from loopwise.training import (
    Conversion,
    Execution,
    LongFinetune,
    LoraSettings,
    PassSchedule,
    ShortFinetune,
    TrainingError,
    TrainSettings,
    held_out_by_passes,
    read_measured_steps,
    read_metrics,
    train,
    train_conversion,
    train_long_finetune,
    train_short_finetune,
)
from tiny import tokens
from training_cases import KillAfter, Killed, Walks

NAMES = list(recipes(Path()))
ADAPTED = ("short-lora", "conversion", "anchored")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama on the disk."""
    return tiny_folder(tmp_path_factory.mktemp("model"))


def repeatable(out: Path) -> list[dict[str, Any]]:
    return [metrics.repeatable for metrics in read_metrics(out)]


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_killed_twice_is_the_same_recipe(tmp_path: Path, model: Path, name: str) -> None:
    recipe = recipes(tmp_path / "steps.json")[name]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    result = recipe(model, LOOPS, whole)
    for step in (3, 5):
        with pytest.raises(Killed):
            recipe(model, LOOPS, cut, reporter=KillAfter(step))
        assert not (cut / "model").exists()
    recipe(model, LOOPS, cut)
    assert repeatable(cut) == repeatable(whole) and len(repeatable(cut)) == STEPS
    assert weights(cut) == weights(whole)
    again = recipe(model, LOOPS, cut)  # done already
    assert again.loss == result.loss and weights(cut) == weights(whole)

    assert result.model_folder == whole / "model" and result.state.step == STEPS and result.state.flops
    saved, _ = load(result.model_folder)
    base, _ = load(model)
    assert format_loops(loops_of(saved)) == LOOPS and list(saved.state_dict()) == list(base.state_dict())
    assert all(torch.isfinite(parameter).all() for parameter in saved.parameters())
    moved = {name for name, tensor in saved.state_dict().items() if not torch.equal(tensor, base.state_dict()[name])}
    assert moved and (name not in ADAPTED or all(".layers." in one and "norm" not in one for one in moved))


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_sees_the_same_batches_and_has_no_loop(tmp_path: Path, model: Path, name: str) -> None:
    recipe = recipes(tmp_path / "steps.json")[name]
    recipe(model, LOOPS, tmp_path / "looped")
    result = recipe(model, None, tmp_path / "twin")
    ours, theirs = read_metrics(tmp_path / "looped"), read_metrics(tmp_path / "twin")
    assert [(m.step, m.batch_hash, m.lr) for m in ours] == [(m.step, m.batch_hash, m.lr) for m in theirs]
    assert [m.loss for m in ours] != [m.loss for m in theirs] and all(m.passes is None for m in theirs)
    assert loops_of(load(result.model_folder).model) == () and not (result.model_folder / "loop.json").exists()


@pytest.mark.parametrize("lora", [None, LORA])
def test_with_one_pass_the_looped_model_is_the_twin_bit_for_bit(tmp_path: Path, model: Path, lora: LoraSettings | None) -> None:
    settings = TUNING.settings(3, PassSchedule(kind="fixed", most=1))
    from loopwise.training import load_member

    looped, twin = load_member(model, LOOPS, lora=lora), load_member(model, None, lora=lora)
    ids = tokens(2, 12)
    with loop_passes(looped.model, 1):
        assert torch.equal(logits(looped.model, ids), logits(twin.model, ids))
    train(looped.model, TRACES, settings, tmp_path / "looped", execution=CPU)
    train(twin.model, TRACES, replace(settings, passes=None), tmp_path / "twin", execution=CPU)
    ours, theirs = repeatable(tmp_path / "looped"), repeatable(tmp_path / "twin")
    assert [metrics | {"passes": None} for metrics in ours] == theirs
    assert all(torch.equal(one, other) for one, other in zip(looped.model.parameters(), twin.model.parameters(), strict=True))


def test_conversion_begins_without_any_divergence_and_without_the_loop(tmp_path: Path, model: Path) -> None:
    recipes(tmp_path)["conversion"](model, LOOPS, tmp_path)
    first, *later = read_metrics(tmp_path)
    assert first.passes == 1 and first.terms["kl"] == 0.0
    assert all(metrics.terms["kl"] > 0 for metrics in later) and {m.passes for m in later[1:]} == {None}
    for metrics in (first, *later):
        assert metrics.loss == pytest.approx(0.9 * metrics.terms["kl"] + 0.1 * metrics.terms["next_token"], rel=1e-5)


def test_depths_are_drawn_and_written_down(tmp_path: Path, model: Path) -> None:
    longer = replace(TUNING, num_tokens=12 * STEP_TOKENS)
    from loopwise.training import AnchoredRecurrentDepth, ContinuedPretraining, train_anchored, train_continued

    train_continued(model, LOOPS, TRACES, ContinuedPretraining(tuning=longer), tmp_path / "continued", execution=CPU)
    assert {metrics.passes for metrics in read_metrics(tmp_path / "continued")} == {1, 2, 3}
    train_anchored(model, LOOPS, TRACES, AnchoredRecurrentDepth(tuning=longer, lora=LORA), tmp_path / "anchored", execution=CPU)
    found = read_metrics(tmp_path / "anchored")
    assert {metrics.passes for metrics in found} == {1, 2, 3}
    assert all((metrics.terms["consistency"] > 0) == (metrics.passes != 1) for metrics in found)
    assert found[0].terms["anchor"] == 0.0 and found[-1].terms["anchor"] > 0


@pytest.mark.parametrize("name", ["short", "conversion", "anchored"])
@pytest.mark.parametrize("how", ["micro batches", "activations made again"])
def test_accumulation_and_checkpointing_change_nothing(tmp_path: Path, model: Path, name: str, how: str) -> None:
    recipe = recipes(tmp_path / "steps.json")[name]
    changed = replace(CPU, micro_batch_sequences=1) if how == "micro batches" else replace(CPU, checkpoint_activations=True)
    recipe(model, LOOPS, tmp_path / "one")
    recipe(model, LOOPS, tmp_path / "other", execution=changed)
    for one, other in zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "other"), strict=True):
        assert (one.batch_hash, one.passes) == (other.batch_hash, other.passes)
        assert one.loss == pytest.approx(other.loss, rel=1e-4) and one.grad_norm == pytest.approx(other.grad_norm, rel=1e-3)
        assert one.terms == pytest.approx(other.terms, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5"])
def test_an_adapter_trains_merges_and_reloads_to_the_same_logits(tmp_path: Path, family: str) -> None:
    from peft import PeftModel

    folder, out = tiny_folder(tmp_path / "model", family), tmp_path / "out"
    recipes(tmp_path / "steps.json")["short-lora"](folder, LOOPS, out)
    merged, tokenizer = load(out / "model")
    base = load(folder, loops=LOOPS).model
    read = PeftModel.from_pretrained(base, out / "adapter")
    ids = tokens(2, 12)
    unmerged, change = logits(read, ids), json.loads((out / "merge.json").read_text(encoding="utf-8"))
    assert (logits(merged, ids) - unmerged).abs().max() <= 1e-4
    with read.disable_adapter():
        assert (logits(read, ids) - unmerged).abs().max() > 1e-3, "the adapter learned something"
    assert 0 <= change["mean"] <= change["largest"] <= 1e-4 and change["num_tokens"] == 12
    assert tokenizer.pad_token == "w0"


def test_checkpoints_hold_the_adapter_and_no_frozen_weight(tmp_path: Path, model: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    recipes(tmp_path)["conversion"](model, LOOPS, tmp_path)
    names = FileSystemReader(tmp_path / "checkpoints" / f"step-{STEPS:08}").read_metadata().state_dict_metadata
    assert names and all("lora_" in name for name in names)
    adapter = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(adapter) == sum(name.startswith("model.") for name in names)
    header = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert header["objective"] == {"objective": "near teacher", "kl_weight": 0.9} and header["model"]["adapter"]["rank"] == 4
    assert header["settings"]["passes"]["kind"] == "introduced" and header["model"]["config"]["loops"] == [LOOPS_VALUE]


LOOPS_VALUE = "Loop(start=2, stop=4, passes=2, operator='damped', beta=0.5, part='layer', in_pass=None)"


def test_a_recipe_goes_on_only_as_it_began(tmp_path: Path, model: Path) -> None:
    settings = Conversion(tuning=replace(TUNING, num_tokens=STEP_TOKENS), lora=LORA)

    def convert(changed: Conversion, folder: Path = model) -> None:
        train_conversion(folder, LOOPS, TRACES, changed, tmp_path / "out", execution=CPU)

    convert(settings)
    for changed, words in (
        (replace(settings, objective=replace(settings.objective, kl_weight=0.8)), r"objective.kl_weight 0.9, now it is 0.8"),
        (replace(settings, lora=replace(LORA, alpha=16.0)), r"model.adapter.alpha 8.0, now it is 16.0"),
        (replace(settings, passes=PassSchedule()), r"settings.passes.kind"),
    ):
        with pytest.raises(TrainingError, match=words):
            convert(changed)
    with pytest.raises(TrainingError, match=r"model.first_weights"):  # a frozen weight is another one
        convert(settings, tiny_folder(tmp_path / "other", rms_norm_eps=1e-6, seed=5))


def test_the_long_fine_tune_takes_the_looped_models_time(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The steps are made; their times are given, so that no clock decides: two that do not count, and two of 0.05 s on average.
    def timed(out: Path) -> list[Any]:
        return [replace(metrics, seconds=seconds) for metrics, seconds in zip(read_metrics(out), (9.0, 9.0, 0.04, 0.06), strict=True)]

    monkeypatch.setattr("loopwise.training.long_finetune.read_metrics", timed)
    steps, settings = tmp_path / "set" / "steps.json", LongFinetune(tuning=replace(TUNING, num_tokens=10**9), measured_steps=2)

    def member(loops: str | None, out: str, changed: LongFinetune) -> Any:
        return train_long_finetune(model, loops, TRACES, changed, tmp_path / out, steps_file=steps, execution=CPU)

    with pytest.raises(TrainingError, match=r"not measured yet; train the looped member first"):
        member(None, "twin", settings)
    assert not (tmp_path / "twin").exists()
    with pytest.raises(TrainingError, match=r"more than the budget of 1e-09 s; give more time"):
        member(LOOPS, "early", replace(settings, budget_seconds=1e-9))
    settings = replace(settings, budget_seconds=0.52)
    looped = member(LOOPS, "looped", settings)
    found = read_measured_steps(steps)
    assert found is not None and found.num_steps == 10 and found.step_tokens == STEP_TOKENS
    assert looped.state.step == found.num_steps == member(None, "twin", settings).state.step
    assert member(LOOPS, "looped", settings).loss == looped.loss and read_measured_steps(steps) == found
    assert not (tmp_path / "looped" / "measured" / "checkpoints").exists()
    with pytest.raises(TrainingError, match=r"was measured for 0.52 s and steps of 48 tokens, not 0.3 s"):
        member(None, "twin", replace(settings, budget_seconds=0.3))
    for damaged in ("{", "[]", json.dumps({"num_steps": 0}), steps.read_text(encoding="utf-8").replace('"num_steps": ', '"num_steps": -')):
        steps.write_text(damaged, encoding="utf-8")
        with pytest.raises(TrainingError, match="is no measured step count"):
            member(None, "twin", settings)


def test_losses_are_told_at_every_depth(tmp_path: Path, model: Path) -> None:
    looped, batches = load(model, loops=LOOPS).model, [TRACES.batch(50)]
    found = held_out_by_passes(looped, batches, (1, 2, 3))
    for passes in (1, 2, 3):
        other = load(model, loops=LOOPS.replace("x2", f"x{passes}")).model
        assert held_out_by_passes(other, batches, [passes])[f"held_out_loss_{passes}"] == found[f"held_out_loss_{passes}"]
    assert len(set(found.values())) == 3
    with pytest.raises(ModelError, match="has no loop that was put in"):
        held_out_by_passes(load(model).model, batches, (1, 2))


def test_what_cannot_be_is_refused_before_weights_are_read(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("loopwise.training.tuning.load", never)
    gpt2 = tiny_folder(tmp_path / "gpt2", "gpt2")
    unpadded = tiny_folder(tmp_path / "unpadded", pad_token=None)
    out, short, conversion = tmp_path / "out", ShortFinetune(tuning=TUNING), Conversion(tuning=TUNING, lora=LORA)

    def refused(words: str, loops: Any = LOOPS, *, folder: Path = model, settings: Any = short, source: Any = TRACES) -> None:
        recipe: Any = train_conversion if isinstance(settings, Conversion) else train_short_finetune
        with pytest.raises((TrainingError, LoopError, ModelError), match=words) as raised:
            recipe(folder, loops, source, settings, out, execution=CPU)
        assert "\n" not in str(raised.value)

    refused(r"loop 4:9 is out of range: the model has 6 layers", "4:9 x2")
    refused(r"2:4 has 0 passes", "2:4 x0")
    refused(r"no loop to learn in 'none'", "none")
    refused(r"has no pad token; set one", folder=unpadded)
    refused(r"less than one step of 4800", source=Walks(num_sequences=400))
    refused(r"the head of a gpt2 is not known to be one matrix", folder=gpt2, settings=conversion)
    refused(r"'c_attn' is no linear module", settings=replace(conversion, lora=replace(LORA, targets=("c_attn",))))
    refused(r"no such folder", folder=tmp_path / "nowhere")
    assert not out.exists()


def test_an_objective_of_its_own_is_not_sharded_and_passes_need_a_loop(tmp_path: Path, model: Path) -> None:
    from loopwise.training import NextToken

    loaded = load(model).model
    with pytest.raises(TrainingError, match=r"only one; start it with torchrun"):
        train(
            loaded,
            TRACES,
            TrainSettings(num_steps=1),
            tmp_path / "out",
            objective=NextToken(),
            execution=Execution(device="cpu", fsdp=True),
        )
    with pytest.raises(TrainingError, match=r"passes are for a model that loops were put into"):
        train(loaded, TRACES, TrainSettings(num_steps=1, passes=PassSchedule(kind="fixed", most=1)), tmp_path / "out", execution=CPU)
    assert not (tmp_path / "out").exists()


def test_bf16_products_keep_fp32_adapters_that_learn(tmp_path: Path, model: Path) -> None:
    for name, dtype in (("fine", "fp32"), ("rough", "bf16")):
        settings = Conversion(tuning=replace(TUNING, dtype=dtype), lora=LORA)  # type: ignore[arg-type]
        train_conversion(model, LOOPS, TRACES, settings, tmp_path / name, execution=CPU)
    fine, rough = read_metrics(tmp_path / "fine"), read_metrics(tmp_path / "rough")
    assert rough[0].terms["kl"] == 0.0
    assert [m.terms["next_token"] for m in rough] == pytest.approx([m.terms["next_token"] for m in fine], rel=0.05)
    assert [m.grad_norm for m in rough] == pytest.approx([m.grad_norm for m in fine], rel=0.3)
    adapter = load_file(tmp_path / "rough" / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}
    assert all(tensor.any() for name, tensor in adapter.items() if "lora_B" in name)
