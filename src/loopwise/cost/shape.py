"""The shape of a model: what each of its layers weighs, computes and keeps, from its config.json alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loopwise.loops import Loop, format_loops

from .config import CostError, read_config, read_fields
from .families import FAMILIES, LINEAR, SLIDING, Family

Mixer = Literal["attention", "linear_attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One decoder layer. "Matrix parameters" are those that a token is multiplied with, two FLOPs each (convolution included)."""

    mixer: Mixer
    """``attention``, or ``linear_attention`` for a Gated DeltaNet layer."""
    mixer_parameters: int
    """Matrix parameters of the mixer: its projections, output gate, and for linear attention the short convolution."""
    mlp_parameters: int
    """Matrix parameters of the MLP that one token meets: with experts the router, the chosen and the shared ones."""
    mlp_total_parameters: int
    """Matrix parameters of the MLP with all experts."""
    other_parameters: int
    """Norms, biases, and the decay vectors of linear attention: stored, but no matrix product."""
    kv_width: int
    """Numbers that attention keeps for each token, keys and values together; 0 for linear attention."""
    window_tokens: int | None
    """How many tokens a sliding-window layer attends to and keeps; None without a window."""
    score_width: int
    """Query heads times head size: a query-key pair costs four FLOPs for each, two for the score and two for the value."""
    recurrent_size: int
    """Numbers in the recurrent state of one sequence, kept in fp32 by transformers; 0 for attention."""
    conv_size: int
    """Numbers in the convolution state of one sequence, kept in the model's dtype; 0 for attention."""

    @property
    def matrix_parameters(self) -> int:
        """Matrix parameters that one token meets in the whole layer."""
        return self.mixer_parameters + self.mlp_parameters

    @property
    def mlp_share(self) -> float:
        """The MLP's share of the layer's matrix parameters: what one further MLP run counts as, in layer passes."""
        return self.mlp_parameters / self.matrix_parameters

    def kept_tokens(self, context_tokens: int) -> int:
        """How many of ``context_tokens`` tokens the layer attends to and keeps."""
        return context_tokens if self.window_tokens is None else min(context_tokens, self.window_tokens)

    def score_flops(self, context_tokens: int) -> int:
        """FLOPs of one token beyond the matrix products, at ``context_tokens`` tokens including itself.

        Attention: scores and their weighted sum over the tokens kept. Gated DeltaNet: three products with the recurrent
        state (read by key, rank-one write, read by query), two FLOPs each, whatever the context.
        """
        return 4 * self.score_width * self.kept_tokens(context_tokens) + 6 * self.recurrent_size

    def score_flops_up_to(self, num_tokens: int) -> int:
        """The sum of `score_flops` over the tokens 1 .. ``num_tokens`` of a sequence."""
        kept = self.kept_tokens(num_tokens)
        pairs = kept * (kept + 1) // 2 + (num_tokens - kept) * kept
        return 4 * self.score_width * pairs + 6 * self.recurrent_size * num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A causal language model: its decoder layers, embedding and head. Vision towers and multi-token prediction are left out."""

    family: str
    """transformers' ``model_type`` of the language model."""
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    embedding_parameters: int
    """The token table, tables of value embeddings and, for learned positions, the position table: look-ups, no FLOPs."""
    final_norm_parameters: int
    """The norm before the head, and vectors that belong to no layer, such as depth queries: no FLOPs."""
    tied: bool
    """Whether the head is the embedding's own table. It costs the same FLOPs either way."""
    pass_parameters: int = 0
    """Matrix parameters that run once at the start of every pass of a loop, such as the adapter (2d x d) of an
    input-injected core. No family that loops are put into has any; set it with `dataclasses.replace` for an architecture of your own."""
    once_parameters: int = 0
    """Matrix parameters that run once in a forward pass that loops, such as Parcae's projection of what it injects."""
    own_loops: tuple[Loop, ...] = ()
    """The loops that the architecture itself runs: what costs count where no loops are given."""
    own_loop: Loop | None = None
    """The loop that the architecture was made for, at the depth of its config, also where that is one pass; None where it has none."""

    @property
    def num_layers(self) -> int:
        """Decoder layers, N."""
        return len(self.layers)

    def loops_run(self, loops: Iterable[Loop]) -> tuple[Loop, ...]:
        """The loops given, or else the architecture's own.

        Raises:
            CostError: both.
        """
        given = tuple(loops)
        if given and self.own_loops and given != self.own_loops:
            raise CostError(f"a {self.family} with loops of its own takes no further ones ({format_loops(given)}); leave loops out")
        return given or self.own_loops

    def at_depth(self, num_loops: int) -> ModelShape:
        """The same architecture, running its own loop so many times.

        Raises:
            CostError: it has no loop of its own.
            LoopError: passes that no loop can have.
        """
        if self.own_loop is None:
            raise CostError(f"a {self.family} has no loop of its own to run {num_loops} times; leave its depth out")
        plain = num_loops == 1 and not self.pass_parameters
        return replace(self, own_loops=() if plain else (replace(self.own_loop, passes=num_loops),))

    @property
    def head_parameters(self) -> int:
        """Matrix parameters of the output head, tied or not."""
        return self.hidden_size * self.vocab_size

    @property
    def num_parameters(self) -> int:
        """All parameters stored, a tied head counted once: transformers' own count of the causal language model."""
        layers = sum(layer.mixer_parameters + layer.mlp_total_parameters + layer.other_parameters for layer in self.layers)
        head = 0 if self.tied else self.head_parameters
        return layers + self.embedding_parameters + self.final_norm_parameters + head + self.pass_parameters + self.once_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters less those of the experts that a token is not routed to; `num_parameters` for dense models."""
        return self.num_parameters - sum(layer.mlp_total_parameters - layer.mlp_parameters for layer in self.layers)


def read_shape(config: Mapping[str, Any] | str | Path) -> ModelShape:
    """The shape of a model from its config.json: the contents, the file's path, or a folder that holds it.

    Raises:
        CostError: the file cannot be read, the family is unknown (the message lists the supported ones), or a field is wrong.
    """
    values, where = read_config(config)
    from .looped import LOOPED, looped_shape  # it makes shapes, so it imports this module

    if values.get("model_type") == LOOPED:
        return looped_shape(values, where)
    name, fields = read_fields(config)
    family = FAMILIES[name]
    hidden, vocab = fields["hidden_size"], fields["vocab_size"]
    return ModelShape(
        family=name,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=tuple(_layer(family, fields, index) for index in range(fields["num_hidden_layers"])),
        embedding_parameters=hidden * (vocab + fields.get("n_positions", 0)),
        final_norm_parameters=family.norm_vectors * hidden,
        tied=fields["tie_word_embeddings"],
    )


def _layer(family: Family, fields: Mapping[str, Any], index: int) -> LayerShape:
    kind = fields["layer_types"][index]
    mixer = _linear_attention(fields) if kind == LINEAR else _attention(family, fields)
    active, total, biases = _mlp(family, fields, index)
    norms = family.norms * family.norm_vectors * fields["hidden_size"]
    window = fields["sliding_window"] if kind == SLIDING else None
    other = mixer.pop("other_parameters") + norms + biases
    return LayerShape(mlp_parameters=active, mlp_total_parameters=total, other_parameters=other, window_tokens=window, **mixer)


def _attention(family: Family, fields: Mapping[str, Any]) -> dict[str, Any]:
    hidden, head = fields["hidden_size"], fields["head_dim"]
    queries, keys = fields["num_attention_heads"] * head, fields["num_key_value_heads"] * head
    projected = queries * (2 if family.output_gate else 1) + 2 * keys
    norms = {"none": 0, "head": 2 * head, "width": queries + keys}[family.qk_norm]
    return {
        "mixer": "attention",
        "mixer_parameters": hidden * projected + queries * hidden,
        "other_parameters": norms + _bias(family.qkv_bias, fields) * projected + _bias(family.output_bias, fields) * hidden,
        "kv_width": 2 * keys,
        "score_width": queries,
        "recurrent_size": 0,
        "conv_size": 0,
    }


def _linear_attention(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Gated DeltaNet: in_proj_qkv, in_proj_z, in_proj_a and in_proj_b, a depthwise convolution over q, k, v, and out_proj."""
    hidden, heads, kernel = fields["hidden_size"], fields["linear_num_value_heads"], fields["linear_conv_kernel_dim"]
    key, value = fields["linear_key_head_dim"], fields["linear_value_head_dim"]
    keys, values = fields["linear_num_key_heads"] * key, heads * value
    channels = 2 * keys + values
    return {
        "mixer": "linear_attention",
        "mixer_parameters": hidden * (channels + values + 2 * heads) + channels * kernel + values * hidden,
        "other_parameters": 2 * heads + value,  # A_log and dt_bias; the gated norm over a head
        "kv_width": 0,
        "score_width": 0,
        "recurrent_size": heads * key * value,
        "conv_size": channels * kernel,
    }


def _mlp(family: Family, fields: Mapping[str, Any], index: int) -> tuple[int, int, int]:
    """Matrix parameters that a token meets, all of them, and biases."""
    hidden, experts = fields["hidden_size"], fields.get("num_experts", 0)
    sparse = (index + 1) % fields.get("decoder_sparse_step", 1) == 0 and index not in (fields.get("mlp_only_layers") or ())
    if not (experts and sparse):
        width = fields["intermediate_size"]
        dense = family.mlp_matrices * hidden * width
        return dense, dense, _bias(family.mlp_bias, fields) * ((family.mlp_matrices - 1) * width + hidden)
    expert = 3 * hidden * fields["moe_intermediate_size"]
    shared_width = fields.get("shared_expert_intermediate_size", 0)
    always = hidden * experts + (3 * hidden * shared_width + hidden if shared_width else 0)  # the router; the shared expert and its gate
    return always + fields["num_experts_per_tok"] * expert, always + experts * expert, 0


def _bias(rule: bool | str, fields: Mapping[str, Any]) -> int:
    return int(fields[rule] if isinstance(rule, str) else rule)
