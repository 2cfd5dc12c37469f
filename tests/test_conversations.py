"""Conversations: rounds of one engine, a record for each whole conversation, resumed and spread like any other run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loopwise
from like_vllm import save_ending_early, start_like_vllm
from loopwise.cost import answer_flops, read_shape
from loopwise.decoding import DecodingRule, generate, read_chat
from loopwise.evaluation import check_conversations, check_parity, items_hash
from loopwise.models import load
from loopwise.protocol import Bootstrap, TrialError, compare, judge
from loopwise.recipes.own_traces import OwnTraces, make_own_traces
from loopwise.recipes.set_estimate import estimate_set
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_estimate import estimate_trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import Record, Run, read_json, read_run
from loopwise.tasks import TASKS, Grade, Item, Message, Task, TaskError
from loopwise.training import TrainingError
from loopwise.training.boxed_reward import boxed
from parrot import CHAT, Parrot, char_tokenizer
from test_evaluation import LOOPS, TOKENIZER, items, looped
from test_evaluation_ranks import together
from tiny import tiny_model

MOST = 4


class Talk:
    """Asks on with the number of words it was told, at most `MOST` times, and ends at once where w9 is said."""

    def __init__(self, item: Item) -> None:
        self.messages: list[Message] = [{"role": "user", "content": item.prompt}]
        self.over = False
        self.told: list[str] = []

    @property
    def share(self) -> float:
        return len(self.told) / MOST

    def reply(self, text: str, *, forced: bool = False) -> None:
        self.told.append(text)
        self.messages.append({"role": "assistant", "content": text})
        self.over = "w9" in text.split() or len(self.told) == MOST
        if not self.over:
            self.messages.append({"role": "user", "content": f"w{20 + len(text.split())} w7"})

    def grade(self) -> Grade:
        answer = " ".join(self.told)
        return Grade(correct="w5" in answer, answer=answer[-20:], rule="toy" if self.over else "broken-off")


def talks(number: int) -> tuple[Item, ...]:
    return tuple(replace(item, conversation={"turns": MOST}) for item in items(number))


def talk_task(number: int = 6, begin: Any = Talk) -> Task:
    def refuse(item: Item, text: str) -> Grade:
        raise AssertionError("a conversation was graded by one answer")

    return Task(
        name="talk",
        version="1",
        kind="generate",
        budget_tokens=20,
        reserve_tokens=4,
        answer_opener=" w9",
        begin=begin,
        facts={"most_answers": MOST},
        loader=lambda data, limit, split: talks(number)[:limit],
        grader=refuse,
    )


CHECKED = check_parity(tiny_model("llama"), [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]], new_tokens=2)
"""Parity has tests of its own."""


def held_by(model: Any, task: Task, **more: Any) -> Run:
    """The run of a model's conversations."""
    return loopwise.evaluate(model, TOKENIZER, task, **({"parity": CHECKED, "batch_size": 4} | more))


def alike(run: Run) -> list[Record]:
    return [replace(record, seconds=None) for record in run.records]


