"""What comes before the first step: checks, the memory that is there, what the run is bound to, and the model made ready."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import __version__ as transformers_version

from ..data import BatchSource
from ..loops import with_passes
from ..models import check_packing, decoder_layers, free_memory_bytes, inserted_loops, loops_of, model_hash
from ..nets.depth_attention_fla import check_fla
from ..nets.model import LoopedTransformer
from .adapters import adapter_of
from .distributed import Ranks
from .estimate import Estimate, activation_bytes, check_fits, estimate
from .feeding import num_unknown
from .flops import StepFlops, step_flops
from .objectives import Objective
from .settings import Execution, TrainingError, TrainSettings

COMPILED_KINDS = 64
"""Kinds of blocks that are compiled at most, by their structure, their input's shape, and whether gradients are kept; kinds of depth
reads, by their number of sources, too. Further ones run as they are."""


def check_model(model: PreTrainedModel, source: BatchSource, settings: TrainSettings, ranks: Ranks) -> None:
    """Check that a model can be trained on these batches as the settings say.

    Raises:
        TrainingError: a depth that the model cannot have; rows that cannot be shared out; token ids that it does not know.
        ModelError: documents that do not see one another, for a model that does not keep them apart.
        NetError: depths by sequence that the network cannot run, or kernels that are not there.
    """
    if isinstance(model, LoopedTransformer) and model.config.depth_backend == "fla":
        check_fla(ranks.device)
    ranks.rows(source.num_sequences)
    first, vocabulary = source.batch(0), vocabulary_of(model)
    if num_unknown(first, vocabulary):  # every later batch is looked at when it is read
        raise TrainingError(f"the batches have tokens beyond the model's vocabulary of {vocabulary}; give text of its own tokenizer")
    if first.positions is not None:
        check_packing(model.config)
    if settings.passes is not None and not inserted_loops(model):
        raise TrainingError(f"passes are for a model that loops were put into, and this {type(model).__name__} has none; leave passes out")
    if settings.recurrence is None:
        return
    if not isinstance(model, LoopedTransformer):
        raise TrainingError(f"recurrence is for networks of nets:..., not for a {type(model).__name__}; leave it out")
    if settings.recurrence.per_sequence:
        depth = settings.recurrence.draw(seed=settings.seed, step=0, num_sequences=2)
        assert depth.depths is not None
        inputs = torch.zeros(2, 2, dtype=torch.long, device=model.device)
        with torch.no_grad():  # whatever forbids depths by sequence is said now
            model(inputs, depths=torch.tensor(depth.depths, device=model.device), num_loops=depth.num_loops, use_cache=False)


def vocabulary_of(model: PreTrainedModel) -> int:
    """The token ids that a model knows: the rows of its embedding."""
    return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr, arg-type, index]


def check_memory(
    model: PreTrainedModel,
    source: BatchSource,
    settings: TrainSettings,
    execution: Execution,
    ranks: Ranks,
    objective: Objective,
) -> str:
    """What the run will take, in words.

    Raises:
        TrainingError: it cannot fit.
    """
    flops = step_flops(model)
    if flops is None:
        return f"what a {model.config.model_type} costs is not known: memory and FLOPs are not estimated"
    parameters = list(model.parameters())
    trained = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    needed = estimate(
        flops.shape,
        settings,
        execution,
        num_sequences=source.num_sequences,
        sequence_tokens=source.sequence_tokens,
        num_ranks=ranks.size,
        loops=loops_of(model),
        num_trained=None if len(trained) == len(parameters) else sum(trained),
    )
    rows = len(ranks.rows(source.num_sequences))
    rows = min(rows, execution.micro_batch_sequences or rows)
    if not isinstance(model, LoopedTransformer):
        needed = _with_objective(needed, model, rows * source.sequence_tokens, settings, execution, flops, objective)
    available = available_bytes(ranks.device)
    if available is not None and model.device.type == ranks.device.type:
        available += sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())  # held already
    check_fits(needed, available, rows)
    return needed.words()


def _with_objective(
    needed: Estimate,
    model: PreTrainedModel,
    num_tokens: int,
    settings: TrainSettings,
    execution: Execution,
    flops: StepFlops,
    objective: Objective,
) -> Estimate:
    """What every forward pass of the objective takes, at the passes that the steps will draw; ``num_tokens`` are a micro-batch's."""
    drawn = _drawn_passes(settings)
    loops = inserted_loops(model)

    def kept_bytes(passes: int | None) -> int:
        ran = (loops if each is None else with_passes(loops, each) for each, kept in objective.forwards(passes) if kept)
        return sum(activation_bytes(flops.shape, num_tokens, settings, execution, each) for each in ran)

    of_steps = sum(count * flops.of_forwards(objective.forwards(passes)) for passes, count in drawn.items())
    return replace(needed, activations_bytes=max(map(kept_bytes, drawn)), flops=of_steps * needed.tokens / settings.num_steps)


