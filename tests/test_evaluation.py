"""Runs: complete, resumed after a kill, refused when they are not the same run, and never of another model than was meant."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwise
from loopwise.cost import answer_flops, read_shape
from loopwise.decoding import DecodingError, DecodingRule
from loopwise.evaluation import ParityError, check_parity, parity
from loopwise.models import surgery
from loopwise.records import RecordsError
from loopwise.tasks import Grade, Item, Task
from tiny import tiny_model, tiny_tokenizer

LOOPS = "1:4 x2 damped beta=0.25"
TOKENIZER = tiny_tokenizer()


def items(number: int) -> tuple[Item, ...]:
    return tuple(
        Item(
            name=f"i{n}", prompt=" ".join(f"w{3 + (7 * n + k * k) % 120}" for k in range(4 + n % 5)), gold=f"w{n}", choices=("x", "y", "z")
        )
        for n in range(number)
    )


def make_task(kind: str = "generate", number: int = 10, grader: Any = None) -> Task:
    return Task(
        name="toy",
        version="1",
        kind=kind,  # type: ignore[arg-type]
        budget_tokens=20,
        reserve_tokens=4,
        answer_opener=" w9",
        loader=lambda data, limit, split: items(number)[:limit],
        grader=grader or (lambda item, text: Grade(correct="w5" in text, answer=text[-3:] or None, rule="toy")),
    )


def looped() -> Any:
    return loopwise.insert(tiny_model("llama"), LOOPS)


def test_a_run_has_every_record_and_says_what_ran(tmp_path: Path) -> None:
    model = looped()
    run = loopwise.evaluate(model, TOKENIZER, make_task(), out=tmp_path, batch_size=4)
    assert [record.item for record in run.records] == sorted(f"i{n}" for n in range(10))
    assert run.header["loops"] == LOOPS and run.header["looped"] is True
    assert run.header["layer_pass_ratio"] == 1.5 and run.header["num_layers"] == 6
    assert run.header["rule"] == "plain" and run.header["seeds"] == [0] and run.header["num_items"] == 10
    assert run.header["parity"]["ok"] and len(set(run.header["parity"]["prompt_tokens"])) == 4
    assert run.header["parity"]["new_tokens"] == 64
    assert json.loads((tmp_path / "header.json").read_text()) == run.header
    shape = read_shape(model.config.to_dict())
    for record in run.records:
        assert record.generated_tokens is not None and record.prompt_tokens is not None
        wanted = answer_flops(shape, loopwise.loops_of(model), prompt_tokens=record.prompt_tokens, generated_tokens=record.generated_tokens)
        assert record.flops == wanted
        assert record.finished == (record.stop_reason == "end")


def test_in_memory_and_on_disk_are_the_same(tmp_path: Path) -> None:
    kept = loopwise.evaluate(looped(), TOKENIZER, make_task(), batch_size=4)
    written = loopwise.evaluate(looped(), TOKENIZER, make_task(), out=tmp_path, batch_size=4)
    assert [(r.key, r.text, r.correct) for r in kept.records] == [(r.key, r.text, r.correct) for r in written.records]


_KILLED = """
import os, signal, sys
from test_evaluation import TOKENIZER, Grade, looped, make_task
import loopwise
graded = 0
def grader(item, text):
    global graded
    graded += 1
    if graded == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return Grade(correct="w5" in text, answer=text[-3:] or None, rule="toy")
