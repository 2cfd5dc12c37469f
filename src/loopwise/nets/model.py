"""The looped decoder as transformers knows a causal language model: config, decoder, head, Auto classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .attention import Attention, ValueTable, rotary
from .cache import as_output, cache_in, causal_mask, grow
from .configuration import FIELDS, MODEL_TYPE, Architecture, NetError
from .designs import DESIGNS
from .initialise import initialise
from .injection import InputInjection
from .linear import Linear
from .looping import run_loops
from .mlp import MLP
from .residual import Stream
from .schedule import Schedule, Step, schedule

_SCHEDULES_MADE = 8
"""Schedules made beforehand, up to so many loops, so that compiled code only looks them up."""


class LoopedConfig(PreTrainedConfig):
    """The config.json of an `Architecture`: its fields under their own names, beside transformers' own.

    Raises:
        NetError: as `Architecture`.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ("cache", "past_key_values")

    def __init__(self, use_cache: bool = True, **kwargs: Any) -> None:
        self.use_cache = use_cache
        own = {name: kwargs.pop(name) for name in FIELDS if name in kwargs}
        for name, value in Architecture(**own).as_config().items():
            if name != "model_type":
                setattr(self, name, value)
        super().__init__(**{**kwargs, "tie_word_embeddings": self.tie_word_embeddings})

    def to_diff_dict(self) -> dict[str, Any]:
        """What is saved: every field of the architecture, so that no default of this code is part of a saved model."""
        return super().to_diff_dict() | {name: getattr(self, name) for name in FIELDS}

    @property
    def architecture(self) -> Architecture:
        """The value that the network is built from."""
        return Architecture(**{name: getattr(self, name) for name in FIELDS})


class Layer(nn.Module):
    """The two branches of a physical layer; their norms and adds belong to the residual design."""

    def __init__(self, arch: Architecture, index: int) -> None:
        super().__init__()
        self.attention = Attention(arch, index)
        self.mlp = MLP(arch)


class LoopedPreTrainedModel(PreTrainedModel):
    """What decoder and language model share."""

    config_class = LoopedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Layer"]  # noqa: RUF012  # transformers reads it on the class
    _supports_sdpa = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        initialise(module, self.config.architecture)


