"""The parts of the training engine one by one: schedules, parameter groups, the loss, estimates, metrics, checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwise.cli.console import UsageError
from loopwise.cli.train import parse_count
from loopwise.cost import cost_of, read_shape
from loopwise.nets import Depth, LoopedTransformer, Recurrence, named
from loopwise.training import Execution, Ranks, TrainingError, TrainSettings, check_fits, estimate, held_out_loss, parameter_groups
from loopwise.training.checkpoints import checkpoint_folders, keep_newest, load_checkpoint, newest_checkpoint, save_checkpoint
from loopwise.training.estimate import activation_bytes
from loopwise.training.flops import StepFlops
from loopwise.training.losses import chunked_loss, head_loss, summed_loss
from loopwise.training.metrics import MetricsWriter, StepMetrics, batch_hash, peak_flops, read_evaluations, read_metrics
from loopwise.training.optimizers import make_optimizers, optimizer_tensors, set_learning_rates
from loopwise.training.reporting import State
from loopwise.training.schedules import learning_rate_factor
from loopwise.training.settings import first_difference
from tiny_nets import DESIGNS, tiny_architecture, tiny_net, token_ids
from training_cases import Walks, fresh_net


def factor(step: int, **changes: Any) -> float:
    options: dict[str, Any] = dict(schedule="cosine", num_steps=100, warmup_steps=10, final_factor=0.01, cooldown_share=0.5)
    return learning_rate_factor(step, **options | changes)


def test_schedules_have_their_corners() -> None:
    assert [factor(step) for step in (0, 4, 9, 10)] == [0.1, 0.5, 1.0, 1.0]
    assert factor(99) == pytest.approx(0.01)
    assert factor(54) == pytest.approx(0.505, abs=0.01)  # half-way from the warm-up's end to the last step
    assert all(factor(step) >= factor(step + 1) for step in range(10, 99))
    assert [factor(step, schedule="constant") for step in (3, 10, 99)] == [0.4, 1.0, 1.0]
    trapezoid = [factor(step, schedule="trapezoid", warmup_steps=0) for step in range(100)]
    assert trapezoid[:51] == [1.0] * 51 and trapezoid[75] == 0.5 and trapezoid[99] == 0.02
    assert factor(99, schedule="trapezoid", cooldown_share=0.0) == 1.0
    assert factor(0, num_steps=1, warmup_steps=0) == 1.0


VECTORS = ("norm", "gate", "embed_tokens", "value_tables", "queries", "key_gains", "A_log", "dt_bias", "design.B", "value_mix")


@pytest.mark.parametrize("name", [*DESIGNS, "arloop-gains"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_parameter_is_in_the_group_that_its_name_says(name: str, optimizer: str) -> None:
    architecture = tiny_architecture("arloop-full", depth_key_gain=True) if name == "arloop-gains" else tiny_architecture(name)
    net = LoopedTransformer.from_architecture(architecture)
    groups = parameter_groups(net, optimizer)
    assert list(groups) == [parameter for parameter, _ in net.named_parameters()]
    for parameter, group in groups.items():
        is_vector = any(part in parameter.removesuffix("gate_proj.weight") for part in VECTORS)
        in_layer = "layers." in parameter
        wanted = "no_decay" if is_vector else "muon" if in_layer and optimizer == "muon" else "decay"
        assert group == wanted, parameter
    assert "muon" in groups.values() or optimizer == "adamw"
    if not architecture.tie_word_embeddings:
        assert groups["lm_head.weight"] == "decay"
    made = make_optimizers(net, groups, TrainSettings(num_steps=1, optimizer=optimizer))  # type: ignore[arg-type]
    chosen = [id(p) for one in made for group in one.param_groups for p in group["params"]]
    assert sorted(chosen) == sorted(map(id, net.parameters()))
    decays = {id(p): group["weight_decay"] for one in made for group in one.param_groups for p in group["params"]}
    assert all((decays[id(p)] == 0) == (groups[name] == "no_decay") for name, p in net.named_parameters())


def test_muon_is_refused_where_matrices_are_not_known() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(TrainingError, match="muon is for networks of nets"):
        parameter_groups(model, "muon")
    groups = parameter_groups(model, "adamw")
    assert groups["model.layers.0.self_attn.q_proj.weight"] == "decay" and groups["model.norm.weight"] == "no_decay"
    model.requires_grad_(False)
    with pytest.raises(TrainingError, match="no parameter that is trained"):
        parameter_groups(model, "adamw")


def test_muon_moves_a_matrix_by_an_orthogonal_one() -> None:
    net = fresh_net(init="scaled")
    settings = TrainSettings(
        num_steps=1, optimizer="muon", learning_rate=0.5, muon_learning_rate=0.25, weight_decay=0.0, schedule="constant"
    )
    optimizers = make_optimizers(net, parameter_groups(net, "muon"), settings)
    assert set_learning_rates(optimizers, settings, 0) == 0.5
    matrix = net.model.layers[0].mlp.up_proj.weight  # 48 rows, 32 columns
    before = matrix.detach().clone()
    summed_loss(net, token_ids(2, 8), token_ids(2, 8, seed=1)).backward()
    for optimizer in optimizers:
        optimizer.step()
    singular = torch.linalg.svdvals((before - matrix.detach()) / (0.25 * math.sqrt(48 / 32)))
    assert float(singular.min()) > 0.5 and float(singular.max()) < 1.4  # five Newton-Schulz steps bring them near one


def head_case() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(37, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(50, (37,))
    targets[::5] = -100
    return hidden, weight, targets


def test_the_loss_of_a_head_is_cross_entropy_whatever_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    hidden, weight, targets = head_case()
    plain = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    wanted = gradients(plain, hidden, weight)
    found = {"as installed": gradients(head_loss(hidden, weight, targets), hidden, weight)}
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    monkeypatch.setattr("loopwise.training.losses._CHUNK_LOGITS", 50 * 8)  # several chunks
    found["in chunks"] = gradients(head_loss(hidden, weight, targets), hidden, weight)
    for how, values in found.items():
        for ours, theirs in zip(values, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=how)
    with torch.no_grad():
        torch.testing.assert_close(head_loss(hidden, weight, targets), plain.detach())


def test_chunks_hold_few_logits_at_once() -> None:
    hidden, weight, targets = head_case()
    widest = []

    def loss(chunk: Tensor, targets: Tensor) -> Tensor:
        widest.append(len(chunk))
        return torch.nn.functional.cross_entropy(chunk @ weight.T, targets, reduction="sum")

    chunked_loss(loss, hidden, targets, width=(1 << 24) // 10)
    assert widest == [10, 10, 10, 7]


def test_models_without_a_plain_head_lose_the_same() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    llama = LlamaForCausalLM(LlamaConfig(**sizes))
    inputs, targets = token_ids(2, 9) % 32, token_ids(2, 9, seed=3) % 32
    known = summed_loss(llama, inputs, targets)
    llama.config.model_type = "something else"
    torch.testing.assert_close(summed_loss(llama, inputs, targets), known)


def test_bf16_losses_are_summed_in_fp32() -> None:
    hidden, weight, targets = head_case()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head_loss(hidden, weight, targets)
    assert loss.dtype == torch.float32
    exact = torch.nn.functional.cross_entropy((hidden.bfloat16() @ weight.bfloat16().T).float(), targets, reduction="sum")
    torch.testing.assert_close(loss, exact, rtol=1e-5, atol=1e-4)


def test_held_out_loss_counts_targets_not_batches() -> None:
    net, source = tiny_net("prenorm"), Walks()
    whole = source.batch(3)
    parts = [source.batch(3, 0, 1), source.batch(3, 1, 6), source.batch(3, 6, 8)]
    assert held_out_loss(net, parts) == pytest.approx(held_out_loss(net, [whole]), rel=1e-6)
    assert held_out_loss(net, [whole], num_loops=1) != pytest.approx(held_out_loss(net, [whole]), rel=1e-3)
    logits = net(torch.from_numpy(whole.input_ids)).logits.flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, torch.from_numpy(whole.targets).flatten())
    assert held_out_loss(net, [whole]) == pytest.approx(float(wanted.detach()), rel=1e-5)
    with pytest.raises(TrainingError, match="no target"):
        held_out_loss(net, [])


def test_ranks_share_out_everything_once() -> None:
    three = [Ranks(rank=rank, size=3) for rank in range(3)]
    shared = [list(one.share_out(range(7))) for one in three]
    assert len({len(one) for one in shared}) == 1
    assert sorted(value for one in shared for value, counts in one if counts) == list(range(7))
    assert [list(one.rows(6)) for one in three] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TrainingError, match="multiple of 3"):
        three[0].rows(7)


@pytest.mark.parametrize("name", ["prenorm", "sandwich", "value-residual", "span-damped"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_activations_are_estimated_from_the_shape(name: str, checkpointed: bool) -> None:
    sizes: dict[str, Any] = dict(hidden_size=128, intermediate_size=512, head_dim=32, num_attention_heads=4, num_key_value_heads=4)
    net = LoopedTransformer.from_architecture(tiny_architecture(name, **sizes)).train()
    if checkpointed:
        net.gradient_checkpointing_enable({"use_reentrant": False})
    inputs, kept = token_ids(2, 64), {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = net.model(inputs, use_cache=False).last_hidden_state
    measured = sum(size for place, size in kept.items() if place not in weights)
    assert hidden.requires_grad
    execution = Execution(checkpoint_activations=checkpointed)
    shape = read_shape(net.model.arch.as_config())
    found = activation_bytes(shape, inputs.numel(), TrainSettings(num_steps=1), execution)
    assert measured * 0.7 < found < measured * (2.0 if checkpointed else 1.5), (found / measured, measured)


def test_an_estimate_counts_what_a_run_holds() -> None:
    shape = read_shape(named("arloop-140m").as_config())
    parameters = shape.num_parameters
    plain = estimate(shape, TrainSettings(num_steps=10), Execution(), num_sequences=8, sequence_tokens=2048)
    assert (plain.weights_bytes, plain.gradients_bytes, plain.optimizer_bytes) == (4 * parameters, 4 * parameters, 8 * parameters)
    assert plain.tokens == 10 * 8 * 2048
    assert plain.flops == pytest.approx(3 * cost_of(shape, ()).flops_per_token * plain.tokens)
    muon = estimate(shape, TrainSettings(num_steps=1, optimizer="muon"), Execution(), num_sequences=8, sequence_tokens=2048)
    assert muon.optimizer_bytes == 8 * parameters - 4 * sum(layer.matrix_parameters for layer in shape.layers)
    sharded = estimate(shape, TrainSettings(num_steps=1), Execution(fsdp=True), num_sequences=8, sequence_tokens=2048, num_ranks=4)
    assert sharded.optimizer_bytes == 2 * parameters and sharded.activations_bytes * 4 == pytest.approx(plain.activations_bytes, abs=4)
    small = estimate(shape, TrainSettings(num_steps=1), Execution(micro_batch_sequences=2), num_sequences=8, sequence_tokens=2048)
    assert small.activations_bytes * 4 == pytest.approx(plain.activations_bytes, abs=4)
    check_fits(plain, plain.total_bytes, 8)
    check_fits(plain, None, 8)
    with pytest.raises(TrainingError, match=r"needs about .* there are .*: give micro batches of 5 sequences"):
        check_fits(plain, plain.total_bytes - round(2.5 / 8 * plain.activations_bytes), 8)
    with pytest.raises(TrainingError, match="smaller model"):
        check_fits(plain, 10**9, 8)


def test_flops_follow_the_depth_that_ran() -> None:
    arch = tiny_architecture("span")
    flops = StepFlops(arch.as_config())
    forward = [cost_of(read_shape(tiny_architecture("span", num_loops=loops).as_config()), ()).flops_per_token for loops in (1, 2, 3, 4)]
    assert flops.per_token(Depth(num_loops=3)) == pytest.approx(3 * forward[2])
    assert flops.per_token(Depth(num_loops=3, depths=(1, 3))) == pytest.approx(1.5 * (forward[0] + forward[2]))
    assert flops.per_token(Depth(num_loops=4, grad_loops=1)) == pytest.approx(forward[3] + 2 * forward[0])


def metrics_of(step: int) -> StepMetrics:
    values = dict(loss=2.0, lr=0.1, grad_norm=1.0, tokens=step, num_loops=3.0, batch_hash="ab", seconds=1.0, tokens_per_second=9.0)
    return StepMetrics(step=step, mfu=None, memory_bytes=5, **values)  # type: ignore[arg-type]


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, after_step=0)
    for step in range(1, 6):
        writer.step(metrics_of(step))
        writer.evaluation(step, {"held_out_loss": step / 10})
    writer.close()
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text(encoding="utf-8") + '{"step": 6, "lo', encoding="utf-8")  # a killed writer's
    again = MetricsWriter(tmp_path, after_step=3)
    assert [one.step for one in read_metrics(tmp_path)] == [1, 2, 3]
    again.step(metrics_of(4))
    again.close()
    assert [one.step for one in read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert read_evaluations(tmp_path) == {step: {"held_out_loss": step / 10} for step in (1, 2, 3)}


def test_hashes_and_peaks() -> None:
    rows = [bytes.fromhex(digest) for digest in Walks().batch(0).row_hashes()]
    assert batch_hash(rows) == batch_hash([b"".join(rows)]) != batch_hash(rows[::-1])
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA L40S") == 362e12 and peak_flops("a toaster") is None


def test_checkpoints_are_whole_or_passed_over(tmp_path: Path) -> None:
    ranks, said = Ranks(), []
    for step in (1, 2, 3):
        state = State(step=step, tokens=step, flops=None, seconds=0.5)
        save_checkpoint(tmp_path, state, {"a": torch.full((3,), float(step)), "b": torch.tensor(step)}, ranks)
    unfinished = tmp_path / "checkpoints" / "step-00000004.part"
    unfinished.mkdir()
    found = newest_checkpoint(tmp_path, said.append)
    assert found is not None and found[1].step == 3 and not said
    tensors = {"a": torch.zeros(3), "b": torch.tensor(0)}
    load_checkpoint(found[0], tensors, ranks)
    assert tensors["a"].tolist() == [3.0] * 3 and tensors["b"] == 3
    with pytest.raises(TrainingError, match="does not fit this run"):
        load_checkpoint(found[0], {"c": torch.zeros(3)}, ranks)
    with pytest.raises(TrainingError, match="does not fit this run"):
        load_checkpoint(found[0], {"a": torch.zeros(4)}, ranks)
    data = next(found[0].glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    (tmp_path / "checkpoints" / "step-00000002" / "state.json").unlink()
    found = newest_checkpoint(tmp_path, said.append)
    assert found is not None and found[1].step == 1
    assert "is not what was written" in said[0] and "lacks state.json" in said[1]
    keep_newest(tmp_path, 1, written=found[0])
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == ["step-00000001"] and not unfinished.exists()


def test_optimizer_state_is_made_without_a_change() -> None:
    net = fresh_net("arloop-sw")
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    settings = TrainSettings(num_steps=1, optimizer="muon")
    made = optimizer_tensors(net, make_optimizers(net, parameter_groups(net, "muon"), settings))
    assert all(torch.equal(before[name], parameter) for name, parameter in net.named_parameters())
    owners = {name.rpartition(".")[0] for name in made}
    assert owners == set(before)


@pytest.mark.parametrize(
    "changes",
    [
        dict(num_steps=0),
        dict(learning_rate=0.0),
        dict(learning_rate=math.nan),
        dict(schedule="linear"),
        dict(optimizer="sgd"),
        dict(dtype="fp16"),
        dict(muon_learning_rate=0.1),
        dict(betas=(0.9, 1.0)),
        dict(warmup_steps=10),
        dict(weight_decay=-1.0),
        dict(final_factor=1.5),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(changes))):
        TrainSettings(**{"num_steps": 10, **changes})


@pytest.mark.parametrize("changes", [dict(device="tpu"), dict(micro_batch_sequences=0), dict(keep_checkpoints=0)])
def test_executions_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(changes))):
        Execution(**changes)


def test_differences_are_named() -> None:
    first = TrainSettings(num_steps=5, recurrence=Recurrence(mean=2)).to_json()
    assert first_difference(json.loads(json.dumps(first)), first) is None
    other = TrainSettings(num_steps=5, recurrence=Recurrence(mean=3)).to_json()
    assert first_difference(first, other) == ("recurrence.mean", 2, 3)
    assert first_difference({"a": 1}, {}) == ("a", 1, None)


def test_counts_are_read() -> None:
    counts = {"1M": 10**6, "180B": 180 * 10**9, "11.2B": 11_200_000_000, "500k": 500_000, "16384": 16384, "1_000": 1000}
    assert {text: parse_count("--tokens", text) for text in counts} == counts
    for text in ("", "M", "-1M", "1 M", "1e6", "ten"):
        with pytest.raises(UsageError, match="--tokens"):
            parse_count("--tokens", text)
