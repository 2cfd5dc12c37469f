"""``loopwise data traces``: what a user sees, one line for bad input, and real traces with a real tokenizer."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from data import data_dir
from loopwise.cli import main
from loopwise.data import DataError, TraceBatches, TraceSet
from loopwise.recipes.evaluation_items import PAPER_BENCHMARKS, evaluation_items
from loopwise.tasks import task_named
from trace_sets import CHATML, chat_folder, write_chats

ROWS = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}."} for n in range(30)]


def run(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    main(["data", "traces", *map(str, args)])
    return capsys.readouterr().out


def fail(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["data", "traces", *map(str, args)])
    out, err = capsys.readouterr()
    assert stop.value.code not in (0, None) and out == "" and err.count("\n") == 1 and err.startswith("loopwise data traces: ")
    return err


def embedded() -> str:
    """The name of the embedded model, or why a test that needs it is skipped."""
    pytest.importorskip("torch")
    from loopwise.models.embedded import gguf_file
    from loopwise.models.families import ModelError

    try:
        gguf_file()
    except ModelError as error:
        pytest.skip(str(error))
    return "smollm2"


def test_a_set_is_made_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat_folder(tmp_path / "model")
    write_chats(tmp_path / "a.jsonl", ROWS + ROWS[:2])
    write_chats(tmp_path / "items.jsonl", [{"question": " ".join(f"w{n}" for n in range(20))}])
    options = ("--text", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "model", "--sequence-tokens", 200, "--out", tmp_path / "out")
    said = run(capsys, *options, "--against", f"made={tmp_path}/items.jsonl", "--verify")
    assert re.search(r"^kept +30$", said, re.MULTILINE) and re.search(r"^with the tokens of an earlier one +2$", said, re.MULTILINE)
    assert f"apart from made, report: {tmp_path}/out/decontamination.json" in said
    found = json.loads(run(capsys, "--config", tmp_path / "out" / "config.json", "--json"))
    assert (found["num_rows"], found["num_kept"], found["num_duplicate"], found["against"]) == (32, 30, 2, ["made"])
    assert found["num_tokens"] == TraceSet.open(tmp_path / "out").num_tokens


def test_bad_input_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat_folder(tmp_path / "model")
    chat_folder(tmp_path / "bare", None)
    chat_folder(tmp_path / "padless", pad=False)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    write_chats(tmp_path / "a.jsonl", ROWS)
    write_chats(tmp_path / "odd.jsonl", [{"left": "a", "right": "b"}])
    text, out, free = ("--text", tmp_path / "a.jsonl"), ("--out", tmp_path / "out"), ("--against", "none")
    model, short = ("--tokenizer", tmp_path / "model"), ("--sequence-tokens", 100)
    assert "give --out" in fail(capsys, *text, *model)
    assert "give --tokenizer" in fail(capsys, *text, *out)
    assert "no text is given" in fail(capsys, *model, *out, *free)
    assert "no such file or folder" in fail(capsys, "--text", tmp_path / "no.jsonl", *model, *out, *free)
    assert "has no chat template" in fail(capsys, *text, "--tokenizer", tmp_path / "bare", *out, *free, *short)
    assert "has no pad token" in fail(capsys, *text, "--tokenizer", tmp_path / "padless", *out, *free, *short)
    assert "reads 512 at most" in fail(capsys, *text, *model, *out, *free, "--sequence-tokens", 513)
    assert "cannot be loaded" in fail(capsys, *text, "--tokenizer", tmp_path / "nothing", *out, *free, *short)
    assert "leave out --chat-template" in fail(capsys, *text, *model, *out, "--raw", "--chat-template", tmp_path / "a.jsonl")
    assert "No such file" in fail(capsys, *text, *model, *out, *free, "--chat-template", tmp_path / "no.jinja")
    assert not (tmp_path / "out").exists()
    assert "longer than a row of 20 tokens" in fail(capsys, *text, *model, *out, *free, "--sequence-tokens", 20, "--json")
    other = ("--out", tmp_path / "other", *free, *short)
    assert "is of no known shape; it has left, right" in fail(capsys, "--text", tmp_path / "odd.jsonl", *model, *other, "--json")


def test_a_template_from_a_file_and_raw_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat_folder(tmp_path / "bare", None)
    (tmp_path / "chatml.jinja").write_text(CHATML)
    write_chats(tmp_path / "a.jsonl", ROWS)
    options = ("--text", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "bare", "--sequence-tokens", 200, "--against", "none", "--json")
    chat = json.loads(run(capsys, *options, "--chat-template", tmp_path / "chatml.jinja", "--out", tmp_path / "chat"))
    raw = json.loads(run(capsys, *options, "--raw", "--out", tmp_path / "raw"))
    assert chat["num_answer_tokens"] == raw["num_answer_tokens"] and chat["num_tokens"] > raw["num_tokens"]
    assert not (tmp_path / "raw" / "decontamination.json").exists()


def test_items_that_are_missing_are_said_and_templates_refused(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    wording = "How many apples are left in the basket after Tom has eaten three of them?"
    (tmp_path / "gsm8k" / "test.jsonl").write_text(
        "".join(json.dumps({"question": f"{n} {wording}", "answer": "so #### 3"}) + "\n" for n in (1, 2))
    )
    items, missing = evaluation_items(data=tmp_path)
    assert {item.benchmark for item in items} == {"gsm8k"} and len(missing) == len(PAPER_BENCHMARKS) - 1
    assert items[0].text == f"1 {wording}"  # without the instruction, which training prompts may have too
    with pytest.raises(DataError, match="some are missing: math500: "):
        evaluation_items(["gsm8k", "math500"], data=tmp_path)
    with pytest.raises(DataError, match="some are missing: gsm8k: "):
        evaluation_items(data=tmp_path / "gsm8k" / "no")
    with pytest.raises(DataError, match="ladder: its items are made from templates"):
        evaluation_items(["ladder"], data=tmp_path)
    assert evaluation_items(["none"]) == ((), ())


def made(out: Path, capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    found = json.loads(run(capsys, "--tokenizer", embedded(), "--out", out, "--data", data_dir(), "--json", *args))
    assert isinstance(found, dict)
    return found


def test_real_thinking_traces_in_rows_of_a_real_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = data_dir() / "reasoning" / "think_traces.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"no traces at {file}")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(120), strict=False)]
    write_chats(tmp_path / "traces.jsonl", rows)
    columns = ("--question", "question", "--answer", "text")
    found = made(tmp_path / "out", capsys, "--text", tmp_path / "traces.jsonl", *columns, "--sequence-tokens", 2048, "--against", "gsm8k")
    assert found["num_rows"] == 120 and found["num_too_long"] > 0 and found["num_kept"] > 50
    assert found["longest_tokens"] <= 2049 < found["shortest_too_long"]
    from transformers import AutoTokenizer

    traces = TraceSet.open(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(traces.tokenizer_folder)
    answers = {row["text"].strip() for row in rows}
    for number in range(0, len(traces), 7):
        ids, trained = traces.read(number)
        answer = tokenizer.decode(ids[trained == 1].tolist())
        assert answer.removesuffix("<|im_end|>").strip() in answers
    options: dict[str, Any] = dict(num_sequences=2, seed=0)
    alone = TraceBatches(traces, sequence_tokens=2048, packed=False, **options).filled()
    assert (
        alone
        < TraceBatches(traces, sequence_tokens=2048, **options).filled()
        < TraceBatches(traces, sequence_tokens=8192, **options).filled()
    )


def test_gsm8ks_train_questions_are_kept_and_its_test_questions_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = data_dir() / "gsm8k"
    train, test = (folder.joinpath(f"{split}.jsonl").read_text().splitlines()[:150] for split in ("train", "test"))
    prompt = task_named("gsm8k").load(data_dir(), 1)[0].prompt
    instruction = prompt.rpartition("\n")[2]
    rows = [json.loads(line) for line in train + test]
    for row in rows:
        row["question"] += f"\n{instruction}"  # as the evaluation asks, which is no contamination
    write_chats(tmp_path / "mixed.jsonl", rows)
    found = made(tmp_path / "out", capsys, "--text", tmp_path / "mixed.jsonl", "--sequence-tokens", 1024)
    assert found["num_kept"] <= 150 + 3 and found["num_kept"] >= 140  # of both: test items of fewer than 13 words, and shared wording
    assert found["num_decontaminated"] + found["num_kept"] == 300
    report = json.loads((tmp_path / "out" / "decontamination.json").read_text())
    assert report["benchmarks"]["gsm8k"]["num_documents_dropped"] >= 145
