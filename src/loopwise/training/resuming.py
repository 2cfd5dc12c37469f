"""What a run that goes on takes up: the tensors of its checkpoint, and the batches that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from ..data import BatchSource
from .distributed import settle
from .metrics import METRICS_FILE, batch_hash, read_metrics
from .optimizers import optimizer_tensors
from .settings import TrainingError


def run_tensors(model: PreTrainedModel, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Everything that a checkpoint holds: what is trained, and nothing that is frozen."""
    settle(model)
    trained = (named for named in model.named_parameters() if named[1].requires_grad)
    parameters = {f"model.{name}": parameter.detach() for name, parameter in trained}
    saved = model.state_dict()
    buffers = {f"model.{name}": buffer for name, buffer in model.named_buffers() if name in saved}
    state = optimizer_tensors(model, optimizers)
    return parameters | buffers | {f"optimizer.{name}": tensor for name, tensor in state.items()}


def check_batches(out: Path, source: BatchSource, last_step: int) -> None:
    """Read some batches that a run was trained on once more: the files behind them may have changed, at the same size.

    Batches are the first one, the middle one and the last one up to ``last_step``, which is counted from 1; a change elsewhere is not
    seen. Where somebody removed the metrics nothing is compared.

    Raises:
        TrainingError: a batch is not the one that the metrics name, or a line of them is damaged.
    """
    trained = {metrics.step: metrics.batch_hash for metrics in read_metrics(out)}
    for step in sorted({1, (last_step + 1) // 2, last_step} & trained.keys()):
        now = batch_hash(bytes.fromhex(digest) for digest in source.batch(step - 1).row_hashes())
        if now != trained[step]:
            raise TrainingError(
                f"{out / METRICS_FILE}: step {step} was trained on batch {trained[step][:16]}, the data now give {now[:16]}: their files "
                "have changed; bring back those of before, or give a new --out"
            )
