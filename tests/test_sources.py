"""Text as a user gives it: files, chats, hub data sets, several at once; and the one line for each that cannot be read."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loopwise.data import DataError, Document, read_documents, read_sources
from loopwise.data.files import chat_text

CHAT = [{"role": "user", "content": " What is a loop?"}, {"role": "assistant", "content": "A span\n\nthat runs again.\n"}]
CHAT_TEXT = "user:\nWhat is a loop?\n\nassistant:\nA span\n\nthat runs again."


def test_users_lines_are_read_with_their_domains(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"text": "one line\u2028and more", "domain": "math"}, {"text": "two", "source": "x"}]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    assert read_documents(file) == (
        Document(name="mine.jsonl:1", domain="math", text="one line\u2028and more"),
        Document(name="mine.jsonl:2", domain="text", text="two"),
    )


def test_users_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    paragraphs = [f"{number} " + "word " * 300 for number in range(10)]
    file.write_text("\n\n".join(paragraphs), encoding="utf-8")
    documents = read_documents(file)
    assert [document.text.count("\n\n") for document in documents] == [2, 2, 2, 0]
    assert "\n\n".join(document.text for document in documents) == "\n\n".join(paragraphs)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": ', r"a\.jsonl, line 2: not a JSON object"),
        ("a.jsonl", '{"body": "x"}', r"line 1: needs a 'text'"),
        ("a.jsonl", '{"text": "x", "domain": 3}', r"line 1: domain is 3"),
        ("a.jsonl", "\n", "holds no text"),
        ("a.jsonl", '{"text": "x"}\n{"text": "y", "id": ' + "1" * 5000 + "}", r"a\.jsonl, line 2: not a JSON object"),
        ("a.jsonl", '{"text": "x"}\n' + "[" * 200_000, r"a\.jsonl, line 2: not a JSON object"),
        ("a.jsonl", '{"text": "x"}\n{"text": "a \\ud83d b"}', r"a\.jsonl, line 2: the text has '\\ud83d', half of a character"),
        ("a.jsonl", '{"text": "x", "domain": "\\udc00"}', r"a\.jsonl, line 1: the domain has '\\udc00', half of a character"),
        ("a.txt", "  \n\n ", "holds no text"),
        ("a.csv", "x", r"\.txt or \.jsonl files, not from \.csv"),
        ("a.txt", b"\xff\xfe\xff", "not UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        read_documents(file)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()
    with pytest.raises(DataError, match="no such file"):
        read_documents(tmp_path / "missing.txt")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", '{"text": "one"}\n'), ("a.txt", "one")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
        assert [document.text for document in read_documents(tmp_path / name)] == ["one"]


def test_a_text_that_is_there_twice_is_one_document(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "one.jsonl", [{"text": "same"}, {"text": "same\n"}, {"text": "mine"}])
    two = write_rows(tmp_path / "two.jsonl", [{"text": "yours"}, {"text": "same"}])
    found = [(document.name, document.domain, document.text) for document in read_sources([f"a={one}", f"b={two}"])]
    assert found == [("one.jsonl:1", "a", "same"), ("one.jsonl:3", "a", "mine"), ("two.jsonl:1", "b", "yours")]
    (tmp_path / "copy.jsonl").write_bytes(one.read_bytes())
    with pytest.raises(DataError, match=r"copy\.jsonl: all its text is in the sources before it; leave it out"):
        read_sources([f"a={one}", f"b={tmp_path / 'copy.jsonl'}"])


def write_rows(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def test_chats_become_one_text_with_their_speakers(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "chat.jsonl.gz", [{"messages": CHAT, "domain": "chat"}, {"text": "kept", "messages": CHAT}])
    assert [(d.name, d.domain, d.text) for d in read_documents(file)] == [
        ("chat.jsonl.gz:1", "chat", CHAT_TEXT),
        ("chat.jsonl.gz:2", "text", "kept"),
    ]
    shared = [{"from": "human", "value": CHAT[0]["content"]}, {"from": "gpt", "value": CHAT[1]["content"]}]
    assert chat_text(shared) == CHAT_TEXT
    assert chat_text([*CHAT, {"role": "tool", "content": None}]) == CHAT_TEXT
    assert chat_text([*CHAT, "so"]) is None and chat_text([{"role": 1, "content": "x"}]) is None


def test_a_cut_gzip_file_is_named(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "x.jsonl.gz", [{"text": "word " * 99}])
    whole = file.read_bytes()
    for damaged in (whole[:-12], b"plain", whole[:12] + b"damage" + whole[18:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.jsonl\.gz: not a whole gzip file"):
            read_documents(file)


def test_sources_of_one_name_do_not_collide(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "a" / "x.jsonl", [{"text": "one", "domain": "own"}, {"text": "two"}])
    two = write_rows(tmp_path / "b" / "x.jsonl", [{"text": "three", "domain": "own"}])
    three = tmp_path / "k=v.txt"
    three.write_text("four")
    documents = read_sources([str(one), f"web text={two}", str(three)])
    assert [(d.domain, d.text) for d in documents] == [("own", "one"), ("text", "two"), ("web text", "three"), ("text", "four")]
    assert len({document.name for document in documents}) == 4
    assert documents[-1].name == "k=v.txt:0"


def test_a_file_whose_name_looks_like_a_domain_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("code=mine.txt").write_text("its own")
    Path("mine.txt").write_text("another")
    assert [(d.domain, d.text) for d in read_sources(["code=mine.txt"])] == [("text", "its own")]
    Path("code=mine.txt").unlink()
    assert [(d.domain, d.text) for d in read_sources(["code=mine.txt"])] == [("code", "another")]


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "x.jsonl", [{"text": "one"}])
    same = file.parent / ".." / file.parent.name / "x.jsonl"
    for specs, message in (
        ([], "no text is given"),
        ([str(file), f"code={same}"], r"x\.jsonl: is given twice"),
        ([f"code={tmp_path}/none.jsonl"], r"none\.jsonl: no such file"),
        (["hub:name"], r"'hub:name' names no data set; write hub:ORG/NAME"),
        (["hub:a/b/c/d"], "names no data set"),
        (["hub:a/b:train:text:more"], "names no data set"),
        (["hub:a/b:"], "names no data set"),
        (["hub:a/b", "x=hub:a/b:train"], "hub:a/b: is given twice"),
    ):
        with pytest.raises(DataError, match=message) as error:
            read_sources(specs)
        assert "\n" not in str(error.value)


def fake_hub(monkeypatch: pytest.MonkeyPatch, rows: Any) -> list[tuple[Any, ...]]:
    """A ``datasets`` module whose data sets hold ``rows``, or fail with them; the list fills with what was asked for."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> Any:
        asked.append((name, config, split, streaming))
        if isinstance(rows, Exception):
            raise rows
        return rows

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_a_hub_data_set_is_streamed_up_to_the_number_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = itertools.count()
    rows = ({"id": n, "text": None if n % 3 == 0 else f"text {n}"} for n in ids)
    asked = fake_hub(monkeypatch, rows)
    documents = read_sources(["hub:org/web-text"], hub_documents_each=4)
    assert asked == [("org/web-text", None, "train", True)]
    assert [(d.domain, d.text) for d in documents] == [("web-text", f"text {n}") for n in (1, 2, 4, 5)]
    assert documents[0].name == "hub:org/web-text:train:1"
    assert next(ids) == 6, "no row was read that was not wanted"


