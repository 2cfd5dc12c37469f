"""The entry point of vLLM's group ``vllm.general_plugins``: vLLM calls `register` in each of its processes.

Every architecture of the table is given to vLLM anew as a subclass of its own class, so that a folder with a ``loop.json`` is
looped whoever serves it, and a folder without one runs as before.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "loopwise.serving.vllm_llama:LoopedLlama",
    "Qwen3ForCausalLM": "loopwise.serving.vllm_qwen3:LoopedQwen3",
    "Qwen3_5ForCausalLM": "loopwise.serving.vllm_qwen3_5:LoopedQwen3_5",
    "Qwen3_5ForConditionalGeneration": "loopwise.serving.vllm_qwen3_5:LoopedQwen3_5Multimodal",
}
"""What ``config.json`` names, and our class for it: a file a family, since vLLM's module of one may want packages that another does not."""


ENDS_WITH_PARENT = "LOOPWISE_VLLM_ENDS_WITH_PARENT"
"""Set where an evaluation started vLLM: its processes, which else outlive a killed parent with all their memory, then end with it."""
_PR_SET_PDEATHSIG = 1


def register() -> None:
    """Give vLLM the looped classes; calling it again changes nothing."""
    from vllm import ModelRegistry

    parent = multiprocessing.parent_process()
    if ENDS_WITH_PARENT in os.environ and parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it ended before that was set
            os._exit(1)

    for architecture, name in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, name)
