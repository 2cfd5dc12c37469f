"""What a run would take before it begins: memory by parts, FLOPs, and whether it fits. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..cost import ModelShape, cost_of, training_flops
from ..loops import Loop, call_sites
from ..nets.recurrence import Recurrence
from .settings import Execution, TrainingError, TrainSettings

_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory of one process, in bytes, and the FLOPs of the whole run."""

    weights_bytes: int
    """fp32, and in bf16 the copies of the matrices that products take."""
    gradients_bytes: int
    """fp32."""
    optimizer_bytes: int
    """fp32: two moments for AdamW, one for Muon's matrices."""
    activations_bytes: int
    """Kept for the backward pass of one micro-batch, of the deepest step: `activation_bytes`."""
    head_bytes: int
    """Of the loss: a chunk's logits, and the gradient of the head's matrix that is summed up beside the weights' own."""
    flops: float
    """Matrix products of training: 6 times the parameters that a token meets, in each loop anew, times the tokens; 2 times in a loop
    without gradients."""
    tokens: int
    """Inputs over all steps."""

    @property
    def total_bytes(self) -> int:
        """Of one process, without what the libraries themselves take."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes + self.head_bytes

    def words(self) -> str:
        """In one line."""
        parts = ("weights", "gradients", "optimizer", "activations", "head")
        memory = ", ".join(f"{part} {_size(getattr(self, f'{part}_bytes'))}" for part in parts)
        return f"about {_size(self.total_bytes)} a process ({memory}); {self.flops:.3g} FLOPs for {self.tokens:,} tokens"


def estimate(
    shape: ModelShape,
    settings: TrainSettings,
    execution: Execution,
    *,
    num_sequences: int,
    sequence_tokens: int,
    num_ranks: int = 1,
    loops: Iterable[Loop] = (),
    num_trained: int | None = None,
) -> Estimate:
    """What a run would take, from the model's shape alone.

    Depths that steps draw are drawn here too, from the same seed: memory is that of the step that keeps the most loops, FLOPs are those
    of all steps together.

    Args:
        num_sequences: of a step, over all processes.
        loops: of a model that loops were put into; a network of ``loopwise.nets`` has its own.
        num_trained: parameters that are trained, beside frozen ones; None: all of the model's.

    Raises:
        TrainingError: rows that cannot be shared out evenly; drawn depths of a model without a loop of its own.
    """
    if settings.recurrence is not None and shape.own_loop is None:
        raise TrainingError(f"recurrence is for networks of nets:..., not for a {shape.family}; leave it out")
    if num_sequences % num_ranks:
        raise TrainingError(f"a batch of {num_sequences} sequences over {num_ranks} processes; give a multiple of {num_ranks}")
    rows = num_sequences // num_ranks
    rows = min(rows, execution.micro_batch_sequences or rows)
    matrices = sum(layer.matrix_parameters for layer in shape.layers)
    shared = num_ranks if execution.fsdp else 1
    bf16 = settings.dtype == "bf16"
    trained = shape.num_parameters if num_trained is None else num_trained
    moments = 2 * trained - (matrices if settings.optimizer == "muon" else 0)
    chunk = min(1 << 24, rows * sequence_tokens * shape.vocab_size)
    tokens = settings.num_steps * num_sequences * sequence_tokens
    loops = tuple(loops)
    if settings.recurrence is None:
        deepest, flops = shape, training_flops(shape, loops, tokens)
    else:
        drawn = _drawn_depths(settings.recurrence, settings.seed, settings.num_steps, num_sequences)
        deepest, loops, flops = shape.at_depth(drawn.kept_loops), (), _drawn_flops(shape, drawn) * tokens
    return Estimate(
        weights_bytes=_FP32 * shape.num_parameters // shared + (2 * (matrices + shape.head_parameters) if bf16 else 0),
        # DDP averages gradients in buckets, which the gradients are views of
        gradients_bytes=_FP32 * trained // shared,
        optimizer_bytes=_FP32 * moments // shared,
        activations_bytes=activation_bytes(deepest, rows * sequence_tokens, settings, execution, loops),
        head_bytes=3 * _FP32 * chunk + _FP32 * shape.head_parameters,
        flops=flops,
        tokens=tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnDepths:
    """What the steps of a run draw."""

    kept_loops: int
    """The most loops that a step keeps for its backward pass."""
    num_rows: dict[tuple[int, int], int]
    """How many rows of all steps run so many loops, and so many with gradients."""


@lru_cache(maxsize=64)
def _drawn_depths(recurrence: Recurrence, seed: int, num_steps: int, num_sequences: int) -> _DrawnDepths:
    kept_loops, num_rows = 0, Counter[tuple[int, int]]()
    for step in range(1 if recurrence.kind == "fixed" else num_steps):
        depth = recurrence.draw(seed=seed, step=step, num_sequences=num_sequences)
        kept = depth.num_loops if depth.grad_loops is None else depth.grad_loops
        kept_loops = max(kept_loops, kept)
        num_rows.update((loops, min(loops, kept)) for loops in depth.depths or (depth.num_loops,))
    return _DrawnDepths(kept_loops=kept_loops, num_rows=dict(num_rows))


def _drawn_flops(shape: ModelShape, drawn: _DrawnDepths) -> float:
    """Of one token on average, as a run counts them: a forward pass, and twice the loops with gradients backward."""
    forward = {loops: cost_of(shape.at_depth(loops), ()).flops_per_token for pair in drawn.num_rows for loops in pair}
    spent = sum(count * (forward[loops] + 2 * forward[kept]) for (loops, kept), count in drawn.num_rows.items())
    return spent / sum(drawn.num_rows.values())


def activation_bytes(
    shape: ModelShape, num_tokens: int, settings: TrainSettings, execution: Execution, loops: tuple[Loop, ...] = ()
) -> int:
    """What is kept of ``num_tokens`` tokens for the backward pass; of a step whose first loops keep no gradients, give the shape at the
    depth of the others.

    A layer's execution keeps, in numbers a token: 4 d for what its two norms read and give; 1.75 mixer/d for queries, keys and values
    before and after norm and rotation and for what they give; 1.5 mlp/d for the MLP's inner values, ``mixer`` and ``mlp`` being the
    matrix parameters of the two. With ``checkpoint_activations`` it keeps the 4 d alone, and all of one layer while that is made again.
    Depth attention's fused read keeps no more (its own test). Two bytes a number in bf16, else four.
    """
    width, size = shape.hidden_size, 2 if settings.dtype == "bf16" else _FP32
    stream = 4.0 * width
    inner = [(1.75 * layer.mixer_parameters + 1.5 * layer.mlp_parameters) / width for layer in shape.layers]
    visits = [site.layer for site in call_sites(shape.loops_run(loops), shape.num_layers) if site.part == "layer"]
    kept = sum(stream + (0.0 if execution.checkpoint_activations else inner[layer]) for layer in visits)
    again = max(inner) if execution.checkpoint_activations else 0.0
    return round(num_tokens * size * (kept + again + 3 * width))


def check_fits(needed: Estimate, available_bytes: int | None, num_rows: int) -> None:
    """Refuse a run that cannot fit.

    Args:
        available_bytes: for one process; None where it cannot be known.
        num_rows: sequences that go through the model at once, for the advice.

    Raises:
        TrainingError: it needs more, with the numbers and what would fit.
    """
    if available_bytes is None or needed.total_bytes <= available_bytes:
        return
    fixed = needed.total_bytes - needed.activations_bytes
    fitting = int((available_bytes - fixed) / (needed.activations_bytes / num_rows)) if available_bytes > fixed else 0
    advice = f"give micro batches of {fitting} sequences" if fitting else "give a smaller model, or --fsdp over more processes"
    raise TrainingError(f"the run needs {needed.words()}; there are {_size(available_bytes)}: {advice}")


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
