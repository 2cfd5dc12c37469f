"""What a run leaves in its folder beside checkpoints: the header that binds it, and the trained model."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models import save
from ..nets.model import LoopedTransformer
from ..records import write_json
from .adapters import adapter_of, save_adapter
from .distributed import Ranks, full_tensor
from .settings import TrainingError, first_difference

HEADER_FILE = "run.json"
MODEL_FOLDER = "model"
ADAPTER_FOLDER = "adapter"
_UNBOUND = ("versions",)


class RunBusyError(TrainingError):
    """Another process trains in the folder."""


def bind_header(out: Path, header: Mapping[str, Any]) -> None:
    """Write a run's header, or check that the folder holds the same run.

    Raises:
        TrainingError: another run, with the first field that differs, or a header that cannot be read.
        OSError: the folder cannot be written.
    """
    file = out / HEADER_FILE
    ours = json.loads(json.dumps(header))
    if file.exists():
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise TrainingError(f"{file}: damaged; give a new --out") from None
        before, now = ({name: value for name, value in values.items() if name not in _UNBOUND} for values in (there, ours))
        if (found := first_difference(before, now)) is not None:
            name, old, new = found
            raise TrainingError(f"{out}: was trained with {name} {_short(old)}, now it is {_short(new)}; give a new --out")
        return
    out.mkdir(parents=True, exist_ok=True)
    write_json(file, ours)


def lock(out: Path) -> int:
    """Keep other processes from training in the folder, until this one ends or closes the handle.

    Raises:
        RunBusyError: another process does.
    """
    out.mkdir(parents=True, exist_ok=True)
    handle = os.open(out / "lock", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RunBusyError(f"{out}: another process is training here; wait for it, or give another --out") from None
    return handle


def save_model(out: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, ranks: Ranks) -> Path:
    """Write the model as a Hugging Face folder, ``OUT/model``; all processes take part where it is sharded.

    Of a model with an adapter, that alone, as PEFT writes it: ``OUT/adapter``.

    Raises:
        OSError: it cannot be written.
    """
    has_adapter = adapter_of(model) is not None
    folder = out / (ADAPTER_FOLDER if has_adapter else MODEL_FOLDER)
    plain = _whole(model, ranks)

    def write() -> None:
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        assert plain is not None
        if has_adapter:
            save_adapter(plain, part)
        else:
            save(plain, tokenizer, part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)

    ranks.from_first(write)
    return folder


def _whole(model: PreTrainedModel, ranks: Ranks) -> PreTrainedModel | None:
    """The model with whole weights, in the first process."""
    sharded: nn.Module = model
    if not isinstance(sharded, FSDPModule):
        return model
    weights = {}
    for name, tensor in model.state_dict().items():
        whole = full_tensor(tensor)
        if ranks.rank == 0:
            weights[name] = whole.cpu()
    if ranks.rank:
        return None
    assert isinstance(model, LoopedTransformer)
    plain = LoopedTransformer.from_architecture(model.model.arch)
    plain.config = model.config
    plain.load_state_dict(weights)
    return plain


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