loopwise.evaluate(looped(), TOKENIZER, make_task(grader=grader), out=sys.argv[1], batch_size=4)
"""


def test_a_run_killed_with_9_goes_on_where_it_was(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parent / 'src'}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "killed")], env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-500:]
    there = (tmp_path / "killed" / "records.jsonl").read_text().splitlines()
    assert len(there) == 6
    run = loopwise.evaluate(looped(), TOKENIZER, make_task(), out=tmp_path / "killed", batch_size=4)
    assert (tmp_path / "killed" / "records.jsonl").read_text().splitlines()[:6] == there
    whole = loopwise.evaluate(looped(), TOKENIZER, make_task(), batch_size=4)
    assert [(r.key, r.text, r.correct) for r in run.records] == [(r.key, r.text, r.correct) for r in whole.records]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    loopwise.evaluate(looped(), TOKENIZER, make_task(), out=tmp_path, batch_size=4)
    before = (tmp_path / "records.jsonl").read_bytes()

    def fail(item: Item, text: str) -> Grade:
        raise AssertionError("graded again")

    loopwise.evaluate(looped(), TOKENIZER, make_task(grader=fail), out=tmp_path, batch_size=4)
    assert (tmp_path / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"budget_tokens": 21}, "arm"),
        ({"batch_size": 5}, "batch_size"),
        ({"seed": 1}, "seeds"),
        ({"limit": 9}, "items_hash"),
        ({"fixed_rows": True}, "batch_plan"),
        ({"rule": DecodingRule(temperature=0.5), "arm": "a"}, "arm"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    loopwise.evaluate(looped(), TOKENIZER, make_task(), out=tmp_path, batch_size=4)
    with pytest.raises(RecordsError, match=f"holds a run with another {field}"):
        loopwise.evaluate(looped(), TOKENIZER, make_task(), out=tmp_path, **({"batch_size": 4} | changes))


def test_another_model_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    loopwise.evaluate(looped(), TOKENIZER, make_task(), out=tmp_path, arm="a")
    with pytest.raises(RecordsError, match="holds a run with another model_hash"):
        loopwise.evaluate(loopwise.insert(tiny_model("llama", seed=1), LOOPS), TOKENIZER, make_task(), out=tmp_path, arm="a")


def test_twins_get_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwise.evaluation import answering as module

    seen: list[list[list[str]]] = []
    original = module.generate

    def spy(model: Any, tokenizer: Any, prompts: list[str], **more: Any) -> Any:
        seen[-1].append(list(prompts))
        return original(model, tokenizer, prompts, **more)

    monkeypatch.setattr(module, "generate", spy)
    for groups, fixed_rows in ((3, True), (2, False)):
        monkeypatch.setattr(module, "REFILL_BATCHES", 2)
        seen.clear()
        for model in (looped(), tiny_model("llama")):
            seen.append([])
            loopwise.evaluate(model, TOKENIZER, make_task(), batch_size=4, fixed_rows=fixed_rows)
        assert seen[0] == seen[1] and len(seen[0]) == groups


def mix_up_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on, layers 1 and 2 read each other's past in their second pass: shapes fit, contents do not."""
    original = surgery.cache_views

    def mixed(cache: Any, *more: Any) -> Any:
        started = len(cache.layers) > 6
        views = original(cache, *more)
        if started:
            views[1].layers[1], views[1].layers[2] = views[1].layers[2], views[1].layers[1]
        return views

    monkeypatch.setattr(surgery, "cache_views", mixed)


def test_slots_that_are_mixed_up_stop_the_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = looped()
    mix_up_slots(monkeypatch)
    with pytest.raises(ParityError, match="cached decoding differs from full recompute"):
        loopwise.evaluate(model, TOKENIZER, make_task(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_room_for_a_copy_is_checked_in_its_own_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "_fits_fp32", lambda model: False)
    model = looped().bfloat16()
    prompts = [TOKENIZER(item.prompt)["input_ids"] for item in items(10)]
    found = check_parity(model, prompts)
    assert found.dtype == "bfloat16" and found.tolerance_from == "recompute against itself"
    mix_up_slots(monkeypatch)
    with pytest.raises(ParityError, match="in bfloat16"):
        check_parity(model, prompts)


def test_nan_logits_agree_with_nothing() -> None:
    model = looped()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ParityError, match="differs from full recompute by inf"):
        check_parity(model, [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]])


def test_letters_are_the_highest_logits() -> None:
    model = looped()
    task = make_task(kind="letters", grader=lambda item, text: pytest.fail("letters are not read from text"))
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["A", "B", "C"])
    model.resize_token_embeddings(len(tokenizer))
    run = loopwise.evaluate(model, tokenizer, task, batch_size=4)
    assert {record.answer for record in run.records} <= {"A", "B", "C"}
    assert all(record.stop_reason == "letter" and record.generated_tokens == 1 for record in run.records)


def test_bad_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    model = looped()
    with pytest.raises(ValueError, match="greedy samples are all the same"):
        loopwise.evaluate(model, TOKENIZER, make_task(), out=tmp_path / "a", samples=2)
    with pytest.raises(DecodingError, match="takes the whole budget"):
        rule = DecodingRule(budget_forcing=True, reserve_tokens=20)
        loopwise.evaluate(model, TOKENIZER, make_task(), out=tmp_path / "a", rule=rule)
    with pytest.raises(ValueError, match="budget_tokens is 0"):
        loopwise.evaluate(model, TOKENIZER, make_task(), out=tmp_path / "a", budget_tokens=0)
    assert not (tmp_path / "a").exists()


def test_samples_are_drawn_by_seed_item_and_sample_alone() -> None:
    rule = DecodingRule(temperature=1.0)
    texts = [
        {r.key: r.text for r in loopwise.evaluate(looped(), TOKENIZER, make_task(), rule=rule, samples=2, seed=3, batch_size=size).records}
        for size in (3, 20)
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 20
    assert any(texts[0]["toy", f"i{n}", 3, 0] != texts[0]["toy", f"i{n}", 3, 1] for n in range(10))
