"""LoRA fine-tuning, then GRPO: the reward, the check before the first step, the reference, resumption, and the recipe in a set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cases import GRPO, SETTINGS, boxing_folder, digit_problems, moved, stage_of, train_boxing, trainer_of
from learning_cases import CPU, LOOPS, STEPS
from learning_sets import chat_model, chats, tiny_set
from loopwise.cli import main
from loopwise.data import DataError
from loopwise.decoding import read_chat
from loopwise.loops import format_loops, parse_loops
from loopwise.models import load, loop_passes, loops_of
from loopwise.recipes.learning import learn
from loopwise.recipes.learning_files import read_result
from loopwise.recipes.learning_members import Controls
from loopwise.recipes.learning_problems import training_problems
from loopwise.recipes.learning_set import plan_set
from loopwise.recipes.learning_summary import summarise_set
from loopwise.tasks import TASKS, TaskError
from loopwise.training import Grpo, LoraGrpo, Problems, TrainingError, read_metrics
from loopwise.training.boxed_reward import boxed, boxed_reward
from loopwise.training.grpo_check import check_trainer, reference_log_probabilities, trainer_log_probabilities
from loopwise.training.grpo_checkpoints import mark_whole, newest_whole
from loopwise.training.grpo_trainer import trainer_arguments
from loopwise.training.reporting import State
from loopwise.training.rollout_check import check_rollout, counting_runs, expected_runs
from loopwise.training.rollouts import Rollout, draw_answers, draw_recorded, recomputed_log_probabilities
from tiny import tiny_model, tokens
from trace_sets import CHATML, STRIPPING, chat_folder
from training_cases import SOURCE, Kept, KillAfter, Killed

trl = pytest.importorskip("trl")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boxing_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    train_boxing(model, LOOPS, out)
    return out


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


# --- the reward ----------------------------------------------------------------------------------------------------------


def rewards(folder: Path, template: str | None, texts: Sequence[str], *, thinking: bool) -> list[float]:
    """Of answers to a question whose answer is 5, each ended by the template's end of a turn unless it says CUT."""
    chat_folder(folder, template)
    loaded = tiny_model("llama", vocab_size=320)
    tokenizer = __import__("transformers").AutoTokenizer.from_pretrained(folder)
    chat = read_chat(loaded, tokenizer)
    (problem,) = boxed(TASKS["ladder"], TASKS["ladder"].load(split="train", limit=1))
    problem = replace(problem, item=replace(problem.item, gold="5"))
    prompt = chat.encode(problem.item.prompt, thinking=thinking)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    found = []
    for text in texts:
        ids = tokenizer(text.removesuffix("CUT"), add_special_tokens=False)["input_ids"]
        found.append(boxed_reward(problem, chat, prompt, ids if text.endswith("CUT") else [*ids, end]))
    return found


def test_only_a_correct_box_in_an_answer_that_ended_is_paid(tmp_path: Path) -> None:
    right, wrong = r"So it is \boxed{5}.", r"So it is \boxed{6}."
    unboxed, cut, first_right = "So it is 5.", right + "CUT", right + wrong
    assert rewards(tmp_path, CHATML, [right, wrong, unboxed, cut, first_right, "", r"\boxed{}", "CUT"], thinking=False) == [
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]


def test_thinking_has_to_be_finished(tmp_path: Path) -> None:
    opening = STRIPPING.replace(
        "{% if not enable_thinking %}", "{% if enable_thinking %}{{ '<think>\n' }}{% endif %}{% if not enable_thinking %}"
    )
    box = r"\boxed{5}"
    answers = [f"hm</think>{box}", f"hm {box}", f"{box}</think>it is 5", f"hm</think><think>{box}"]
    assert rewards(tmp_path / "opened", opening, answers, thinking=True) == [1, 0, 0, 0]
    assert rewards(tmp_path / "own", STRIPPING, [f"<think>hm</think>{box}", f"<think>hm {box}", box], thinking=True) == [1, 0, 1]
    assert rewards(tmp_path / "off", STRIPPING, [box, f"<think>{box}"], thinking=False) == [1, 0]


