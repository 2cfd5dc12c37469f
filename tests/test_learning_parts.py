"""The parts of the learning recipes: schedules of passes, divergences in chunks, adapters, what steps are charged."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from looped import TOLERANCE, logits, looped_model, plain_model
from loopwise.cost import cost_of, read_shape
from loopwise.loops import Loop
from loopwise.models import inserted_loops, loop_passes
from loopwise.training import (
    AnchoredDepth,
    AnchoredRecurrentDepth,
    Conversion,
    LongFinetune,
    LoraSettings,
    NearTeacher,
    NextToken,
    PassSchedule,
    PassScheduleError,
    StepFlops,
    TrainingError,
    TrainSettings,
    Tuning,
    adapter_of,
    adapter_off,
    add_lora,
    core,
    merge,
    merge_and_compare,
    save_adapter,
    step_flops,
)
from loopwise.training.adapters import lora_targets
from loopwise.training.anchored import _reward
from loopwise.training.divergences import gold_log_probabilities, summed_kl
from tiny import FAMILIES, tiny_model, tokens

# --- passes by step ----------------------------------------------------------------------------------------------------


def draws(schedule: PassSchedule, num_steps: int = 300, seed: int = 0) -> list[int | None]:
    return [schedule.draw(seed=seed, step=step, num_steps=num_steps) for step in range(num_steps)]


def test_a_loop_is_introduced_over_the_first_third() -> None:
    schedule = PassSchedule(kind="introduced")
    assert [schedule.probability(step, 300) for step in (0, 50, 100, 299)] == [0.0, 0.5, 1.0, 1.0]
    drawn = draws(schedule)
    assert drawn[0] == 1 and set(drawn[100:]) == {None} and set(drawn[:100]) == {1, None}
    assert 35 <= drawn[:100].count(None) <= 65  # on average a half
    assert drawn[:50].count(None) < drawn[50:100].count(None)
    assert drawn == draws(schedule) != draws(schedule, seed=1)
    always = PassSchedule(kind="introduced", most=3, first_probability=1.0)
    assert set(draws(always)) == {3}


def test_uniform_passes_are_one_to_three_alike() -> None:
    counts = Counter(draws(PassSchedule(kind="uniform", most=3)))
    assert set(counts) == {1, 2, 3} and min(counts.values()) > 70
    assert set(draws(PassSchedule(kind="fixed", most=1))) == {1} and set(draws(PassSchedule())) == {None}


def test_a_curriculum_goes_deeper_in_stages() -> None:
    schedule = PassSchedule(kind="curriculum", most=4, rise_share=0.5)
    assert [schedule.ceiling(step, 300) for step in (0, 49, 50, 99, 100, 149, 150, 299)] == [2, 2, 3, 3, 4, 4, 4, 4]
    drawn = draws(schedule)
    assert set(drawn[:50]) == {1, 2} and set(drawn[50:100]) == {1, 2, 3} and set(drawn[100:]) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "changes",
    [
        dict(most=0),
        dict(least=-1),
        dict(most=True),
        dict(first_probability=-0.1),
        dict(last_probability=1.5),
        dict(first_probability=float("nan")),
        dict(rise_share=2.0),
        dict(kind="uniform"),
        dict(kind="uniform", least=3, most=2),
        dict(kind="curriculum", most=1),
        dict(kind="sometimes"),
    ],
)
def test_passes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PassScheduleError) as raised:
        PassSchedule(**changes)
    assert "\n" not in str(raised.value)


# --- divergences -------------------------------------------------------------------------------------------------------


def head_case(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(37, 16, generator=generator, dtype=dtype) for _ in range(2))
    weight = torch.randn(50, 16, generator=generator, dtype=dtype)
    return teacher, student.requires_grad_(), weight.requires_grad_(), torch.randint(50, (37,), generator=generator)


def plain_kl(teacher: Tensor, student: Tensor, weight: Tensor) -> Tensor:
    """The formula, with all logits at once."""
    with torch.no_grad():
        wanted = F.softmax(teacher @ weight.T, -1)
        logs = F.log_softmax(teacher @ weight.T, -1)
    return (wanted * (logs - F.log_softmax(student @ weight.T, -1))).sum()


def test_kl_in_chunks_is_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, student, weight, _ = head_case(torch.float64)
    wanted = plain_kl(teacher, student, weight)
    expected = [wanted.detach(), *torch.autograd.grad(wanted, (student, weight))]
    for size in (1 << 24, 50 * 2 * 5, 1):
        monkeypatch.setattr("loopwise.training.losses._CHUNK_LOGITS", size)
        found = summed_kl(teacher.requires_grad_(), student, weight)
        ours = [found.detach(), *torch.autograd.grad(found, (student, weight), retain_graph=True)]
        assert torch.autograd.grad(found, teacher, allow_unused=True) == (None,)
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(summed_kl(teacher, student, weight), wanted, rtol=1e-10, atol=1e-10)


def test_gold_likelihoods_in_chunks_are_those_of_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    _, hidden, weight, targets = head_case(torch.float64)
    wanted = F.log_softmax(hidden @ weight.T, -1)[torch.arange(37), targets]
    scale = torch.linspace(-1, 1, 37, dtype=torch.float64)
    expected = torch.autograd.grad((wanted * scale).sum(), (hidden, weight))
    monkeypatch.setattr("loopwise.training.losses._CHUNK_LOGITS", 50 * 7)
    found = gold_log_probabilities(hidden, weight, targets)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    for one, other in zip(torch.autograd.grad((found * scale).sum(), (hidden, weight)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_states_have_no_divergence_at_all(dtype: torch.dtype) -> None:
    teacher, _, weight, _ = head_case(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        kl = summed_kl(teacher, teacher.clone().requires_grad_(), weight)
    assert float(kl.detach()) == 0.0 and kl.dtype == torch.float32


def test_two_tensors_of_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, student, weight, _ = head_case(torch.float32)
    made = []
    plain = F.linear

    def linear(rows: Tensor, matrix: Tensor) -> Tensor:
        made.append(len(rows))
        return plain(rows, matrix)

    monkeypatch.setattr("loopwise.training.losses._CHUNK_LOGITS", 2 * 50 * 10)
    monkeypatch.setattr("loopwise.training.divergences.F.linear", linear)
    summed_kl(teacher, student, weight).backward()
    assert max(made) == 10 and sum(made) == 2 * 2 * 37, "both, forward and again backward, ten rows at a time"


def test_no_targets_have_no_divergence() -> None:
    teacher, student, weight, targets = head_case(torch.float32)
    kl = summed_kl(teacher[:0], student[:0], weight) + gold_log_probabilities(student[:0], weight, targets[:0]).sum()
    kl.backward()
    assert float(kl.detach()) == 0.0 and student.grad is not None and not student.grad.any()


# --- the objectives, against their formulas ----------------------------------------------------------------------------


def test_only_rows_that_depth_makes_likelier_are_rewarded() -> None:
    targets = torch.tensor([[-100, 5, 5], [-100, -100, -100], [5, 5, -100]])
    gains = torch.tensor([0.5, -0.2, -1.0, 0.4], requires_grad=True)  # rows 0 and 2
    found = _reward(gains, targets)
    assert float(found["reward"].detach()) == pytest.approx(0.3) and int(found["rewarded"]) == 2
    found["reward"].backward()
    assert gains.grad is not None and gains.grad.tolist() == [1.0, 1.0, 0.0, 0.0]


def adapted(family: str, loops: str | None, *, moved: bool = True) -> Any:
    """A model with an adapter that does something, or with a fresh one."""
    model = plain_model(family) if loops is None else looped_model(family, loops)
    add_lora(model, LoraSettings(rank=4, alpha=8.0), seed=1)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if moved and "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def context(passes: int | None) -> Any:
    from loopwise.training import StepContext

    return StepContext(step=0, num_steps=1, seed=0, first_row=0, num_targets=1, passes=passes)


def by_the_formula(model: Any, ids: Tensor, targets: Tensor, passes: int) -> dict[str, Tensor]:
    """Log-probabilities of the frozen original, and of every depth, at positions with a target."""
    present = targets != -100

    def logs(number: int) -> Tensor:
        with loop_passes(model, number):
            return F.log_softmax(model(ids, use_cache=False).logits[present], -1)

    with torch.no_grad(), adapter_off(model):
        found = {"original": logs(1)}
    return found | {str(number): logs(number) for number in range(1, passes + 1)}


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    return (teacher.detach().exp() * (teacher.detach() - student)).sum()


def objective_case() -> tuple[Tensor, Tensor]:
    ids = tokens(6, 11)
    targets = ids[:, 1:].clone()
    for row, left_out in enumerate((4, 8, 9, 9, 9, 0)):
        targets[row, :left_out] = -100
    return ids[:, :-1], targets


@pytest.mark.parametrize("passes", [1, 2, None])
def test_conversion_minimises_what_its_text_says(passes: int | None) -> None:
    model = adapted("llama", "2:4 x2")
    ids, targets = objective_case()
    value, terms = NearTeacher(kl_weight=0.75)(model, ids, targets, {}, context(passes))
    logs = by_the_formula(model, ids, targets, 2)
    student, gold = logs[str(passes or 2)], targets[targets != -100]
    wanted = 0.75 * kl(logs["original"], student) - 0.25 * student.gather(1, gold[:, None]).sum()
    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(0.75 * terms["kl"] + 0.25 * terms["next_token"], value, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_anchored_depth_minimises_what_its_text_says(passes: int) -> None:
    model = adapted("llama", "2:4 x2")
    ids, targets = objective_case()
    objective = AnchoredDepth(anchor_weight=0.5, consistency_weight=0.3, reward_weight=0.2)
    value, terms = objective(model, ids, targets, {}, context(passes))
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ours = torch.autograd.grad(value, [model.get_parameter(name) for name in names])

    logs, gold = by_the_formula(model, ids, targets, passes), targets[targets != -100]
    likelihoods = {name: found.gather(1, gold[:, None])[:, 0] for name, found in logs.items()}
    deepest = likelihoods[str(passes)]
    shallower = [kl(logs[str(passes)], logs[str(number)]) for number in range(1, passes)]
    rows = torch.arange(6)[:, None].expand_as(targets)[targets != -100]
    gains = [(deepest - likelihoods["1"].detach())[rows == row].sum() for row in range(6)]
    rewards = [gain for gain in gains if gain > 0]
    wanted = -deepest.sum() + 0.5 * kl(logs["original"], logs["1"])
    wanted = wanted + (0.3 * sum(shallower) / len(shallower) if shallower else 0.0) - 0.2 * sum(rewards)
    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-4)
    theirs = torch.autograd.grad(wanted, [model.get_parameter(name) for name in names])
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * max(1.0, float(other.abs().max())), msg=name)
    assert set(terms) == {"task", "anchor", "consistency", "reward", "rewarded"}
    assert passes == 1 or 0 < len(rewards) < 6, "some rows are rewarded and some are not"


# --- adapters ----------------------------------------------------------------------------------------------------------

TABLES = ("transformer.wte", "transformer.wpe")
THREE = pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5"])


@THREE
def test_a_fresh_adapter_is_the_model_bit_for_bit_on_every_linear_layer_but_the_head(family: str) -> None:
    ids, model = tokens(2, 12), plain_model(family)
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    before = logits(model, ids)
    rng = torch.random.get_rng_state()
    add_lora(model, LoraSettings(rank=4), seed=1)
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert {name for name, module in model.named_modules() if hasattr(module, "lora_A")} == linear
    assert torch.equal(logits(model, ids), before)
    assert all(("lora_" in name) == parameter.requires_grad for name, parameter in model.named_parameters())
    again = plain_model(family)
    add_lora(again, LoraSettings(rank=4), seed=1)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


@THREE
def test_an_adapter_is_switched_off_merged_saved_and_read_again(family: str, tmp_path: Path) -> None:
    from peft import PeftModel

    ids, loops = tokens(2, 12), "2:4 x2"
    model = adapted(family, loops)
    looped = logits(model, ids)
    with adapter_off(model), loop_passes(model, 1):
        assert torch.equal(logits(model, ids), logits(plain_model(family), ids))
    assert torch.equal(logits(model, ids), looped) and all(p.requires_grad for n, p in model.named_parameters() if "lora_" in n)
    assert not torch.allclose(looped, logits(looped_model(family, loops), ids), atol=1e-2)

    save_adapter(model, tmp_path)
    read = PeftModel.from_pretrained(looped_model(family, loops), tmp_path)
    assert (logits(read, ids) - looped).abs().max() <= 1e-6

    change = merge_and_compare(model, ids)
    assert change.num_tokens == 24 and 0 < change.mean <= change.largest <= TOLERANCE
    assert (logits(model, ids) - looped).abs().max() == pytest.approx(change.largest, rel=1e-3)
    assert list(model.state_dict()) == list(plain_model(family).state_dict())
    assert adapter_of(model) is None and inserted_loops(model) and all(parameter.requires_grad for parameter in model.parameters())


def test_adapters_that_cannot_be_are_refused() -> None:
    for target in ("lm_head", "model.embed_tokens"):
        with pytest.raises(TrainingError, match="head or a token table"):
            LoraSettings(targets=(target,))
    for changes in (dict(rank=0), dict(rank=True), dict(alpha=0.0), dict(alpha=float("nan")), dict(dropout=1.0)):
        with pytest.raises(TrainingError, match=next(iter(changes))):
            LoraSettings(**changes)  # type: ignore[arg-type]
    model = plain_model("llama")
    with pytest.raises(TrainingError, match=r"'nothing' is no linear module .* use some of down_proj, gate_proj"):
        add_lora(model, LoraSettings(targets=("nothing",)), seed=0)
    with pytest.raises(TrainingError, match="has no adapter"):
        merge(model)
    with pytest.raises(TrainingError, match="its original is lost"), adapter_off(model):
        pass
    add_lora(model, LoraSettings(rank=2, targets=("q_proj", "v_proj")), seed=0)
    assert {name.split(".")[-1] for name, module in model.named_modules() if hasattr(module, "lora_A")} == {"q_proj", "v_proj"}
    with pytest.raises(TrainingError, match="has an adapter already"):
        add_lora(model, LoraSettings(), seed=0)
    with pytest.raises(TrainingError, match=r"bfloat16, in which"):
        merge(model.to(torch.bfloat16))


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe"])
def test_experts_that_adapters_do_not_reach_are_refused_by_name(family: str) -> None:
    model = tiny_model(family)
    with pytest.raises(
        TrainingError, match=r"keeps model\.layers\.\d\.mlp\.experts\.gate_up_proj \[4, 32, 32\] outside of linear"
    ) as raised:
        add_lora(model, LoraSettings(rank=2), seed=0)
    assert "\n" not in str(raised.value) and adapter_of(model) is None
    add_lora(model, LoraSettings(rank=2, targets=("q_proj", "v_proj")), seed=0)  # who names modules knows what is left out
    assert {name.split(".")[-1] for name, module in model.named_modules() if hasattr(module, "lora_A")} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen3_moe", "qwen3_5_moe"}))
def test_adapters_reach_every_matrix_of_a_dense_models_layers(family: str) -> None:
    model = tiny_model(family)
    names = lora_targets(model, LoraSettings())
    matrices = {name.removesuffix(".weight") for name, one in model.named_parameters() if one.dim() == 2}
    assert matrices - set(names) <= {name for name, module in model.named_modules() if "embed" in name or name in ("lm_head", *TABLES)}


def test_a_tied_head_gets_no_adapter_and_merging_leaves_it_tied() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    table = model.model.embed_tokens.weight.detach().clone()
    add_lora(model, LoraSettings(rank=2), seed=0)
    merge(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight and torch.equal(model.lm_head.weight, table)


# --- what steps are charged --------------------------------------------------------------------------------------------


def test_steps_are_charged_for_every_forward_pass() -> None:
    model = looped_model("llama", "2:4 x2")
    shape = read_shape(model.config.to_dict())
    one, two, three = (cost_of(shape, (Loop(2, 4, passes),)).flops_per_token for passes in (1, 2, 3))
    assert one == cost_of(shape, ()).flops_per_token
    flops = step_flops(model)
    assert flops is not None
    assert flops.of_forwards(NextToken().forwards(None)) == pytest.approx(3 * two) == pytest.approx(flops.per_token(None))
    assert flops.of_forwards(NextToken().forwards(1)) == pytest.approx(3 * one)
    frozen = StepFlops(model.config.to_dict(), inserted_loops(model), trained_share=0.1)
    assert frozen.of_forwards(NearTeacher().forwards(2)) == pytest.approx(one + 2.1 * two)
    assert frozen.of_forwards(AnchoredDepth().forwards(3)) == pytest.approx(one + 2.1 * (one + two + three))
    assert frozen.of_forwards(AnchoredDepth().forwards(None)) == pytest.approx(3.1 * one)
    add_lora(model, LoraSettings(rank=2), seed=0)
    adapted_flops = step_flops(model)
    assert adapted_flops is not None and 2 * two < adapted_flops.of_forwards([(None, True)]) < 2.2 * two


# --- settings ----------------------------------------------------------------------------------------------------------


def test_recipes_have_the_papers_numbers() -> None:
    conversion = Conversion()
    assert conversion.tuning.num_tokens == 33_000_000 and conversion.objective.kl_weight == 0.9
    assert conversion.passes == PassSchedule(kind="introduced", rise_share=1 / 3, first_probability=0.0, last_probability=1.0)
    assert core(32) == Loop(12, 20, 2) and core(6) == Loop(2, 3, 2) and core(2).stop <= 2
    assert copy.copy(LongFinetune()).tuning.num_tokens == 464_000_000
    assert AnchoredRecurrentDepth().passes.most == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tuning(num_tokens=0, learning_rate=1e-3), "num_tokens is 0"),
        (lambda: Tuning(num_tokens=True, learning_rate=1e-3), "num_tokens is True"),
        (lambda: Tuning(num_tokens=5, learning_rate=float("nan")), "learning_rate is nan"),
        (lambda: Tuning(num_tokens=5, learning_rate=1e-3, warmup_share=1.0), "warmup_share is 1.0"),
        (lambda: NearTeacher(kl_weight=1.1), "kl_weight is 1.1"),
        (lambda: AnchoredDepth(anchor_weight=-1.0), "anchor_weight is -1.0"),
        (lambda: AnchoredDepth(consistency_weight=float("inf")), "consistency_weight is inf"),
        (lambda: AnchoredDepth(reward_weight=1.0), "reward_weight is 1.0"),
        (lambda: AnchoredRecurrentDepth(passes=PassSchedule(kind="introduced")), "need their largest number"),
        (lambda: LongFinetune(budget_seconds=0.0), "budget_seconds is 0.0"),
        (lambda: LongFinetune(measured_steps=0), "measured_steps is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Any, words: str) -> None:
    with pytest.raises(TrainingError, match=words) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_recurrence_and_passes_exclude_each_other() -> None:
    from loopwise.nets import Recurrence

    with pytest.raises(TrainingError, match="leave one of them out"):
        TrainSettings(num_steps=1, recurrence=Recurrence(), passes=PassSchedule())
