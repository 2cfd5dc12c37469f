"""``loopwise train``: a looped network from scratch, or a model further, on token shards."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..nets.configuration import NetError
from ..nets.recurrence import Recurrence
from ..nets.sizes import PREFIX, named
from .console import UsageError, print_json, save_config
from .training_line import TrainingLine

if TYPE_CHECKING:
    from ..recipes.training import TrainingData
    from ..training import Execution, TrainResult, TrainSettings

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Command:
    """Train on token shards; the same command goes on after a kill.

    Example: loopwise train nets:arloop-nano --data shards/ --tokens 1M --out runs/arloop
    Several processes: torchrun --nproc-per-node 8 -m loopwise train nets:arloop-140m --data shards/ --tokens 11.2B --out runs/arloop
    """

    model: Annotated[str, tyro.conf.Positional]
    """A network to train from scratch, e.g. nets:arloop-nano, or a Hugging Face id or folder to train further."""
    data: tuple[Path, ...]
    """Folders of token shards, as loopwise data tokenize makes them."""
    out: Path | None = None
    """The run's folder."""
    tokens: str = "1M"
    """Tokens to train on, e.g. 500k, 1M, 180B."""
    batch_tokens: str = "16384"
    """Tokens of one step, over all processes."""
    sequence_tokens: int = 512
    """Tokens of one sequence."""
    mixture: str = "single"
    """What is drawn from the shards: single (all of them), a named mixture, or a JSON file."""
    document_mask: bool = False
    """Documents that share a sequence do not see one another."""
    held_out: Path | None = None
    """Shards to measure the loss on; default: the heldout folder in the data, if there is one."""
    evaluate_every: int | None = None
    """Steps between measurements of it; default: only at the end."""
    set: tuple[str, ...] = ()
    """Changes of the architecture, FIELD=VALUE, e.g. design=parcae hidden_size=256."""
    num_loops: int | None = None
    """Loops R of the network; default: its own."""
    recurrence: str = "fixed"
    """Loops of each step: fixed, poisson, lognormal_poisson or uniform."""
    recurrence_mean: float | None = None
    """Mean of the two Poisson kinds; default: num_loops."""
    recurrence_least: int = 1
    """Fewest loops of a step."""
    recurrence_most: int | None = None
    """Most loops of a step; default: num_loops, for lognormal_poisson no limit."""
    per_sequence: bool = False
    """Every sequence draws its own number of loops."""
    backprop_loops: int | None = None
    """Only the last so many loops keep gradients; default: all."""
    seed: int = 0
    """Of the first weights and of the depths."""
    data_seed: int = 0
    """Of the order of the data."""
    optimizer: str = "adamw"
    """adamw, or muon for the matrices of attention and MLP."""
    learning_rate: float = 1e-3
    """The peak."""
    muon_learning_rate: float | None = None
    """The peak for Muon's matrices; default: learning_rate."""
    weight_decay: float = 0.1
    """Of matrices."""
    schedule: str = "cosine"
    """cosine (to 1 % of the peak), trapezoid (falls over the last half), or constant."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises."""
    clip_norm: float = 1.0
    """Largest norm of a step's gradient."""
    dtype: str = "auto"
    """fp32 or bf16 (weights stay in fp32); auto is bf16 on CUDA and fp32 on CPUs."""
    tf32: bool = False
    """On CUDA, products of fp32 matrices in TF32."""
    device: str = "auto"
    """auto, cpu or cuda."""
    micro_batch: int | None = None
    """Sequences that go through the model at once in a process; default: all of its part."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer over the processes."""
    compile: bool = False
    """Compile attention and MLP of every layer, and depth-attention reads and norms."""
    checkpoint_activations: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints that stay."""
    estimate: bool = False
    """Say what the run would take, and stop."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..training import leave

        changes = self._changes()
        data, execution = self._data(), self._execution()
        settings = self._settings(data, changes)
        try:
            if self.estimate:
                self._estimate(data, settings, changes, execution)
            elif self.out is None:
                raise UsageError("give --out, the run's folder (or --estimate, to see what the run would take)")
            else:
                self._train(self.out, data, settings, changes, execution)
        except (ValueError, OSError):
            if not is_first():  # the first process says it
                raise SystemExit(1) from None
            raise
        finally:
            leave()

    def _train(self, out: Path, data: TrainingData, settings: TrainSettings, changes: dict[str, Any], execution: Execution) -> None:
        from ..recipes.training import run_training

        line = TrainingLine(quiet=self.json or not is_first(), at_first_step=lambda: save_config(out, "train", self))
        try:
            result = run_training(
                self.model,
                data,
                settings,
                out,
                seed=self.seed,
                changes=changes,
                execution=execution,
                reporter=line if is_first() else None,
            )
        finally:
            line.close()
        if is_first():
            self._tell(out, result)

    def _tell(self, out: Path, result: TrainResult) -> None:
        if self.json:
            print_json(
                asdict(result.state) | {"loss": result.loss, **result.evaluation, "out": str(out), "model": str(result.model_folder)}
            )
            return
        state = result.state
        spent = "" if state.flops is None else f", {state.flops:.3g} FLOPs"
        print(f"{state.tokens:,} tokens in {state.step:,} steps{spent}; loss of the last step {result.loss:.4f} nats")
        for name, value in result.evaluation.items():
            print(f"{name.replace('_', ' ')}: {value:.4f} nats a token, at the depth of training")
        print(f"model: {result.model_folder}\nmetrics: {out / 'metrics.jsonl'}\ncheckpoints: {out / 'checkpoints'}")

    def _estimate(self, data: TrainingData, settings: TrainSettings, changes: dict[str, Any], execution: Execution) -> None:
        from ..recipes.training import estimate_training

        found = estimate_training(self.model, data, settings, changes=changes, execution=execution)
        if not is_first():
            return
        if self.json:
            print_json(asdict(found) | {"total_bytes": found.total_bytes, "num_steps": settings.num_steps})
        else:
            print(f"{found.words()}, in {settings.num_steps:,} steps; the time is told after the first steps of a run")

    def _data(self) -> TrainingData:
        from ..recipes.training import TrainingData

        return TrainingData(
            folders=self.data,
            num_tokens=parse_count("--tokens", self.tokens),
            batch_tokens=parse_count("--batch-tokens", self.batch_tokens),
            sequence_tokens=self.sequence_tokens,
            mixture=self.mixture,
            seed=self.data_seed,
            document_mask=self.document_mask,
            held_out=self.held_out,
        )

    def _changes(self) -> dict[str, Any]:
        changes: dict[str, Any] = {} if self.num_loops is None else {"num_loops": self.num_loops}
        for one in self.set:
            field, equals, value = one.partition("=")
            if not equals:
                raise UsageError(f"--set {one!r}: give FIELD=VALUE, e.g. design=parcae")
            try:
                changes[field] = json.loads(value)
            except ValueError:
                changes[field] = value
        return changes

    def _settings(self, data: TrainingData, changes: dict[str, Any]) -> TrainSettings:
        from ..training import TrainSettings

        names = [
            "seed",
            "optimizer",
            "learning_rate",
            "muon_learning_rate",
            "weight_decay",
            "schedule",
            "warmup_steps",
            "clip_norm",
            "tf32",
        ]
        same: dict[str, Any] = {name: getattr(self, name) for name in names}
        recurrence = self._recurrence(changes)
        return TrainSettings(num_steps=data.num_steps, recurrence=recurrence, dtype=resolved_dtype(self.dtype, self.device), **same)  # type: ignore[arg-type]

    def _recurrence(self, changes: dict[str, Any]) -> Recurrence | None:
        given = (self.recurrence_mean, self.recurrence_most, self.backprop_loops)
        if self.recurrence == "fixed" and given == (None,) * len(given) and self.recurrence_least == 1 and not self.per_sequence:
            return None
        if not self.model.startswith(PREFIX):
            raise UsageError(f"--recurrence {self.recurrence}: {self.model} is no network of nets:..., its depth is fixed")
        loops = named(self.model, **{name: value for name, value in changes.items() if name == "num_loops"}).num_loops
        most = self.recurrence_most
        if most is None and self.recurrence in ("poisson", "uniform"):
            most = loops
        if self.recurrence == "fixed" and (self.recurrence_mean, self.recurrence_most, self.recurrence_least) != (None, None, 1):
            raise NetError("recurrence fixed has no mean, least or most of its own; give --num-loops")
        if self.recurrence == "uniform" and self.recurrence_mean is not None:
            raise NetError(f"recurrence uniform has no mean, and it is {self.recurrence_mean:g}; give its least and most alone")
        return Recurrence(
            kind=self.recurrence,  # type: ignore[arg-type]  # checked at birth
            mean=float(loops) if self.recurrence_mean is None else self.recurrence_mean,
            least=self.recurrence_least,
            most=most,
            per_sequence=self.per_sequence,
            backprop_loops=self.backprop_loops,
        )

    def _execution(self) -> Execution:
        from ..training import Execution

        return Execution(
            device=self.device,
            micro_batch_sequences=self.micro_batch,
            fsdp=self.fsdp,
            compile=self.compile,
            checkpoint_activations=self.checkpoint_activations,
            checkpoint_every_steps=self.checkpoint_every,
            keep_checkpoints=self.keep,
            evaluate_every_steps=self.evaluate_every,
        )


def parse_count(option: str, text: str) -> int:
    """A number such as 500k, 1M or 180B.

    Raises:
        UsageError: something else.
    """
    found = re.fullmatch(r"(\d+(?:[_,]\d{3})*(?:\.\d+)?)([kmbt]?)", text.strip().lower())
    if not found:
        raise UsageError(f"{option} {text!r}: give a number such as 500k, 1M or 180B")
    return round(float(re.sub("[_,]", "", found[1])) * _SUFFIXES[found[2]])


def resolved_dtype(dtype: str, device: str) -> str:
    """``auto`` is bf16 on CUDA and fp32 on CPUs."""
    if dtype != "auto":
        return dtype
    import torch

    return "bf16" if device != "cpu" and torch.cuda.is_available() else "fp32"


def is_first() -> bool:
    """Whether this is the first of the processes that torchrun started, the one that speaks."""
    return os.environ.get("RANK", "0") == "0"
