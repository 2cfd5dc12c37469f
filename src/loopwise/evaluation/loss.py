"""Held-out loss as an evaluation: a model on documents, to a run that goes on after a kill.

No cache takes part, so there is nothing for the parity check of decoding to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..cost import cost_of, read_shape
from ..data import Document
from ..models import loops_of
from ..records import LOSS_FORMAT, LossRecord, LossRun, RunWriter, read_loss_records, read_loss_run
from ..records.losses import in_order
from ..scoring import DocumentLoss, ScoringError, WindowSettings, check_documents, score_documents
from .header import model_facts, versions
from .loss_text import LossText, encode_text

LOSS_TASK = "loss"
"""What the command line and headers call it, among the tasks."""


def evaluate_loss(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[Document],
    *,
    out: str | Path | None = None,
    windows: WindowSettings | None = None,
    training_flops: float | None = None,
    arm: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> LossRun:
    """The loss of every document, each read alone, in nats; the run's ``totals`` have nats per token, perplexity and bits per byte.

    With ``out`` a document's line is on the disk as soon as its group of windows is read, and the same call goes on after a kill.

    Args:
        model: any causal language model, with loops or without, in evaluation mode.
        training_flops: what its training spent, where that is known; stands in the header for the test at equal training FLOPs.
        progress: called with the share that is done.

    Raises:
        ScoringError: no document with a token to predict, a context that the model has no positions for, a tokenizer of another model;
            or losses that are not finite (the lines before them stay).
        RecordsError: ``out`` holds another run.
        CostError: a family whose FLOPs are not known.
    """
    windows = windows or WindowSettings()
    if training_flops is not None and not 0 < training_flops < float("inf"):
        raise ScoringError(f"training_flops is {training_flops}; give a finite number above 0, or leave it out")
    text = encode_text(tokenizer, documents)
    header = loss_header(model, text, windows, training_flops=training_flops, arm=arm)

    def report(done: int, total: int) -> None:
        if progress:
            progress(done / total)

    if out is None:
        kept = [_record(one) for group in score_documents(model, text.documents, windows, progress=report) for one in group]
        return LossRun(header, in_order(kept), "memory")
    check_documents(model.config, text.documents, windows)  # before there is a run in the folder
    with RunWriter(out, header, read=read_loss_records) as writer:
        done = {record.document for record in writer.done}
        for group in score_documents(model, text.documents, windows, done=done, progress=report):
            writer.append(map(_record, group))
    return read_loss_run(out)


def loss_header(
    model: PreTrainedModel, text: LossText, windows: WindowSettings, *, training_flops: float | None = None, arm: str | None = None
) -> dict[str, Any]:
    """What binds a loss run: the model with its loops, the text, the windows, the dtype, and what a token costs."""
    facts = model_facts(model)
    cost = cost_of(read_shape(model.config.to_dict()), loops_of(model))
    return {
        "format": LOSS_FORMAT,
        "arm": arm or ("looped" if facts["looped"] else "unlooped"),
        **facts,
        "flops_per_token": cost.flops_per_token,
        "training_flops": training_flops,
        "task": LOSS_TASK,
        "num_documents": len(text.documents),
        "num_left_out": text.num_left_out,
        "num_targets": text.num_targets,
        "num_bytes": text.num_bytes,
        "num_unknown": text.num_unknown,
        "text_hash": text.text_hash,
        "tokens_hash": text.tokens_hash,
        "start_token": text.start_token,
        "context_tokens": windows.context_tokens,
        "stride_tokens": windows.stride,
        "batch_size": windows.batch_size,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _record(one: DocumentLoss) -> LossRecord:
    return LossRecord(document=one.name, loss_nats=one.loss_nats, num_targets=one.num_targets, num_bytes=one.num_bytes)
