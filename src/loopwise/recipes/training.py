"""Training a model on token shards: from names and folders to a trained model and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..cost import ModelShape, read_shape
from ..data import (
    HELD_OUT_FOLDER,
    BatchSource,
    LaterBatches,
    Mixture,
    MixtureBatches,
    MixturePlan,
    PackedSequences,
    TokenBatch,
    TokenShards,
    named_mixture,
)
from ..data.shards import ALL, INDEX_FILE
from ..models import load, resolve
from ..nets import PREFIX, Architecture, LoopedTransformer, named
from ..training import (
    Estimate,
    Execution,
    Ranks,
    Reporter,
    TrainingError,
    TrainResult,
    TrainSettings,
    available_bytes,
    check_fits,
    estimate,
    held_out_loss,
    join,
    train,
)
from .first_model import begin_with, check_known

HELD_OUT_LOSS = "held_out_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """What a model is trained on.

    Raises:
        TrainingError: a batch that is no whole number of sequences.
        DataError: no such mixture.
    """

    folders: tuple[Path, ...]
    """Folders of token shards, of one tokenizer."""
    num_tokens: int
    """Inputs to train on; rounded to whole steps."""
    skip_tokens: int = 0
    """Inputs that another run has read of the same data: this one reads what follows. Rounded to whole steps too."""
    batch_tokens: int
    """Inputs of one step, over all processes."""
    sequence_tokens: int
    """Inputs of one row."""
    mixture: str = "single"
    """The name of a mixture, or a JSON file with one; its stages are scaled to ``num_tokens``."""
    seed: int = 0
    """Of the order of the sequences."""
    document_mask: bool = False
    """Documents that share a row do not see one another."""
    held_out: Path | None = None
    """Shards that the loss is measured on; None: the ``heldout`` folder in the first of ``folders``, if there is one."""
    held_out_tokens: int = 131072
    """Inputs that it is measured on, at most. A guess."""

    def __post_init__(self) -> None:
        if self.sequence_tokens < 1 or self.batch_tokens < 1 or self.batch_tokens % self.sequence_tokens:
            nearest = max(1, round(self.batch_tokens / max(1, self.sequence_tokens))) * max(1, self.sequence_tokens)
            raise TrainingError(
                f"a batch of {self.batch_tokens} tokens is no whole number of sequences of {self.sequence_tokens}; give e.g. {nearest}"
            )
        if self.skip_tokens < 0:
            raise TrainingError(f"skip_tokens is {self.skip_tokens}; give at least 0")
        if self.num_tokens < 1 or self.held_out_tokens < 1:
            raise TrainingError(f"{self.num_tokens} tokens, {self.held_out_tokens} held out; give at least 1 of each")

    @property
    def num_sequences(self) -> int:
        """Rows of a step."""
        return self.batch_tokens // self.sequence_tokens

    @property
    def num_steps(self) -> int:
        """Steps that the tokens make."""
        plan = MixturePlan(self._mixture(), num_sequences=self.num_sequences, sequence_tokens=self.sequence_tokens)
        assert plan.num_steps is not None
        return plan.num_steps - self._skipped_steps

    @property
    def _skipped_steps(self) -> int:
        return round(self.skip_tokens / self.batch_tokens)

    def open(self) -> tuple[TokenShards, ...]:
        """The shards.

        Raises:
            DataError: a folder that holds none.
        """
        return tuple(TokenShards.open(folder) for folder in self.folders)

    def batches(self, shards: tuple[TokenShards, ...]) -> BatchSource:
        """What the engine trains on."""
        whole = MixtureBatches(
            self._mixture(),
            shards,
            num_sequences=self.num_sequences,
            sequence_tokens=self.sequence_tokens,
            seed=self.seed,
            document_mask=self.document_mask,
        )
        return LaterBatches(whole, self._skipped_steps) if self._skipped_steps else whole

    def held_out_text(self, shards: TokenShards) -> PackedSequences | None:
        """The text that the loss is measured on; None where there is none.

        Raises:
            DataError: ``held_out`` holds no shards, or less than one sequence.
            TrainingError: it was made with another tokenizer than ``shards``.
        """
        found = self.held_out_shards(shards)
        if found is None:
            return None
        options: dict[str, Any] = dict(sequence_tokens=self.sequence_tokens, seed=0, document_mask=self.document_mask)
        return PackedSequences(found.select(ALL), name="held-out", **options)

    def held_out_shards(self, shards: TokenShards) -> TokenShards | None:
        """The shards of that text; None where there are none.

        Raises:
            DataError, TrainingError: as `held_out_text`.
        """
        folder = self.folders[0] / HELD_OUT_FOLDER if self.held_out is None else self.held_out
        if self.held_out is None and not (folder / INDEX_FILE).exists():
            return None
        found = TokenShards.open(folder)
        if found.tokenizer.sha256 != shards.tokenizer.sha256:
            raise TrainingError(f"{folder} was made with another tokenizer than {shards.folder}; give held-out text of the same one")
        return found

    def _mixture(self) -> Mixture:
        return named_mixture(self.mixture).scaled(self.skip_tokens + self.num_tokens)


def run_training(
    model: str,
    data: TrainingData,
    settings: TrainSettings,
    out: str | Path,
    *,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    first_weights: Path | None = None,
    execution: Execution | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Train ``nets:NAME`` from scratch, or a Hugging Face model further, on shards; the same call goes on where a killed one stopped.

    Args:
        seed: of a fresh network's weights.
        changes: fields of a fresh network's architecture; its vocabulary is the shards' unless it is among them.
        first_weights: the folder of another network with the same parameters, whose weights a fresh one begins with: a loop that is
            added after pretraining.

    Raises:
        TrainingError, DataError, NetError, ModelError: bad input, before anything long begins.
        OSError: the disk is full.
    """
    execution = execution or Execution()
    shards = data.open()
    source = data.batches(shards)
    if settings.num_steps != data.num_steps:
        raise TrainingError(f"num_steps is {settings.num_steps}, the data make {data.num_steps}; give TrainingData.num_steps")
    held_out = data.held_out_text(shards[0])
    if held_out is None and execution.evaluate_every_steps is not None:
        asked = f"evaluate_every_steps is {execution.evaluate_every_steps}"
        raise TrainingError(f"{asked}, and {data.folders[0]} has no held-out text; give --held-out, or leave it out")
    ranks = join(execution.device)
    net, tokenizer = _model(model, data, settings, execution, ranks, shards[0], seed=seed, changes=changes or {})
    if first_weights is not None:
        begin_with(net, first_weights)
    if held_out is not None:
        check_known(net, held_out_batches(held_out, data.held_out_tokens))
    evaluate = partial(_evaluate, held_out, data, settings, ranks) if held_out else None
    return train(net, source, settings, out, execution=execution, evaluate=evaluate, tokenizer=tokenizer, reporter=reporter)