def test_prompts_ask_for_a_box_and_tasks_without_an_answer_are_refused() -> None:
    ladder = TASKS["ladder"].load(split="train", limit=2)
    assert all(
        problem.item.prompt == item.prompt + "\nPut your final answer within \\boxed{}."
        for problem, item in zip(boxed(TASKS["ladder"], ladder), ladder, strict=True)
    )
    assert boxed(TASKS["gsm8k"], [replace(ladder[0], prompt="Put it in \\boxed{}.")])[0].item.prompt == "Put it in \\boxed{}."
    for name in ("arc_challenge", "humaneval"):
        with pytest.raises(TrainingError, match=f"{name} is answered without a box"):
            boxed(TASKS[name], ladder)


# --- the problems --------------------------------------------------------------------------------------------------------


def test_every_problem_comes_once_before_any_comes_again_in_an_order_of_the_seed() -> None:
    problems = digit_problems(7)
    asked = [one.item.name for step in range(7) for one in problems.step(3, step, 3)]
    assert all(len(set(asked[first : first + 7])) == 7 for first in (0, 7, 14)) and asked[:7] != asked[7:14]
    assert asked != [one.item.name for step in range(7) for one in problems.step(4, step, 3)]
    with pytest.raises(TrainingError, match="is there twice"):
        Problems(problems=problems.problems * 2)
    with pytest.raises(TrainingError, match="no problem"):
        Problems(problems=())


def gsm_rows(folder: Path, split: str, questions: Sequence[str]) -> None:
    (folder / "gsm8k").mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"question": question, "answer": f"{n}\n#### {n}"}) + "\n" for n, question in enumerate(questions)]
    (folder / "gsm8k" / f"{split}.jsonl").write_text("".join(rows))


def test_problems_that_overlap_with_evaluation_items_are_refused(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(20)]
    long_test, short_test = " ".join(words), "What is two and two?"
    gsm_rows(tmp_path, "test", [long_test, short_test])
    apart = " ".join(["other", *words[:12], "word"])
    gsm_rows(
        tmp_path, "train", ["Before it: " + " ".join(words[3:16]).upper() + " and on", apart, short_test, "What is two and three?", apart]
    )
    notes: list[str] = []
    found = training_problems(["gsm8k"], against=["gsm8k"], data=tmp_path, note=notes.append)
    assert [problem.item.prompt.partition("\n")[0] for problem in found.problems] == [apart, "What is two and three?"]
    assert notes == [
        "2 of 5 problems of gsm8k refused: they overlap with gsm8k",
        "1 problems are asked twice and taken once",
        "2 training problems of gsm8k",
    ]
    gsm_rows(tmp_path, "train", [short_test, long_test])
    with pytest.raises(TrainingError, match="no problem of gsm8k is apart"):
        training_problems(["gsm8k"], against=["gsm8k"], data=tmp_path)


def test_test_items_are_never_trained_on(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"aime24 has no train split .* never trained on"):
        training_problems(["aime24"], data=tmp_path)
    with pytest.raises(TaskError, match="no task is named 'nothing'"):
        training_problems(["nothing"])
    with pytest.raises(TrainingError, match="problems of ladder are asked for twice"):
        training_problems(["ladder", "ladder"])
    with pytest.raises(DataError, match="some are missing"):
        training_problems(["gsm8k"], against=["math500"], data=tmp_path)
    test = {item.prompt.partition("\n")[0] for item in TASKS["ladder"].load()}
    assert not test & {problem.item.prompt.partition("\n")[0] for problem in training_problems(["ladder"]).problems}


