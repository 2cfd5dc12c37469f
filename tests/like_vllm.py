"""A decoder built as vLLM builds its own, from the modules of a tiny Hugging Face model, and a vLLM engine that a scripted model runs.

Layers hand on hidden state and residual and add in place, ruining what they were given; keys, values and recurrent states lie where
a module's name says, and the modules with a cache are found by that name, not by the object that calls.
"""

from __future__ import annotations

import copy
import sys
import types
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from looped import plain_model
from loopwise.decoding import DecodingRule
from loopwise.decoding.sampling import draw
from loopwise.models import cache_argument, dynamic_cache, load, loops_of, resolve, save
from loopwise.serving import VllmEngine
from tiny import tiny_model, tiny_tokenizer

VERSION = "0.0-like"
"""What the module in vLLM's place says that it is."""

# --- a decoder


class Norm(nn.Module):
    """A norm that adds in place, as vLLM's fused kernel does."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            return self.norm(hidden)
        residual.add_(hidden)
        hidden.copy_(self.norm(residual))
        return hidden, residual


class Kernel:
    """Stands for vLLM's ``AttentionImpl``."""


class Keeper(nn.Module):
    """What has a cache: vLLM's ``Attention`` inside an attention module, or its whole linear attention."""

    def __init__(self, name: str, name_attribute: str, world: World, mixer: nn.Module) -> None:
        super().__init__()
        setattr(self, name_attribute, name)
        self.name_attribute = name_attribute
        self.world = [world]
        self.mixer = mixer
        self.impl = Kernel()
        self.method = self.mix  # bound to this object, as vLLM keeps the kernel that it chose
        world.registry[name] = self

    def mix(self, hidden: Tensor) -> Tensor:
        return self.world[0].registry[getattr(self, self.name_attribute)].run(hidden)

    def forward(self, *, hidden_states: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.method(hidden_states)

    def run(self, hidden: Tensor) -> Tensor:
        name = getattr(self, self.name_attribute)
        return self.world[0].attend(name, self.mixer, hidden)


class SelfAttention(nn.Module):
    """vLLM's attention module: projections around an ``attn`` that has the cache."""

    def __init__(self, name: str, world: World, mixer: nn.Module) -> None:
        super().__init__()
        self.attn = Keeper(f"{name}.attn", "layer_name", world, mixer)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        return self.attn(hidden_states=hidden_states)


class Layer(nn.Module):
    """A decoder layer; its arguments stand in another order in Qwen3.5, so callers must name them."""

    def __init__(self, layer: Any, name: str, world: World) -> None:
        super().__init__()
        self.input_layernorm = Norm(layer.input_layernorm)
        self.post_attention_layernorm = Norm(layer.post_attention_layernorm)
        self.mlp = layer.mlp
        if hasattr(layer, "linear_attn"):
            self.linear_attn = Keeper(f"{name}.linear_attn", "prefix", world, layer.linear_attn)
        else:
            self.self_attn = SelfAttention(f"{name}.self_attn", world, layer.self_attn)

    def forward(self, *, positions: Tensor, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        hidden_states = mixer(positions=positions, hidden_states=hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


@dataclass(eq=False)
class World:
    """vLLM's forward context: modules with a cache by name, their caches, and the positions of the step."""

    model: Any
    registry: dict[str, Any] = field(default_factory=dict)
    caches: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    positions: Tensor | None = None

    def attend(self, name: str, mixer: Any, hidden: Tensor) -> Tensor:
        """Run Hugging Face's module on the cache of this name alone, whatever layer it thinks it is."""
        self.calls.append(name)
        decoder = self.model.model
        if name not in self.caches:
            self.caches[name] = copy.deepcopy(dynamic_cache(self.model).layers[mixer.layer_idx])
        cache = {cache_argument(mixer): Cache(layers=[self.caches[name]] * (mixer.layer_idx + 1))}
        if type(mixer).__name__.endswith("GatedDeltaNet"):
            return mixer(hidden_states=hidden[None], attention_mask=None, **cache)[0]
        assert self.positions is not None
        cosines = decoder.rotary_emb(hidden[None], self.positions[None])
        columns = torch.arange(int(self.positions[-1]) + 1)
        mask = torch.where(columns[None] <= self.positions[:, None], 0.0, float("-inf"))[None, None]
        return mixer(hidden_states=hidden[None], position_embeddings=cosines, attention_mask=mask, **cache)[0][0]


class Decoder(nn.Module):
    """The decoder of a tiny model in vLLM's make; ``world.registry`` is its ``static_forward_context``."""

    def __init__(self, family: str) -> None:
        super().__init__()
        model = plain_model(family)
        model.set_attn_implementation("eager")
        self.world = World(model)
        self.embed = model.model.embed_tokens
        self.layers = nn.ModuleList(Layer(layer, f"model.layers.{n}", self.world) for n, layer in enumerate(model.model.layers))
        self.norm = Norm(model.model.norm)

    @torch.no_grad()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states of new tokens [tokens, d_model], the past being in the caches."""
        self.world.positions = positions
        hidden, residual = self.embed(input_ids), None
        for layer in islice(self.layers, 0, len(self.layers)):
            hidden, residual = layer(positions=positions, hidden_states=hidden, residual=residual)
        return self.norm(hidden, residual)[0].clone()


# --- an engine


class Engine:
    """vLLM's engine as `loopwise.serving.generate` uses it; each step gives every request up to ``chunk`` tokens of a scripted model."""

    def __init__(self, model: Any, chunk: int = 1) -> None:
        self.model = model
        self.chunk = chunk
        self.requests: dict[str, tuple[list[int], Any]] = {}
        self.most = 0
        self.params: list[Any] = []

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        assert name not in self.requests and params.max_tokens > 0
        self.requests[name] = (list(prompt["prompt_token_ids"]), types.SimpleNamespace(**vars(params)))
        self.params.append(params)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.requests[name]

    def step(self) -> list[Any]:
        self.most = max(self.most, len(self.requests))
        outputs = []
        for name, (past, params) in list(self.requests.items()):
            new: list[int] = []
            ended = False
            while len(new) < self.chunk and not ended:
                token = self.model._next(self.model.tokenizer.decode(past))
                past.append(token)
                new.append(token)
                params.max_tokens -= 1
                ended = token in params.stop_token_ids or params.max_tokens == 0
            if ended:
                del self.requests[name]
            row = types.SimpleNamespace(token_ids=new, finish_reason="stop" if ended else None)
            outputs.append(types.SimpleNamespace(request_id=name, outputs=[row], finished=ended))
        return outputs


class ModelLLM:
    """vLLM's ``LLM``, and the engine in it, run by a Hugging Face model that computes every token from all before it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.llm_engine = self.engine_core = self
        self.requests: dict[str, tuple[list[int], Any]] = {}
        self.running = True

    def shutdown(self) -> None:
        self.running = False

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        assert self.running and name not in self.requests
        self.requests[name] = (list(prompt["prompt_token_ids"]), types.SimpleNamespace(**vars(params)))

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.requests[name]

    @torch.no_grad()
    def next(self, past: list[int], params: Any = None) -> tuple[int, float]:
        """The next token and its log-probability: the most likely one, or one that the request's own generator draws."""
        assert self.running
        logits = self.model(torch.tensor([past]), use_cache=False).logits[0, -1]
        token = int(logits.argmax())
        if params is not None and params.temperature > 0:
            if not hasattr(params, "generator"):
                params.generator = torch.Generator().manual_seed(params.seed)
            rule = DecodingRule(temperature=params.temperature, top_p=params.top_p, top_k=params.top_k)
            token = int(draw(logits[None], torch.rand(1, generator=params.generator, dtype=torch.float64), rule))
        return token, float(torch.log_softmax(logits, -1)[token])

    def step(self) -> list[Any]:
        outputs = []
        for name, (past, params) in list(self.requests.items()):
            token, _ = self.next(past, params)
            past.append(token)
            params.max_tokens -= 1
            ended = token in params.stop_token_ids or params.max_tokens == 0
            if ended:
                del self.requests[name]
            row = types.SimpleNamespace(token_ids=[token], finish_reason="stop" if ended else None)
            outputs.append(types.SimpleNamespace(request_id=name, outputs=[row], finished=ended))
        return outputs

    def generate(self, prompts: list[Any], params: Any, use_tqdm: bool) -> list[Any]:
        outputs = []
        for prompt in prompts:
            past, tokens, kept = list(prompt["prompt_token_ids"]), [], []
            for _ in range(params.max_tokens):
                token, nats = self.next(past)
                past.append(token)
                tokens.append(token)
                kept.append({token: types.SimpleNamespace(logprob=nats)})
            outputs.append(types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens, logprobs=kept)]))
        return outputs


