"""Batches of traces: whole traces, each once an epoch, trained on answers alone, the same for every reader."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.data import NO_LOSS, DataError, TokenBatch, TraceBatches, TraceSet
from loopwise.data.trace_packing import first_fit
from trace_sets import made_traces

LENGTHS = (5, 9, 30, 12, 17, 3, 8, 21, 2, 33)


def pieces(batch: TokenBatch, pad: int = 0) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The inputs and targets of every trace in a batch, by its positions, padding left out."""
    found = []
    for row in range(len(batch.input_ids)):
        starts = [0] if batch.positions is None else np.flatnonzero(batch.positions[row] == 0).tolist()
        for start, stop in zip(starts, [*starts[1:], batch.input_ids.shape[1]], strict=True):
            inputs, targets = batch.input_ids[row, start:stop], batch.targets[row, start:stop]
            used = int(np.flatnonzero(targets != NO_LOSS)[-1]) + 1 if (targets != NO_LOSS).any() else 0
            assert (inputs[used:] == pad).all()
            if used:
                found.append((tuple(inputs[:used].tolist()), tuple(targets[:used].tolist())))
    return found


def expected(traces: TraceSet) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for number in range(len(traces)):
        ids, trained = (part.tolist() for part in traces.read(number))
        found[tuple(ids[:-1]), tuple(token if on else NO_LOSS for token, on in zip(ids[1:], trained[1:], strict=True))] += 1
    return found


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=30),
    seed=st.integers(0, 3),
    packed=st.booleans(),
    window=st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_every_trace_is_there_once_an_epoch_and_whole(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int, packed: bool, window: int
) -> None:
    traces = made_traces(tmp_path_factory.mktemp("traces"), lengths)
    batches = TraceBatches(traces, num_sequences=1, sequence_tokens=39, seed=seed, packed=packed, window=window)
    num_inputs = traces.num_tokens - len(traces)
    step = 0
    for epoch in range(1, 3):
        stop = batches.num_steps(epoch * num_inputs)
        found = Counter(piece for t in range(step, stop) for piece in pieces(batches.batch(t)))
        assert found == expected(traces) and batches.epochs(stop) == epoch
        step = stop


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_first_fit_is_the_textbooks(lengths: list[int]) -> None:
    bins: list[int] = []
    wanted = []
    for length in lengths:
        having_room = [number for number, used in enumerate(bins) if used + length <= 20]
        if not having_room:
            having_room = [len(bins)]
            bins.append(0)
        bins[having_room[0]] += length
        wanted.append(having_room[0])
    assert first_fit(np.array(lengths), 20).tolist() == wanted


def test_a_batch_depends_on_seed_and_step_alone(tmp_path: Path) -> None:
    traces = made_traces(tmp_path, LENGTHS * 6)
    one, other, third = (TraceBatches(traces, num_sequences=4, sequence_tokens=40, seed=seed) for seed in (0, 0, 1))
    forwards = [one.row_hashes(step) for step in range(20)]
    assert [other.row_hashes(step) for step in reversed(range(20))][::-1] == forwards
    assert [other.row_hashes(step, 0, 1) + other.row_hashes(step, 1, 4) for step in range(20)] == forwards
    assert len({row for rows in forwards for row in rows}) > 60  # epochs are packed anew
    assert len({row for rows in forwards for row in rows} & {row for step in range(20) for row in third.row_hashes(step)}) < 20
    assert one.identity == other.identity != third.identity
    assert json.loads(json.dumps(one.identity)) == one.identity


def test_batches_do_not_change_between_versions(tmp_path: Path) -> None:
    # Runs are resumed and compared by them: these numbers are a promise.
    batches = TraceBatches(made_traces(tmp_path, LENGTHS), num_sequences=1, sequence_tokens=40, seed=0)
    rows = [[len(piece[0]) for piece in pieces(batches.batch(step))] for step in range(batches.num_steps(130))]
    assert rows == [[16, 20], [11, 4, 8, 2, 1, 7], [32], [29]]