# --- rollouts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
@pytest.mark.parametrize("loops", [None, LOOPS])
def test_a_recorded_rollout_has_the_log_probabilities_of_full_recompute(tmp_path: Path, family: str, loops: str | None) -> None:
    stage = stage_of(boxing_folder(tmp_path, family), loops, tmp_path)
    prompts = [stage.prompt(problem) for problem in stage.problems.problems[:4]]
    assert len({len(prompt) for prompt in prompts}) > 1
    how = replace(stage.drawing, temperature=1.3)
    keys = [(0, 0, index) for index in range(4)]
    drawn = draw_recorded(stage.loaded.model, stage.loaded.tokenizer, prompts, keys, how)
    plain = draw_answers(stage.loaded.model, stage.loaded.tokenizer, prompts, keys, how)
    assert drawn.completion_ids == tuple(completion.token_ids for completion in plain)
    assert len({len(ids) for ids in drawn.completion_ids}) > 1, "some end before others"
    again = recomputed_log_probabilities(stage.loaded.model, drawn, temperature=1.3)
    for ours, theirs in zip(drawn.log_probabilities, again, strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loops", [None, LOOPS, "1:5 x2 + 1.mlp x3 in pass 2", "0:6 x3"])
def test_layers_are_counted_as_call_sites_have_them(loops: str | None) -> None:
    from loopwise.models import insert

    network = tiny_model("llama")
    chosen = parse_loops(loops, 6) if loops else ()
    if chosen:
        insert(network, chosen)
    with counting_runs(network) as runs, torch.no_grad():
        for _ in range(2):
            network(tokens(2, 5))
    assert runs.forwards == 2 and runs.per_forward() == expected_runs(chosen, 6)
    if chosen:
        with counting_runs(network) as runs, loop_passes(network, 1), torch.no_grad():
            network(tokens(2, 5))
        assert runs.per_forward() == expected_runs((), 6) != expected_runs(chosen, 6)


# --- the check before the first step ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def looped_trainer(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A stage and its trainer, whose adapter does something."""
    stage = stage_of(model, LOOPS, tmp_path_factory.mktemp("stage"))
    return stage, moved(trainer_of(stage))


def test_rollout_trainer_and_reference_agree_and_all_of_them_loop(looped_trainer: tuple[Any, Any]) -> None:
    stage, trainer = looped_trainer
    found = check_trainer(trainer, stage)
    assert found.layer_runs == found.mlp_runs == 8 and found.num_tokens >= 4
    assert found.mean_difference_nats <= found.largest_difference_nats < 1e-4
    assert found.reference_difference_nats is not None and found.reference_difference_nats < 1e-4


def test_the_reference_is_the_first_stages_model_with_its_loop_on(looped_trainer: tuple[Any, Any], model: Path) -> None:
    _, trainer = looped_trainer
    drawn = Rollout(prompt_ids=((4, 5, 6), (5,)), completion_ids=((9, 10, 2), (11, 12)), log_probabilities=((0.0,) * 3, (0.0,) * 2))
    found = torch.cat(reference_log_probabilities(trainer, drawn))
    looped, plain = (
        torch.cat(recomputed_log_probabilities(load(model, loops=loops).model, drawn, temperature=1.0)) for loops in (LOOPS, "none")
    )
    torch.testing.assert_close(found, looped, rtol=1e-4, atol=1e-4)
    assert (found - plain).abs().max() > 0.05, "without its loop it is another model"
    assert (found - torch.cat(trainer_log_probabilities(trainer, trainer.model, drawn))).abs().max() > 0.05, "the adapter did something"


def test_a_rollout_that_does_not_loop_is_found(looped_trainer: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stage, trainer = looped_trainer

    def unlooped(network: Any, *arguments: Any, **more: Any) -> Any:
        with loop_passes(network, 1):
            return draw_recorded(network, *arguments, **more)

    monkeypatch.setattr("loopwise.training.grpo_check.draw_recorded", unlooped)
    with pytest.raises(TrainingError, match=r"the rollout ran layer 2 1 times .* makes 2 and 2: it is not the looped model") as raised:
        check_trainer(trainer, stage)
    assert "\n" not in str(raised.value)


def test_a_trainer_that_does_not_loop_is_found(looped_trainer: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stage, trainer = looped_trainer

    def unlooped(trainer: Any, network: Any, drawn: Rollout) -> Any:
        with loop_passes(network, 1):
            return trainer_log_probabilities(trainer, network, drawn)

    monkeypatch.setattr("loopwise.training.grpo_check.trainer_log_probabilities", unlooped)
    with pytest.raises(TrainingError, match="the trainer ran layer 2 1 times"):
        check_trainer(trainer, stage)


def test_a_wrong_reference_is_found(looped_trainer: tuple[Any, Any], model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, trainer = looped_trainer
    from trl.trainer.utils import add_fused_lm_head

    by_name = load(model, loops="none").model  # what TRL does of full fine-tuning: the reference is loaded by its name
    add_fused_lm_head(by_name)
    monkeypatch.setattr(trainer, "ref_model", by_name)
    with pytest.raises(TrainingError, match="the reference ran another model than the one that is trained"):
        check_trainer(trainer, stage)
    monkeypatch.setattr(trainer, "ref_model", None)

    def never_off(trainer: Any, drawn: Rollout) -> Any:
        return trainer_log_probabilities(trainer, trainer.model, drawn)

    monkeypatch.setattr("loopwise.training.grpo_check.reference_log_probabilities", never_off)
    with pytest.raises(TrainingError, match=r"the reference differs by .* nats a token from the model that .* began with"):
        check_trainer(trainer, stage)


def test_log_probabilities_that_differ_are_refused() -> None:
    network = tiny_model("llama")

    def computed(shift: float) -> Any:
        def rows(drawn: Rollout) -> list[torch.Tensor]:
            network(tokens(1, 4))
            return [torch.tensor(values) + shift for values in drawn.log_probabilities]

        return rows

    def rollout() -> Rollout:
        network(tokens(1, 4))
        return Rollout(prompt_ids=((4,),), completion_ids=((5, 6),), log_probabilities=((-1.0, -2.0),))

    def check(policy: float, reference: float) -> Any:
        return check_rollout(network, (), rollout=rollout, policy=computed(policy), reference=computed(reference), origin=computed(0.0))

    found = check(0.019, -0.019)
    assert found.mean_difference_nats == pytest.approx(0.019, rel=1e-4) and found.reference_difference_nats == pytest.approx(
        0.019, rel=1e-4
    )
    for policy, reference, words in (
        (0.021, 0.0, "rollout and trainer differ by 0.021"),
        (float("nan"), 0.0, "differ by nan"),
        (0.0, 0.03, "the reference differs by 0.03"),
    ):
        with pytest.raises(TrainingError, match=words):
            check(policy, reference)


def test_trl_is_given_the_papers_loss_and_uses_answers_once(model: Path, tmp_path: Path) -> None:
    stage = replace(stage_of(model, None, tmp_path), execution=replace(CPU, micro_batch_sequences=4))
    given = trainer_arguments(trl, stage)
    assert Grpo().loss_type == given.loss_type == "grpo" != trl.GRPOConfig.loss_type
    assert given.scale_rewards == "group" and given.beta == GRPO.divergence_weight and given.num_iterations == 1
    assert given.steps_per_generation == given.gradient_accumulation_steps == 3 and given.per_device_train_batch_size == 4


# --- both stages -----------------------------------------------------------------------------------------------------------


def test_both_stages_train_and_leave_a_plain_model_with_its_loop(trained: Path, model: Path) -> None:
    steps = read_metrics(trained / "grpo")
    assert [step.step for step in steps] == [1, 2, 3, 4, 5] and len(read_metrics(trained)) == STEPS
    assert any(step.terms["reward"] > 0 for step in steps) and any(step.grad_norm > 0 for step in steps)
    assert steps[0].terms["kl"] == pytest.approx(0.0, abs=1e-6) and steps[-1].terms["kl"] > 0
    begun, ended = load(trained / "lora-ft" / "model").model, load(trained / "model").model
    assert format_loops(loops_of(begun)) == format_loops(loops_of(ended)) == LOOPS
    assert list(ended.state_dict()) == list(load(model).model.state_dict())
    moved_names = {name for name, tensor in ended.state_dict().items() if not torch.equal(tensor, begun.state_dict()[name])}
    assert moved_names and all(".layers." in name and "norm" not in name for name in moved_names)
    check = json.loads((trained / "grpo" / "check.json").read_text())
    assert check["layer_runs"] == 8 and check["mean_difference_nats"] < 1e-4 and check["after_step"] == 0
    header = json.loads((trained / "grpo" / "run.json").read_text())
    assert header["problems"]["tasks"] == ["digits version 1"] and header["model"]["loops"] and header["settings"]["loss_type"] == "grpo"


def test_killed_in_both_stages_it_ends_with_the_same_weights(trained: Path, model: Path, tmp_path: Path) -> None:
    class KillInGrpo(KillAfter):
        def step(self, metrics: Any, num_steps: int) -> None:
            if num_steps == GRPO.num_steps:
                super().step(metrics, num_steps)

    for reporter in (KillAfter(4), KillInGrpo(1), KillInGrpo(3)):
        with pytest.raises(Killed):
            train_boxing(model, LOOPS, tmp_path, reporter=reporter)
        assert not (tmp_path / "model").exists()
    half = tmp_path / "grpo" / "checkpoint-4"  # as a kill in the middle of writing leaves it
    half.mkdir()
    (half / "trainer_state.json").write_text("{")
    kept = Kept()
    result = train_boxing(model, LOOPS, tmp_path, reporter=kept)
    assert "going on after step 2 of GRPO" in kept.notes
    assert [step.repeatable for step in read_metrics(tmp_path / "grpo")] == [step.repeatable for step in read_metrics(trained / "grpo")]
    assert weights(tmp_path) == weights(trained)
    assert json.loads((tmp_path / "grpo" / "check.json").read_text())["after_step"] == 2
    again = train_boxing(model, LOOPS, tmp_path)  # done already
    assert again.state == result.state and again.evaluation == result.evaluation and weights(tmp_path) == weights(trained)
    for changed, words in (
        (replace(SETTINGS, grpo=replace(GRPO, temperature=0.5)), "settings.temperature 1.0, now it is 0.5"),
        (replace(SETTINGS, lora=replace(SETTINGS.lora, rank=2)), "lora.rank 4, now it is 2"),
    ):
        with pytest.raises(TrainingError, match=words):
            train_boxing(model, LOOPS, tmp_path, changed)
    with pytest.raises(TrainingError, match=r"problems.num_problems 7, now it is 6"):
        train_boxing(model, LOOPS, tmp_path, problems=digit_problems(6))


def test_the_twin_is_asked_the_same_and_has_no_loop(trained: Path, model: Path, tmp_path: Path) -> None:
    result = train_boxing(model, None, tmp_path, execution=replace(CPU, micro_batch_sequences=4))
    ours, theirs = read_metrics(trained / "grpo"), read_metrics(tmp_path / "grpo")
    assert [step.batch_hash for step in ours] == [step.batch_hash for step in theirs] and len({step.batch_hash for step in ours}) > 1
    assert [step.loss for step in ours] != [step.loss for step in theirs]
    assert json.loads((tmp_path / "grpo" / "check.json").read_text())["layer_runs"] == 6
    assert loops_of(load(result.model_folder).model) == () and not (result.model_folder / "loop.json").exists()
    assert result.state.step == STEPS and result.evaluation["grpo_steps"] == 5
    assert result.state.flops is not None and result.state.flops > result.evaluation["grpo_flops"] > 0


def test_activations_made_again_change_nothing(trained: Path, model: Path, tmp_path: Path) -> None:
    few = replace(SETTINGS, grpo=replace(GRPO, num_steps=2))
    train_boxing(model, LOOPS, tmp_path, few, execution=replace(CPU, micro_batch_sequences=6, checkpoint_activations=True))
    for ours, theirs in zip(read_metrics(tmp_path / "grpo"), read_metrics(trained / "grpo"), strict=False):
        assert ours.batch_hash == theirs.batch_hash and ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-3)
        for name in ("reward", "reward_std", "answer_tokens", "ended"):  # TRL's mean entropy and divergence weigh micro-batches alike
            assert ours.terms[name] == pytest.approx(theirs.terms[name], rel=1e-6)


@pytest.mark.slow
def test_killed_by_9_it_ends_with_the_same_weights(trained: Path, model: Path, tmp_path: Path) -> None:
    code = f"from grpo_cases import *; train_boxing(Path({str(model)!r}), {LOOPS!r}, Path({str(tmp_path)!r}))"
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}:{Path(__file__).parent}", "OMP_NUM_THREADS": "1"}
    for lines in (1, 3):
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while len(read_metrics(tmp_path / "grpo")) < lines and process.poll() is None:
                time.sleep(0.05)
            process.kill()
    assert not (tmp_path / "model").exists(), "it was killed before its end"
    train_boxing(model, LOOPS, tmp_path)
    assert weights(tmp_path) == weights(trained)
    assert [step.repeatable for step in read_metrics(tmp_path / "grpo")] == [step.repeatable for step in read_metrics(trained / "grpo")]


def test_in_bf16_rollout_and_trainer_still_agree(model: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, tuning=replace(SETTINGS.tuning, dtype="bf16"))
    stage = stage_of(model, LOOPS, tmp_path, settings)
    trainer = moved(trainer_of(stage))
    assert {p.dtype for name, p in trainer.model.named_parameters() if "lora_" in name} == {torch.float32}
    assert next(trainer.model.parameters()).dtype == torch.bfloat16
    found = check_trainer(trainer, stage)
    assert found.mean_difference_nats <= 0.02


def test_a_checkpoint_that_is_not_what_was_written_is_passed_over(tmp_path: Path) -> None:
    state = State(step=2, tokens=5, flops=None, seconds=1.0)
    for step in (2, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_text("weights")
        mark_whole(folder, replace(state, step=step))
    (tmp_path / "checkpoint-10").mkdir()
    notes: list[str] = []
    assert newest_whole(tmp_path, notes.append) == (tmp_path / "checkpoint-4", replace(state, step=4)) and not notes
    (tmp_path / "checkpoint-4" / "weights").write_text("others")
    assert newest_whole(tmp_path, notes.append) == (tmp_path / "checkpoint-2", state)
    assert notes == [f"{tmp_path / 'checkpoint-4'}: weights is not what was written; it is passed over"]
    assert newest_whole(tmp_path / "nothing", notes.append) is None


# --- in a set --------------------------------------------------------------------------------------------------------------


def test_a_set_has_twin_and_controls_whose_training_flops_are_equal(tmp_path: Path) -> None:
    grpo = Grpo(problems=("ladder",), num_steps=2, num_prompts=2, num_answers=2, budget_tokens=8, thinking=False, checked_tokens=4)
    chosen = tiny_set(
        chat_model(tmp_path / "model"),
        chats(tmp_path / "chats.jsonl"),
        tmp_path / "set",
        recipe="lora-grpo",
        settings={"grpo": grpo},
        controls=Controls(names=("relocated", "equal-flops")),
    )
    assert {one.name: one.token_factor for one in plan_set(chosen).members} == {"looped": 1, "twin": 1, "relocated": 1, "equal-flops": None}
    assert learn(chosen) == ()
    rows = {row.name: row for row in summarise_set(chosen.out)}
    assert not any(row.alarms or row.failed for row in rows.values()) and all(row.rewards == (0.0, 0.0) for row in rows.values())
    looped, twin, equal = (rows[name].training_flops or 0.0 for name in ("looped", "twin", "equal-flops"))
    first_stage = (read_result(chosen.out / "twin" / "seed-0") or {})["evaluation"]
    step = (twin - first_stage["grpo_flops"]) / (rows["twin"].num_steps or 1)
    assert twin < equal and abs(equal - looped) <= step / 2 + abs(twin - looped) * 0.05
    report = (chosen.out / "report.md").read_text()
    assert "- looped, GRPO: reward 0.000 in the first tenth of its steps, 0.000 in the last; 8 and 8 tokens an answer." in report
    other = chosen.out / "twin" / "seed-0" / "grpo" / "metrics.jsonl"
    other.write_text(other.read_text().replace(read_metrics(other.parent)[0].batch_hash, "0" * 64))
    assert any("other problems of reinforcement learning" in alarm for row in summarise_set(chosen.out) for alarm in row.alarms)


def test_options_of_reinforcement_learning_are_for_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    main(["learn", "lora-grpo"])
    said = capsys.readouterr().out
    assert "then GRPO on training problems" in said and "num_answers" in said and "Answers drawn for each question. A guess" in said
    given = ["--model", "m", "--loops", "1:2 x2", "--data", "d.jsonl", "--out", "o"]
    with pytest.raises(SystemExit):
        main(["learn", "short-ft", *given, "--grpo-steps", "3"])
    assert "--grpo-steps" in capsys.readouterr().err


# --- settings and refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(problems=()), "no tasks"),
        (dict(num_answers=1), "num_answers is 1; give a whole number, at least 2"),
        (dict(num_steps=True), "num_steps is True"),
        (dict(budget_tokens=0), "budget_tokens is 0"),
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(learning_rate=0.0), "learning_rate is 0.0"),
        (dict(divergence_weight=-0.1), "divergence_weight is -0.1"),
        (dict(betas=(0.9, 1.0)), "betas"),
        (dict(loss_type="ppo"), "loss_type is 'ppo'; use grpo"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words) as raised:
        Grpo(**changes)
    assert "\n" not in str(raised.value)


def test_what_the_second_stage_needs_is_said_before_the_first(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, words in (
        (replace(SETTINGS, grpo=replace(GRPO, thinking=True)), "chat template has none; give --no-thinking"),
        (replace(SETTINGS, grpo=replace(GRPO, budget_tokens=600)), "budget of 600 needs more than its 512 positions"),
    ):
        with pytest.raises(TrainingError, match=words):
            train_boxing(model, LOOPS, tmp_path / "out", settings)
    with pytest.raises(TrainingError, match="a micro-batch of 5 does not share out GRPO's 12 answers"):
        train_boxing(model, LOOPS, tmp_path / "out", execution=replace(CPU, micro_batch_sequences=5))
    monkeypatch.setattr("loopwise.training.grpo.find_spec", lambda name: None)
    with pytest.raises(TrainingError, match=r"pip install 'loopwise\[grpo\]'"):
        train_boxing(model, LOOPS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_set_that_its_second_stage_cannot_train_leaves_no_folder(tmp_path: Path) -> None:
    folder, text = chat_model(tmp_path / "model"), chats(tmp_path / "chats.jsonl")
    for changes, words in (
        (dict(budget_tokens=100_000), "give a smaller budget \\(--grpo-budget\\)"),
        (dict(thinking=True), "give --no-thinking"),
    ):
        grpo = Grpo(problems=("ladder",), **{"thinking": False, "budget_tokens": 8, **changes})
        chosen = tiny_set(folder, text, tmp_path / "set", recipe="lora-grpo", settings={"grpo": grpo})
        with pytest.raises(TrainingError, match=words):
            learn(chosen)
        assert not chosen.out.exists()


def test_the_recipe_has_the_papers_problems_and_mode() -> None:
    grpo = LoraGrpo().grpo
    assert grpo.problems == ("gsm8k", "math") and grpo.thinking and grpo.loss_type == "grpo"
    assert grpo.step_answers == grpo.num_prompts * grpo.num_answers
