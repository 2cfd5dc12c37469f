"""The training engine in one process: it learns, accumulates, resumes bit for bit, stops at a bad loss and refuses what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from loopwise.data import TokenBatch
from loopwise.nets import NetError, Recurrence
from loopwise.training import (
    Execution,
    StepMetrics,
    TrainingError,
    TrainSettings,
    held_out_loss,
    read_evaluations,
    read_metrics,
    train,
)
from tiny_nets import token_ids
from training_cases import Kept, KillAfter, Killed, Walks, fresh_net

SETTINGS = TrainSettings(num_steps=6, learning_rate=3e-3, warmup_steps=2)
CPU = Execution(device="cpu", checkpoint_every_steps=2)


def repeatable(out: Path) -> list[dict[str, Any]]:
    return [metrics.repeatable for metrics in read_metrics(out)]


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_tiny_network_learns(tmp_path: Path, optimizer: str) -> None:
    settings = TrainSettings(num_steps=60, learning_rate=1e-2, warmup_steps=5, optimizer=optimizer)  # type: ignore[arg-type]
    source = Walks(left_out=False)
    held_out = [source.batch(1000)]
    result = train(
        fresh_net("arloop-sw"),
        source,
        settings,
        tmp_path,
        execution=Execution(device="cpu", evaluate_every_steps=30),
        evaluate=lambda model, step: {"held_out_loss": held_out_loss(model, held_out)},
    )
    losses = [metrics.loss for metrics in read_metrics(tmp_path)]
    assert losses[0] == pytest.approx(np.log(64), abs=1.0) and losses[-1] == result.loss < losses[0] - 1.5
    found = read_evaluations(tmp_path)
    assert sorted(found) == [30, 60] and found[60] == result.evaluation
    assert found[60]["held_out_loss"] == pytest.approx(result.loss, abs=0.5)
    assert result.state.step == 60 and result.state.tokens == 60 * 8 * 12 and result.state.flops
    again = AutoModelForCausalLM.from_pretrained(result.model_folder)
    assert held_out_loss(again, held_out) == pytest.approx(found[60]["held_out_loss"], abs=1e-6)


RECURRENCES = {
    "fixed": None,
    "poisson": Recurrence(kind="poisson", mean=2, most=3),
    "per sequence": Recurrence(kind="poisson", mean=2, most=3, per_sequence=True),
    "truncated": Recurrence(kind="lognormal_poisson", mean=3, backprop_loops=1),
}
RESUMED = [
    ("arloop-sw", "adamw", "per sequence"),
    ("injected", "adamw", "truncated"),
    ("parcae", "muon", "poisson"),
    ("span-damped", "adamw", "per sequence"),
    ("span-parcae", "adamw", "truncated"),
]


@pytest.mark.parametrize(("name", "optimizer", "recurrence"), RESUMED)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, name: str, optimizer: str, recurrence: str) -> None:
    settings = replace(SETTINGS, optimizer=optimizer, recurrence=RECURRENCES[recurrence])
    changes: dict[str, Any] = {"block_size_sublayers": 2} if name == "arloop-sw" else {}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    result = train(fresh_net(name, **changes), Walks(), settings, whole, execution=CPU)
    for step in (3, 5):
        with pytest.raises(Killed):
            train(fresh_net(name, **changes), Walks(), settings, cut, execution=CPU, reporter=KillAfter(step))
    told = Kept()
    again = train(fresh_net(name, **changes), Walks(), settings, cut, execution=CPU, reporter=told)
    assert any("going on after step 4" in note for note in told.notes)
    assert repeatable(cut) == repeatable(whole) and len(repeatable(cut)) == 6
    if recurrence != "fixed":
        assert len({metrics["num_loops"] for metrics in repeatable(cut)}) > 1
    assert again.state.tokens == result.state.tokens and again.state.flops == result.state.flops
    assert (cut / "model" / "model.safetensors").read_bytes() == (whole / "model" / "model.safetensors").read_bytes()
    finished = train(fresh_net(name, **changes), Walks(), settings, cut, execution=CPU)
    assert finished.loss == result.loss and repeatable(cut) == repeatable(whole)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(fresh_net(), Walks(), SETTINGS, whole, execution=CPU)
    with pytest.raises(Killed):
        train(fresh_net(), Walks(), SETTINGS, cut, execution=CPU, reporter=KillAfter(5))
    newest = cut / "checkpoints" / "step-00000004"
    next(newest.glob("*.distcp")).write_bytes(b"")
    told = Kept()
    train(fresh_net(), Walks(), SETTINGS, cut, execution=CPU, reporter=told)
    assert any("is not what was written" in note for note in told.notes) and any("after step 2" in note for note in told.notes)
    assert repeatable(cut) == repeatable(whole)
    assert sorted(folder.name for folder in (cut / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]


@pytest.mark.parametrize("size", [1, 3])
def test_micro_batches_give_the_gradient_of_one_batch(tmp_path: Path, size: int) -> None:
    train(fresh_net(init="scaled"), Walks(), SETTINGS, tmp_path / "one", execution=CPU)
    train(fresh_net(init="scaled"), Walks(), SETTINGS, tmp_path / "more", execution=replace(CPU, micro_batch_sequences=size))
    one, more = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "more")
    assert [m.batch_hash for m in one] == [m.batch_hash for m in more]
    assert [m.loss for m in one] == pytest.approx([m.loss for m in more], rel=1e-5)
    assert [m.grad_norm for m in one] == pytest.approx([m.grad_norm for m in more], rel=1e-4)


def test_the_first_gradient_is_that_of_the_mean_over_targets(tmp_path: Path) -> None:
    net, batch = fresh_net(init="scaled"), Walks().batch(0)
    train(fresh_net(init="scaled"), Walks(), replace(SETTINGS, num_steps=1, warmup_steps=0), tmp_path, execution=CPU)
    logits = net(torch.from_numpy(batch.input_ids)).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets).flatten())
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]))
    first = read_metrics(tmp_path)[0]
    assert first.loss == pytest.approx(float(loss.detach()), rel=1e-6) and first.grad_norm == pytest.approx(float(norm), rel=1e-5)


class Breaking(KillAfter):
    """Makes a weight infinite after a step."""

    def __init__(self, step: int, net: Any) -> None:
        super().__init__(step)
        self.net = net

    def step(self, metrics: StepMetrics, num_steps: int) -> None:
        """Break it?"""
        if metrics.step == self.at:
            with torch.no_grad():
                self.net.model.design.final_norm.weight[0] = float("inf")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    # Step 5 writes no checkpoint, so the last good one is that of step 4.
    net = fresh_net()
    with pytest.raises(TrainingError, match=r"step 6: the loss is nan on batch [0-9a-f]{16} .*checkpoint is .*step-00000004") as raised:
        train(net, Walks(), SETTINGS, tmp_path, execution=CPU, reporter=Breaking(5, net))
    assert "\n" not in str(raised.value)
    assert [metrics.step for metrics in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    assert not (tmp_path / "model").exists()
    whole = tmp_path / "whole"
    train(fresh_net(), Walks(), SETTINGS, whole, execution=CPU)
    train(fresh_net(), Walks(), SETTINGS, tmp_path, execution=CPU)  # goes on from what was good
    assert repeatable(tmp_path) == repeatable(whole)


def test_a_step_with_a_bad_loss_changes_no_weight(tmp_path: Path) -> None:
    net = fresh_net()
    with torch.no_grad():
        net.model.design.final_norm.weight[0] = float("nan")
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    with pytest.raises(TrainingError, match=r"step 1: the loss is nan .*there is no checkpoint yet"):
        train(net, Walks(), SETTINGS, tmp_path, execution=CPU)
    assert all(torch.equal(before[name].nan_to_num(), parameter.nan_to_num()) for name, parameter in net.named_parameters())


def test_another_run_is_refused_by_the_field_that_differs(tmp_path: Path) -> None:
    train(fresh_net(), Walks(), replace(SETTINGS, num_steps=1, warmup_steps=0), tmp_path, execution=CPU)
    settings = replace(SETTINGS, num_steps=1, warmup_steps=0)
    with pytest.raises(TrainingError, match=r"was trained with settings.learning_rate 0.003, now it is 0.004; give a new --out"):
        train(fresh_net(), Walks(), replace(settings, learning_rate=4e-3), tmp_path, execution=CPU)
    with pytest.raises(TrainingError, match=r"data.walks 1, now it is 2"):
        train(fresh_net(), Walks(identity={"walks": 2}), settings, tmp_path, execution=CPU)
    with pytest.raises(TrainingError, match=r"model\.first_weights"):
        train(fresh_net(seed=1), Walks(), settings, tmp_path, execution=CPU)
    with pytest.raises(TrainingError, match=r"model\.config"):
        train(fresh_net(qk_norm=False), Walks(), settings, tmp_path, execution=CPU)
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(TrainingError, match=r"run.json: damaged"):
        train(fresh_net(), Walks(), settings, tmp_path, execution=CPU)


def test_what_cannot_be_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    per_sequence = replace(SETTINGS, recurrence=RECURRENCES["per sequence"])

    def refused(words: str, model: Any = None, source: Any = None, settings: TrainSettings = SETTINGS, execution: Execution = CPU) -> None:
        kind: Any = (TrainingError, NetError)
        with pytest.raises(kind, match=words):
            train(model or fresh_net(), source or Walks(), settings, out, execution=execution)

    refused("vocabulary of 32", model=fresh_net(vocab_size=32))
    refused("recurrence is for networks of nets", model=small_llama(), settings=per_sequence)
    refused("straddle", model=fresh_net("arloop-sw", block_size_sublayers=3), settings=per_sequence)
    refused("only one; start it with torchrun", execution=replace(CPU, fsdp=True))
    if not torch.cuda.is_available():
        refused("sees no CUDA device", execution=Execution(device="cuda"))
    assert not out.exists()


def test_a_run_that_cannot_fit_is_refused_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwise.training.preparing.free_memory_bytes", lambda device: 200_000)
    with pytest.raises(TrainingError, match=r"the run needs about \d+ MB a process .* there are \d MB"):
        train(fresh_net(), Walks(), SETTINGS, tmp_path / "out", execution=CPU)
    assert not (tmp_path / "out").exists()


def test_two_runs_in_one_folder_exclude_each_other(tmp_path: Path) -> None:
    class Second(Kept):
        def step(self, metrics: StepMetrics, num_steps: int) -> None:
            with pytest.raises(TrainingError, match="another process is training here"):
                train(fresh_net(), Walks(), SETTINGS, tmp_path, execution=CPU)
            raise Killed

    with pytest.raises(Killed):
        train(fresh_net(), Walks(), SETTINGS, tmp_path, execution=CPU, reporter=Second())


def test_a_run_tells_what_it_takes(tmp_path: Path) -> None:
    told = Kept()
    train(fresh_net(), Walks(), SETTINGS, tmp_path, execution=CPU, reporter=told)
    assert any("FLOPs for 576 tokens" in note for note in told.notes)
    assert any("by the last 2 steps, the other 3 take 0:" in note for note in told.notes)


def test_torchs_random_numbers_and_precision_are_left_as_they_were(tmp_path: Path) -> None:
    net = fresh_net("injected")
    before, precision = torch.random.get_rng_state(), torch.get_float32_matmul_precision()
    train(net, Walks(), replace(SETTINGS, tf32=True), tmp_path, execution=CPU)
    assert torch.equal(torch.random.get_rng_state(), before) and torch.get_float32_matmul_precision() == precision


def test_a_hugging_face_model_trains_on_the_same_engine(tmp_path: Path) -> None:
    settings = replace(SETTINGS, num_steps=20, warmup_steps=0)
    result = train(small_llama(), Walks(left_out=False), settings, tmp_path, execution=CPU)
    metrics = read_metrics(tmp_path)
    assert metrics[-1].loss < metrics[0].loss - 0.3 and metrics[0].num_loops is None
    assert type(AutoModelForCausalLM.from_pretrained(result.model_folder)) is LlamaForCausalLM
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["model"]["config"] == {"model_type": "llama", "loops": []}


def test_documents_that_share_a_row_do_not_see_one_another(tmp_path: Path) -> None:
    class Packed:
        num_sequences, sequence_tokens, identity = 1, 12, {"packed": 1}  # a source's identity is a value

        def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
            ids = token_ids(1, 13, seed=step).numpy()
            targets = ids[:, 1:].copy()
            targets[0, :5] = -100
            positions = np.array([[*range(5), *range(7)]], dtype=np.int64)
            return TokenBatch(input_ids=ids[:, :-1].copy(), targets=targets, positions=positions)

    net = fresh_net(init="scaled")
    batch = Packed().batch(0)
    alone = net(torch.from_numpy(batch.input_ids[:, 5:])).logits[0]
    wanted = torch.nn.functional.cross_entropy(alone, torch.from_numpy(batch.targets[0, 5:]))
    train(net, Packed(), replace(SETTINGS, num_steps=1, warmup_steps=0), tmp_path, execution=CPU)
    assert read_metrics(tmp_path)[0].loss == pytest.approx(float(wanted.detach()), rel=1e-5)


def test_bf16_keeps_fp32_weights_and_stays_near(tmp_path: Path) -> None:
    net = fresh_net("arloop-sw", init="scaled")
    train(net, Walks(), replace(SETTINGS, dtype="bf16"), tmp_path / "bf16", execution=CPU)
    train(fresh_net("arloop-sw", init="scaled"), Walks(), SETTINGS, tmp_path / "fp32", execution=CPU)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    rough, fine = read_metrics(tmp_path / "bf16"), read_metrics(tmp_path / "fp32")
    assert [m.loss for m in rough] == pytest.approx([m.loss for m in fine], abs=0.05)
    assert [m.loss for m in rough] != [m.loss for m in fine]


def test_activations_made_again_change_nothing(tmp_path: Path) -> None:
    train(fresh_net("sandwich"), Walks(), SETTINGS, tmp_path / "kept", execution=CPU)
    train(fresh_net("sandwich"), Walks(), SETTINGS, tmp_path / "again", execution=replace(CPU, checkpoint_activations=True))
    assert [m.loss for m in read_metrics(tmp_path / "kept")] == pytest.approx([m.loss for m in read_metrics(tmp_path / "again")], rel=1e-6)


def test_blocks_are_compiled_once_for_all_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    import torch._dynamo

    torch._dynamo.reset()
    plain_compile = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: plain_compile(self, backend=backend))
    settings = replace(SETTINGS, recurrence=Recurrence(kind="uniform", most=3))
    train(fresh_net(), Walks(), settings, tmp_path / "compiled", execution=replace(CPU, compile=True))
    train(fresh_net(), Walks(), settings, tmp_path / "eager", execution=CPU)
    assert [m.loss for m in read_metrics(tmp_path / "compiled")] == pytest.approx(
        [m.loss for m in read_metrics(tmp_path / "eager")], rel=1e-5
    )
    assert 0 < len(compiled) <= 6  # attention and MLP of two layers, with and without a table of values, not one for each depth


def test_a_full_disk_leaves_the_checkpoints_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import loopwise.training.checkpoints as checkpoints

    plain_save, whole = checkpoints.save, tmp_path / "whole"
    saves = []

    def full(*arguments: Any, **named: Any) -> Any:
        saves.append(1)
        if len(saves) == 2:
            raise checkpoints.CheckpointException("save", {0: (OSError(28, "No space left on device"), None)})  # type: ignore[arg-type]
        return plain_save(*arguments, **named)

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(OSError, match=r"No space left on device.*the checkpoints before are safe"):
        train(fresh_net(), Walks(), SETTINGS, tmp_path / "cut", execution=CPU)
    train(fresh_net(), Walks(), SETTINGS, tmp_path / "cut", execution=CPU)
    train(fresh_net(), Walks(), SETTINGS, whole, execution=CPU)
    assert repeatable(tmp_path / "cut") == repeatable(whole)
