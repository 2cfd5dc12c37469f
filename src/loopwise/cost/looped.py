"""The shape of a network of ``loopwise.nets``, which has loops of its own, from its config.json. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwise.loops import Loop

from .config import CostError
from .shape import LayerShape, ModelShape

LOOPED = "loopwise_looped"
"""The ``model_type`` of these networks. They save every field, so nothing here has a default."""


def looped_shape(config: Mapping[str, Any], where: str) -> ModelShape:
    """The shape of a looped network, its own loops included.

    Depth attention, norms and gating vectors count as norms do: stored, without FLOPs.

    Raises:
        CostError: a field is missing.
    """
    try:
        return _shape(config)
    except KeyError as error:
        raise CostError(f"{where}: {LOOPED} without the field {error.args[0]!r}; give the whole config.json") from None


def _shape(config: Mapping[str, Any]) -> ModelShape:
    width, count, kv_width = config["hidden_size"], config["num_hidden_layers"], config["num_key_value_heads"] * config["head_dim"]
    tables = [config["value_embeddings"] and index % 2 == (count - 1) % 2 for index in range(count)]
    injects, loop = config["input_injection"], _own_loop(config)
    return ModelShape(
        family=LOOPED,
        hidden_size=width,
        vocab_size=config["vocab_size"],
        layers=tuple(_layer(config, table) for table in tables),
        embedding_parameters=config["vocab_size"] * (width + sum(tables) * kv_width),
        final_norm_parameters=width + _design_vectors(config),
        tied=config["tie_word_embeddings"],
        pass_parameters=2 * width * width if injects else 0,
        once_parameters=width * width if config["design"] == "parcae" and config["parcae_injection"] else 0,
        own_loops=() if loop.passes == 1 and not injects else (loop,),
        own_loop=loop,
    )


def _own_loop(config: Mapping[str, Any]) -> Loop:
    stop = config["num_hidden_layers"] if config["loop_stop"] is None else config["loop_stop"]
    return Loop(config["loop_start"], stop, config["num_loops"], config["operator"], config["beta"])


def _layer(config: Mapping[str, Any], has_table: bool) -> LayerShape:
    width, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    gate = config["value_embedding_channels"] * config["num_key_value_heads"] if has_table else 0
    mlp = (3 if config["activation"] == "swiglu" else 2) * width * config["intermediate_size"]
    norms = (4 if config["design"] == "sandwich" else 2) * width
    return LayerShape(
        mixer="attention",
        mixer_parameters=width * (2 * queries + 2 * keys) + gate,
        mlp_parameters=mlp,
        mlp_total_parameters=mlp,
        other_parameters=norms + (2 if config["value_residual"] else 0),
        kv_width=2 * keys,
        window_tokens=None,
        score_width=queries,
        recurrent_size=0,
        conv_size=0,
    )


def _design_vectors(config: Mapping[str, Any]) -> int:
    """Parcae's decay and step and the norm of its input; ARLoop's depth queries and their key gains."""
    width: int = config["hidden_size"]
    if config["design"] == "parcae":
        return width * (3 if config["parcae_injection"] else 2)
    if config["design"] != "arloop":
        return 0
    stop = config["num_hidden_layers"] if config["loop_stop"] is None else config["loop_stop"]
    further: int = (config["num_loops"] - 1) * (stop - config["loop_start"]) if config["depth_queries"] == "effective" else 0
    rows = 2 * (int(config["num_hidden_layers"]) + further) + 1
    return width * rows * (2 if config["depth_key_gain"] else 1)
