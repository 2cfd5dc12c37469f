"""A model's own traces: answered, graded, sorted out, gone on with after a kill, and read by what encodes traces to train on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

from learning_sets import chat_model
from loopwise.cli import main
from loopwise.data import DataError, ItemIndex, TraceSettings, encode_traces
from loopwise.decoding import DecodingRule, read_chat
from loopwise.models import Loaded, load
from loopwise.recipes import own_traces
from loopwise.recipes.own_traces import OwnTraces, OwnTracesReport, make_own_traces
from loopwise.records import Record
from loopwise.tasks import TASKS, Grade, Item, TaskError
from trace_sets import CHATML, chat_folder, write_chats

ASKED = OwnTraces(task="ladder", samples=2, budget_tokens=48, temperature=1.0, limit=6, against=("none",), batch_size=5)
PRINTABLE = range(32, 127)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model says printable letters and the end of its turn, and is right where it has said an even number of them."""

    def load_speaking(name: Any, **options: Any) -> Loaded:
        loaded = load(name, **options)
        spoken = {loaded.tokenizer.convert_ids_to_tokens(number): number for number in range(len(loaded.tokenizer))}
        allowed = [number for token, number in spoken.items() if token == "<|im_end|>" or (len(token) == 1 and ord(token) in PRINTABLE)]
        kept = torch.full((loaded.model.config.vocab_size,), -1e3)
        kept[allowed] = 0.0
        kept[spoken["<|im_end|>"]] = 1.0  # so that some answers end

        def only_letters(module: nn.Module, arguments: Any, output: Any) -> Any:
            output.logits = output.logits + kept
            return output

        loaded.model.register_forward_hook(only_letters)
        return loaded

    def grade(item: Item, text: str) -> Grade:
        return Grade(correct=len(text) % 2 == 0, answer=text[-1:] or None, rule="number")

    monkeypatch.setattr(own_traces, "load", load_speaking)
    monkeypatch.setitem(TASKS, "ladder", replace(TASKS["ladder"], grader=grade))


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]


def counted(report: OwnTracesReport) -> dict[str, int]:
    assert report.num_kept + sum(report.dropped.values()) == report.num_answers
    return {reason: number for reason, number in report.dropped.items() if number}


@pytest.mark.usefixtures("speaking")
def test_what_is_right_is_kept_and_trained_on_token_by_token(folder: Path, tmp_path: Path) -> None:
    report = make_own_traces(folder, ASKED, tmp_path)
    found = rows(tmp_path)
    assert report.num_problems == 6 and report.num_answers == 12 and len(found) == report.num_kept > 1
    assert {"unfinished", "wrong"} >= counted(report).keys() != set()
    assert all(row["correct"] and len(row["answer"]) % 2 == 0 for row in found)
    assert report.num_solved == len({row["item"] for row in found}) and report.kept_tokens == sum(row["generated_tokens"] for row in found)
    assert report.facts["loops"] == "none" and report.facts["decoding"]["temperature"] == 1.0
    settings = TraceSettings(sources=(str(tmp_path / "traces.jsonl"),), sequence_tokens=256)
    traces = encode_traces(settings, chat_choice(folder), tmp_path / "encoded")
    assert len(traces) == len(found) and traces.report["num_answer_tokens"] == report.kept_tokens
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for number, row in enumerate(found):
        ids, trained = traces.read(number)
        assert tokenizer.decode(ids[trained == 1].tolist()) == row["answer"] + "<|im_end|>"
        assert row["question"].endswith("give the answer as a number.")
    all_that_end = make_own_traces(folder, replace(ASKED, keep="finished"), tmp_path)
    assert all_that_end.num_kept == report.num_kept + report.dropped["wrong"] and "wrong" not in counted(all_that_end)


def chat_choice(folder: Path) -> Any:
    from loopwise.data import ChatTokenizerChoice

    return ChatTokenizerChoice(name=str(folder), label="bytes")


