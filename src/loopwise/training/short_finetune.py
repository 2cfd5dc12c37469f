"""Short fine-tune: full fine-tuning on 100M tokens of reasoning traces, with and without the loop (no-free-loop, A.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..data import BatchSource
from .engine import Evaluate, train
from .merging import merge_and_save
from .reporting import Reporter, TrainResult
from .settings import Execution
from .tuning import LoopsGiven, Tuning, load_member

if TYPE_CHECKING:
    from .adapters import LoraSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortFinetune:
    """The recipe's numbers, at the paper's size."""

    tuning: Tuning = field(default_factory=lambda: Tuning(num_tokens=100_000_000, learning_rate=1e-5))
    """100M tokens are the paper's. The learning rate is a guess: full fine-tuning of 1B to 10B models on traces uses 5e-6 to 2e-5."""
    lora: LoraSettings | None = None
    """An adapter in place of all weights, merged afterwards: the first half of "LoRA fine-tuning with reinforcement learning"
    (A.3), whose learning rate is to be about ten times as high."""

    @classmethod
    def nano(cls, *, num_tokens: int = 1_000_000, learning_rate: float = 3e-4, seed: int = 0) -> ShortFinetune:
        """For networks of some million parameters on CPUs. Guesses."""
        return cls(tuning=Tuning(num_tokens=num_tokens, learning_rate=learning_rate, dtype="fp32", seed=seed))


def train_short_finetune(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: ShortFinetune,
    out: str | Path,
    *,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Fine-tune one member of a set; the same call goes on where a killed one stopped.

    Args:
        model: a Hugging Face id or a folder.
        loops: what the model is trained through, and saved with; None trains the twin.
        source: traces with targets on the answers only.

    Returns:
        Where it lies: ``OUT/model``, which ``loopwise.load`` reads with its loops in.

    Raises:
        TrainingError, ModelError, LoopError: bad input, before weights are read where it can be known then; as `train`.
    """
    tuning = settings.tuning
    num_steps = tuning.num_steps(source)
    loaded = load_member(model, loops, lora=settings.lora, seed=tuning.seed, needs_padding=True)
    result = train(
        loaded.model,
        source,
        tuning.settings(num_steps, None),
        out,
        execution=execution,
        evaluate=evaluate,
        tokenizer=loaded.tokenizer,
        reporter=reporter,
    )
    return result if settings.lora is None else merge_and_save(loaded, source, out, result, execution)