def test_a_conversation_is_answered_as_its_prompts_are_alone(tmp_path: Path) -> None:
    model = looped()
    run = held_by(model, talk_task(), out=tmp_path, batch_size=1, fixed_rows=True)
    shape, loops = read_shape(model.config.to_dict()), loopwise.loops_of(model)
    numbers = set()
    for record, item in zip(run.records, sorted(talks(6), key=lambda item: item.name), strict=True):
        talk, prompts, told = Talk(item), [], []
        while not talk.over:
            prompt = TOKENIZER("\n\n".join(one["content"] for one in talk.messages))["input_ids"]
            [answer] = generate(model, TOKENIZER, [prompt], budget_tokens=20)
            prompts.append(len(prompt))
            told.append(answer)
            talk.reply(answer.text)
        numbers.add(len(told))
        assert record.text is not None and json.loads(record.text) == talk.messages[1:]
        assert record.extra["rounds"] == [
            {"prompt_tokens": one.prompt_tokens, "generated_tokens": one.generated_tokens, "stop_reason": one.stop_reason} for one in told
        ]
        assert (record.prompt_tokens, record.generated_tokens) == (sum(prompts), sum(one.generated_tokens for one in told))
        flops = [
            answer_flops(shape, loops, prompt_tokens=n, generated_tokens=one.generated_tokens) for n, one in zip(prompts, told, strict=True)
        ]
        assert record.flops == sum(flops)
        assert record.correct == talk.grade().correct and record.answer == talk.grade().answer
        assert record.finished == all(one.finished for one in told)
        assert record.stop_reason == next((one.stop_reason for one in told if not one.finished), "end")
    assert len(numbers) > 1, "conversations of several lengths"
    assert run.header["most_answers"] == MOST and run.header["budget_tokens"] == 20


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_conversations_advance_together_to_the_same_end(temperature: float) -> None:
    rule, samples = DecodingRule(temperature=temperature), 2 if temperature else 1
    runs = [held_by(looped(), talk_task(), rule=rule, samples=samples, batch_size=size) for size in (1, 4)]
    told = [[(record.key, record.text, record.correct) for record in run.records] for run in runs]
    assert told[0] == told[1], "an answer's draws depend on seed, item, sample and round alone"
    if samples > 1:
        assert any(one.text != other.text for one, other in zip(runs[0].records[::2], runs[0].records[1::2], strict=True))


def test_the_same_message_in_two_rounds_is_answered_with_other_draws() -> None:
    class Again(Talk):
        def reply(self, text: str, *, forced: bool = False) -> None:
            self.told.append(text)
            self.over = len(self.told) == 3

    drawn: list[list[str]] = []

    class Kept(Again):
        def __init__(self, item: Item) -> None:
            super().__init__(item)
            drawn.append(self.told)

    held_by(looped(), talk_task(4, Kept), rule=DecodingRule(temperature=1.0))
    assert all(len(set(told)) == 3 for told in drawn)


def test_a_chat_template_sees_all_messages_with_their_roles() -> None:
    said: list[str] = []

    class Asking(Talk):
        def reply(self, text: str, *, forced: bool = False) -> None:
            super().reply(text)
            said.append(text)
            if not self.over:
                self.messages[-1] = {"role": "user", "content": "more"}
            self.over = len(self.told) == 3

    def mind(so_far: str) -> str:
        number = so_far.count("<|im_start|>assistant\n")
        answer = so_far.rpartition("<|im_start|>assistant\n")[2]
        return f"{number} after {so_far.count('more')}"[len(answer) :]

    tokenizer = char_tokenizer()
    task = replace(talk_task(begin=Asking), loader=lambda data, limit, split: (Item(name="a", prompt="hi", gold="", conversation={}),))
    run = loopwise.evaluate(Parrot(tokenizer, {"hi": mind}), tokenizer, task, parity=CHECKED)  # type: ignore[arg-type]
    assert said == ["0 after 0", "1 after 1", "2 after 2"] and run.records[0].finished


def test_one_user_message_is_encoded_as_a_prompt() -> None:
    for template in (CHAT, None):
        tokenizer = char_tokenizer(template)
        chat = read_chat(tiny_model("llama"), tokenizer)
        assert chat.encode_messages([{"role": "user", "content": "Hi there"}]) == chat.encode("Hi there")


def test_a_prompt_that_outgrows_the_model_breaks_its_conversation_off_alone() -> None:
    class Long(Talk):
        def reply(self, text: str, *, forced: bool = False) -> None:
            super().reply(text)
            if not self.over and self.messages[0]["content"].startswith("w3 "):  # the first item's
                self.messages[-1] = {"role": "user", "content": "w7 " * 600}

    run = held_by(looped(), talk_task(begin=Long))
    broken = [record for record in run.records if record.stop_reason == "context"]
    assert [record.item for record in broken] == ["i0"]
    assert broken[0].finished is False and broken[0].rule == "broken-off" and len(broken[0].extra["rounds"]) == 1
    assert all(record.rule == "toy" for record in run.records if record not in broken)


