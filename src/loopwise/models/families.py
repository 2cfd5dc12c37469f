"""The decoder families that loops are known to work in: where the layers lie, and what the MLP half of a layer is.

A family is added by one line here and one tiny model in the contract tests (docs/add-a-family.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


class ModelError(ValueError):
    """A model that cannot be used as asked: names the model, the reason and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What surgery needs to know of one decoder class."""

    layers: str = "layers"
    """The attribute that holds the decoder layers."""
    walk: str = "slice"
    """How the decoder's forward walks them: ``slice`` for ``self.layers[:n]``, ``iterate`` for ``for block in self.h``."""
    mlp_half: tuple[str, ...] = ()
    """The modules between the residual read and the add of a layer's MLP half, in order; empty where MLP loops are refused."""


_PRE_NORM = Family(mlp_half=("post_attention_layernorm", "mlp"))
_SANDWICH = Family(mlp_half=("pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm"))
_POST_NORM = Family(mlp_half=("mlp", "post_feedforward_layernorm"))

FAMILIES: dict[str, Family] = {
    "LlamaModel": _PRE_NORM,
    "MistralModel": _PRE_NORM,
    "Qwen2Model": _PRE_NORM,
    "Qwen3Model": _PRE_NORM,
    "Qwen3MoeModel": _PRE_NORM,
    "Qwen3_5TextModel": _PRE_NORM,
    "Qwen3_5MoeTextModel": _PRE_NORM,
    "SmolLM3Model": _PRE_NORM,
    "Phi3Model": Family(mlp_half=("post_attention_layernorm", "mlp", "resid_mlp_dropout")),
    "Gemma2Model": _SANDWICH,
    "Gemma3TextModel": _SANDWICH,
    "Olmo2Model": _POST_NORM,
    "Olmo3Model": _POST_NORM,
    "GPT2Model": Family(layers="h", walk="iterate", mlp_half=("ln_2", "mlp")),
}


def find_decoder(model: nn.Module, *, untested_family: bool = False) -> tuple[nn.Module, Family]:
    """The text decoder inside ``model`` (also inside a PEFT wrapper or a vision-language model) and its family.

    Args:
        untested_family: accept a decoder that is not in the table if it keeps its layers in a list called ``layers``.

    Raises:
        ModelError: no known decoder, or several.
    """
    found = [(module, FAMILIES[name]) for module in model.modules() if (name := type(module).__name__) in FAMILIES]
    if not found and untested_family:
        found = [(module, Family()) for module in model.modules() if isinstance(getattr(module, "layers", None), nn.ModuleList)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(f"{type(model).__name__} holds {len(found)} decoders; pass the one that is to be looped")
    raise ModelError(
        f"{type(model).__name__} is not a family that loops are tested in ({', '.join(sorted(FAMILIES))}); "
        "untested_family=True tries it, after a parity check"
    )


def decoder_layers(model: nn.Module, *, untested_family: bool = False) -> nn.ModuleList:
    """The decoder's layers; vision towers and multi-token-prediction layers are never among them.

    Raises:
        ModelError: as `find_decoder`.
    """
    decoder, family = find_decoder(model, untested_family=untested_family)
    layers = getattr(decoder, family.layers)
    assert isinstance(layers, nn.ModuleList)
    return layers
