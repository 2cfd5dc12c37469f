"""Runs of held-out loss: bound to what ran, appended as they come, gone on with after a kill, and what they refuse."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from loopwise.cost import cost_of, read_shape
from loopwise.data import DataError, Document, read_texts
from loopwise.evaluation import encode_text, evaluate_loss
from loopwise.models import insert
from loopwise.records import LossRecord, LossRun, RecordsError, read_loss_run, read_run
from loopwise.records.losses import parse_loss_record
from loopwise.scoring import ScoringError, WindowSettings
from loss_runs import write_text
from tiny import tiny_model, tiny_tokenizer

WINDOWS = WindowSettings(context_tokens=8, stride_tokens=4, batch_size=4)


@pytest.fixture
def text(tmp_path: Path) -> tuple[Document, ...]:
    write_text(tmp_path / "text.jsonl")
    return read_texts([str(tmp_path / "text.jsonl")])


def evaluated(text: tuple[Document, ...], out: Path | None = None, model: Any = None, **options: Any) -> LossRun:
    model = insert(tiny_model("llama"), "2:4 x2") if model is None else model
    return evaluate_loss(model, tiny_tokenizer(), text, out=out, **{"windows": WINDOWS} | options)


def test_a_run_says_what_ran_and_what_was_lost(text: tuple[Document, ...], tmp_path: Path) -> None:
    model = insert(tiny_model("llama"), "2:4 x2")
    run = evaluated(text, tmp_path / "run", model, training_flops=5e9)
    header = run.header
    assert header["loops"] == "2:4 x2" and header["looped"] is True and header["layer_pass_ratio"] == pytest.approx(8 / 6)
    assert header["flops_per_token"] == cost_of(read_shape(model.config.to_dict()), model_loops(model)).flops_per_token
    assert (header["context_tokens"], header["stride_tokens"], header["start_token"], header["training_flops"]) == (8, 4, "w2", 5e9)
    assert header["num_documents"] == len(run.records) == len(text) and header["dtype"] == "float32"
    assert sum(record.num_targets for record in run.records) == header["num_targets"] == sum(len(one.text.split()) for one in text)
    assert header["num_bytes"] == sum(len(one.text.encode()) for one in text)
    totals = run.totals
    assert totals.nats_per_token == pytest.approx(sum(one.loss_nats for one in run.records) / header["num_targets"])
    assert totals.perplexity == pytest.approx(math.exp(totals.nats_per_token))
    assert totals.bits_per_byte == pytest.approx(sum(one.loss_nats for one in run.records) / math.log(2) / header["num_bytes"])
    assert evaluated(text, None, model).records == run.records == read_loss_run(tmp_path / "run").records


def model_loops(model: Any) -> Any:
    from loopwise.models import loops_of

    return loops_of(model)


class Killed(Exception):
    """Stands for a kill."""


def test_a_killed_run_goes_on_with_what_is_missing(text: tuple[Document, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwise.scoring.documents.GROUP_WINDOWS", 8)
    whole, file = evaluated(text, tmp_path / "whole"), tmp_path / "killed" / "records.jsonl"

    def kill(share: float) -> None:
        if share > 0.6:
            raise Killed

    with pytest.raises(Killed):
        evaluated(text, tmp_path / "killed", progress=kill)
    before = file.read_bytes()
    assert 0 < before.count(b"\n") < len(text)
    file.write_bytes(before + b'{"document": "text:3", "loss_na')
    shares: list[float] = []
    again = evaluated(text, tmp_path / "killed", progress=shares.append)
    assert file.read_bytes().startswith(before)
    assert again.records == whole.records and again.totals == whole.totals
    assert shares[0] > 0 and shares[-1] == 1.0
    written = file.read_bytes()
    assert evaluated(text, tmp_path / "killed").records == whole.records and file.read_bytes() == written


def test_a_folder_holds_one_way_of_running(text: tuple[Document, ...], tmp_path: Path) -> None:
    evaluated(text, tmp_path / "run")
    with pytest.raises(RecordsError, match=r"another context_tokens \(8, now 16\)"):
        evaluated(text, tmp_path / "run", windows=WindowSettings(context_tokens=16, stride_tokens=4, batch_size=4))
    with pytest.raises(RecordsError, match="holds a run with another num_bytes"):
        evaluated(text[1:], tmp_path / "run")
    with pytest.raises(RecordsError, match="another arm"):
        evaluated(text, tmp_path / "run", tiny_model("llama"))
    with pytest.raises(ScoringError, match="training_flops is -1"):
        evaluated(text, tmp_path / "other", training_flops=-1)
    assert not (tmp_path / "other").exists()


def test_runs_of_answers_and_of_loss_are_not_mistaken_for_each_other(text: tuple[Document, ...], tmp_path: Path) -> None:
    evaluated(text, tmp_path / "run")
    with pytest.raises(RecordsError, match="'task' is missing"):
        read_run(tmp_path / "run")
    header = tmp_path / "run" / "header.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"format": "loopwise-run/1"}))
    with pytest.raises(RecordsError, match="holds a run of 'loopwise-run/1', not of loss"):
        read_loss_run(tmp_path / "run")
    with pytest.raises(RecordsError, match="holds no header"):
        read_loss_run(tmp_path)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"loss_nats": float("nan")}, "loss_nats is nan"),
        ({"loss_nats": -1.0}, "loss_nats is -1.0"),
        ({"loss_nats": True}, "loss_nats is True"),
        ({"num_targets": 0}, "num_targets is 0"),
        ({"num_targets": 1.5}, "num_targets is 1.5"),
        ({"num_bytes": None}, "num_bytes is None"),
        ({"document": 3}, "document is '3'"),
    ],
)
def test_a_damaged_line_is_named(changes: dict[str, Any], words: str) -> None:
    good = LossRecord(document="d", loss_nats=2.5, num_targets=2, num_bytes=7)
    assert parse_loss_record(good.to_json(), "here") == good
    with pytest.raises(RecordsError, match=f"^here: {words}"):
        parse_loss_record(json.dumps(json.loads(good.to_json()) | changes), "here")
    with pytest.raises(RecordsError, match="not a JSON object"):
        parse_loss_record(good.to_json()[:-3], "here")


def test_unknown_tokens_and_documents_without_a_target_are_counted() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.unk_token = "w3"
    texts = [Document(name=name, domain="t", text=text) for name, text in (("a", "w5 nothing w6"), ("b", "w7"))]
    found = encode_text(tokenizer, texts)
    assert (found.num_unknown, found.num_left_out, found.num_targets) == (1, 0, 4)
    tokenizer.eos_token = None
    found = encode_text(tokenizer, texts)
    assert (found.start_token, found.num_left_out, found.num_targets) == (None, 1, 2)
    with pytest.raises(ScoringError, match="none of 1 documents has a token to predict"):
        encode_text(tokenizer, texts[1:])


def test_texts_are_read_from_every_kind_of_file_under_names_that_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    texts = write_text(tmp_path / "one.jsonl", 4)
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / "sub" / "one.jsonl.gz", "wt") as file:
        file.write((tmp_path / "one.jsonl").read_text())
    plain, packed = (read_texts([str(tmp_path / name)]) for name in ("one.jsonl", "sub/one.jsonl.gz"))
    assert plain == packed and [one.text for one in plain] == texts and plain[2].name == "one:2"
    assert len(read_texts([str(tmp_path / "one.jsonl")], limit=2)) == 2
    with pytest.raises(DataError, match="limit is 0"):
        read_texts([str(tmp_path / "one.jsonl")], limit=0)
    with pytest.raises(DataError, match="no such file"):
        read_texts([str(tmp_path / "none.jsonl")])


def test_texts_are_read_from_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    texts = write_text(tmp_path / "one.jsonl", 4)
    parquet.write_table(pyarrow.table({"body": [*texts, texts[0], ""]}), tmp_path / "one.parquet")
    plain = read_texts([str(tmp_path / "one.jsonl")])
    assert read_texts([str(tmp_path / "one.parquet")], column="body") == plain  # a copy and an empty row are left out
