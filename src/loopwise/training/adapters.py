"""LoRA in a model: one adapter for all passes of a loop, switched off for a teacher, merged in fp32 (no-free-loop, A.3).

PEFT is imported when an adapter is made: ``pip install 'loopwise[learn]'``. The model stays of its own class, so that surgery, engine
and cost see what they know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..models import decoder_layers, source_of
from .settings import TrainingError

_ADAPTER = "loopwise_adapter"
_NEVER = ("lm_head", "embed_tokens", "embed_in", "embed_out", "wte")
"""Names of heads and token tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """One adapter (LoRA, arXiv 2106.09685). The paper names none of these numbers.

    Raises:
        TrainingError: a value that cannot be, or a target that is a head or a token table.
    """

    rank: int = 64
    """A guess: between the 16 of small instruction tuning and the 256 that matches full fine-tuning on long reasoning."""
    alpha: float = 128.0
    """An adapter's product counts alpha / rank. A guess: twice the rank, the usual choice."""
    dropout: float = 0.0
    """Of what an adapter reads. A guess; above 0, the loss of a fresh adapter is still its base's."""
    targets: tuple[str, ...] = ()
    """Linear modules by the ends of their names, e.g. q_proj; empty is every one in the decoder's layers ("on every linear layer",
    A.3), and then a model that keeps matrices outside of them, as mixtures of experts do, is refused. Never the head: a tied one is the
    embedding too, and the loss reads its matrix alone."""

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise TrainingError(f"LoRA rank is {self.rank}; give a whole number, at least 1")
        if not 0 < self.alpha < float("inf"):
            raise TrainingError(f"LoRA alpha is {self.alpha}; give a number above 0")
        if not 0 <= self.dropout < 1:
            raise TrainingError(f"LoRA dropout is {self.dropout}; give a number in [0, 1)")
        for target in self.targets:
            if target.rpartition(".")[2] in _NEVER:
                raise TrainingError(
                    f"LoRA target {target!r} is a head or a token table, which are one matrix where they are tied; name layers' own modules"
                )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self) | {"targets": list(self.targets)}


def lora_targets(model: nn.Module, settings: LoraSettings) -> tuple[str, ...]:
    """The full names of the modules that get an adapter; also of a model on the meta device.

    Raises:
        TrainingError: a target that no linear module of the layers has; or no targets, and matrices that are in no linear module.
        ModelError: an unknown family.
    """
    layers = decoder_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers)
    linear = [f"{prefix}.{name}" for name, module in layers.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    if not settings.targets:
        _check_reach(model, layers, prefix)
    for target in settings.targets:
        if not any(_ends(name, target) for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise TrainingError(f"LoRA target {target!r} is no linear module of {type(model).__name__}'s layers; use some of {known}")
    return tuple(name for name in linear if not settings.targets or any(_ends(name, target) for target in settings.targets))


def _check_reach(model: nn.Module, layers: nn.Module, prefix: str) -> None:
    """Check that the layers keep every matrix in a module that an adapter goes into, or in a convolution, which is no linear layer.

    PEFT can adapt single tensors too; not what is not tested here: merging them exactly, with gradients through every pass.

    Raises:
        TrainingError: they do not, as transformers' mixtures of experts, whose experts are one tensor; the largest is named.
    """
    held = {
        name: parameter
        for name, parameter in layers.named_parameters()
        if parameter.dim() > 1 and not isinstance(layers.get_submodule(name.rpartition(".")[0]), nn.Linear | Conv1D | nn.Conv1d)
    }
    if held:
        name = max(held, key=lambda one: held[one].numel())
        raise TrainingError(
            f"{type(model).__name__} keeps {prefix}.{name} {list(held[name].shape)} outside of linear layers, where adapters do not "
            "reach; train all weights (short-ft, long-ft, continued), or name LoRA targets in Python"
        )


def add_lora(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> None:
    """Put a fresh adapter into a model, in place; its product is exactly zero, and nothing but it requires gradients.

    Args:
        seed: of its first weights; torch's own random numbers stay as they are.

    Raises:
        TrainingError: no PEFT, a model that has an adapter, or targets that it does not have.
    """
    peft = _peft()
    if adapter_of(model) is not None:
        raise TrainingError(f"{type(model).__name__} has an adapter already; merge it first")
    targets = lora_targets(model, settings)
    transposed = isinstance(model.get_submodule(targets[0]), Conv1D)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(targets),
        fan_in_fan_out=transposed,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, model)
    setattr(model, _ADAPTER, settings)


def adapter_of(model: nn.Module) -> LoraSettings | None:
    """The settings of the adapter in a model, or None."""
    found: LoraSettings | None = getattr(model, _ADAPTER, None)
    return found


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Within it the model computes as if it had no adapter: the frozen original, without a second copy of a weight.

    Raises:
        TrainingError: no adapter, so that there is no original.
    """
    if adapter_of(model) is None:
        raise TrainingError(f"{type(model).__name__} has no adapter, so its original is lost as it trains; add LoRA first")
    adapted = [module for _, module in _adapted(model)]
    for module in adapted:
        module.enable_adapters(False)
    try:
        yield
    finally:
        for module in adapted:
            module.enable_adapters(True)


def merge(model: PreTrainedModel) -> None:
    """Add the adapter to the weights it belongs to and take it out, in place: afterwards the model is a plain one, all of it trainable.

    Raises:
        TrainingError: no adapter, weights in less than fp32, or an adapter that is not finite.
    """
    if adapter_of(model) is None:
        raise TrainingError(f"{type(model).__name__} has no adapter that could be merged")
    adapted = list(_adapted(model))
    for name, module in adapted:
        if module.get_base_layer().weight.dtype not in (torch.float32, torch.float64):
            raise TrainingError(
                f"{name} is in {module.get_base_layer().weight.dtype}, in which an adapter would be rounded; load it in fp32"
            )
        try:
            module.merge(safe_merge=True)
        except ValueError as error:
            raise TrainingError(f"{name}: its adapter cannot be merged ({' '.join(str(error).split())})") from None
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module.get_base_layer())
    delattr(model, _ADAPTER)
    del model.peft_config
    model.requires_grad_(True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeChange:
    """What merging in fp32 changed of a model's logits on some tokens."""

    largest: float
    mean: float
    """Of the absolute changes."""
    num_tokens: int


@torch.no_grad()
def merge_and_compare(model: PreTrainedModel, input_ids: Tensor) -> MergeChange:
    """`merge`, and how much the logits of ``input_ids`` [rows, tokens] changed by it, with the loops as they were put in.

    Raises:
        TrainingError: as `merge`.
    """
    was_training = model.training
    model.eval()
    before = model(input_ids=input_ids, use_cache=False).logits
    merge(model)
    change = (model(input_ids=input_ids, use_cache=False).logits - before).abs()
    model.train(was_training)
    return MergeChange(largest=float(change.max()), mean=float(change.mean()), num_tokens=input_ids.numel())


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapter alone, as ``peft.PeftModel.from_pretrained`` reads it.

    Raises:
        OSError: it cannot be written.
    """
    peft = _peft()
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    save_file(
        {f"base_model.model.{name}": tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    configs: Any = model.peft_config
    config = configs["default"].to_dict()
    source = source_of(model)
    config |= {"base_model_name_or_path": source.name if source else None, "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    (folder / "adapter_config.json").write_text(json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules with an adapter, by name."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    yield from [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise TrainingError("LoRA needs PEFT: pip install 'loopwise[learn]'") from None
    return peft


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target)
