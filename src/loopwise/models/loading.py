"""Models by name: a Hugging Face id, a folder, a folder with a loop, or the embedded default."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..loops import Loop, check_loops, parse_loops
from ..nets import LoopedConfig, own_loops  # its import registers the networks with the Auto classes
from .families import ModelError, decoder_layers
from .sidecar import SIDECAR, check_base, copy_with_loops, hash_files, read_sidecar, write_sidecar
from .surgery import insert, inserted_loops

EMBEDDED = "smollm2"
"""The name of the embedded default, SmolLM2-135M-Instruct."""
CHANGED = "changed in memory"
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
"""What is downloaded of a model, its weights first."""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_DTYPES |= {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Loaded(NamedTuple):
    """A model, in evaluation mode and with its loops in, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Source:
    """Where a loaded model came from."""

    name: str
    """The id or folder that was asked for."""
    folder: Path
    weights: str
    """How the weights came to be, for a run's header: ``as published``, or ``dequantised Q4_1``."""


def load(
    name: str | Path,
    *,
    loops: str | Loop | Iterable[Loop] | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    untested_family: bool = False,
) -> Loaded:
    """Load a causal language model and its tokenizer. Only safetensors are read and no code of the model's is run.

    Args:
        name: a Hugging Face id, a folder (with or without ``loop.json``), or ``smollm2``.
        loops: None takes the folder's own loops, if it has some; anything else, ``"none"`` included, takes their place.
        dtype: see `resolve_dtype` for ``auto``.

    Raises:
        ModelError: an unknown model, a damaged sidecar, a base changed since its loop was put in, an unknown family.
        LoopError: loops that the model cannot have.
    """
    _check_device(device)
    source = resolve(name)
    if loops is None and (sidecar := read_sidecar(source.folder)):
        check_base(source.folder, sidecar)
    chosen = resolve_loops(source, loops)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.folder,
            dtype=resolve_dtype(source.folder / "config.json", dtype, device),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"model {source.name!r} does not load: {_one_line(error)}") from None
    model: PreTrainedModel
    model, info = loaded
    # transformers fills what it does not find with random numbers, and only warns.
    if unset := sorted({*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])}):
        raise ModelError(
            f"model {source.name!r}: its weights lack {unset[0]} ({len(unset)} tensors in all); they do not fit its config.json"
        )
    model.to(device)  # type: ignore[arg-type]  # transformers' wrapper hides the method's signature
    model.eval()
    model.loopwise_source = (source, _changes(model))  # type: ignore[assignment]  # an attribute of ours, no module
    if chosen:
        insert(model, chosen, untested_family=untested_family)
    return Loaded(model, tokenizer)


def resolve(name: str | Path, *, weights: bool = True) -> Source:
    """The local folder of a model, downloaded into the Hugging Face cache where it is not there yet.

    Args:
        weights: whether they are needed; without them only configuration and tokenizer are downloaded.

    Raises:
        ModelError: no such folder and no such model on the hub.
    """
    if str(name) == EMBEDDED:
        from .embedded import embedded_model

        return Source(EMBEDDED, embedded_model(), "dequantised Q4_1")
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelError(f"{path} holds no config.json; give a folder with a Hugging Face model")
        return Source(str(name), path, "as published")
    if str(name).count("/") > 1 or str(name).startswith((".", "/", "~")):
        raise ModelError(f"model {str(name)!r}: no such folder")
    return Source(str(name), _from_hub(str(name), _HUB_FILES if weights else _HUB_FILES[1:]), "as published")


def resolve_loops(source: Source, loops: str | Loop | Iterable[Loop] | None = None) -> tuple[Loop, ...]:
    """The loops that a model is to have, checked against its layers; None takes the folder's own, if it has some: those of its
    sidecar, or those that a network of ``loopwise.nets`` was trained with.

    Raises:
        ModelError: a damaged sidecar, or a config.json that is none.
        LoopError: loops that the model cannot have.
    """
    num_layers = _num_layers(source)
    if loops is None:
        sidecar = read_sidecar(source.folder)
        loops = sidecar.loops if sidecar else trained_loops(source)
    if isinstance(loops, str):
        return parse_loops(loops, num_layers)
    return check_loops([loops] if isinstance(loops, Loop) else loops, num_layers)


