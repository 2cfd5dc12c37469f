"""The model that a training run begins with: another one's weights, and whether it knows the text that it is measured on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformers import PreTrainedModel

from ..data import TokenBatch
from ..models import load
from ..training import TrainingError


def begin_with(net: PreTrainedModel, folder: Path) -> None:
    """Give a network the weights of another one with the same parameters.

    Raises:
        TrainingError: parameters that the two do not share.
        ModelError: no such model.
    """
    weights = load(folder, loops="none", dtype="fp32").model.state_dict()
    own = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if own != there:
        name = min(name for name in own.keys() | there.keys() if own.get(name) != there.get(name))
        raise TrainingError(f"{folder}: its {name} is {there.get(name)}, the network's is {own.get(name)}; give one of the same shape")
    net.load_state_dict(weights)


def check_known(model: PreTrainedModel, batches: Iterable[TokenBatch]) -> None:
    """Check that a model has a row of its embedding for every token of held-out text.

    Raises:
        TrainingError: it has not.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr, arg-type, index]
    if any(max(batch.input_ids.max(), batch.targets.max()) >= vocabulary for batch in batches):
        raise TrainingError(f"the held-out text has tokens beyond the model's vocabulary of {vocabulary}; give text of its own tokenizer")
