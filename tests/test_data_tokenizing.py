"""Text into shards: every kind of source, bit for bit the same however many work and wherever they are killed."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from data import data_dir
from loopwise.cli import main
from loopwise.data import DataError, TokenizeSettings, TokenShards, parse_training_sources, read_documents, tokenize_sources
from loopwise.data.chunks import Counts
from loopwise.data.parts import find_parts
from loopwise.data.streams import part_rows
from loopwise.data.text_tokenizers import END_TOKEN, ByteTokenizer, FastTokenizer
from training_text import contents, write_rows


def texts_of(shards: TokenShards, source: str) -> list[str]:
    """The documents of a source in shards of bytes."""
    stream = shards.select(source)
    starts = [*stream.document_starts(0, stream.num_tokens).tolist(), stream.num_tokens]
    tokens = stream.tokens(0, stream.num_tokens)
    assert all(tokens[stop - 1] == 256 for stop in starts[1:])
    return [tokens[start : stop - 1].astype(np.uint8).tobytes().decode() for start, stop in itertools.pairwise(starts)]


def write_parquet(file: Path, texts: list[str], rows_per_group: int, column: str = "text") -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": list(range(len(texts))), column: texts}), file, row_group_size=rows_per_group)


def make(out: Path, *sources: str, **options: Any) -> TokenShards:
    workers = options.pop("workers", 1)
    return tokenize_sources(TokenizeSettings(sources=sources, **{"rows_per_shard": 20} | options), out, workers=workers)


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, list[str]]:
    """One source of each kind of file; the rows of ``folder`` are in two of them."""
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    texts = {"lines": write_rows(tmp_path / "lines.jsonl", 130, 1), "packed": write_rows(tmp_path / "x.jsonl", 45, 2)}
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress((tmp_path / "x.jsonl").read_bytes()))
    (tmp_path / "x.jsonl").unlink()
    if find_spec("pyarrow") is not None:  # comes with the hub extra
        texts["table"] = [f"{number} table" for number in range(101)]
        write_parquet(tmp_path / "table.parquet", texts["table"], 30)
    texts["folder"] = write_rows(tmp_path / "folder" / "a.jsonl", 25, 3) + write_rows(tmp_path / "folder" / "deep" / "b.jsonl", 40, 4)
    texts["plain"] = ["\n\n".join(f"paragraph {number} {'word ' * 100}".strip() for number in range(60))]
    (tmp_path / "plain.txt").write_text(texts["plain"][0])
    return texts


def sources_of(folder: Path) -> list[str]:
    names = ("lines=lines.jsonl", "packed=packed.jsonl.gz", "folder=folder", "plain=plain.txt", "table=table.parquet")
    return [name.replace("=", f"={folder}/") for name in names if (folder / name.partition("=")[2]).exists()]


def test_every_document_of_every_source_is_there(tmp_path: Path, corpus: dict[str, list[str]]) -> None:
    shards = make(tmp_path / "out", *sources_of(tmp_path))
    for source, texts in corpus.items():
        found = texts_of(shards, source)
        assert ["\n\n".join(found)] == texts if source == "plain" else found == texts
    assert [shard.num_documents for shard in shards.shards if shard.source == "lines"] == [20, 20, 20, 20, 20, 20, 10]
    assert shards.settings["num_rows"] == sum(shard.num_documents for shard in shards.shards)
    assert len(list(shards.verify())) == len(shards.shards)


def test_the_number_of_workers_does_not_show(tmp_path: Path, corpus: dict[str, list[str]]) -> None:
    options = dict(held_out=3)
    sources = [source for source in sources_of(tmp_path) if not source.startswith("plain=")]  # which has 6 documents
    one = make(tmp_path / "one", *sources, **options)
    three = make(tmp_path / "three", *sources, **options, workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three") and one.sha256 == three.sha256


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    for number in range(3):
        write_rows(tmp_path / "text" / f"{number}.jsonl", 1500, number)
    options = ["--text", f"web={tmp_path}/text", "--rows-per-shard", "15", "--held-out", "5"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    main(["data", "tokenize", *options, "--out", str(whole), "--json"])
    command = [sys.executable, "-c", "from loopwise.cli import main; main()", "data", "tokenize", *options, "--out", str(cut)]
    kept: dict[str, int] = {}
    for workers, wanted in (("2", 20), ("1", 60)):
        process = subprocess.Popen([*command, "--workers", workers], stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 30
        try:
            while len(list((cut / "chunks").glob("*.json")) if (cut / "chunks").is_dir() else []) < wanted:
                assert process.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            while _group_is_there(process.pid):  # workers end with their parent
                assert time.monotonic() < deadline, "workers outlived their parent"
                time.sleep(0.01)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert not (cut / "index.json").exists()
        now = {file.name: file.stat().st_mtime_ns for file in (cut / "chunks").glob("*.json")}
        assert kept.items() <= now.items() and len(now) < 300  # what was finished is not made again
        kept = now
    (cut / "web-00000-000002.tokens.123.part").write_bytes(b"half")
    (cut / "tokenizer.part").mkdir()
    main(["data", "tokenize", *options, "--out", str(cut), "--json"])
    assert contents(whole) == contents(cut)
    made = {file.name: file.stat().st_mtime_ns for file in cut.glob("*.tokens")}
    main(["data", "tokenize", *options, "--out", str(cut), "--json"])
    assert made == {file.name: file.stat().st_mtime_ns for file in cut.glob("*.tokens")}


def _group_is_there(group: int) -> bool:
    """Whether a process of a group runs; those that nobody has waited for yet do not."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def test_held_out_documents_are_in_no_source_that_is_trained_on(tmp_path: Path) -> None:
    texts = write_rows(tmp_path / "a.jsonl", 200)
    copies = [{"text": f" {text}\n"} for text in texts[:100]] + [{"text": f"own {number}"} for number in range(100)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in copies))
    shards = make(tmp_path / "out", f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl", held_out=10)
    held = TokenShards.open(tmp_path / "out" / "heldout")
    out = {source: {text.strip() for text in texts_of(held, source)} for source in ("a", "b")}
    assert [len(texts) for texts in out.values()] == [10, 10]
    trained = {text.strip() for source in ("a", "b") for text in texts_of(shards, source)}
    assert not (out["a"] | out["b"]) & trained and len(trained | out["a"] | out["b"]) == 300
    assert shards.settings["num_held_out"] == 400 - sum(shard.num_documents for shard in shards.shards) >= 20
    # The choice is the text's: other rows, other order, other shards, the same documents.
    shuffled = random.Random(0).sample(texts, len(texts))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in shuffled))
    make(tmp_path / "again", f"{tmp_path}/a.jsonl", held_out=10, rows_per_shard=7)
    assert set(texts_of(TokenShards.open(tmp_path / "again" / "heldout"), "a")) == out["a"]
    with pytest.raises(DataError, match="has 200 different documents to hold 101 out of"):
        make(tmp_path / "much", f"{tmp_path}/a.jsonl", held_out=101)


