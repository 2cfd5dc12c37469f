"""What the members of a set are trained on: traces, encoded where they are not yet, or token shards; the same for all of a seed.

Traces are counted without their padding, so that a budget of tokens is one of text, whether rows are packed or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoConfig, PreTrainedModel

from ..data import (
    HELD_OUT_FOLDER,
    BatchSource,
    ChatTokenizerChoice,
    Counts,
    Mixture,
    MixtureBatches,
    PackedSequences,
    Stage,
    TokenShards,
    TraceBatches,
    TraceSet,
    TraceSettings,
    encode_traces,
    named_mixture,
)
from ..data.folders import read_json
from ..data.shards import ALL, INDEX_FILE
from ..models import ModelError, Source, check_packing, inserted_loops
from ..training import Ranks, TrainingError, held_out_by_passes, held_out_loss
from .evaluation_items import evaluation_items
from .learning_recipes import Rows
from .training import HELD_OUT_LOSS, held_out_batches

_ENDLESS_TOKENS = 1 << 46
"""Of a mixture of several sources: longer than any member is trained, so that all read a beginning of the same batches."""
_HELD_OUT_PASSES = (1, 2, 3)
PACKINGS = ("auto", "packed", "single")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningData:
    """What was given, and how it is read.

    Raises:
        TrainingError: nothing, or options that do not go together.
    """

    given: tuple[str, ...]
    """Sources of traces as `parse_training_sources` reads them, one folder of encoded traces, or folders of token shards."""
    rows: Rows
    raw: bool = False
    """As `TraceSettings.raw`."""
    question: str | None = None
    answer: str | None = None
    """Columns, as `TraceSettings`."""
    against: tuple[str, ...] = ()
    """Evaluation tasks that traces are kept apart from, as `evaluation_items`."""
    items: Path | None = None
    """Where their items are."""
    workers: int = 1
    packing: str = "auto"
    """``packed``: several traces a row; ``single``: each its own; ``auto``: packed where the model keeps them apart."""
    mixture: str = "single"
    """Of token shards: everything, or a JSON file with a mixture of one stage."""
    held_out_tokens: int = 131_072
    """Of shards' held-out text that the loss is measured on, at most. A guess."""

    def __post_init__(self) -> None:
        if not self.given:
            raise TrainingError("no data is given; give --data: traces to encode, a folder of encoded traces, or folders of token shards")
        if self.packing not in PACKINGS:
            raise TrainingError(f"packing is {self.packing!r}; use {', '.join(PACKINGS)}")
        if self.workers < 1 or self.held_out_tokens < 1:
            raise TrainingError(f"{self.workers} workers, {self.held_out_tokens} held-out tokens; give at least 1 of each")
        if (self.question is None) != (self.answer is None):
            raise TrainingError(f"question is {self.question!r} and answer {self.answer!r}: they name two columns; give both, or neither")

    @property
    def kind(self) -> str:
        """``sources`` of traces to encode, ``traces`` that are encoded, or ``shards``.

        Raises:
            TrainingError: several of these.
            DataError: a damaged index.
        """
        indexes = [Path(one) / INDEX_FILE for one in self.given]
        kinds = {("traces" if read_json(file).get("kind") == "traces" else "shards") if file.is_file() else "sources" for file in indexes}
        if len(kinds) > 1 or (kinds == {"traces"} and len(self.given) > 1):
            raise TrainingError(f"data {' '.join(self.given)}: give sources of traces, one folder of encoded traces, or folders of shards")
        return kinds.pop()


