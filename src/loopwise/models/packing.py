"""Which models may be trained on several documents a row: those whose layers keep to a document where its positions say so.

A row of packed documents has positions that begin again at each. Attention is masked by them; the state of linear attention (Gated
DeltaNet, Mamba) and of short convolutions is not, and runs on into the next document. Kernels that stop at boundaries exist for some of
these layers, but nothing here gives them the boundaries, so their families are refused; a row for each document suits them all.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from ..nets.configuration import MODEL_TYPE
from .families import ModelError

PACKED_TYPES = frozenset(
    {
        MODEL_TYPE,
        "gemma2",
        "gemma3_text",
        "gpt2",
        "llama",
        "mistral",
        "olmo2",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
    }
)
"""The ``model_type`` of families whose packed logits were found to be those of each document alone; tests hold each of them to it."""

_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
_REMEDY = "give each document a row of its own"


def check_packing(config: PretrainedConfig) -> None:
    """Check that a model keeps documents of one row apart, by its configuration alone.

    Raises:
        ModelError: it has layers whose state runs on, or is of a family that this was not tested in.
    """
    text = config.get_text_config()
    kinds = dict.fromkeys(getattr(text, "layer_types", None) or ())
    leaking = [kind for kind in kinds if kind not in _ATTENTION]
    if leaking:
        raise ModelError(f"{text.model_type}: its {leaking[0]} layers carry their state over the documents of a packed row; {_REMEDY}")
    if text.model_type not in PACKED_TYPES:
        known = ", ".join(sorted(PACKED_TYPES))
        raise ModelError(f"{text.model_type}: packed rows are not tested in this family (they are in {known}); {_REMEDY}")
