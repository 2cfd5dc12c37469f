"""The batches of a mixture from shards.

Batch ``t`` is a pure function of (seed, t): which source each of its rows comes from follows from the plan alone, and which
sequence of that source from the seed, whatever ranks there are and wherever a run was resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .batches import TokenBatch
from .documents import DataError
from .mixture_plan import MixturePlan
from .packing import PackedSequences
from .shards import ALL, TokenShards, TokenStream, read_index
from .training_mixture import Mixture


class MixtureBatches:
    """The batches of a mixture from shards: the `BatchSource` that an engine trains on."""

    def __init__(
        self,
        mixture: Mixture,
        shards: TokenShards | Sequence[TokenShards],
        *,
        num_sequences: int,
        sequence_tokens: int,
        seed: int,
        document_mask: bool = False,
    ) -> None:
        """Bind a mixture to shards.

        Args:
            shards: one folder's, or several with one tokenizer and no source in common.
            num_sequences: rows of a step's whole batch, over all ranks.
            sequence_tokens: inputs of a row.
            document_mask: documents do not see one another, and the last token of each has no target.

        Raises:
            DataError: shards of two tokenizers, a name that they lack, text that two names of the mixture share, or too little text.
        """
        self._shards = (shards,) if isinstance(shards, TokenShards) else tuple(shards)
        self.plan = MixturePlan(mixture, num_sequences=num_sequences, sequence_tokens=sequence_tokens)
        self._seed, self._document_mask = seed, document_mask
        streams = select_streams(mixture, self._shards)
        options: dict[str, Any] = dict(sequence_tokens=sequence_tokens, seed=seed, document_mask=document_mask)
        self._packed = {name: PackedSequences(stream, name=name, **options) for name, stream in streams.items()}
        self._draw = lru_cache(maxsize=2)(self.plan.draw)  # a step is asked for in several micro-batches

    @property
    def num_sequences(self) -> int:
        """Rows of a step's whole batch, over all ranks."""
        return self.plan.num_sequences

    @property
    def sequence_tokens(self) -> int:
        """Inputs of a row."""
        return self.plan.sequence_tokens

    @property
    def num_steps(self) -> int | None:
        """Steps of the mixture; None without an end."""
        return self.plan.num_steps

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the batches, as JSON."""
        return {
            "mixture": self.plan.mixture.to_json(),
            "shards_sha256": [shards.sha256 for shards in self._shards],
            "tokenizer_sha256": self._shards[0].tokenizer.sha256,
            "num_sequences": self.num_sequences,
            "sequence_tokens": self.sequence_tokens,
            "seed": self._seed,
            "packing": "document_mask" if self._document_mask else "stream",
        }

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows ``first .. stop-1`` of the batch of a step.

        Raises:
            DataError: a step after the mixture's last, or rows that the batch does not have.
        """
        stop = self.num_sequences if stop is None else stop
        if not 0 <= first < stop <= self.num_sequences:
            raise DataError(f"rows {first} to {stop} are asked of a batch with {self.num_sequences}; ask within it")
        rows = self._draw(step)[first:stop]
        shape = (len(rows), self.sequence_tokens)
        inputs, targets = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        positions = np.empty(shape, dtype=np.int64) if self._document_mask else None
        for source in dict.fromkeys(row.source for row in rows):
            places = [place for place, row in enumerate(rows) if row.source == source]
            read = self._packed[source].read(np.array([rows[place].number for place in places], dtype=np.int64))
            inputs[places], targets[places] = read.input_ids, read.targets
            if positions is not None and read.positions is not None:
                positions[places] = read.positions
        return TokenBatch(input_ids=inputs, targets=targets, positions=positions)

    def row_hashes(self, step: int, first: int = 0, stop: int | None = None) -> tuple[str, ...]:
        """The sha256 of each of those rows."""
        return self.batch(step, first, stop).row_hashes()


def select_streams(mixture: Mixture, shards: Sequence[TokenShards]) -> dict[str, TokenStream]:
    """The tokens that each name of a mixture stands for; reads none.

    Raises:
        DataError: shards of two tokenizers, a name that they lack, or text that two names share.
    """
    if len({one.tokenizer.sha256 for one in shards}) != 1:
        raise DataError("the shards were made with different tokenizers, or there are none; give folders of one tokenizer")
    owners: dict[str, TokenShards] = {}
    for one in shards:
        for source in one.sources:
            if source in owners:
                raise DataError(f"{one.folder}: has source {source!r}, which is in {owners[source].folder} too; leave one out")
            owners[source] = one
    streams, taken = {}, dict[str, str]()
    for name in mixture.sources:
        having = [one for one in shards if name == ALL or name in one.sources or name in one.sources.values()]
        if not having:
            known = sorted({*owners, *(domain for one in shards for domain in one.sources.values())})
            raise DataError(f"mixture {mixture.name!r} takes {name!r}, which the shards lack; they have {', '.join(known)}")
        streams[name] = TokenStream.joined([one.select(name) for one in having])
        for source in sorted(streams[name].sources):
            if source in taken:
                raise DataError(f"mixture {mixture.name!r} takes source {source!r} as {taken[source]!r} and as {name!r}; take it once")
            taken[source] = name
    return streams


def planned_sizes(mixture: Mixture, folders: Sequence[str | Path]) -> dict[str, int | None]:
    """The tokens that folders of shards have of each of a mixture's sources, from their indexes alone; empty without folders.

    Raises:
        DataError: as `select_streams`.
    """
    if not folders:
        return {}
    streams = select_streams(mixture, [read_index(folder) for folder in folders])
    return {name: stream.num_tokens for name, stream in streams.items()}
