"""What a run leaves in its folder beside checkpoints: the header that binds it, and the trained model."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
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
_BEFORE_A_RUN = ("lock", "measured", "result.json")
"""What may stand in a folder before its run begins: the lock, the steps that `measure_steps` took the time of, and why an earlier try
of a set's run failed."""


class RunBusyError(TrainingError):
    """Another process trains in the folder."""


def check_unused(out: Path) -> None:
    """Check that a folder is new, or a run's own: a run replaces what has the names of its files.

    Raises:
        TrainingError: it is no folder, or holds something and no run.
        OSError: it cannot be read.
    """
    if out.exists() and not out.is_dir():
        raise TrainingError(f"{out}: is no folder; give a new --out")
    if not out.is_dir() or (out / HEADER_FILE).exists():
        return
    own = (name for name in sorted(os.listdir(out)) if name not in _BEFORE_A_RUN)
    others = [name for name in own if not (name.startswith(HEADER_FILE) and name.endswith(".part"))]
    if others:
        raise TrainingError(f"{out}: holds {others[0]} and no {HEADER_FILE}, so it is no run's folder; give a new --out")


def claim(out: Path, header: Mapping[str, Any]) -> int:
    """Take a folder for a run: check that it is free or the run's own, hold it (`lock`), and bind it (`bind_header`).

    Raises:
        RunBusyError: another process trains in it.
        TrainingError: it holds another run, or something else.
        OSError: it cannot be written.
    """
    check_unused(out)
    handle = lock(out)
    try:
        bind_header(out, header)
    except BaseException:
        os.close(handle)
        raise
    return handle


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
        except (ValueError, RecursionError):
            there = None
        if not isinstance(there, dict):
            raise TrainingError(f"{file}: damaged; give a new --out")
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
        try:
            if has_adapter:
                save_adapter(plain, part)
            else:
                save(plain, tokenizer, part)
        except SafetensorError as error:  # its word for a full disk
            words = " ".join(str(error).split())[:200]
            raise OSError(f"{part}: cannot be written ({words}); the same command goes on when there is room") from None
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