_KILLED = """
import os, signal, sys
from test_conversations import Talk, held_by, looped, talk_task
graded = 0
class Mortal(Talk):
    def grade(self):
        global graded
        graded += 1
        if graded == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().grade()
held_by(looped(), talk_task(begin=Mortal), out=sys.argv[1], batch_size=2)
"""


def test_a_run_killed_with_9_ends_in_the_same_records(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parent / 'src'}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "killed")], env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-500:]
    there = (tmp_path / "killed" / "records.jsonl").read_text().splitlines()
    assert len(there) == 3
    run = held_by(looped(), talk_task(), out=tmp_path / "killed", batch_size=2)
    assert (tmp_path / "killed" / "records.jsonl").read_text().splitlines()[:3] == there
    assert alike(run) == alike(held_by(looped(), talk_task(), batch_size=2))


def test_twins_that_held_conversations_are_judged_as_on_any_task() -> None:
    runs = [held_by(model, talk_task(20)) for model in (looped(), tiny_model("llama"))]
    verdict = judge(looped=runs[0], twin=runs[1], bootstrap=Bootstrap(resamples=500), measure="layer-passes")
    found = compare(runs[0], runs[1], bootstrap=Bootstrap(resamples=500))
    accuracies = [100 * sum(record.correct for record in run.records) / 20 for run in runs]
    assert (found.looped_percent, found.other_percent) == tuple(accuracies) and accuracies[0] != accuracies[1]
    tokens = [sum(record.generated_tokens or 0 for record in run.records) / 20 for run in runs]
    costs = [cost.per_answer for arm in verdict.arms for cost in arm.costs if cost.measure == "layer-passes"]
    assert costs == pytest.approx([1.5 * tokens[0], tokens[1]]) and verdict.num_items == 20


def test_a_trial_takes_conversations_with_its_noise_floor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[bool] = []

    class Told(Talk):
        def reply(self, text: str, *, forced: bool = False) -> None:
            super().reply(text, forced=forced)
            told.append(forced)

    monkeypatch.setitem(TASKS, "talk", talk_task(begin=Told))
    tiny_model("llama").save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    settings = TrialSettings(rules=("plain", "budget-forcing"), limit=3, noise_floor=True)
    verdict = trial(tmp_path / "model", loops="1:3 x2", tasks=("talk",), budgets=(16,), out=tmp_path / "trial", settings=settings)
    assert verdict.tasks == ("talk",) and verdict.num_items == 3
    noise = read_json(tmp_path / "trial" / "noise_floor.json")
    assert (noise["num_answers"], noise["accuracy_points"]) == (3, 0.0)
    runs = [read_run(file.parent) for file in sorted((tmp_path / "trial" / "runs").rglob("header.json"))]
    assert all("rounds" in record.extra for run in runs for record in run.records)
    forced = [record for run in runs if run.header["rule"] == "budget-forcing" for record in run.records]
    assert any(record.forced_tokens for record in forced), "every answer of a conversation is under the rule"
    assert set(told) == {False, True}, "a conversation is told which of its answers were forced"


def test_several_ranks_write_the_records_of_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("loopwise.evaluation.answering.REFILL_BATCHES", 1)
    models = [looped(), looped()]
    one = held_by(looped(), talk_task(), out=tmp_path / "one", batch_size=2)
    runs = together(2, lambda ranks: held_by(models[ranks.rank], talk_task(), out=tmp_path / "two", batch_size=2, ranks=ranks))
    assert [alike(run) for run in runs] == [alike(one), alike(one)]