def test_packed_rows_are_fuller(tmp_path: Path) -> None:
    traces = made_traces(tmp_path, LENGTHS * 20)
    packed, alone = (TraceBatches(traces, num_sequences=1, sequence_tokens=64, seed=0, packed=on) for on in (True, False))
    assert packed.filled() > 0.9 and alone.filled() == pytest.approx(np.mean(LENGTHS) / 64 - 1 / 64)


@pytest.mark.parametrize("counted", ["all", "answer"])
@pytest.mark.parametrize("num_tokens", [1, 50, 139, 140, 141, 1000])
def test_a_budget_is_reached_by_the_last_step_and_by_none_before(tmp_path: Path, counted: str, num_tokens: int) -> None:
    traces = made_traces(tmp_path, LENGTHS)
    batches = TraceBatches(traces, num_sequences=2, sequence_tokens=33, seed=0)

    def read(num_steps: int) -> int:
        found = [piece for step in range(num_steps) for piece in pieces(batches.batch(step))]
        return sum(len(inputs) if counted == "all" else sum(one != NO_LOSS for one in targets) for inputs, targets in found)

    num_steps = batches.num_steps(num_tokens, counted)  # type: ignore[arg-type]
    assert read(num_steps) >= num_tokens > read(num_steps - 1)


def test_traces_beyond_a_shorter_row_are_left_out_whole(tmp_path: Path) -> None:
    traces = made_traces(tmp_path, LENGTHS)
    batches = TraceBatches(traces, num_sequences=1, sequence_tokens=20, seed=0)
    assert (batches.num_traces, batches.num_left_out) == (8, 2)  # 21 tokens are 20 inputs
    with pytest.raises(DataError, match="sequence_tokens is 0; give at least 1"):
        TraceBatches(traces, num_sequences=1, sequence_tokens=0, seed=0)
    with pytest.raises(DataError, match="no trace fits into a row of 3 tokens, the shortest has 5"):
        TraceBatches(made_traces(tmp_path / "long", [5, 9]), num_sequences=1, sequence_tokens=3, seed=0)


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    batches = TraceBatches(made_traces(tmp_path, LENGTHS), num_sequences=2, sequence_tokens=33, seed=0)
    with pytest.raises(DataError, match="rows 0 to 3 are asked of a batch with 2"):
        batches.batch(0, 0, 3)
    with pytest.raises(DataError, match="counted from 0"):
        batches.batch(-1)
    with pytest.raises(DataError, match="counted as all or answer"):
        batches.num_steps(5, "words")  # type: ignore[arg-type]


def test_damaged_sets_are_refused(tmp_path: Path) -> None:
    traces = made_traces(tmp_path, LENGTHS)
    assert len(list(traces.verify())) == 3
    tokens = tmp_path / f"{traces.shards[0].file}.tokens"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="not what the index's hash says"):
        list(TraceSet.open(tmp_path).verify())
    tokens.write_bytes(content[:-1])
    with pytest.raises(DataError, match="its index says"):
        TraceSet.open(tmp_path)
    tokens.write_bytes(content)
    table = (tmp_path / "traces.bin").read_bytes()
    (tmp_path / "traces.bin").write_bytes(table[:-8] + bytes(8))
    with pytest.raises(DataError, match="damaged"):
        TraceSet.open(tmp_path)
    with pytest.raises(DataError, match=r"has no index\.json"):
        TraceSet.open(tmp_path / "nothing")


def test_a_looped_model_and_its_twin_train_on_the_same_batches(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from loopwise.loops import parse_loops
    from loopwise.models import insert
    from loopwise.training import Execution, TrainSettings, train
    from tiny import tiny_model

    traces = made_traces(tmp_path / "traces", LENGTHS)
    hashes, losses = [], []
    for loops in ("none", "1:4 x2"):
        model = tiny_model("llama")
        if loops != "none":
            insert(model, parse_loops(loops))
        source = TraceBatches(TraceSet.open(traces.folder), num_sequences=2, sequence_tokens=40, seed=0)
        out = tmp_path / loops.replace(" ", "-").replace(":", "-")
        train(model, source, TrainSettings(num_steps=4), out, execution=Execution(device="cpu"))
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        hashes.append([step["batch_hash"] for step in steps if "batch_hash" in step])
        losses.append([step["loss"] for step in steps if "loss" in step])
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 4 and losses[0] != losses[1]
