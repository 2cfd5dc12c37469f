"""Continued pretraining through the loop, a random one to three passes per batch (no-free-loop, sections 5, A.3 and C.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel

from ..data import BatchSource, TokenBatch
from ..models import loop_passes
from .distributed import Ranks
from .engine import Evaluate, train
from .losses import held_out_loss
from .pass_schedule import PassSchedule
from .reporting import Reporter, TrainResult
from .settings import Execution
from .tuning import LoopsGiven, Tuning, load_member


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedPretraining:
    """The recipe's numbers, at the paper's size."""

    tuning: Tuning = field(
        default_factory=lambda: Tuning(
            num_tokens=5_200_000_000, learning_rate=2e-5, schedule="constant", warmup_share=0.005, weight_decay=0.1
        )
    )
    """5.2B tokens and a rate that is constant after the warm-up are the paper's: "so checkpoints lie on one trajectory". The rate is a
    guess, near what pretraining ends at; so is the warm-up of 26M tokens, and weight decay, which is pretraining's."""
    passes: PassSchedule = field(default_factory=lambda: PassSchedule(kind="uniform", least=1, most=3))
    """The paper's."""

    @classmethod
    def nano(cls, *, num_tokens: int = 2_000_000, learning_rate: float = 3e-4, seed: int = 0) -> ContinuedPretraining:
        """For networks of some million parameters on CPUs. Guesses."""
        tuning = Tuning(
            num_tokens=num_tokens,
            learning_rate=learning_rate,
            schedule="constant",
            warmup_share=0.05,
            weight_decay=0.1,
            dtype="fp32",
            seed=seed,
        )
        return cls(tuning=tuning)


def train_continued(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: ContinuedPretraining,
    out: str | Path,
    *,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Pretrain one member of a set further, all weights; the same call goes on where a killed one stopped.

    Args:
        model: a Hugging Face id or a folder of a base model.
        loops: what is trained through; the passes given here are those it is saved with. None trains the twin.
        source: packed text.
        evaluate: e.g. `held_out_by_passes`, every ``execution.evaluate_every_steps``: the curves of C.1 come from one run.

    Returns:
        Where it lies: ``OUT/model``, which ``loopwise.load`` reads with its loops in.

    Raises:
        TrainingError, ModelError, LoopError: bad input, before weights are read where it can be known then; as `train`.
    """
    tuning = settings.tuning
    num_steps = tuning.num_steps(source)
    loaded = load_member(model, loops)
    return train(
        loaded.model,
        source,
        tuning.settings(num_steps, None if loops is None else settings.passes),
        out,
        execution=execution,
        evaluate=evaluate,
        tokenizer=loaded.tokenizer,
        reporter=reporter,
    )


def held_out_by_passes(
    model: PreTrainedModel, batches: Iterable[TokenBatch], passes: Iterable[int], *, ranks: Ranks | None = None, dtype: str = "fp32"
) -> dict[str, float]:
    """The held-out loss at several depths, in nats per target, by name: ``held_out_loss_1``, ``held_out_loss_2``, ...

    Args:
        passes: of the inserted loops; 1 is the model's own first pass ("own first pass" of C.1).

    Raises:
        TrainingError: no target at all.
        ModelError: more than one pass of a model without loops.
    """
    kept = list(batches)
    found = {}
    for number in passes:
        with loop_passes(model, number):
            found[f"held_out_loss_{number}"] = held_out_loss(model, kept, ranks=ranks, dtype=dtype)
    return found
