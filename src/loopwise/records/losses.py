"""Runs of held-out loss: a header that says what ran, and one line a document. Written by `RunWriter`, so killed ones go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .runs import RecordsError, read_json

LOSS_FORMAT = "loopwise-loss/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTotals:
    """Sums over some text, and the three measures that follow from them."""

    loss_nats: float
    """The sum over all targets."""
    num_targets: int
    """Tokens that were predicted."""
    num_bytes: int
    """UTF-8 bytes of the text that they stand for."""

    @property
    def nats_per_token(self) -> float:
        """The loss; comparable between models of one tokenizer only."""
        return self.loss_nats / self.num_targets

    @property
    def perplexity(self) -> float:
        """exp of the loss; infinite where a float cannot hold it."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Comparable between tokenizers; None for tokens that stand for no bytes."""
        return self.loss_nats / math.log(2) / self.num_bytes if self.num_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecord:
    """The loss of one document."""

    document: str
    """Its name, unique within the text."""
    loss_nats: float
    """The sum over its targets."""
    num_targets: int
    num_bytes: int
    """UTF-8 bytes of the text that its targets stand for."""

    @property
    def key(self) -> tuple[str]:
        """What makes a record unique within a run."""
        return (self.document,)

    @property
    def totals(self) -> LossTotals:
        """Its loss in nats per token, as perplexity, and in bits per byte."""
        return LossTotals(loss_nats=self.loss_nats, num_targets=self.num_targets, num_bytes=self.num_bytes)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class LossRun:
    """A header and its records."""

    header: dict[str, Any]
    records: tuple[LossRecord, ...]
    source: str
    """The folder it was read from, for messages."""

    @property
    def totals(self) -> LossTotals:
        """Over all documents."""
        return total_of(self.records)


def total_of(records: Iterable[LossRecord]) -> LossTotals:
    """The sums over records."""
    rows = list(records)
    return LossTotals(
        loss_nats=math.fsum(one.loss_nats for one in rows),
        num_targets=sum(one.num_targets for one in rows),
        num_bytes=sum(one.num_bytes for one in rows),
    )


def parse_loss_record(line: str, where: str) -> LossRecord:
    """Read one line.

    Raises:
        RecordsError: not JSON, or a field that is missing or cannot be; ``where`` opens the message.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise RecordsError(f"{where}: not a JSON object ({line[:40]!r}...): the file is damaged or was cut; resume or repeat its run")
    document, loss = values.get("document"), values.get("loss_nats")
    if not isinstance(document, str):
        raise RecordsError(f"{where}: document is {str(document)[:40]!r}; a line of a loss run names its document: repeat the run")
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not (math.isfinite(loss) and loss >= 0):
        raise RecordsError(f"{where}: loss_nats is {str(loss)[:40]}; give a finite number from 0")
    for name, least in (("num_targets", 1), ("num_bytes", 0)):
        value = values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise RecordsError(f"{where}: {name} is {str(value)[:40]}; give a whole number from {least}")
    return LossRecord(document=document, loss_nats=float(loss), num_targets=values["num_targets"], num_bytes=values["num_bytes"])


def read_loss_records(path: Path) -> tuple[LossRecord, ...]:
    """All records of a loss run's file.

    Raises:
        RecordsError: no such file, an empty file, or the first damaged line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordsError(f"{path}: no such file; give the folder of a loss run") from None
    except UnicodeDecodeError:
        raise RecordsError(f"{path}: not UTF-8 text; records are JSON lines") from None
    records = tuple(parse_loss_record(line, f"{path}, line {n}") for n, line in enumerate(text.split("\n"), 1) if line.strip())
    if not records:
        raise RecordsError(f"{path}: holds no records")
    return records


def read_loss_run(path: str | Path) -> LossRun:
    """A loss run's folder, its documents in the order of their names.

    Raises:
        RecordsError: no run there, one of another kind, or a damaged one.
    """
    folder = Path(path)
    if not (folder / "header.json").is_file():
        raise RecordsError(f"{folder}: holds no header.json; give a folder that loopwise evaluate --task loss wrote")
    header = read_json(folder / "header.json")
    if header.get("format") != LOSS_FORMAT:
        raise RecordsError(f"{folder}: holds a run of {header.get('format')!r}, not of loss; give one that --task loss wrote")
    return LossRun(header, in_order(read_loss_records(folder / "records.jsonl")), str(folder))


def in_order(records: Iterable[LossRecord]) -> tuple[LossRecord, ...]:
    """Records by the names of their documents."""
    return tuple(sorted(records, key=lambda record: record.document))
