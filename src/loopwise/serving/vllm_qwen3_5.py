"""Qwen3.5 of vLLM with loops put in after it is made. Imported by vLLM only, by name; vLLM's own module needs torchvision."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

from .configured import put_loops


class LoopedQwen3_5(Qwen3_5ForCausalLM):  # type: ignore[misc]  # vllm has no types where it is not installed
    """Qwen3.5, text only."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        put_loops(self.model, vllm_config)


class LoopedQwen3_5Multimodal(Qwen3_5ForConditionalGeneration):  # type: ignore[misc]
    """Qwen3.5 as published, with its vision tower, which loops leave alone."""

    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        put_loops(self.language_model.model, vllm_config)
