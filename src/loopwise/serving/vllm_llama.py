"""Llama of vLLM with loops put in after it is made. Imported by vLLM only, by name: see ``plugin``."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.llama import LlamaForCausalLM

from .configured import put_loops


class LoopedLlama(LlamaForCausalLM):  # type: ignore[misc]  # vllm has no types where it is not installed
    """Llama."""

    def __init__(self, *, vllm_config: Any, prefix: str = "", **settings: Any) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, **settings)
        put_loops(self.model, vllm_config)