def test_how_a_conversation_goes_on_is_part_of_what_is_asked() -> None:
    model, task = looped(), talk_task()
    one, other = talks(3), tuple(replace(item, conversation={"turns": 1}) for item in talks(3))
    assert items_hash(model, TOKENIZER, task, one) != items_hash(model, TOKENIZER, task, other)
    assert items_hash(model, TOKENIZER, task, items(3)) != items_hash(model, TOKENIZER, task, one)


@pytest.mark.parametrize("engine", ["static", "compiled"])
def test_engines_for_prompts_known_beforehand_are_refused(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=f"engine '{engine}' is set up for prompts known beforehand.*use eager or vllm"):
        held_by(looped(), talk_task(), out=tmp_path / "run", engine=engine)
    assert not (tmp_path / "run").exists()
    check_conversations(TASKS["gsm8k"], engine)


@pytest.mark.parametrize("rule", [DecodingRule(), DecodingRule(budget_forcing=True, reserve_tokens=4)])
def test_vllm_holds_the_own_engines_conversations(rule: DecodingRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start_like_vllm(monkeypatch)
    model, task, out = load(save_ending_early(tmp_path / "model"), loops=LOOPS).model, talk_task(), tmp_path / "run"
    own = held_by(model, task, rule=rule)
    run = held_by(model, task, rule=rule, engine="vllm", parity=None, out=out)
    assert alike(run) == alike(own) and len({len(record.extra["rounds"]) for record in run.records}) > 1
    assert [engine.max_tokens for engine in started] == [model.config.max_position_embeddings], "prompts grow"
    file = out / "records.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:2]))
    assert alike(held_by(model, task, rule=rule, engine="vllm", parity=None, out=out)) == alike(own)


def test_vllm_is_not_started_for_conversations_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start_like_vllm(monkeypatch)
    model = load(save_ending_early(tmp_path / "model"), loops=LOOPS).model
    monkeypatch.setattr("loopwise.evaluation.conversations.num_positions", lambda model: None)
    with pytest.raises(TaskError, match=r"talk: its conversations grow, and LlamaForCausalLM names no number of positions.*use eager"):
        held_by(model, talk_task(), engine="vllm", parity=None)
    assert not started


def test_a_trial_of_conversations_by_vllm_is_that_of_the_own_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_like_vllm(monkeypatch)
    folder = save_ending_early(tmp_path / "model")
    monkeypatch.setitem(TASKS, "talk", talk_task())
    found = []
    engines: tuple[Any, ...] = ("eager", "vllm")
    for engine in engines:
        settings = TrialSettings(batch_size=3, engine=engine)
        trial(folder, loops=LOOPS, tasks=("talk",), budgets=(12, 20), out=tmp_path / engine, settings=settings)
        found.append({path.parent.name: alike(read_run(path.parent)) for path in (tmp_path / engine).rglob("records.jsonl")})
    assert found[0] == found[1] and len(found[0]) >= 4


def test_a_conversation_is_generated_in_the_open() -> None:
    with pytest.raises(TaskError, match="only what is generated, in the open, can be a conversation"):
        replace(talk_task(), private=True)


def test_what_reads_single_answers_refuses_conversations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="talk is answered without a box"):
        boxed(talk_task(), talks(2))
    monkeypatch.setitem(TASKS, "talk", replace(talk_task(), splits=("train", "test")))
    with pytest.raises(TaskError, match="talk has no answers of words that could be trained on"):
        make_own_traces("any", OwnTraces(task="talk"), tmp_path)
    with pytest.raises(TrialError, match="talk is of conversations, and how many answers one takes is not known beforehand"):
        estimate_trial("any", out=tmp_path, loops=LOOPS, tasks=["talk"], settings=TrialSettings())
    with pytest.raises(TrialError, match="talk is of conversations, and how many answers one takes is not known beforehand"):
        estimate_set("any", out=tmp_path, tasks=["talk"], settings=TrialSettings())