def test_rows_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"text": "  "}, {"text": None}, {"text": "half \ud83d"}, {"text": "two", "id": 5}]
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    shards = make(tmp_path / "out", f"{tmp_path}/a.jsonl", rows_per_shard=2)
    assert texts_of(shards, "a") == ["one", "two"]
    assert (shards.settings["num_rows"], shards.settings["num_empty"]) == (9, 7)


def test_columns_and_chats_are_found(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": chat, "body": "the body"}) + "\n")
    assert texts_of(make(tmp_path / "chat", f"{tmp_path}/a.jsonl"), "a") == ["user:\nHi\n\nassistant:\nHo"]
    assert texts_of(make(tmp_path / "body", f"{tmp_path}/a.jsonl", column="body"), "a") == ["the body"]


def test_a_table_is_read_by_its_column_or_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "b.parquet", ["x", "y"], 1, column="content")
    assert texts_of(make(tmp_path / "table", f"{tmp_path}/b.parquet"), "b") == ["x", "y"]
    with pytest.raises(DataError, match=r"b\.parquet: has no column body; it has id, content: name one as column"):
        make(tmp_path / "body", f"{tmp_path}/b.parquet", column="body")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"Parquet needs pyarrow: pip install 'loopwise\[hub\]', or give JSONL"):
        make(tmp_path / "without", f"{tmp_path}/b.parquet")


@pytest.mark.parametrize(("rows_per_chunk", "max_rows"), [(1, None), (7, None), (30, None), (1000, None), (7, 20), (30, 60)])
def test_every_part_can_be_read_from_every_seek(
    tmp_path: Path, corpus: dict[str, list[str]], rows_per_chunk: int, max_rows: int | None
) -> None:
    parts = find_parts(parse_training_sources(sources_of(tmp_path)), rows_per_chunk=rows_per_chunk, max_rows=max_rows)
    for part in parts:
        whole = list(part_rows(part))
        assert [row for row, _ in whole] == list(range(len(whole))) and len(whole) <= (max_rows or 1000)
        assert part.num_rows in (None, len(whole))
        for chunk, offset_bytes in part.seeks:
            assert list(part_rows(part, start=chunk * rows_per_chunk, offset_bytes=offset_bytes)) == whole[chunk * rows_per_chunk :]
        assert list(part_rows(part, start=3)) == whole[3:]
    seeks = {part.source: len(part.seeks) for part in parts}
    assert seeks["packed"] == seeks["plain"] == 1 and (rows_per_chunk == 1000 or seeks["lines"] > 1)