def _drawn_passes(settings: TrainSettings) -> Counter[int | None]:
    """How many of a run's steps draw each number of passes; None is the loops as they were put in."""
    if settings.passes is None:
        return Counter({None: settings.num_steps})
    return Counter(settings.passes.draw(seed=settings.seed, step=step, num_steps=settings.num_steps) for step in range(settings.num_steps))


def available_bytes(device: torch.device) -> int | None:
    """Memory for one process: what is free on its GPU, or its share of what the machine has left."""
    free = free_memory_bytes(device)
    if free is None or device.type == "cuda":
        return free
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def peak_memory_bytes(device: torch.device) -> int:
    """The most that was held so far: of tensors on a GPU, by the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run_header(model: PreTrainedModel, source: BatchSource, settings: TrainSettings, objective: Objective | None) -> dict[str, Any]:
    """What a run is bound to; library versions stand beside it. Frozen parameters are bound by the hash of all."""
    if isinstance(model, LoopedTransformer):
        config = model.model.arch.as_config()
    else:
        config = {"model_type": model.config.model_type, "loops": [str(loop) for loop in loops_of(model)]}
    identity = {"config": config, "first_weights": model_hash(model)}
    if (adapter := adapter_of(model)) is not None:
        identity["adapter"] = adapter.to_json()
    versions = {"torch": torch.__version__, "transformers": transformers_version}
    header = {"settings": settings.to_json(), "data": source.identity, "model": identity, "versions": versions}
    return header if objective is None else header | {"objective": objective.to_json()}


def prepare(model: PreTrainedModel, settings: TrainSettings, execution: Execution, device: torch.device) -> None:
    """Bring a model to its device, in fp32 and in training mode, and do with its layers what the execution asks for."""
    nn.Module.to(model, device=device, dtype=torch.float32)  # transformers' wrapper hides the method's signature
    model.train()
    if execution.checkpoint_activations:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its new name is not in every version that is supported
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if execution.compile:
        is_net = isinstance(model, LoopedTransformer)
        layers: list[nn.Module] = list(model.model.layers) if is_net else list(decoder_layers(model))
        for block in [branch for layer in layers for branch in layer.children()] if is_net else layers:
            block.compile()
        if is_net:
            model.model.design.compile_reads()
    if settings.dtype == "bf16":
        embedding = model.get_input_embeddings()
        assert isinstance(embedding, nn.Module)
        embedding.register_forward_hook(_to_bf16)


def _to_bf16(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
    """Autocast leaves an embedding in fp32, and with it the whole residual stream."""
    return output.to(torch.bfloat16) if torch.is_autocast_enabled(output.device.type) else output


@contextmanager
def compute_settings(settings: TrainSettings, execution: Execution, ranks: Ranks) -> Iterator[None]:
    """Set how fp32 matrices are multiplied and how often one function is compiled, and leave these and torch's random numbers as
    they were."""
    before = torch.get_float32_matmul_precision()
    devices = [ranks.device] if ranks.device.type == "cuda" else []
    try:
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
        with torch.random.fork_rng(devices=devices), _compiling(execution):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _compiling(execution: Execution) -> AbstractContextManager[Any]:
    """Attention and MLP of all layers are compiled as one function of transformers', and depth reads of any number of sources as one of
    ours: more kinds of each than torch expects."""
    if not execution.compile:
        return nullcontext()
    import torch._dynamo  # takes longer to import than all else here

    patch: Callable[..., AbstractContextManager[Any]] = torch._dynamo.config.patch  # type: ignore[attr-defined]
    return patch(recompile_limit=COMPILED_KINDS)


def draw_seed(seed: int, step: int, row: int) -> int:
    """The seed of torch's random numbers in a micro-batch: of the run's seed, the step and the first row."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {row}".encode()).digest()[:7], "little")
