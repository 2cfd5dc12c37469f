"""Sequences from a stream: every token once an epoch, in an order that needs no memory, with and without document masks."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.data import NO_LOSS, DataError, PackedSequences, Permutation
from training_text import FACTS, made_shards

END = FACTS.end_token_id


@given(size=st.integers(1, 3000), key=st.text(max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_permutation_is_a_bijection(size: int, key: str) -> None:
    assert np.array_equal(np.sort(Permutation(size, key)(np.arange(size))), np.arange(size))


@given(size=st.integers(1, 1 << 62), data=st.data())
@settings(max_examples=60, deadline=None)
def test_large_permutations_stay_inside_and_apart(size: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    permutation = Permutation(size, "key")
    sent = permutation(np.array(numbers, dtype=np.int64))
    assert len(set(sent.tolist())) == len(numbers) and 0 <= sent.min() <= sent.max() < size
    assert sent.tolist() == [int(permutation(np.array([number]))[0]) for number in numbers]


def test_a_permutation_shuffles_and_its_key_decides() -> None:
    size = 10_000
    first, again, other = (Permutation(size, key)(np.arange(size)) for key in ("0:web:0", "0:web:0", "0:web:1"))
    assert np.array_equal(first, again) and (first == other).mean() < 0.001
    # Of a uniform order: one fixed point expected, neighbours a third of the range apart, no correlation with the place.
    assert (first == np.arange(size)).sum() < 8
    assert abs(np.abs(np.diff(first)).mean() / size - 1 / 3) < 0.01
    assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.04
    counts = np.histogram(first[: size // 10], bins=10, range=(0, size))[0]
    assert (np.abs(counts - 100) < 45).all()


def test_a_permutation_does_not_change_between_versions() -> None:
    # Runs are resumed and compared by it: these numbers are a promise.
    assert Permutation(10, "0:all:0")(np.arange(10)).tolist() == [0, 4, 2, 8, 3, 5, 7, 9, 6, 1]


@pytest.mark.parametrize("size", [0, -1, (1 << 62) + 1])
def test_sizes_that_cannot_be_are_refused(size: int) -> None:
    with pytest.raises(DataError, match="a permutation of"):
        Permutation(size, "x")


def test_numbers_outside_are_refused() -> None:
    for number in (-1, 5):
        with pytest.raises(DataError, match="ask for 0 to 4"):
            Permutation(5, "x")(np.array([number]))


@given(
    lengths=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=4),
    sequence_tokens=st.integers(1, 17),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_every_token_is_used_once_an_epoch(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], sequence_tokens: int, seed: int
) -> None:
    stream = made_shards(tmp_path_factory.mktemp("shards"), {"web": lengths}).select("web")
    if stream.num_tokens <= sequence_tokens:
        with pytest.raises(DataError, match="give more text or shorter sequences"):
            PackedSequences(stream, name="web", sequence_tokens=sequence_tokens, seed=seed)
        return
    packed = PackedSequences(stream, name="web", sequence_tokens=sequence_tokens, seed=seed)
    flat = stream.tokens(0, stream.num_tokens).astype(np.int64)
    used = packed.num_windows * sequence_tokens
    assert 0 <= len(flat) - 1 - used < sequence_tokens
    for epoch in range(2):
        numbers = np.arange(packed.num_windows) + epoch * packed.num_windows
        order = np.argsort(packed.windows(numbers))
        batch = packed.read(numbers)
        assert np.array_equal(batch.input_ids[order].ravel(), flat[:used])
        assert np.array_equal(batch.targets[order].ravel(), flat[1 : used + 1]) and batch.positions is None


def test_epochs_and_seeds_have_their_own_order(tmp_path: Path) -> None:
    stream = made_shards(tmp_path, {"web": [[500] * 8]}).select("web")
    packed = PackedSequences(stream, name="web", sequence_tokens=8, seed=0)
    size = packed.num_windows
    first, second = packed.windows(np.arange(size)), packed.windows(np.arange(size, 2 * size))
    assert (first == second).mean() < 0.05
    other = PackedSequences(stream, name="web", sequence_tokens=8, seed=1).windows(np.arange(size))
    assert (first == other).mean() < 0.05
    across = packed.windows(np.arange(size - 3, size + 3))
    assert across.tolist() == [*first[-3:], *second[:3]]


def test_document_masks_restart_positions_and_drop_the_targets_across(tmp_path: Path) -> None:
    stream = made_shards(tmp_path, {"web": [[3, 0, 6], [2, 9]]}).select("web")
    packed = PackedSequences(stream, name="web", sequence_tokens=6, seed=0, document_mask=True)
    numbers = np.arange(packed.num_windows)
    order = np.argsort(packed.windows(numbers))
    batch = packed.read(numbers)
    assert batch.positions is not None
    # The stream: 0 1 2 E | E | 3 4 5 6 7 8 E | 9 10 E | 11 .. 19 E, cut after each sixth token.
    assert batch.input_ids[order].tolist() == [
        [0, 1, 2, END, END, 3],
        [4, 5, 6, 7, 8, END],
        [9, 10, END, 11, 12, 13],
        [14, 15, 16, 17, 18, 19],
    ]
    assert batch.positions[order].tolist() == [[0, 1, 2, 3, 0, 0], [0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]
    targets = [[1, 2, END, NO_LOSS, NO_LOSS, 4], [5, 6, 7, 8, END, NO_LOSS], [10, END, NO_LOSS, 12, 13, 14], [15, 16, 17, 18, 19, END]]
    assert batch.targets[order].tolist() == targets


def test_masked_and_plain_rows_hold_the_same_tokens(tmp_path: Path) -> None:
    stream = made_shards(tmp_path, {"web": [[5, 9, 1], [30]]}).select("web")
    plain, masked = (PackedSequences(stream, name="w", sequence_tokens=7, seed=3, document_mask=mask) for mask in (False, True))
    numbers = np.arange(plain.num_windows)
    one, two = plain.read(numbers), masked.read(numbers)
    assert np.array_equal(one.input_ids, two.input_ids)
    kept = two.targets != NO_LOSS
    assert np.array_equal(one.targets[kept], two.targets[kept])
    assert np.array_equal(~kept, one.input_ids == END)


def test_a_looped_network_sees_no_other_document(tmp_path: Path) -> None:
    """With the positions of a packed row, a document's logits are those that it has alone."""
    torch = pytest.importorskip("torch")
    from loopwise.data import TokenizerFacts
    from tiny_nets import VOCABULARY, tiny_net

    facts = TokenizerFacts(name="x", sha256="0", vocab_size=VOCABULARY, end_token_id=VOCABULARY - 1)
    stream = made_shards(tmp_path, {"web": [[4, 7, 3, 20]]}, facts).select("web")
    batch = PackedSequences(stream, name="web", sequence_tokens=17, seed=0, document_mask=True).read(np.array([0, 1]))
    row = next(row for row in range(2) if (batch.positions[row] == 0).sum() > 2)  # type: ignore[index]
    ids, positions = torch.from_numpy(batch.input_ids[row : row + 1]), torch.from_numpy(batch.positions[row : row + 1])  # type: ignore[index]
    for name in ("arloop-full", "span"):
        net = tiny_net(name)
        packed = net(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        starts = [*(positions[0] == 0).nonzero()[:, 0].tolist(), ids.shape[1]]
        for start, stop in itertools.pairwise(starts):
            alone = net(input_ids=ids[:, start:stop], use_cache=False).logits[0]
            assert torch.allclose(packed[start:stop], alone, atol=1e-4)
        assert not torch.allclose(packed, net(input_ids=ids, use_cache=False).logits[0], atol=1e-2)