def test_plain_text_is_cut_like_documents_are(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    for name in ("tinyshakespeare.txt", "wikitext2_test.txt"):
        file.write_bytes((data_dir() / "text" / name).read_bytes()[:200_000].decode(errors="ignore").encode())
        part = find_parts(parse_training_sources([str(file)]), rows_per_chunk=10, max_rows=None)[0]
        wanted = [document.text.strip() for document in read_documents(file)]
        assert [text.strip() for _, text in part_rows(part)] == wanted and len(wanted) > 20
    file.write_text("\n".join("no blank line in it" for _ in range(20_000)))
    lengths = [len(text) for _, text in part_rows(find_parts(parse_training_sources([str(file)]), rows_per_chunk=10, max_rows=None)[0])]
    assert len(lengths) == 4 and max(lengths) < 100_100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "x"}\n{"text": ', r"a\.jsonl, line 2: not a JSON object"),
        (b'{"text": "x"}\n[1]\n', r"line 2: not a JSON object"),
        (b'{"body": "x"}\n', r"line 1: has no column that usually holds text; it has body: name one as column"),
        (b'{"text": 5}\n', r"line 1: column 'text' holds '5'"),
        (b'{"text": "\xff"}\n', r"line 1: not UTF-8"),
        (b"", "holds no text"),
        (b"\n\n", "no document is left"),
    ],
)
def test_damaged_text_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        make(tmp_path / "out", f"{tmp_path}/a.jsonl")
    assert "\n" not in str(caught.value)


