"""Qwen3 of vLLM with loops put in after it is made. Imported by vLLM only, by name: see ``plugin``."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from .configured import put_loops


class LoopedQwen3(Qwen3ForCausalLM):  # type: ignore[misc]  # vllm has no types where it is not installed
    """Qwen3."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        put_loops(self.model, vllm_config)