class SetData(Protocol):
    """What a set is trained on: the batches of a seed, and what so many steps of them hold."""

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the batches of every seed, as JSON."""

    def source(self, seed: int) -> BatchSource:
        """The batches of a seed, for all its members."""

    def num_steps(self, seed: int, num_tokens: int) -> int:
        """The steps after which so many tokens were read."""

    def counts(self, seed: int, num_steps: int) -> tuple[int, int | None]:
        """Tokens read in so many steps, padding left out, and how many of them were answers'; None where all are text."""

    def evaluate(self, ranks: Ranks, dtype: str, model: PreTrainedModel, step: int) -> dict[str, float]:
        """Held-out losses, by name; nothing where there is no held-out text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceData:
    """Encoded traces."""

    traces: TraceSet
    rows: Rows
    packed: bool

    @property
    def identity(self) -> dict[str, Any]:
        """Hashes of traces and tokenizer, and the rows."""
        return {name: value for name, value in self.source(0).identity.items() if name != "seed"}

    def source(self, seed: int) -> TraceBatches:
        """Rows in an order of the seed's own: without it, seeds of full fine-tuning would be one model."""
        rows: dict[str, Any] = dict(num_sequences=self.rows.num_sequences, sequence_tokens=self.rows.sequence_tokens)
        return TraceBatches(self.traces, seed=seed, packed=self.packed, **rows)

    def num_steps(self, seed: int, num_tokens: int) -> int:
        """As `TraceBatches.num_steps`."""
        return self.source(seed).num_steps(num_tokens)

    def counts(self, seed: int, num_steps: int) -> tuple[int, int | None]:
        """Found by asking when a number of tokens was read: no batch is made anew."""
        source, most = self.source(seed), num_steps * self.rows.step_tokens
        tokens = _most(source.num_steps, num_steps, most)
        return tokens, _most(partial(source.num_steps, counted="answer"), num_steps, most)

    def evaluate(self, ranks: Ranks, dtype: str, model: PreTrainedModel, step: int) -> dict[str, float]:
        """Nothing: traces have no held-out part."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """Token shards."""

    shards: tuple[TokenShards, ...]
    mixture: Mixture
    rows: Rows
    held_out: PackedSequences | None
    held_out_tokens: int

    @property
    def identity(self) -> dict[str, Any]:
        """Hashes of shards and tokenizer, the mixture and the rows."""
        return {name: value for name, value in self.source(0).identity.items() if name != "seed"}

    def source(self, seed: int) -> MixtureBatches:
        """Sequences in an order of the seed's own."""
        rows: dict[str, Any] = dict(num_sequences=self.rows.num_sequences, sequence_tokens=self.rows.sequence_tokens)
        return MixtureBatches(self.mixture, self.shards, seed=seed, **rows)

    def num_steps(self, seed: int, num_tokens: int) -> int:
        """Rows of text are full."""
        return max(1, num_tokens // self.rows.step_tokens)

    def counts(self, seed: int, num_steps: int) -> tuple[int, int | None]:
        """Every input is text."""
        return num_steps * self.rows.step_tokens, None

    def evaluate(self, ranks: Ranks, dtype: str, model: PreTrainedModel, step: int) -> dict[str, float]:
        """The held-out loss at the member's own passes and, of a looped one, at each depth: the curves of C.1."""
        if self.held_out is None:
            return {}
        batches = list(held_out_batches(self.held_out, self.held_out_tokens))
        passes = _HELD_OUT_PASSES if inserted_loops(model) else ()
        own = {HELD_OUT_LOSS: held_out_loss(model, batches, ranks=ranks, dtype=dtype)}
        return own | held_out_by_passes(model, batches, passes, ranks=ranks, dtype=dtype)


def encode_data(
    data: LearningData,
    source: Source,
    folder: Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[Counts], None] | None = None,
) -> None:
    """Encode sources of traces into ``folder``, or go on with it, with the tokenizer of the model that is trained; else nothing.

    Raises:
        DataError: as `encode_traces`.
        OSError: the disk is full.
    """
    if data.kind != "sources":
        return
    items, missing = evaluation_items(data.against, data=data.items)
    for reason in missing:
        note(f"not kept apart from {reason}")
    settings = TraceSettings(
        sources=data.given, sequence_tokens=data.rows.sequence_tokens, raw=data.raw, question=data.question, answer=data.answer
    )
    encode_traces(settings, _choice(source), folder, items=items, workers=data.workers, progress=progress)


def open_data(data: LearningData, source: Source, folder: Path, *, note: Callable[[str], None] = lambda text: None) -> SetData:
    """Open the data of a set; sources of traces have been encoded into ``folder``.

    Raises:
        TrainingError: data of another tokenizer than the model's.
        DataError, ModelError: bad data; rows that may not be packed.
    """
    kind = data.kind
    if kind == "shards":
        return _text_data(data)
    traces = TraceSet.open(data.given[0] if kind == "traces" else folder)
    if traces.facts.tokenizer.sha256 != _choice(source).load().facts.sha256:
        raise TrainingError(
            f"{traces.folder} was encoded with another tokenizer or end token than {source.name}'s; encode the traces again for it"
        )
    made = TraceData(traces=traces, rows=data.rows, packed=_packed(data.packing, source, note))
    left_out = made.source(0).num_left_out + int(traces.report.get("num_too_long", 0))
    note(f"{made.source(0).num_traces:,} traces, {left_out:,} longer than {data.rows.sequence_tokens:,} tokens left out")
    return made


def _choice(source: Source) -> ChatTokenizerChoice:
    return ChatTokenizerChoice(name=str(source.folder), label=source.name)


def has_held_out(data: LearningData) -> bool:
    """Whether the first folder of shards has held-out text, which losses are measured on."""
    return (Path(data.given[0]) / HELD_OUT_FOLDER / INDEX_FILE).is_file()


def _text_data(data: LearningData) -> TextData:
    shards = tuple(TokenShards.open(folder) for folder in data.given)
    folder, text = shards[0].folder / HELD_OUT_FOLDER, None
    if has_held_out(data):
        text = PackedSequences(TokenShards.open(folder).select(ALL), name="held-out", sequence_tokens=data.rows.sequence_tokens, seed=0)
    made = TextData(shards=shards, mixture=endless_mixture(data), rows=data.rows, held_out=text, held_out_tokens=data.held_out_tokens)
    made.source(0).batch(0, 0, 1)
    return made


def endless_mixture(data: LearningData) -> Mixture:
    """The mixture without an end: members of several lengths read beginnings of the same batches.

    Raises:
        TrainingError: several stages.
        DataError: no such mixture.
    """
    found = named_mixture(data.mixture)
    if len(found.stages) > 1:
        raise TrainingError(f"mixture {data.mixture} has {len(found.stages)} stages, and members of a set differ in length; give one stage")
    if found.num_tokens is None:
        return found
    return Mixture(name=found.name, stages=(Stage(tokens=_ENDLESS_TOKENS, shares=found.stages[0].shares),))


def _packed(packing: str, source: Source, note: Callable[[str], None]) -> bool:
    if packing == "single":
        return False
    config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    try:
        check_packing(config)
    except ModelError as error:
        if packing == "packed":
            raise
        note(f"one trace a row: {error}")
        return False
    return True


def _most(steps_of: Callable[[int], int], num_steps: int, most: int) -> int:
    """The most tokens that are read after ``num_steps`` steps; ``steps_of`` rises with them."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if steps_of(middle) <= num_steps else (low, middle - 1)
    return low


def evaluation_of(data: SetData, ranks: Ranks, dtype: str) -> Callable[[PreTrainedModel, int], dict[str, float]]:
    """`SetData.evaluate` as an engine calls it."""
    return partial(data.evaluate, ranks, dtype)