def fake_vllm(monkeypatch: Any) -> None:
    """Put a module of vLLM's name in place with what requests are made of."""
    vllm = types.ModuleType("vllm")
    vllm.__spec__ = ModuleSpec("vllm", None)
    vllm.__version__ = VERSION  # type: ignore[attr-defined]
    plugins = types.ModuleType("vllm.plugins")
    vllm.SamplingParams = lambda **fields: types.SimpleNamespace(**fields)  # type: ignore[attr-defined]
    inputs = types.ModuleType("vllm.inputs")
    inputs.TokensPrompt = dict  # type: ignore[attr-defined]
    sampling = types.ModuleType("vllm.sampling_params")
    sampling.RequestOutputKind = types.SimpleNamespace(DELTA="delta")  # type: ignore[attr-defined]
    distributed = types.ModuleType("vllm.distributed")
    distributed.cleanup_dist_env_and_memory = lambda: None  # type: ignore[attr-defined]
    for module in (vllm, plugins, inputs, sampling, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def start_like_vllm(monkeypatch: Any) -> list[VllmEngine]:
    """Let hosts start engines that a Hugging Face model runs; the list of those that were started, in their order."""
    fake_vllm(monkeypatch)
    engines: list[VllmEngine] = []

    def start(name: Any, *, loops: Any, dtype: str, max_tokens: int, max_rows: int, **more: Any) -> VllmEngine:
        assert not any(engine.llm.running for engine in engines), "two engines on one device"
        model, tokenizer = load(name, loops=loops, dtype=dtype)
        engine = VllmEngine(
            llm=ModelLLM(model),
            source=resolve(name),
            loops=loops_of(model),
            config=model.config,
            generation_config=model.generation_config,
            tokenizer=tokenizer,
            max_tokens=max_tokens,
            dtype="float32",
            version=VERSION,
        )
        engines.append(engine)
        return engine

    monkeypatch.setattr("loopwise.serving.host.load_engine", start)
    return engines


def save_ending_early(folder: Path) -> Path:
    """A tiny model in a folder, with several ends of text, so that rows end at different steps."""
    model = tiny_model("llama")
    model.generation_config.eos_token_id = list(range(2, 8))
    save(model, tiny_tokenizer(), folder)
    return folder