def test_hub_columns_are_found_named_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, [{"id": 7, "conversations": CHAT}])
    assert [d.text for d in read_sources(["chat=hub:org/chats/main:test"])] == [CHAT_TEXT]
    assert asked == [("org/chats", "main", "test", True)]
    assert [(d.domain, d.text) for d in read_sources(["chat=hub:org/chats:test:conversations"])] == [("chat", CHAT_TEXT)]
    for spec, message in (
        ("hub:org/chats:test:body", "has no column 'body'; its columns are conversations, id: name one as"),
        ("hub:org/chats:test:id", "row 0: column 'id' holds '7', neither text nor messages"),
    ):
        with pytest.raises(DataError, match=message):
            read_sources([spec])
    fake_hub(monkeypatch, [{"body": "x"}])
    with pytest.raises(DataError, match="has no column that usually holds text; its columns are body"):
        read_sources(["hub:org/chats"])
    fake_hub(monkeypatch, [{"text": " "}])
    with pytest.raises(DataError, match="hub:org/chats:train: holds no text"):
        read_sources(["hub:org/chats"])


def test_a_hub_that_is_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    transport = HfHubHTTPError.__bases__[0]("gone\naway")
    for fault in (ConnectionError("Couldn't reach\n'org/x' on the Hub"), ValueError("Bad split: x"), RuntimeError("scripts"), transport):
        fake_hub(monkeypatch, fault)
        with pytest.raises(DataError, match=r"hub:org/x:train: cannot be had from the hub \(\w+.*\); check the name") as error:
            read_sources(["hub:org/x"])
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the datasets library: pip install 'loopwise\[hub\]'"):
        read_sources(["hub:org/x"])


def test_the_real_library_reads_a_folder_as_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    write_rows(tmp_path / "org" / "name" / "train.jsonl", [{"text": "one"}, {"text": "two"}])
    monkeypatch.chdir(tmp_path)
    assert [d.text for d in read_sources(["web=hub:org/name"])] == ["one", "two"]
    with pytest.raises(DataError, match=r"cannot be had from the hub \(Bad split: test\. Available splits: \['train'\]\)"):
        read_sources(["hub:org/name:test"])
