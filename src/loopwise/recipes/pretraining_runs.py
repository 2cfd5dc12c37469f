"""Training the rows of a table, each over several seeds on the same data in the same order, and measuring each on the same text.

A run's folder is ``OUT/ROW/seed-N``. Whatever is there is gone on with, or left when it is done; a run that another process is at
is passed over, so the same command, started several times, shares the rows out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..cost import cost_of, read_shape
from ..models import load
from ..records import read_json, write_json
from ..training import (
    MODEL_FOLDER,
    DivergedError,
    Estimate,
    Execution,
    Ranks,
    Reporter,
    RunBusyError,
    TrainingError,
    TrainSettings,
    join,
    row_losses,
)
from .pretraining import PretrainingTable, Row
from .training import TrainingData, architecture, estimate_training, held_out_batches, run_training

LOSSES_FILE = "losses.json"
"""What a finished run left: its losses by held-out sequence at each test depth, and what it spent."""

_BOUND = ("table", "scale", "data_seed", "shards", "held_out", "held_out_tokens", "dtype", "tokens")
"""What all runs of a folder share."""

ReporterOf = Callable[[Row, int], Reporter]
"""The reporter of a row's run with a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """How a table is run.

    Raises:
        TrainingError: no seed, one twice, or one below 0.
    """

    folders: tuple[Path, ...]
    """Token shards of one tokenizer."""
    out: Path
    seeds: tuple[int, ...] = (0,)
    """Of first weights and drawn depths; the data and their order are the same for all."""
    data_seed: int = 0
    held_out: Path | None = None
    """As `TrainingData.held_out`."""
    held_out_tokens: int = 131_072
    """As `TrainingData.held_out_tokens`."""
    execution: Execution = field(default_factory=Execution)
    dtype: str = "fp32"
    """``fp32`` or ``bf16``, as `TrainSettings.dtype`."""

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise TrainingError(f"seeds are {' '.join(map(str, self.seeds)) or 'none'}; give different ones, from 0 on")

    def folder(self, row: Row, seed: int) -> Path:
        """Where a row's run with a seed lies."""
        return self.out / row.name / f"seed-{seed}"

    def data(self, table: PretrainingTable, row: Row) -> TrainingData:
        """What a row reads."""
        return TrainingData(
            folders=self.folders,
            num_tokens=row.budget.tokens,
            skip_tokens=table.first_tokens(row),
            batch_tokens=row.budget.batch_tokens,
            sequence_tokens=row.budget.sequence_tokens,
            mixture=row.budget.mixture,
            seed=self.data_seed,
            held_out=self.held_out,
            held_out_tokens=self.held_out_tokens,
        )

    def settings(self, table: PretrainingTable, row: Row, seed: int) -> TrainSettings:
        """How a row is trained."""
        steps = self.data(table, row).num_steps
        more = dict(row.optimization)
        warmup = min(int(more.pop("warmup_steps", 0)), max(steps - 1, 0))
        return TrainSettings(num_steps=steps, seed=seed, recurrence=row.recurrence, dtype=self.dtype, warmup_steps=warmup, **more)  # type: ignore[arg-type]


