"""The end of a recipe with an adapter: merged in fp32, saved as a plain model with its loops, and what that changed written down."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..data import BatchSource
from ..models import Loaded
from ..records import write_json
from .adapters import merge_and_compare
from .distributed import join
from .reporting import TrainResult
from .saving import save_model
from .settings import Execution

MERGE_FILE = "merge.json"
_COMPARED_TOKENS = 256
"""Of the run's first row, at most. A guess: enough positions, and few enough for a whole tensor of logits."""


def merge_and_save(loaded: Loaded, source: BatchSource, out: str | Path, result: TrainResult, execution: Execution | None) -> TrainResult:
    """Merge a trained adapter and save the model to ``OUT/model``; ``OUT/merge.json`` has the change of logits (`MergeChange`).

    All processes make this call.

    Raises:
        TrainingError: an adapter that cannot be merged.
        OSError: the folder cannot be written.
    """
    out, ranks = Path(out), join((execution or Execution()).device)
    tokens = torch.from_numpy(source.batch(0, 0, 1).input_ids[:, :_COMPARED_TOKENS].copy()).to(ranks.device)
    change = merge_and_compare(loaded.model, tokens)
    ranks.from_first(lambda: write_json(out / MERGE_FILE, asdict(change)))
    return replace(result, model_folder=save_model(out, loaded.model, loaded.tokenizer, ranks))