def test_a_fault_in_a_worker_is_that_fault(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", 100)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(DataError, match=r"a\.jsonl, line 101: not a JSON object"):
        make(tmp_path / "out", f"{tmp_path}/a.jsonl", workers=2)
    write_rows(tmp_path / "b.jsonl", 5)
    damaged = {".jsonl.gz": gzip.compress(b'{"text": "x"}\n' * 5)[:-9], ".parquet": b"PAR1 not"}
    if find_spec("pyarrow") is None:
        del damaged[".parquet"]
    for suffix, content in damaged.items():
        (tmp_path / f"b{suffix}").write_bytes(content)
        with pytest.raises(DataError, match=rf"b{suffix}: not a"):
            make(tmp_path / f"out{suffix}", f"{tmp_path}/b{suffix}")


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "no text is given"),
        (["DIR/none.jsonl"], "no such file or folder"),
        (["DIR/a.csv"], "not from .csv"),
        (["DIR/empty"], "has no file of"),
        (["DIR/a.jsonl", "x=DIR/a.jsonl"], "is given twice"),
        (["g/x=DIR/a.jsonl", "h/x=DIR/b.jsonl"], "source 'x' is in domains 'g' and 'h'"),
        (["g/x=DIR/a.jsonl", "g=DIR/b.jsonl"], "'g' is the name of a source and of a domain"),
        (["all=DIR/a.jsonl"], "'all' means every source together"),
        (["hub:name"], "names no data set"),
    ],
)
def test_sources_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path, specs: list[str], message: str) -> None:
    for name in ("a.jsonl", "b.jsonl", "a.csv"):
        write_rows(tmp_path / name, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        make(tmp_path / "out", *[spec.replace("DIR", str(tmp_path)) for spec in specs])
    assert not (tmp_path / "out").exists()


def test_names_and_domains_are_read() -> None:
    found = parse_training_sources(["general/web=hub:org/Fine-Web/main:train", "hub:org/Math", "hub:org/Math2"])
    assert [(one.name, one.domain, one.location) for one in found] == [
        ("web", "general", "hub:org/Fine-Web/main:train"), ("Math", "Math", "hub:org/Math"), ("Math2", "Math2", "hub:org/Math2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rows_per_shard=0), "rows_per_shard is 0"),
        (dict(max_rows=0), "max_rows is 0"),
        (dict(held_out=-1), "held_out is -1"),
        (dict(train_vocabulary=256), "give at least 257"),
        (dict(train_vocabulary=300, tokenizer="x/y"), "trained or given, not both"),
        (dict(workers=0), "workers is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_rows(tmp_path / "a.jsonl", 2)
    with pytest.raises(DataError, match=message):
        make(tmp_path / "out", f"{tmp_path}/a.jsonl", **options)


def test_a_folder_of_other_settings_or_other_text_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", 30)
    source, out = f"{tmp_path}/a.jsonl", tmp_path / "out"
    make(out, source)
    for options, name in ((dict(rows_per_shard=10), "rows_per_shard"), (dict(held_out=2), "held_out"), (dict(max_rows=5), "max_rows")):
        with pytest.raises(DataError, match=f"was made with another {name}"):
            make(out, source, **options)
    write_rows(tmp_path / "a.jsonl", 30, seed=9)
    with pytest.raises(DataError, match=r"a\.jsonl: has changed since"):
        make(out, source)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "x").write_text("mine")
    with pytest.raises(DataError, match=r"holds x and no plan\.json"):
        make(tmp_path / "else", source)
    with pytest.raises(DataError, match="is no folder"):
        make(tmp_path / "a.jsonl", source)


def test_a_folder_with_a_new_file_is_another_source(tmp_path: Path) -> None:
    write_rows(tmp_path / "text" / "a.jsonl", 3)
    make(tmp_path / "out", f"{tmp_path}/text")
    write_rows(tmp_path / "text" / "b.jsonl", 3)
    with pytest.raises(DataError, match=r"b\.jsonl: the files of the sources are not those"):
        make(tmp_path / "out", f"{tmp_path}/text")


def test_two_at_once_do_not_write_one_folder(tmp_path: Path) -> None:
    import fcntl

    write_rows(tmp_path / "a.jsonl", 3)
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is writing it"):
            make(tmp_path / "out", f"{tmp_path}/a.jsonl")


def test_a_trained_tokenizer_stands_beside_its_shards(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = (data_dir() / "text" / "tinyshakespeare.txt").read_text()[:150_000]
    (tmp_path / "a.txt").write_text(text + f"\n\nAn {END_TOKEN} inside is text.\n")
    shards = make(tmp_path / "one", f"{tmp_path}/a.txt", train_vocabulary=400)
    assert shards.tokenizer.vocab_size == 400 and shards.tokenizer.name == "bpe-400"
    stream = shards.select("a")
    tokens = stream.tokens(0, stream.num_tokens)
    assert (tokens == shards.tokenizer.end_token_id).sum() == sum(shard.num_documents for shard in shards.shards)
    assert shards.num_tokens < 0.75 * len(text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(shards.tokenizer_folder)
    assert tokenizer.eos_token_id == shards.tokenizer.end_token_id and len(tokenizer) == 400
    decoded = tokenizer.decode(tokens.tolist()).split(END_TOKEN)
    wanted = [document.text.rstrip("\n") for document in read_documents(tmp_path / "a.txt")]
    assert decoded[: len(wanted) - 1] == wanted[:-1]
    make(tmp_path / "two", f"{tmp_path}/a.txt", train_vocabulary=400, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    # The saved folder is a tokenizer like any other, and gives the same ids.
    given = make(tmp_path / "three", f"{tmp_path}/a.txt", tokenizer=str(shards.tokenizer_folder))
    assert given.tokenizer.sha256 == shards.tokenizer.sha256 and given.sha256 == shards.sha256
    with pytest.raises(DataError, match="has no token '<nothing>'; name one of its tokens as --end-token"):
        make(tmp_path / "four", f"{tmp_path}/a.txt", tokenizer=str(shards.tokenizer_folder), end_token="<nothing>")
    with pytest.raises(DataError, match=r"the text is enough for a vocabulary of \d+, not 60000"):
        make(tmp_path / "five", f"{tmp_path}/a.txt", train_vocabulary=60_000)


def test_bytes_are_what_transformers_makes_of_their_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    ByteTokenizer().save(tmp_path)
    texts = ["plain words", "Grüße, 世界 🙂", "\t\n \x00\x7f", "".join(map(chr, range(0x20, 0x250))), f"a {END_TOKEN} b"]
    fast = FastTokenizer(str(tmp_path))
    assert fast.facts.vocab_size == 257 and fast.facts.end_token_id == 256
    for one, two, text in zip(ByteTokenizer().encode(texts), fast.encode(texts), texts, strict=True):
        assert one.tolist() == two.tolist() == list(text.encode())
    assert fast._own.decode(list("Grüße 世界".encode())) == "Grüße 世界"


def test_contaminated_documents_are_left_out(tmp_path: Path) -> None:
    texts = write_rows(tmp_path / "a.jsonl", 60)
    question = next(text for text in texts[20:] if len(text.split()) > 20)
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": " ".join(question.split()[2:18])}) + "\n")
    options = dict(items=(f"mine={tmp_path}/items.jsonl",), rows_per_shard=9)
    shards = make(tmp_path / "out", f"{tmp_path}/a.jsonl", **options)
    assert texts_of(shards, "a") == [text for text in texts if text != question] and shards.settings["num_dropped"] == 1
    report = json.loads((tmp_path / "out" / "decontamination.json").read_text())
    assert report["benchmarks"]["mine"]["num_documents_dropped"] == 1 and report["num_documents"] == 60
    with pytest.raises(DataError, match="was made with another items_sha256"):
        make(tmp_path / "out", f"{tmp_path}/a.jsonl", rows_per_shard=9)


def test_progress_ends_at_the_end(tmp_path: Path, corpus: dict[str, list[str]]) -> None:
    told: list[Counts] = []
    settings = TokenizeSettings(sources=tuple(sources_of(tmp_path)), rows_per_shard=20)
    shards = tokenize_sources(settings, tmp_path / "out", progress=told.append)
    assert told[0].num_rows == 0 and told[0].total_rows is None  # plain text and gzip are counted by reading
    last = told[-1]
    assert last.num_rows == last.total_rows == last.new_rows == shards.settings["num_rows"]
    assert last.num_tokens == last.new_tokens == shards.num_tokens


class FakeRows:
    """A streamed data set of two files, as the ``datasets`` library offers it."""

    num_shards = 2

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def shard(self, *, num_shards: int, index: int) -> FakeRows:
        assert num_shards == 2
        return FakeRows(self.rows[index::2])

    def skip(self, number: int) -> FakeRows:
        return FakeRows(self.rows[number:])

    def __iter__(self) -> Any:
        for row in self.rows:
            if isinstance(row, Exception):
                raise row
            yield row


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub with one data set at a commit; gives its state, to be changed."""
    state: dict[str, Any] = {"rows": [{"text": f"row {number}"} for number in range(50)], "commit": "abc", "asked": []}

    def load_dataset(*args: Any, **options: Any) -> FakeRows:
        state["asked"].append((*args, options["split"], options["revision"], options["streaming"]))
        return FakeRows(state["rows"])

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda self, name: type("Info", (), {"sha": state["commit"]}))
    return state


def test_a_hub_data_set_is_streamed_file_by_file_at_one_commit(tmp_path: Path, hub: dict[str, Any]) -> None:
    shards = make(tmp_path / "out", "web=hub:org/text", rows_per_shard=10)
    assert texts_of(shards, "web") == [f"row {number}" for number in (*range(0, 50, 2), *range(1, 50, 2))]
    assert set(hub["asked"]) == {("org/text", None, "train", "abc", True)}
    assert len(texts_of(make(tmp_path / "few", "web=hub:org/text", max_rows=7), "web")) == 8  # 4 of each file


def test_a_hub_that_goes_away_is_gone_on_with_at_the_same_commit(tmp_path: Path, hub: dict[str, Any]) -> None:
    whole = make(tmp_path / "whole", "web=hub:org/text", rows_per_shard=5)
    rows = list(hub["rows"])
    hub["rows"][30] = ConnectionError("the line is down")
    with pytest.raises(DataError, match=r"hub:org/text:train, file 0, row 15: cannot be had .*the line is down.*the same command goes on"):
        make(tmp_path / "cut", "web=hub:org/text", rows_per_shard=5)
    hub["rows"], hub["commit"] = rows, "def"  # somebody pushed in between
    hub["asked"].clear()
    assert make(tmp_path / "cut", "web=hub:org/text", rows_per_shard=5).sha256 == whole.sha256
    assert {asked[3] for asked in hub["asked"]} == {"abc"}
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_the_command_prints_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "a.jsonl", 30)
    options = [
        "data",
        "tokenize",
        "--text",
        f"general/web={tmp_path}/a.jsonl",
        "--out",
        str(tmp_path / "out"),
        "--held-out",
        "3",
        "--verify",
    ]
    main(options)
    out = capsys.readouterr().out
    assert "general" in out and "tokenizer bytes with 257 ids" in out and "3 held out" in out
    main([*options, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["sources"][0]["source"] == "web" and found["num_rows"] == 30 and found["num_held_out"] == 3
    main(["data", "tokenize", "--config", str(tmp_path / "out" / "config.json"), "--json"])
    assert json.loads(capsys.readouterr().out) == found
