"""Token shards on the disk: what is written is read, and what is damaged is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loopwise.data import DataError, TokenBatch, TokenShards, TokenStream
from loopwise.data.shards import ALL, write_shard
from training_text import FACTS, made_shards

LENGTHS = {"web.a": [[3, 0, 5], [2]], "web.b": [[4]], "math": [[1, 1], [7, 2]]}


def test_documents_come_back_with_their_ends_and_starts(tmp_path: Path) -> None:
    shards = made_shards(tmp_path, LENGTHS)
    stream = shards.select("web.a")
    end = FACTS.end_token_id
    assert stream.tokens(0, stream.num_tokens).tolist() == [0, 1, 2, end, end, 3, 4, 5, 6, 7, end, 8, 9, end]
    assert stream.document_starts(0, stream.num_tokens).tolist() == [0, 4, 5, 11]
    assert stream.document_starts(1, 11).tolist() == [4, 5] and stream.document_starts(11, 12).tolist() == [11]
    everything = shards.select(ALL)
    assert everything.num_tokens == shards.num_tokens == sum(sum(ls) + len(ls) for one in LENGTHS.values() for ls in one)
    assert np.count_nonzero(everything.tokens(0, everything.num_tokens) == end) == 9
    assert shards.select("web").sources == {"web.a", "web.b"} and shards.sources == {"web.a": "web", "web.b": "web", "math": "math"}


def test_any_range_of_a_stream_is_that_range(tmp_path: Path) -> None:
    stream = made_shards(tmp_path, LENGTHS).select(ALL)
    whole, starts = stream.tokens(0, stream.num_tokens), stream.document_starts(0, stream.num_tokens)
    for start in range(stream.num_tokens + 1):
        for stop in range(start, stream.num_tokens + 1):
            assert np.array_equal(stream.tokens(start, stop), whole[start:stop])
            assert np.array_equal(stream.document_starts(start, stop), starts[(starts >= start) & (starts < stop)])
    for start, stop in ((-1, 2), (3, 2), (0, stream.num_tokens + 1)):
        with pytest.raises(DataError, match="ask within"):
            stream.tokens(start, stop)


def test_tokens_within_a_shard_are_a_view_of_the_file(tmp_path: Path) -> None:
    stream = made_shards(tmp_path, LENGTHS).select("web.a")
    assert isinstance(stream.tokens(1, 5), np.memmap) and not stream.tokens(1, 5).flags.writeable


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    shards = made_shards(tmp_path, {"web": [[2]] * 300})
    stream = shards.select("web")
    for number in [*range(300), *range(300)]:
        assert stream.tokens(3 * number, 3 * number + 2).tolist() == [2 * number, 2 * number + 1]
    assert stream._mapped.cache_info().currsize <= 128


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_vocabulary_decides_the_type(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    facts = replace(FACTS, vocab_size=vocab_size, end_token_id=vocab_size - 1)
    shards = made_shards(tmp_path, {"a": [[3]]}, facts)
    assert shards.tokenizer.dtype.name == dtype == json.loads((tmp_path / "index.json").read_text())["dtype"]
    assert shards.select("a").tokens(0, 4).tolist() == [0, 1, 2, vocab_size - 1]
    with pytest.raises(DataError, match="makes id"):
        write_shard(tmp_path, "x", [np.array([vocab_size])], facts)


def test_the_hash_is_of_the_tokens_and_not_of_the_place(tmp_path: Path) -> None:
    first = made_shards(tmp_path / "a", LENGTHS)
    assert made_shards(tmp_path / "b", LENGTHS).sha256 == first.sha256
    assert made_shards(tmp_path / "c", LENGTHS, replace(FACTS, name="elsewhere")).sha256 == first.sha256
    others = [LENGTHS | {"math": [[1, 1], [2, 7]]}, LENGTHS | {"web.b": [[5]]}, {"web.x": LENGTHS["web.a"]}]
    hashes = {made_shards(tmp_path / f"d{number}", one).sha256 for number, one in enumerate(others)}
    hashes.add(made_shards(tmp_path / "e", LENGTHS, replace(FACTS, sha256="1" * 64)).sha256)
    assert len(hashes | {first.sha256}) == 5


def test_damage_is_found_at_once_or_by_verify(tmp_path: Path) -> None:
    shards = made_shards(tmp_path, LENGTHS)
    assert len(list(shards.verify())) == 5
    file = tmp_path / "math-1.tokens"
    content = bytearray(file.read_bytes())
    content[2] ^= 1
    file.write_bytes(content)
    TokenShards.open(tmp_path)
    with pytest.raises(DataError, match=r"math-1\.tokens: is not what the index's hash says"):
        list(shards.verify())
    file.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"math-1\.tokens: has 21 bytes, its index says 22"):
        TokenShards.open(tmp_path)
    (tmp_path / "web.b-0.starts").unlink()
    with pytest.raises(DataError, match=r"web\.b-0\.starts: is missing"):
        TokenShards.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(format=2), "is of format 2"),
        (lambda values: values.pop("tokenizer"), "damaged"),
        (lambda values: values["shards"][0].update(num_tokens="9"), "damaged"),
        (lambda values: values["shards"][0].update(file="../x"), "damaged"),
        (lambda values: values["shards"][0].pop("source"), "damaged"),
        (lambda values: values.update(dtype="float64"), "damaged"),
        (lambda values: values.update(shards=[]), "names no shard"),
    ],
)
def test_an_index_that_cannot_be_is_one_line(tmp_path: Path, change: object, message: str) -> None:
    made_shards(tmp_path, LENGTHS)
    file = tmp_path / "index.json"
    values = json.loads(file.read_text())
    change(values)  # type: ignore[operator]
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match=message) as caught:
        TokenShards.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_no_folder_of_shards_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no index\.json"):
        TokenShards.open(tmp_path)
    with pytest.raises(DataError, match=re.escape("has no source or domain 'x'; it has math, web, web.a, web.b")):
        made_shards(tmp_path, LENGTHS).select("x")


def test_streams_are_joined_in_order(tmp_path: Path) -> None:
    shards = made_shards(tmp_path, LENGTHS)
    joined = TokenStream.joined([shards.select("math"), shards.select("web.b")])
    parts = [shards.select(name).tokens(0, shards.select(name).num_tokens) for name in ("math", "web.b")]
    assert np.array_equal(joined.tokens(0, joined.num_tokens), np.concatenate(parts))


def test_a_batch_is_hashed_row_by_row_and_checked() -> None:
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    batch = TokenBatch(input_ids=ids, targets=ids + 1)
    assert batch.row_hashes()[1] == TokenBatch(input_ids=ids[1:], targets=ids[1:] + 1).row_hashes()[0]
    masked = TokenBatch(input_ids=ids, targets=ids + 1, positions=np.zeros_like(ids))
    changed = TokenBatch(input_ids=ids, targets=ids + 2)
    assert len({*batch.row_hashes(), *masked.row_hashes(), *changed.row_hashes()}) == 6
    for wrong in (ids.astype(np.int32), ids[0], ids[:, :2]):
        with pytest.raises(DataError, match="give int64"):
            TokenBatch(input_ids=ids, targets=wrong)