def _from_hub(name: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"model {name!r}: neither a folder nor to be had from the hub ({_one_line(error)}); check the name") from None


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: str | Path) -> None:
    """Write the model's weights as the plain model has them, its tokenizer, and its loops as a sidecar.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if loops := inserted_loops(model):
        source = source_of(model)
        name = source.name if source else type(model).__name__
        write_sidecar(folder, loops=loops, num_layers=len(decoder_layers(model)), base=name)
    else:
        (folder / SIDECAR).unlink(missing_ok=True)  # of a loop that is no more


def insert_on_disk(name: str | Path, loops: str | Iterable[Loop], out: str | Path) -> tuple[Loop, ...]:
    """A new folder with a model's own files, byte for byte, and a sidecar; returns the loops as resolved.

    Raises:
        ModelError, LoopError: as `load`, before anything is copied.
    """
    source = resolve(name)
    chosen = resolve_loops(source, loops)
    if not chosen:
        raise ModelError("no loop to put in; give --loops, e.g. '10:14 x2'")
    copy_with_loops(source.folder, Path(out), loops=chosen, num_layers=_num_layers(source), base=source.name)
    return chosen


def source_of(model: PreTrainedModel) -> Source | None:
    """Where the model was loaded from, or None; its ``weights`` are ``changed in memory`` where a parameter was written since."""
    kept: tuple[Source, int] | None = getattr(model, "loopwise_source", None)
    if kept is None:
        return None
    source, changes = kept
    return source if _changes(model) == changes else replace(source, weights=CHANGED)


def _changes(model: PreTrainedModel) -> int:
    """How often parameters were written in place, as an optimiser does; torch counts it."""
    return sum(parameter._version for parameter in model.parameters())


def model_hash(model: PreTrainedModel) -> str:
    """A hash of what the model computes from: its files where it was loaded from some, else its parameters. 16 hex digits."""
    source = source_of(model)
    digest = hashlib.sha256()
    if source is not None and source.weights != CHANGED:
        digest.update(repr(sorted(hash_files(source.folder).items())).encode())
    else:
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def resolve_dtype(config: Path, dtype: str | torch.dtype, device: str | torch.device = "cpu") -> torch.dtype | Literal["auto"]:
    """The dtype that a name stands for. ``auto`` is the weights' own, and fp32 for half-precision weights on a CPU where oneDNN has no
    products in them (in bf16 it wants AVX-512 or newer), so that they take many times as long (docs/log.md), as long as they fill at
    most half of the memory.

    Args:
        config: config.json, with the weights beside it where they are there already.

    Returns:
        ``auto`` where that was asked for and config.json names none: then transformers reads it off the weights.

    Raises:
        ModelError: an unknown name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype != "auto":
        if dtype not in _DTYPES:
            raise ModelError(f"dtype {dtype!r} is unknown; use auto, {', '.join(_DTYPES)}")
        return _DTYPES[dtype]
    fields = json.loads(config.read_text(encoding="utf-8"))
    parts = (fields.get("text_config") or {}, fields)
    name = next((part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)), None)
    if name not in _DTYPES:
        return "auto"
    own = _DTYPES[name]
    if torch.device(device).type != "cpu" or own == torch.float32 or has_half_products(own):
        return own
    num_bytes = sum(file.stat().st_size for file in config.parent.glob("*.safetensors")) * torch.float32.itemsize // own.itemsize
    return torch.float32 if 2 * num_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") else own


def has_half_products(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies matrices of bf16 or fp16 on this machine's CPU, by its own word."""
    question = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    answer = getattr(torch.ops.mkldnn, question, None)
    return bool(answer and answer())


def _num_layers(source: Source) -> int:
    return int(_config(source).get_text_config(decoder=True).num_hidden_layers)


def trained_loops(source: Source) -> tuple[Loop, ...]:
    """The loops that a network of ``loopwise.nets`` was trained with; none of any other model.

    Raises:
        ModelError: a config.json that transformers does not know.
    """
    config = _config(source)
    return own_loops(config.architecture) if isinstance(config, LoopedConfig) else ()


def _config(source: Source) -> Any:
    try:
        return AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {source.name!r}: its config.json is not one that transformers knows ({_one_line(error)})") from None


def _check_device(device: str | torch.device) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ModelError(f"device {device!r} is unknown; use cpu, cuda, cuda:1, mps") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {str(device)!r}: this torch sees no CUDA device; use cpu")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
