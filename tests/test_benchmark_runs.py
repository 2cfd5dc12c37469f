"""Benchmarks run: a task's own samples and temperature, thinking mode, private items, and SmolLM2-135M on real rows of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import loopwise
from data import data_dir
from loopwise.decoding import DecodingRule
from loopwise.evaluation import Parity, check_parity, task_budget_tokens, task_rule, task_samples
from loopwise.models import Loaded, load
from loopwise.models.embedded import gguf_file
from loopwise.models.families import ModelError
from loopwise.protocol import PlannedTask, TrialError, judge, make_plan, plan_from_json, plan_to_json
from loopwise.protocol.gather import gather
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import Run, read_json, read_run
from loopwise.tasks import TASKS, Grade, Item, Task, gpqa, task_named
from parrot import CHAT, THINKING_CHAT, char_tokenizer
from tiny import tiny_model
from trial_runs import arm, draw, header, run

TOKENIZER = char_tokenizer()


def model() -> Any:
    return tiny_model("llama", max_position_embeddings=4096)


@cache
def tiny_parity() -> Parity:
    """Made once: what is tested here is the tasks."""
    return check_parity(model(), [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]], new_tokens=8)


def evaluate(task: Task, tokenizer: Any = TOKENIZER, **more: Any) -> Run:
    return loopwise.evaluate(model(), tokenizer, task, parity=tiny_parity(), **more)


def toy(name: str = "toy", **more: Any) -> Task:
    items = tuple(Item(name=f"i{n}", prompt=f"Question {n * n * n}?", gold="a", extra={"subtask": "ab"[n % 2]}) for n in range(5))
    values: dict[str, Any] = {
        "name": name,
        "version": "1",
        "kind": "generate",
        "budget_tokens": 6,
        "reserve_tokens": 2,
        "answer_opener": " A:",
        "loader": lambda data, limit, split: items[:limit],
        "grader": lambda item, text: Grade(correct="a" in text, answer=text[:1] or None, rule="text"),
    }
    return Task(**(values | more))


# A task's own decoding


def test_a_tasks_own_samples_and_temperature_hold_where_nobody_gives_others():
    own = toy(samples=3, temperature=0.9)
    found = evaluate(own)
    assert Counter(record.item for record in found.records) == {f"i{n}": 3 for n in range(5)}
    assert found.header["samples"] == 3 and found.header["decoding"]["temperature"] == 0.9
    assert len({record.text for record in found.records}) > 5, "the samples differ"
    assert evaluate(own, samples=2).header["samples"] == 2
    greedy = evaluate(own, rule=DecodingRule())
    assert greedy.header["samples"] == 1 and greedy.header["decoding"]["temperature"] == 0.0
    warm = evaluate(own, rule=DecodingRule(temperature=0.3))
    assert warm.header["samples"] == 3 and warm.header["decoding"]["temperature"] == 0.3
    assert evaluate(toy()).header["samples"] == 1


def test_defaults_of_a_task():
    aime, thinking = task_named("aime24"), task_named("gsm8k_thinking")
    assert task_rule(aime) == DecodingRule(temperature=0.6) and task_samples(aime, task_rule(aime)) == 8
    assert task_rule(aime, temperature=0.0).greedy and task_samples(aime, DecodingRule()) == 1
    assert task_rule(thinking, budget_forcing=True) == DecodingRule(thinking=True, budget_forcing=True)
    assert task_budget_tokens(thinking, thinking=False) == 4096 == task_budget_tokens(task_named("gsm8k"), thinking=True)
    assert task_budget_tokens(task_named("math500"), thinking=True) == 2048


def test_a_records_subtask_is_kept():
    found = evaluate(toy())
    assert [record.extra["subtask"] for record in found.records] == ["a", "b", "a", "b", "a"]


# Templates


def test_the_header_says_whether_there_was_a_chat_template():
    assert evaluate(toy()).header["chat_template"] is True
    base = char_tokenizer(template=None, tags=False)
    raw = evaluate(toy(), base, limit=1)
    assert raw.header["chat_template"] is False
    assert raw.records[0].prompt_tokens == len("Question 0?"), "a base model is given the prompt as it is"


def test_a_thinking_task_thinks_and_refuses_models_that_cannot():
    thinking = toy(thinking=True, thinking_budget_tokens=9)
    found = evaluate(thinking, char_tokenizer(template=THINKING_CHAT), rule=DecodingRule())
    assert found.header["decoding"]["thinking"] is True and found.header["budget_tokens"] == 9
    plain = evaluate(toy(), char_tokenizer(template=THINKING_CHAT))
    assert plain.records[0].prompt_tokens > found.records[0].prompt_tokens, "without thinking the template closes the block"
    for template, tags in ((CHAT, True), (None, True), (None, False)):
        with pytest.raises(ValueError, match="toy is asked in thinking mode, and this model's chat template has none"):
            evaluate(thinking, char_tokenizer(template=template, tags=tags))


# Private items


def secret_rows(folder: Path, number: int = 3) -> Path:
    rows = [
        {"Record ID": f"rec{n}", "Question": f"SECRETQUESTION{n}?", **{field: f"SECRETOPTION {field} {n}" for field in gpqa.FIELDS}}
        for n in range(number)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "rows.jsonl"


def contents(folder: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*")) if file.is_file())


def test_nothing_of_a_private_item_or_its_answer_comes_to_the_disk(tmp_path: Path):
    rows, task = secret_rows(tmp_path), task_named("gpqa_diamond")
    rule = DecodingRule(temperature=1.5)
    kept = evaluate(task, data=rows, rule=rule, budget_tokens=60, out=tmp_path / "private")
    shown = evaluate(replace(task, private=False), data=rows, rule=rule, budget_tokens=60, out=tmp_path / "shown")
    on_disk = contents(tmp_path / "private")
    assert "SECRET" not in on_disk
    assert all(record.text is None for record in kept.records + read_run(tmp_path / "private").records)
    for private, public in zip(kept.records, shown.records, strict=True):
        assert len(public.text) > 20 and public.text[:20] in "".join(r.text for r in shown.records)
        for part in (public.text[at : at + 8] for at in range(0, len(public.text) - 8, 8)):
            assert json.dumps(part)[1:-1] not in on_disk and json.dumps(part)[1:-1] in contents(tmp_path / "shown")
        assert private.extra["text_characters"] == len(public.text) and len(private.extra["text_sha256"]) == 64
        assert (private.correct, private.answer, private.gold) == (public.correct, public.answer, public.gold)


def saved(folder: Path) -> Path:
    model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


QUICK = TrialSettings(rules=("plain",), limit=3)


def test_neither_a_trials_records_nor_its_report_hold_private_text(tmp_path: Path):
    rows = secret_rows(tmp_path)
    settings = replace(QUICK, data=rows, noise_floor=True)
    trial(saved(tmp_path / "model"), loops="1:3 x2", tasks=("gpqa_diamond",), budgets=(16,), out=tmp_path / "trial", settings=settings)
    assert (tmp_path / "trial" / "report.html").exists()
    assert "SECRET" not in contents(tmp_path / "trial") and '"text"' not in contents(tmp_path / "trial" / "runs")
    assert read_json(tmp_path / "trial" / "noise_floor.json")["num_answers"] == 3


# A trial of tasks that decode differently


def test_a_trial_takes_each_tasks_own_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TASKS, "often", toy("often", samples=4, temperature=0.8))
    monkeypatch.setitem(TASKS, "once", toy("once"))
    verdict = trial(
        saved(tmp_path / "model"), loops="1:3 x2", tasks=("often", "once"), budgets=(4,), out=tmp_path / "trial", settings=QUICK
    )
    assert verdict.tasks == ("often", "once")[:2] or set(verdict.tasks) == {"often", "once"}
    runs = [read_run(file.parent) for file in sorted((tmp_path / "trial" / "runs").rglob("header.json"))]
    counts = {(one.header["looped"], one.header["task"], one.header["budget_tokens"]): len(one.records) for one in runs}
    assert counts[True, "often", 4] == counts[False, "often", 4] == 12
    assert counts[True, "once", 4] == counts[False, "once", 4] == 3
    temperatures = {one.header["task"]: one.header["decoding"]["temperature"] for one in runs}
    assert temperatures == {"often": 0.8, "once": 0.0}
    plan = read_json(tmp_path / "trial" / "plan.json")
    assert [(one["name"], one["samples"], one["temperature"]) for one in plan["tasks"]] == [("often", 4, 0.8), ("once", None, None)]
    assert "often: 4 per item and seed, temperature 0.8" in (tmp_path / "trial" / "report.md").read_text()


def part(task: str, temperature: float, own: float, *, looped: bool = True, samples: int = 1, **more: Any) -> Run:
    decoding = header(looped=looped)["decoding"] | {"temperature": temperature}
    head = header(looped=looped, task=task, decoding=decoding, task_decoding={"temperature": own, "thinking": False, "samples": 1}, **more)
    return run(draw(0.5, task=task, samples=samples), head)


def test_runs_at_their_tasks_own_settings_are_one_arm():
    (one,) = gather([part("a", 0.0, 0.0), part("b", 0.6, 0.6, samples=8)], "looped")
    assert one.tasks == ("a", "b") and len(one.tables["b"].samples) == 8
    assert dict(one.decoding)["temperature of b"] == 0.6 and dict(one.decoding)["top_p"] == 1.0


@pytest.mark.parametrize(
    "runs",
    [
        [part("a", 0.0, 0.0), part("b", 0.7, 0.6)],
        [part("a", 0.0, 0.0), part("a", 0.6, 0.0)],
        [part("a", 0.0, 0.0), run(draw(0.5, task="b"), header(looped=True, task="b", decoding={"temperature": 0.6}))],
    ],
    ids=["a temperature that somebody chose", "one task twice", "a header that does not say"],
)
def test_other_runs_with_different_settings_are_arms_of_their_own(runs: Sequence[Run]):
    assert len(gather(runs, "looped")) == 2


def test_thinking_that_was_asked_for_joins_tasks_that_sample_by_themselves():
    thinking = [part("a", 0.0, 0.0), part("b", 0.6, 0.6)]
    for one in thinking:
        one.header["decoding"]["thinking"] = True
    (one,) = gather(thinking, "looped")
    assert dict(one.decoding)["thinking"] is True


def planned_task(**more: Any) -> PlannedTask:
    return PlannedTask(**({"name": "ladder", "version": "1", "budgets_tokens": (128,), "reserve_tokens": 8} | more))


def test_a_plan_with_a_tasks_own_samples_wants_as_many_in_both_arms():
    plan = make_plan(
        model="m", loops="10:16 x2", layer_pass_ratio=1.2, tasks=[planned_task(samples=8, temperature=0.6)], rules=("plain",),
        longer_twin_ratio=None, resamples=1000, vote_samples=4,
    )  # fmt: skip
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert [plan.draws(one, "ladder") for one in plan.arms()] == [(8, 0.6), (8, 0.6), (4, 0.7)]
    with pytest.raises(TrialError, match="looped-plain-128 has no complete run"):
        judge(looped=[arm(0.5, looped=True)], twin=[arm(0.5, looped=False)], plan=plan)
    with pytest.raises(TrialError, match="task ladder: 8 samples at temperature None"):
        planned_task(samples=8)


# Real rows


@pytest.fixture(scope="module")
def smollm2() -> Loaded:
    try:
        gguf_file()
    except ModelError as error:
        pytest.skip(str(error))
    return load("smollm2", loops="12:14 x2", dtype="fp32")


@pytest.fixture(scope="module")
def parity(smollm2: Loaded) -> Parity:
    """Made once: what is tested here is the tasks."""
    return check_parity(smollm2.model, [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]], new_tokens=8)


RUNS = {
    "gsm8k": (2, 8),
    "math500": (2, 8),
    "math": (2, 8),
    "aime24": (1, 4),
    "aime25": (1, 4),
    "gpqa_diamond": (2, 8),
    "bbh": (3, 8),
    "bfcl_v3": (3, 8),
    "arc_challenge": (4, 1),
    "commonsense_qa": (4, 1),
    "mmlu_pro": (4, 1),
}
"""Items and budget of each."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_smollm2_answers_real_items(name: str, smollm2: Loaded, parity: Parity, tmp_path: Path):
    (limit, budget), task = RUNS[name], task_named(name)
    found = loopwise.evaluate(
        smollm2.model,
        smollm2.tokenizer,
        name,
        data=data_dir(),
        limit=limit,
        budget_tokens=budget,
        batch_size=4,
        parity=parity,
        out=tmp_path,
    )
    assert len(found.records) == limit * task.samples and found.header["chat_template"] is True
    for record in found.records:
        assert record.gold and record.generated_tokens <= budget and record.prompt_tokens > 20
        if task.kind == "letters":
            assert record.answer in "ABCDEFGHIJ" and record.extra["tied_options"] >= 1
        else:
            assert (record.text is None) == task.private
    if task.private:
        questions = [item.prompt for item in task.load(data_dir(), limit)]
        assert not any(line in contents(tmp_path) for prompt in questions for line in prompt.splitlines() if len(line) > 20)


@pytest.mark.slow
def test_smollm2_with_a_thinking_template_thinks_about_gsm8k(smollm2: Loaded, parity: Parity, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="gsm8k_thinking is asked in thinking mode"):
        loopwise.evaluate(smollm2.model, smollm2.tokenizer, "gsm8k_thinking", data=data_dir(), limit=1, parity=parity)
    monkeypatch.setattr(smollm2.tokenizer, "chat_template", THINKING_CHAT)
    found = loopwise.evaluate(smollm2.model, smollm2.tokenizer, "gsm8k_thinking", data=data_dir(), limit=2, budget_tokens=8, parity=parity)
    assert found.header["decoding"]["thinking"] is True and len(found.records) == 2