@pytest.mark.usefixtures("speaking")
def test_a_killed_call_goes_on_to_the_same_traces(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_own_traces(folder, ASKED, tmp_path / "whole")
    make_own_traces(folder, ASKED, tmp_path / "cut")
    records = tmp_path / "cut" / "answers" / "records.jsonl"
    content = records.read_bytes()
    records.write_bytes(content[: content.rindex(b"\n", 0, len(content) // 2) + 20])  # some answers, and half a line
    for name in ("traces.jsonl", "report.json"):
        (tmp_path / "cut" / name).unlink()
    again = make_own_traces(folder, ASKED, tmp_path / "cut")
    assert (tmp_path / "cut" / "traces.jsonl").read_bytes() == (tmp_path / "whole" / "traces.jsonl").read_bytes()
    assert again.num_answers == 12
    with pytest.raises(ValueError, match="holds a run with another budget_tokens"):
        make_own_traces(folder, replace(ASKED, budget_tokens=40), tmp_path / "cut")


@pytest.mark.usefixtures("speaking")
def test_every_answer_that_is_left_out_is_counted_by_its_reason(folder: Path, tmp_path: Path) -> None:
    problem = TASKS["ladder"].load(None, 6, "train")[2].prompt
    words = " ".join(f"word{n}" for n in range(13))
    write_chats(tmp_path / "items.jsonl", [{"question": problem}, {"question": words}])
    asked = replace(ASKED, against=(f"made={tmp_path}/items.jsonl",))
    out = tmp_path / "out"
    first = make_own_traces(folder, asked, out)
    assert (first.num_problems_decontaminated, first.num_answers, first.benchmarks) == (1, 10, ("made",))
    file = out / "answers" / "records.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records.sort(key=lambda one: (one["item"], one["sample"]))
    for record in records:
        record |= {"finished": True, "correct": True, "text": f"the {record['sample']}"}
    changes = [{"finished": False}, {"correct": False}, {"text": "  "}, {"text": f"so {words} then"}, {"text": "the 1"}]
    for place, change in zip((0, 1, 2, 3, 4), changes, strict=True):
        records[place] |= change
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    report = make_own_traces(folder, asked, out)
    assert counted(report) == dict.fromkeys(("unfinished", "wrong", "empty", "decontaminated", "duplicate"), 1)
    assert report.num_kept == 5 and json.loads((out / "report.json").read_text())["dropped"] == report.dropped
    assert not any(row["item"] == "rung2-0000" for row in rows(out))  # the third problem


def test_a_thinking_tag_that_the_template_opens_belongs_to_the_trace(tmp_path: Path) -> None:
    opened = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}{# and then \n</think>\n\n #}")
    choice = chat_folder(tmp_path / "model", opened)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    chat = read_chat(nn.Module(), tokenizer)
    item = Item(name="a", prompt="1+1?", gold="2")
    sorted_out = own_traces.SortedOut([item], chat, DecodingRule(), ItemIndex(()), "correct")
    record = Record(task="t", item="a", seed=0, sample=0, correct=True, finished=True, text="one\n</think>\n\n2", generated_tokens=15)
    (row,) = sorted_out.rows([record])
    assert row["answer"] == "<think>\none\n</think>\n\n2"
    write_chats(tmp_path / "own.jsonl", [row])
    traces = encode_traces(TraceSettings(sources=(str(tmp_path / "own.jsonl"),), sequence_tokens=200), choice, tmp_path / "set")
    ids, trained = traces.read(0)
    assert tokenizer.decode(ids[trained == 1].tolist()) == f"{record.text}<|im_end|>"  # what the model wrote, and no more


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"task": "aime24"}, TaskError, "aime24 has no training problems"),
        ({"task": "arc_challenge"}, TaskError, "has no answers of words"),
        ({"temperature": 0.0}, DataError, "2 samples at temperature 0"),
        ({"budget_tokens": 0}, ValueError, "budget_tokens is 0"),
        ({"limit": 0}, TaskError, "limit is 0"),
        ({"against": ("no.jsonl",)}, DataError, "no such file"),
    ],
)
def test_bad_input_is_refused_before_the_model_is_read(
    changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_traces, "load", lambda *_, **__: pytest.fail("the model was read"))
    with pytest.raises(error, match=words) as raised:
        make_own_traces("smollm2", replace(ASKED, **changes), tmp_path / "out")
    assert "\n" not in str(raised.value) and not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="keep is 'all'; use correct or finished"):
        replace(ASKED, keep="all")  # type: ignore[arg-type]


@pytest.mark.usefixtures("speaking")
def test_the_command_tells_what_it_kept(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["data", "generate", str(folder), "--task", "ladder", "--limit", "4", "--against", "none", "--temperature", "1"]
    options += ["--samples", "2", "--dtype", "fp32"]
    main([*options, "--budget", "48", "--out", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert f"traces: {tmp_path}/out/traces.jsonl" in shown and "apart from none" in shown and "of 4 problems have a trace" in shown
    main(["data", "generate", "--config", str(tmp_path / "out" / "config.json"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["num_kept"] == len(rows(tmp_path / "out")) > 0
    with pytest.raises(SystemExit):
        main([*options, "--budget", "1", "--out", str(tmp_path / "none")])
    assert "no trace is kept" in capsys.readouterr().err.splitlines()[-1]
    assert json.loads((tmp_path / "none" / "report.json").read_text())["num_kept"] == 0
