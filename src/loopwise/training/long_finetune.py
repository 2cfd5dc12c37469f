"""Long fine-tune: full fine-tuning on long traces, as many steps as the looped model makes in a fixed time (no-free-loop, A.3).

"For 4B, the looped model's throughput within a fixed time budget sets the step count": the looped member is measured first, what was
found is written to a file, and the looped model, its twin and every resume read that file.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data import BatchSource
from ..records import write_json
from .distributed import join
from .engine import Evaluate, train
from .metrics import read_metrics
from .pass_schedule import PassSchedule
from .reporting import Reporter, TrainResult
from .settings import Execution, TrainingError
from .tuning import LoopsGiven, Tuning, load_member

_WARM_STEPS = 2
"""Measured steps that do not count: they compile and warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongFinetune:
    """The recipe's numbers, at the paper's size.

    Raises:
        TrainingError: a value that cannot be.
    """

    tuning: Tuning = field(default_factory=lambda: Tuning(num_tokens=464_000_000, learning_rate=1e-5))
    """The most tokens; 400M to 464M in the paper. The learning rate is a guess, as in the short fine-tune."""
    budget_seconds: float | None = 24 * 3600.0
    """Time of training steps that the looped model may take; None trains on all of ``tuning.num_tokens`` without measuring. A day is
    a guess: the paper gives no number."""
    measured_steps: int = 10
    """Steps whose mean time counts. A guess: some minutes at most, and enough for passes that are drawn anew in each."""
    passes: PassSchedule | None = None
    """Passes by step; None is the loops as they were put in. "K drawn from 1-3" follows ARD before post-training: uniform from 1 to 3."""

    def __post_init__(self) -> None:
        if self.budget_seconds is not None and not 0 < self.budget_seconds < math.inf:
            raise TrainingError(f"budget_seconds is {self.budget_seconds}; give a number above 0, or None for all tokens")
        if isinstance(self.measured_steps, bool) or not isinstance(self.measured_steps, int) or self.measured_steps < 1:
            raise TrainingError(f"measured_steps is {self.measured_steps}; give a whole number, at least 1")

    @classmethod
    def nano(
        cls, *, num_tokens: int = 4_000_000, budget_seconds: float | None = 600.0, learning_rate: float = 3e-4, seed: int = 0
    ) -> LongFinetune:
        """For networks of some million parameters on CPUs. Guesses."""
        tuning = Tuning(num_tokens=num_tokens, learning_rate=learning_rate, dtype="fp32", seed=seed)
        return cls(tuning=tuning, budget_seconds=budget_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """What the measured phase found."""

    num_steps: int
    """For all members."""
    seconds_per_step: float
    """The mean of the looped model's measured steps."""
    budget_seconds: float
    step_tokens: int
    loops: str
    """What was measured."""


def train_long_finetune(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: LongFinetune,
    out: str | Path,
    *,
    steps_file: str | Path,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Fine-tune one member of a set; the same call goes on where a killed one stopped.

    Args:
        model: a Hugging Face id or a folder.
        loops: what the model is trained through, and saved with; None trains the twin, after the looped member was measured.
        source: traces with targets on the answers only.
        steps_file: where the step count of the whole set stands; it is measured and written where it is not there yet.

    Returns:
        Where it lies: ``OUT/model``, which ``loopwise.load`` reads with its loops in.

    Raises:
        TrainingError, ModelError, LoopError: bad input, before weights are read where it can be known then; a twin before its looped
            model was measured; a step count of another budget or batch; as `train`.
    """
    tuning = settings.tuning
    num_steps = tuning.num_steps(source)
    if settings.budget_seconds is not None:
        num_steps = _agreed_steps(model, loops, source, settings, Path(out), Path(steps_file), execution)
    loaded = load_member(model, loops, needs_padding=True)
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


def _agreed_steps(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: LongFinetune,
    out: Path,
    steps_file: Path,
    execution: Execution | None,
) -> int:
    """The step count in the file, or else a measured one, which is written there."""
    ranks = join((execution or Execution()).device)
    found = ranks.from_first(lambda: read_measured_steps(steps_file))
    if found is None:
        if loops is None:
            raise TrainingError(f"{steps_file}: the looped model's throughput is not measured yet; train the looped member first")
        found = measure_steps(model, loops, source, settings, out / "measured", execution=execution)
        measured = found
        ranks.from_first(lambda: _write(steps_file, measured))
    step_tokens = source.num_sequences * source.sequence_tokens
    if (found.budget_seconds, found.step_tokens) != (settings.budget_seconds, step_tokens):
        raise TrainingError(
            f"{steps_file}: was measured for {found.budget_seconds:g} s and steps of {found.step_tokens} tokens, "
            f"not {settings.budget_seconds:g} s and {step_tokens}; give another file"
        )
    return found.num_steps


def measure_steps(
    model: str | Path, loops: LoopsGiven, source: BatchSource, settings: LongFinetune, out: Path, *, execution: Execution | None = None
) -> MeasuredSteps:
    """Train the looped model for some steps, keep nothing of it but their times, and divide the budget by their mean.

    Args:
        out: gets ``run.json`` and ``metrics.jsonl`` of the measured steps; no weights.

    Raises:
        TrainingError: no budget, or one that is shorter than a step; as `train`.
    """
    assert settings.budget_seconds is not None
    execution = execution or Execution()
    tuning, last = settings.tuning, _WARM_STEPS + settings.measured_steps
    loaded = load_member(model, loops, needs_padding=True)

    def stop(trained: Any, step: int) -> dict[str, float]:
        if step == last:
            raise _MeasuredError
        return {}

    quiet = replace(execution, evaluate_every_steps=1, checkpoint_every_steps=last + 2)
    with contextlib.suppress(_MeasuredError):
        train(loaded.model, source, tuning.settings(last + 1, settings.passes), out, execution=quiet, evaluate=stop)
    ranks = join(execution.device)
    seconds = ranks.from_first(lambda: statistics.fmean(step.seconds for step in read_metrics(out)[_WARM_STEPS:last]))
    num_steps = min(int(settings.budget_seconds / seconds), tuning.num_steps(source))
    if num_steps < 1:
        raise TrainingError(f"a step takes {seconds:.3g} s, more than the budget of {settings.budget_seconds:g} s; give more time")
    return MeasuredSteps(
        num_steps=num_steps,
        seconds_per_step=seconds,
        budget_seconds=settings.budget_seconds,
        step_tokens=source.num_sequences * source.sequence_tokens,
        loops=str(loops),
    )


class _MeasuredError(Exception):
    """Ends the measured phase on every process."""


def read_measured_steps(file: str | Path) -> MeasuredSteps | None:
    """What was measured; None where nothing is.

    Raises:
        TrainingError: a file that is not one of these.
    """
    file = Path(file)
    if not file.exists():
        return None
    try:
        found = MeasuredSteps(**json.loads(file.read_text(encoding="utf-8")))
        whole = isinstance(found.num_steps, int) and not isinstance(found.num_steps, bool) and isinstance(found.step_tokens, int)
        if whole and found.num_steps >= 1 and found.step_tokens >= 1 and 0 < float(found.budget_seconds) < math.inf:
            return found
    except (ValueError, TypeError):
        pass
    raise TrainingError(f"{file}: is no measured step count; remove it, and the looped member is measured again")


def _write(file: Path, found: MeasuredSteps) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, asdict(found))