class LoopedDecoder(LoopedPreTrainedModel):
    """Embedding, prelude, looped span, coda and final norm."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        arch = self.arch = config.architecture
        self.embed_tokens = nn.Embedding(arch.vocab_size, arch.hidden_size)
        tables = [layer for layer in range(arch.num_hidden_layers) if arch.has_value_table(layer)]
        self.value_tables = nn.ModuleDict({str(i): ValueTable(arch.vocab_size, arch.num_key_value_heads * arch.head_dim) for i in tables})
        self.layers = nn.ModuleList(Layer(arch, index) for index in range(arch.num_hidden_layers))
        self.design = DESIGNS[arch.design](arch)
        self.injection = InputInjection(arch) if arch.input_injection else None
        self._schedules = {loops: schedule(arch, loops) for loops in range(1, max(_SCHEDULES_MADE, arch.num_loops) + 1)}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token table."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token table."""
        self.embed_tokens = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        num_loops: int | None = None,
        depths: Tensor | None = None,
        grad_loops: int | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """The hidden states that the head reads.

        Args:
            cache: transformers' cache, also under its name before 5.20, ``past_key_values``.
            num_loops: loops to run; None is the config's.
            depths: each sequence's own number of loops [batch], whole numbers from 1 to ``num_loops``; None: the same for all.
            grad_loops: only the last so many loops keep gradients; None: all.

        Raises:
            NetError: depths or value embeddings where they cannot be.
        """
        plan = self._plan(num_loops)
        embedding = self._embedding(input_ids, inputs_embeds)
        _check_depths(depths, len(plan.loops), embedding.shape[0])
        cache = past_key_values if cache is None else cache
        if self.training and torch.is_grad_enabled() and self._checkpoints:
            cache, use_cache = None, False
        elif cache is None and (self.config.use_cache if use_cache is None else use_cache) and not self.training:
            cache = DynamicCache(config=self.config)
        if cache is not None:
            grow(cache, plan.num_slots)
        positions = _positions(position_ids, attention_mask, embedding, cache)
        mask = causal_mask(self.config, embedding, attention_mask, cache, positions)
        run = _Run(self, input_ids, positions, mask, cache)
        stream = self.design.begin(embedding, len(plan.loops), depths)
        run(stream, plan.prelude)
        run_loops(self.arch, stream, plan.loops, run, injection=self.injection, positions=positions, grad_loops=grad_loops)
        run(stream, plan.coda)
        return BaseModelOutputWithPast(last_hidden_state=stream.output(), **as_output(cache))

    @property
    def _checkpoints(self) -> bool:
        return any(getattr(branch, "gradient_checkpointing", False) for layer in self.layers for branch in layer.children())

    def _plan(self, num_loops: int | None) -> Schedule:
        loops = self.arch.num_loops if num_loops is None else num_loops
        if loops not in self._schedules:
            self._schedules[loops] = schedule(self.arch, loops)
        return self._schedules[loops]

    def _embedding(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if inputs_embeds is None and input_ids is None:
            raise NetError("neither input_ids nor inputs_embeds is given; give one of them")
        if input_ids is None and len(self.value_tables) > 0:
            raise NetError("inputs_embeds without input_ids: value embeddings are looked up by token; give input_ids")
        embedding: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return embedding if self.arch.embedding_scale == 1.0 else embedding * self.arch.embedding_scale


class _Run:
    """Runs layers on a stream, with what all executions of one forward pass share."""

    def __init__(self, decoder: LoopedDecoder, input_ids: Tensor | None, positions: Tensor, mask: Any, cache: Cache | None) -> None:
        arch, tables = decoder.arch, decoder.value_tables
        self.layers, self.mask, self.cache = decoder.layers, mask, cache
        self.cos, self.sin = rotary(positions, arch.head_dim, arch.rope_theta, torch.float32)
        self.value_embeddings = {int(layer): table(input_ids) for layer, table in tables.items()}
        self.keeps_first, self.first_values = arch.value_residual, None

    def __call__(self, stream: Stream, steps: Sequence[Step]) -> None:
        for step in steps:
            layer, embedded = self.layers[step.layer], self.value_embeddings.get(step.layer)
            x = stream.read(step.attention)
            arguments = (self.cos, self.sin, self.mask, embedded, self.first_values, self.cache, step.slot)
            branch, values = layer.attention(x, *arguments)  # type: ignore[operator]
            if self.keeps_first and self.first_values is None:
                self.first_values = values
            stream.push(step.attention, branch)
            stream.push(step.mlp, layer.mlp(stream.read(step.mlp)))  # type: ignore[operator]


class LoopedTransformer(LoopedPreTrainedModel, GenerationMixin):
    """A looped decoder with its language-model head."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.model = LoopedDecoder(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, "head")
        self.loss_type = "ForCausalLM"
        self.post_init()

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  # transformers reads it on the class

    @classmethod
    def from_architecture(cls, arch: Architecture, **config: Any) -> LoopedTransformer:
        """A fresh network; ``config`` holds transformers' own fields, e.g. ``eos_token_id``."""
        fields = {name: value for name, value in arch.as_config().items() if name != "model_type"}
        return cls(LoopedConfig(**fields, **config))

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        head: nn.Module = self.lm_head
        return head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.lm_head = new_embeddings  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_loops: int | None = None,
        depths: Tensor | None = None,
        grad_loops: int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, tokens kept, vocabulary], and the loss where labels are given; the rest as `LoopedDecoder.forward`."""
        decoded = self.model(
            input_ids,
            attention_mask,
            position_ids,
            cache=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            num_loops=num_loops,
            depths=depths,
            grad_loops=grad_loops,
        )
        hidden = decoded.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
        logits = self.lm_head(hidden if isinstance(kept, int) else hidden[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **as_output(cache_in(decoded)))


def _check_depths(depths: Tensor | None, num_loops: int, batch: int) -> None:
    """Numbers on a GPU are taken as they are, because reading them would wait for it."""
    if depths is None:
        return
    if depths.shape != (batch,) or depths.is_floating_point() or depths.is_complex() or depths.dtype == torch.bool:
        raise NetError(f"depths are {depths.dtype} in the shape {tuple(depths.shape)}; give one whole number for each of {batch} sequences")
    if depths.device.type == "cpu" and not torch.compiler.is_compiling() and not 1 <= int(depths.min()) <= int(depths.max()) <= num_loops:
        raise NetError(f"depths go from {int(depths.min())} to {int(depths.max())}; give whole numbers from 1 to num_loops, {num_loops}")


def _positions(position_ids: Tensor | None, attention_mask: Tensor | None, embedding: Tensor, cache: Cache | None) -> Tensor:
    """Positions [batch or 1, tokens]: those given, else counted over the tokens that the mask lets in, else from the cache on."""
    if position_ids is not None:
        return position_ids
    num_tokens = embedding.shape[1]
    if attention_mask is not None and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -num_tokens:]
    seen = 0 if cache is None else cache.get_seq_length()
    return torch.arange(num_tokens, device=embedding.device)[None] + seen


AutoConfig.register(MODEL_TYPE, LoopedConfig)
AutoModelForCausalLM.register(LoopedConfig, LoopedTransformer)
