"""``loopwise pretrain``: a table of a paper, or rows of it, trained from scratch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .console import Progress, UsageError, print_json, save_config, table
from .train import parse_count
from .training_line import TrainingLine

if TYPE_CHECKING:
    from ..recipes.pretraining import PretrainingTable, Row
    from ..recipes.pretraining_runs import TableRun


@dataclass(frozen=True)
class Command:
    """Train the rows of a table on the same data in the same order, and compare their losses; the same command goes on after a kill.

    Example: loopwise pretrain designs --scale nano --data shards/ --seeds 0 1 2 --out runs/designs
    Without --data it lists the rows. Started twice with one --out, the two share the runs out.
    """

    name: Annotated[str, tyro.conf.Positional]
    """arloop-table-1, -2, -7, -9, -10, -11, -15, arloop-large, free-loop-table-6, or designs."""
    data: tuple[Path, ...] = ()
    """Folders of token shards, as loopwise data tokenize makes them."""
    out: Path | None = None
    """The table's folder."""
    scale: str = "paper"
    """paper, or nano: some minutes a run on one core."""
    rows: tuple[str, ...] = ()
    """Only these rows, and those that they begin with."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of first weights and drawn depths."""
    tokens: str | None = None
    """Tokens of the shortest run, e.g. 500k; the others keep their proportion. Default: the table's own."""
    data_seed: int = 0
    """Of the order of the data, the same for all runs."""
    held_out: Path | None = None
    """Shards to measure the loss on; default: the heldout folder in the data."""
    held_out_tokens: str = "131072"
    """Tokens of it that the loss is measured on, at most."""
    dtype: str = "auto"
    """fp32 or bf16 (weights stay in fp32); auto is bf16 on CUDA and fp32 on CPUs."""
    device: str = "auto"
    """auto, cpu or cuda."""
    micro_batch: int | None = None
    """Sequences that go through a model at once in a process; default: all of its part."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer over the processes."""
    compile: bool = False
    """Compile attention and MLP of every layer, and depth-attention reads and norms."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    estimate: bool = False
    """Say what each run would take, and stop."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.pretraining_tables import pretraining_table

        chosen = pretraining_table(self.name, self.scale)
        if self.tokens is not None:
            chosen = chosen.with_tokens(parse_count("--tokens", self.tokens))
        rows = chosen.select(self.rows)
        if not self.data:
            self._list(chosen, rows)
            return
        run = self._table_run()
        if self.estimate:
            self._estimate(chosen, run)
        else:
            self._train(chosen, run)

    def _list(self, chosen: PretrainingTable, rows: tuple[Row, ...]) -> None:
        if self.json:
            print_json({"table": chosen.name, "source": chosen.source, "text": chosen.text, "rows": [asdict(row) for row in rows]})
            return
        lines = [(row.name, row.label, row.model, f"{row.budget.tokens:,}", _published(row)) for row in rows]
        print(f"{chosen.source}, at {chosen.scale} size; the paper trains on {chosen.text}\n")
        print(table(lines, ("row", "in the paper", "network", "tokens", "published")))
        guesses = {about: why for row in rows for about, why in row.guesses.items()}
        print("\nguesses, where the paper gives nothing:")
        print("\n".join(f"  {about}: {why}" for about, why in guesses.items()))

    def _table_run(self) -> TableRun:
        from ..recipes.pretraining_runs import TableRun
        from ..training import Execution
        from .train import resolved_dtype

        if self.out is None:
            raise UsageError("give --out, the table's folder (or no --data, to list the rows)")
        return TableRun(
            folders=self.data,
            out=self.out,
            seeds=self.seeds,
            data_seed=self.data_seed,
            held_out=self.held_out,
            held_out_tokens=parse_count("--held-out-tokens", self.held_out_tokens),
            dtype=resolved_dtype(self.dtype, self.device),
            execution=Execution(
                device=self.device,
                micro_batch_sequences=self.micro_batch,
                fsdp=self.fsdp,
                compile=self.compile,
                checkpoint_every_steps=self.checkpoint_every,
            ),
        )

    def _estimate(self, chosen: PretrainingTable, run: TableRun) -> None:
        from ..recipes.pretraining_runs import estimate_table

        found = estimate_table(chosen, run, self.rows)
        if self.json:
            print_json({name: asdict(one) | {"num_steps": steps} for name, (one, steps) in found.items()})
            return
        for name, (one, steps) in found.items():
            print(f"{name}: {one.words()}, in {steps:,} steps")

    def _train(self, chosen: PretrainingTable, run: TableRun) -> None:
        from ..recipes.pretraining_runs import run_table
        from ..recipes.pretraining_summary import REPORT_FILE, summarise
        from ..training import leave
        from .train import is_first

        quiet = self.json or not is_first()
        progress = Progress(quiet=quiet)
        line: TrainingLine | None = None

        def reporter(row: Row, seed: int) -> TrainingLine:
            nonlocal line
            if line:
                line.close()
            line = TrainingLine(quiet=quiet, at_first_step=lambda: save_config(run.out, "pretrain", self))
            return line

        try:
            busy = run_table(chosen, run, self.rows, reporter=reporter, note=progress.note)
        finally:
            if line:
                line.close()
            progress.close()
            leave()
        if not is_first():
            return
        found = summarise(chosen, run.out)
        if self.json:
            print_json({"rows": [asdict(row) for row in found], "busy": list(busy), "out": str(run.out)})
            return
        print((run.out / REPORT_FILE).read_text(encoding="utf-8"))
        if busy:
            print(f"not done yet, another process is at them: {', '.join(busy)}")


def _published(row: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in row.published.items())