def run_table(
    table: PretrainingTable,
    run: TableRun,
    rows: Sequence[str] = (),
    *,
    reporter: ReporterOf | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[str, ...]:
    """Train rows of a table, all of them by default, seed after seed; the same call goes on where a killed one stopped.

    Returns:
        the runs that another process is at, which are not done yet.

    Raises:
        TrainingError, DataError, NetError, ModelError: bad input, before the first run where it can be seen; a loss that is not
            finite (the other runs are kept, and the run is told and passed over).
    """
    chosen = table.select(rows)
    check_table(table, run, chosen)
    ranks = join(run.execution.device)
    ranks.from_first(lambda: bind_table(table, run))
    busy: list[str] = []
    for seed in run.seeds:
        for row in chosen:
            folder = run.folder(row, seed)
            if ranks.from_first((folder / LOSSES_FILE).exists):
                continue
            note(f"{row.label}, seed {seed}: {folder}")
            try:
                _train_row(table, row, seed, run, ranks, None if reporter is None else reporter(row, seed))
            except RunBusyError:
                busy.append(f"{row.name}/seed-{seed}")
                note(f"{folder}: another process is at it")
            except DivergedError as error:
                note(f"{row.label}, seed {seed}: {error}")
                ranks.from_first(partial(_keep_failure, folder, str(error)))
    return tuple(busy)


def check_table(table: PretrainingTable, run: TableRun, rows: Sequence[Row]) -> None:
    """Build what every row needs but its weights, so that bad input is seen before the first run.

    Raises:
        TrainingError, DataError, NetError: bad input.
    """
    for row in rows:
        data = run.data(table, row)
        shards = data.open()
        architecture(row.model, row.changes, shards[0])
        run.settings(table, row, run.seeds[0])
        if data.held_out_text(shards[0]) is None:
            raise TrainingError(f"{run.folders[0]} has no held-out text to compare rows on; give --held-out, or shards made with some")
        data.batches(shards).batch(data.num_steps - 1, 0, 1)


def bind_table(table: PretrainingTable, run: TableRun) -> None:
    """Keep what the folder's runs share, or check that it is the same.

    Raises:
        TrainingError, DataError: the folder holds another table, or does not say what its runs share.
    """
    data = run.data(table, table.rows[0])
    shards = data.open()
    held_out = data.held_out_shards(shards[0])
    ours = {
        "table": table.name,
        "scale": table.scale,
        "data_seed": run.data_seed,
        "shards": [one.sha256 for one in shards],
        "held_out": None if held_out is None else held_out.sha256,
        "held_out_tokens": run.held_out_tokens,
        "dtype": run.dtype,
        "tokens": {row.name: row.budget.tokens for row in table.rows},
        "source": table.source,
        "guesses": {row.name: dict(row.guesses) for row in table.rows},
    }
    file = run.out / "table.json"
    if not file.exists():
        run.out.mkdir(parents=True, exist_ok=True)
        write_json(file, ours)
        return
    there = read_json(file)
    for name in _BOUND:
        if name not in there:
            again = f"remove {file.name} and every {LOSSES_FILE}, and what is there is checked and measured again"
            raise TrainingError(f"{file}: does not say which {name} its runs have; give a new --out, or {again}")
        if there[name] != ours[name]:
            raise TrainingError(f"{run.out}: holds runs with another {name} ({str(there[name])[:60]}); give a new --out")


def estimate_table(table: PretrainingTable, run: TableRun, rows: Sequence[str] = ()) -> dict[str, tuple[Estimate, int]]:
    """What each row's run would take, and its steps; makes nothing.

    Raises:
        TrainingError, DataError, NetError: bad input.
    """
    found = {}
    for row in table.select(rows):
        data, settings = run.data(table, row), run.settings(table, row, run.seeds[0])
        found[row.name] = (
            estimate_training(row.model, data, settings, changes=row.changes, execution=run.execution),
            settings.num_steps,
        )
    return found


def _train_row(table: PretrainingTable, row: Row, seed: int, run: TableRun, ranks: Ranks, reporter: Reporter | None) -> None:
    folder, data, settings = run.folder(row, seed), run.data(table, row), run.settings(table, row, seed)
    before = ranks.from_first(lambda: _before(table, row, seed, run))
    result = run_training(
        row.model,
        data,
        settings,
        folder,
        seed=seed,
        changes=row.changes,
        first_weights=None if before is None else before[0],
        execution=run.execution,
        reporter=reporter,
    )
    spent = None if before is None else before[1]
    flops = result.state.flops if before is None or result.state.flops is None or spent is None else result.state.flops + spent

    def measure() -> None:
        losses = _measure(row, data, settings, folder, ranks.device)
        write_json(folder / LOSSES_FILE, {"training_flops": flops, "seconds": result.state.seconds, **losses})

    ranks.from_first(measure)


def _keep_failure(folder: Path, reason: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)  # a row whose beginning failed has none yet
    write_json(folder / LOSSES_FILE, {"failed": reason})


def _before(table: PretrainingTable, row: Row, seed: int, run: TableRun) -> tuple[Path, float | None] | None:
    """The model whose weights a row begins with, and the training FLOPs that it took.

    Raises:
        DivergedError: its run failed.
        RunBusyError: it is not done.
    """
    if row.begins_with is None:
        return None
    folder = run.folder(table.row(row.begins_with), seed)
    if not (folder / LOSSES_FILE).exists():
        raise RunBusyError(f"{row.name} begins with {row.begins_with}, seed {seed}, which is not done")
    losses = read_json(folder / LOSSES_FILE)
    if "failed" in losses:
        raise DivergedError(f"{row.begins_with}, which it begins with, failed")
    return folder / MODEL_FOLDER, losses["training_flops"]


def _measure(row: Row, data: TrainingData, settings: TrainSettings, folder: Path, device: torch.device) -> dict[str, Any]:
    """Losses by held-out sequence at each test depth."""
    shards = data.open()
    text = data.held_out_text(shards[0])
    assert text is not None
    net = load(folder / MODEL_FOLDER, dtype="fp32", device=device).model
    arch = architecture(row.model, row.changes, shards[0])
    shape = read_shape(arch.as_config())
    rows = "".join(row for batch in held_out_batches(text, data.held_out_tokens) for row in batch.row_hashes())
    depths: dict[str, Any] = {}
    for loops in row.test_loops or (arch.num_loops,):
        sums, targets = row_losses(net, held_out_batches(text, data.held_out_tokens), num_loops=loops, dtype=settings.dtype)
        cost = cost_of(shape.at_depth(loops), ())
        depths[str(loops)] = {"flops_per_token": cost.flops_per_token, "loss_sums": sums, "targets": targets}
    parameters = sum(weight.numel() for weight in net.parameters())
    return {"num_parameters": parameters, "held_out_sha256": hashlib.sha256(rows.encode()).hexdigest(), "depths": depths}