def estimate_training(
    model: str, data: TrainingData, settings: TrainSettings, *, changes: Mapping[str, Any] | None = None, execution: Execution | None = None
) -> Estimate:
    """What `run_training` would take, from configs alone: no weights are made or loaded.

    Raises:
        TrainingError, DataError, NetError, CostError: bad input.
    """
    execution = execution or Execution()
    shape = (
        read_shape(architecture(model, changes or {}, data.open()[0]).as_config())
        if model.startswith(PREFIX)
        else read_shape(resolve(model).folder)
    )
    return _estimate(shape, data, settings, execution, join(execution.device))


def architecture(name: str, changes: Mapping[str, Any], shards: TokenShards) -> Architecture:
    """The architecture of a fresh network for these shards.

    Raises:
        NetError: no such name, or changes that cannot be.
        TrainingError: a change of something that is no field; a vocabulary that is too small.
    """
    unknown = sorted(changes.keys() - Architecture.__dataclass_fields__.keys())
    if unknown:
        raise TrainingError(f"an architecture has no field {unknown[0]!r}; use {', '.join(Architecture.__dataclass_fields__)}")
    made = named(name, **{"vocab_size": shards.tokenizer.vocab_size, **changes})
    if made.vocab_size < shards.tokenizer.vocab_size:
        raise TrainingError(
            f"{shards.folder} has {shards.tokenizer.vocab_size} token ids, too many for a vocabulary of {made.vocab_size}; leave "
            "vocab_size out, or give at least so many"
        )
    return made


def _model(
    name: str,
    data: TrainingData,
    settings: TrainSettings,
    execution: Execution,
    ranks: Ranks,
    shards: TokenShards,
    *,
    seed: int,
    changes: Mapping[str, Any],
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    if not name.startswith(PREFIX):
        if changes:
            raise TrainingError(f"{name} is no network of nets:..., so nothing of its architecture can be set; leave --set out")
        loaded = load(name, dtype="fp32")
        return loaded.model, loaded.tokenizer
    arch = architecture(name, changes, shards)
    if not execution.fsdp:  # whether it fits is asked before the weights are made
        rows = data.num_sequences // ranks.size
        needed = _estimate(read_shape(arch.as_config()), data, settings, execution, ranks)
        check_fits(needed, available_bytes(ranks.device), min(rows, execution.micro_batch_sequences or rows))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = LoopedTransformer.from_architecture(arch, eos_token_id=shards.tokenizer.end_token_id)
    folder = shards.tokenizer_folder
    tokenizer = None if folder is None else AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return net, tokenizer


def _estimate(shape: ModelShape, data: TrainingData, settings: TrainSettings, execution: Execution, ranks: Ranks) -> Estimate:
    return estimate(
        shape,
        settings,
        execution,
        num_sequences=data.num_sequences,
        sequence_tokens=data.sequence_tokens,
        num_ranks=ranks.size,
    )


def _evaluate(
    text: PackedSequences, data: TrainingData, settings: TrainSettings, ranks: Ranks, model: PreTrainedModel, step: int
) -> dict[str, float]:
    """The loss on held-out text at the model's own depth."""
    batches = held_out_batches(text, data.held_out_tokens)
    return {HELD_OUT_LOSS: held_out_loss(model, batches, ranks=ranks, dtype=settings.dtype)}


def held_out_batches(text: PackedSequences, num_tokens: int, *, rows: int = 8) -> Iterator[TokenBatch]:
    """Sequences of held-out text, each at most once, the same ones in every call, in batches of one shape.

    Args:
        num_tokens: inputs in all, at most (one sequence at least); what does not fill a batch is left out.
    """
    count = min(text.num_windows, max(num_tokens // text.sequence_tokens, 1))
    rows = min(rows, count)
    for first in range(0, count - rows + 1, rows):
        yield text.read(np.arange(first, first + rows, dtype=np.int64))
