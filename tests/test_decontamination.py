"""13-gram decontamination: the paper's rule, against a plain implementation of it, and over whole corpora."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import data_dir
from loopwise.cli import main
from loopwise.data import DataError, EvaluationItem, ItemIndex, decontaminate_sources, read_items
from loopwise.data import decontamination as module
from training_text import contents, write_rows

QUESTION = "Janet sells sixteen eggs a day, eats three for breakfast, and bakes muffins with four."


def item(text: str, benchmark: str = "b", name: str = "line 1, question") -> EvaluationItem:
    return EvaluationItem(benchmark=benchmark, name=name, text=text)


def plain_hits(items: list[str], document: str) -> set[str]:
    """The rule as the paper says it."""

    def ngrams(text: str) -> set[str]:
        words = text.lower().split()
        return {" ".join(words[start : start + 13]) for start in range(len(words) - 12)}

    return set().union(*map(ngrams, items)) & ngrams(document)


WORDS = st.lists(st.sampled_from(["a", "b", "C", "c,"]), max_size=40).map(" ".join)


@given(items=st.lists(WORDS, max_size=4), document=WORDS)
@settings(max_examples=150, deadline=None)
def test_hits_are_those_of_the_plain_rule(items: list[str], document: str) -> None:
    found = ItemIndex(item(text) for text in items).hits(document)
    assert {hit.ngram for hit in found} == plain_hits(items, document)


def test_thirteen_words_in_a_row_are_found_and_twelve_are_not() -> None:
    index, words = ItemIndex([item(QUESTION)]), QUESTION.split()
    assert len(words) == 15 and index.num_ngrams == 3
    assert [hit.ngram for hit in index.hits("Once " + " ".join(words[:13]).upper() + "\n\nand so on")] == [" ".join(words[:13]).lower()]
    assert not index.hits(" ".join(words[:12]) + " x " + " ".join(words[12:]))
    # Words are what stands between blanks: another comma is another word, another blank is none.
    assert not index.hits(QUESTION.replace(",", "")) and len(index.hits("\t".join(words))) == 3
    assert not ItemIndex([item("too short to say")]).hits("too short to say " * 9) and not ItemIndex([]).hits(QUESTION)


def test_hashes_that_collide_drop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_window_hashes", lambda ids: np.zeros(len(ids) - 12, dtype=np.uint64))
    index, words = ItemIndex([item(QUESTION)]), QUESTION.split()
    assert not index.hits(" ".join(reversed(words))) and len(index.hits(QUESTION)) == 3


def test_every_benchmark_of_an_ngram_is_named() -> None:
    index = ItemIndex([item(QUESTION, "one", "x"), item(QUESTION, "two", "y"), item(QUESTION, "one", "z")])
    assert {(hit.benchmark, hit.item) for hit in index.hits(QUESTION)} == {("one", "x"), ("two", "y")}


def write_items(file: Path, *rows: object) -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def test_items_are_read_field_by_field(tmp_path: Path) -> None:
    file = write_items(tmp_path / "gsm" / "test.jsonl", {"question": "q", "answer": 3}, {"problem": "p", "text": "t", "id": "7"})
    found = read_items([str(file)])
    assert [(one.benchmark, one.name, one.text) for one in found] == [
        ("gsm/test", "line 1, question", "q"), ("gsm/test", "line 2, problem", "p"), ("gsm/test", "line 2, text", "t"),
    ]  # fmt: skip
    packed = write_items(tmp_path / "a.jsonl.gz", {"id": "i"})
    assert read_items([f"x={packed}"], ["id"]) == (item("i", "x", "line 1, id"),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"body": "x"}\n', "line 1: has none of question"),
        (b"[1]\n", "no object"),
        (b"{\n", "not a JSON object"),
        (b"\n", "holds no item"),
    ],
)
def test_items_that_cannot_be_read_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "items.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_items([str(file)])


def test_files_that_are_no_items_are_refused(tmp_path: Path) -> None:
    file = write_items(tmp_path / "a.jsonl", {"text": "x"})
    for specs, message in (
        (["x=none.jsonl"], "no such file"),
        ([f"b={file}", f"b={file}"], "given twice"),
        ([str(tmp_path)], "no such file"),
    ):
        with pytest.raises(DataError, match=message):
            read_items(specs)


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, list[str]]:
    """A corpus with two documents that quote an item, and one that quotes a short one."""
    texts = write_rows(tmp_path / "text.jsonl", 120)
    texts[17] = f"A riddle. {QUESTION} How many are left?"
    texts[90] = f"{QUESTION}"
    texts[91] = "What is 3 + 4?"
    texts[5] = " "
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path / "text.jsonl", texts


def test_a_corpus_is_cleaned_and_reported(tmp_path: Path, corpus: tuple[Path, list[str]]) -> None:
    file, texts = corpus
    items = write_items(tmp_path / "gsm8k" / "test.jsonl", {"question": QUESTION}, {"question": "What is 3 + 4?"})
    report = decontaminate_sources([str(file)], [f"gsm8k={items}"], tmp_path / "out", rows_per_file=25)
    kept = [json.loads(line) for part in sorted((tmp_path / "out/kept/text").iterdir()) for line in part.read_text().splitlines()]
    assert [row["text"] for row in kept] == [text for number, text in enumerate(texts) if number not in (5, 17, 90)]
    assert kept[6]["name"] == f"{file}, row 7"
    assert (report["num_documents"], report["num_dropped"]) == (119, 2)
    counts = {"num_texts": 2, "num_too_short": 1, "num_texts_found": 1, "num_documents_dropped": 2}
    assert report["benchmarks"] == {"gsm8k": counts}
    assert [one["text"] for one in report["too_short"]] == ["What is 3 + 4?"] and len(report["ngrams"]) == 3
    assert all(one["documents"] == [f"{file}, row 17", f"{file}, row 90"] for one in report["ngrams"].values())
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    assert not (tmp_path / "out/chunks").exists()


def test_workers_and_restarts_do_not_show(tmp_path: Path, corpus: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = corpus
    items = [str(write_items(tmp_path / "gsm8k" / "test.jsonl", {"question": QUESTION}))]
    decontaminate_sources([str(file)], items, tmp_path / "one", rows_per_file=20)
    decontaminate_sources([str(file)], items, tmp_path / "two", rows_per_file=20, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")

    def stop(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("loopwise.data.decontaminating.write_json", stop)
        with pytest.raises(OSError, match="No space"):
            decontaminate_sources([str(file)], items, tmp_path / "three", rows_per_file=20)
    (tmp_path / "three/chunks/text-00000-000003.json").unlink()
    decontaminate_sources([str(file)], items, tmp_path / "three", rows_per_file=20)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")
    with pytest.raises(DataError, match="was made with another rows_per_file"):
        decontaminate_sources([str(file)], items, tmp_path / "one", rows_per_file=10)
    write_items(Path(items[0]), {"question": QUESTION + " more"})
    with pytest.raises(DataError, match="was made with another items_sha256"):
        decontaminate_sources([str(file)], items, tmp_path / "one", rows_per_file=20)


def test_the_command_prints_counts(tmp_path: Path, corpus: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = corpus
    items = write_items(tmp_path / "gsm8k" / "test.jsonl", {"question": QUESTION})
    main(["data", "decontaminate", "--text", str(file), "--items", f"gsm8k={items}", "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out
    assert "2 of 119 documents dropped, 3 13-grams found" in out and "gsm8k" in out
    main(["data", "decontaminate", "--text", str(file), "--items", f"gsm8k={items}", "--out", str(tmp_path / "out"), "--json"])
    assert json.loads(capsys.readouterr().out)["num_dropped"] == 2


def test_real_benchmarks_are_found_in_their_own_text(tmp_path: Path) -> None:
    folder = data_dir()
    files = [folder / "gsm8k" / "test.jsonl", folder / "math500" / "test.jsonl"]
    items = read_items([f"{file.parent.name}={file}" for file in files])
    index = ItemIndex(items)
    rng = random.Random(0)
    for one in rng.sample([one for one in items if one not in set(index.short)], 50):
        hits = index.hits(f"Some blog wrote: {one.text} And then went on.")
        assert one.benchmark in {hit.benchmark for hit in hits}
    physics = [json.loads(line)["text"] for line in (folder / "text" / "openstax_physics.jsonl").read_text().splitlines()]
    assert sum(bool(index.hits(text)) for text in physics) <= 2
