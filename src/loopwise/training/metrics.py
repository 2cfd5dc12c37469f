"""What a run writes down of every step: one line of JSON each, appended, and after a resume the same lines again. No torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .settings import TrainingError

METRICS_FILE = "metrics.jsonl"
_TIMED = ("seconds", "tokens_per_second", "mfu", "memory_bytes")
"""Fields that differ from run to run; all others are the same after a kill and a resume on the same processors."""

PEAK_FLOPS: Mapping[str, float] = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "A100": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}
"""Dense bf16 FLOPs per second by the whole words of a device's name, as its maker's data sheet has them; the longest that fits decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step of training."""

    step: int
    """Counted from 1: updates made, this one included."""
    loss: float
    """Nats per target over the whole batch, before the update; of another objective than the next token's, its value per target."""
    lr: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Inputs trained on so far, this step's included."""
    num_loops: float | None
    """Mean depth over the sequences of the batch; None for a model that has no depth to choose."""
    batch_hash: str
    """Of the whole batch, rows in order, whatever processes there were: `batch_hash`."""
    seconds: float
    tokens_per_second: float
    mfu: float | None
    """Model FLOPs (matrix products, no attention scores) per second over the devices' peak in bf16; None where one is not known."""
    memory_bytes: int
    """The most that was held so far, on the GPU, or by the process on a CPU."""
    passes: int | None = None
    """Of the loops put into the model, where they are drawn; None is as they were put in."""
    terms: dict[str, float] = field(default_factory=dict)
    """What an objective of its own is made of, per target."""

    @property
    def repeatable(self) -> dict[str, Any]:
        """What a resumed run has to give again."""
        return {name: value for name, value in asdict(self).items() if name not in _TIMED}


def batch_hash(row_digests: Iterable[bytes]) -> str:
    """The sha256 over the sha256 of every row, in the order of the batch."""
    return hashlib.sha256(b"".join(row_digests)).hexdigest()


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOPs per second of a device; None for one that is not in the table, and for a part of one (MIG)."""
    words = re.findall(r"[A-Za-z0-9]+", device_name)
    if "MIG" in words:
        return None
    spaced = f" {' '.join(words)} "
    return next((PEAK_FLOPS[name] for name in sorted(PEAK_FLOPS, key=len, reverse=True) if _has_words(spaced, name)), None)


def _has_words(spaced: str, name: str) -> bool:
    """Whether all words of a name are in a text; sizes of memories may stand between them."""
    return all(f" {word} " in spaced for word in name.split())


class MetricsWriter:
    """Appends to a run's ``metrics.jsonl``. One writer a run."""

    def __init__(self, out: Path, *, after_step: int) -> None:
        """Open the file and leave out what is after ``after_step``, which will be trained again.

        Raises:
            TrainingError: a line that no run wrote; the file stays as it is.
            OSError: it cannot be written.
        """
        self.file = out / METRICS_FILE
        kept = [line for line, values in _lines(self.file) if values["step"] <= after_step]
        part = self.file.with_name(METRICS_FILE + ".part")
        with part.open("w", encoding="utf-8") as opened:
            opened.writelines(line + "\n" for line in kept)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(self.file)
        self._opened = self.file.open("a", encoding="utf-8")

    def step(self, metrics: StepMetrics) -> None:
        """Write one step."""
        self._write(asdict(metrics))

    def evaluation(self, step: int, results: Mapping[str, float]) -> None:
        """Write what an evaluation after step ``step`` found."""
        self._write({"step": step, "evaluation": dict(results)})

    def sync(self) -> None:
        """Flush to the disk: before a checkpoint, so that none stands without its lines."""
        os.fsync(self._opened.fileno())

    def close(self) -> None:
        """No more lines."""
        with contextlib.suppress(OSError):
            self._opened.close()

    def _write(self, values: dict[str, Any]) -> None:
        self._opened.write(json.dumps(values) + "\n")
        self._opened.flush()


def read_metrics(out: str | Path) -> tuple[StepMetrics, ...]:
    """The steps of a run, in order.

    Raises:
        TrainingError: a line that no run wrote.
    """
    return tuple(StepMetrics(**values) for _, values in _lines(Path(out) / METRICS_FILE) if "evaluation" not in values)


def read_evaluations(out: str | Path) -> dict[int, dict[str, float]]:
    """What evaluations found, by step.

    Raises:
        TrainingError: a line that no run wrote.
    """
    lines = (values for _, values in _lines(Path(out) / METRICS_FILE))
    return {values["step"]: values["evaluation"] for values in lines if "evaluation" in values}


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line and what it holds, without the half line that a killed writer may have left."""
    content = file.read_bytes() if file.exists() else b""
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1], 1):
        try:
            text = line.decode()
            values = json.loads(text)
        except (ValueError, RecursionError):
            text, values = "", None
        if not _is_line(values):
            raise TrainingError(f"{file}: line {number} is damaged, {line[:40]!r}; take that line out, or give a new --out")
        yield text, values


def _is_line(values: Any) -> bool:
    """Whether a line is a step's, or an evaluation's."""
    if not isinstance(values, dict) or not _is_number(values.get("step")):
        return False
    if "evaluation" in values:
        found = values["evaluation"]
        return isinstance(found, dict) and all(map(_is_number, found.values()))
    names = {one.name for one in fields(StepMetrics)}
    optional = {"passes", "terms"}  # lines of earlier versions lack them
    numbers = ("loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_second")
    whole = names - optional <= values.keys() <= names and isinstance(values.get("batch_hash"), str)
    return whole and isinstance(values.get("terms", {}), dict) and all(_is_number(values[name]) for name in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
