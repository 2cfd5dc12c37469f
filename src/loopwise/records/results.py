"""Anybody's per-item results: our own runs, JSON lines, CSV, and the files of lm-eval and lighteval.

The kind of a file is told by its name and first line. What a file does not hold is not guessed: a metric among several, a task's
name, or what an answer cost is asked for in one line.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from . import csv_results, lighteval, lm_eval
from .answer_costs import with_sidecar
from .choices import ResultsChoice, adopt
from .runs import Record, RecordsError, Run, read_run

__all__ = ["ResultsChoice", "read_results"]

_NO_CHOICE = ResultsChoice()


def read_results(path: str | Path, choice: ResultsChoice = _NO_CHOICE) -> Run:
    """The answers of one arm, from a file or a folder.

    A folder is one of ours (``records.jsonl``), or holds lm-eval's ``samples_TASK_DATE.jsonl`` or lighteval's
    ``details_TASK_DATE.parquet``: all of its tasks are then one run. Costs that lie beside it in ``NAME.costs.csv`` (in a folder:
    ``costs.csv``) are joined to the answers.

    Args:
        choice: what of the file counts where it does not say.

    Raises:
        RecordsError: no such file, one that cannot be read or does not cover its items, a choice that is open or that it lacks.
    """
    path = Path(path)
    if path.is_dir():
        if (path / "records.jsonl").exists():
            return _own(path, choice)
        return with_sidecar(Run({}, _folder(path, choice), str(path)), path / "costs.csv")
    if not path.is_file():
        raise RecordsError(f"{path}: no such file")
    sidecar = path.with_name(path.name + ".costs.csv")
    if path.suffix == ".parquet":
        return with_sidecar(Run({}, lighteval.read_details(path, choice), str(path)), sidecar)
    if path.suffix in (".csv", ".tsv"):
        return with_sidecar(Run({}, csv_results.read_csv(path, choice), str(path)), sidecar)
    if _is_lm_eval(path):
        return with_sidecar(Run({}, lm_eval.read_samples(path, choice), str(path)), sidecar)
    return with_sidecar(_own(path, choice), sidecar)


def _own(path: Path, choice: ResultsChoice) -> Run:
    if choice.seed is not None:
        raise RecordsError(f"{path}: its lines name their seeds; leave out @{choice.seed}")
    run = read_run(path)
    return run if choice.arm is None else replace(run, records=adopt(run.records, choice))


def _folder(path: Path, choice: ResultsChoice) -> tuple[Record, ...]:
    samples, details = sorted(path.glob("samples_*.jsonl")), sorted(path.glob("details_*.parquet"))
    if not samples and not details:
        raise RecordsError(
            f"{path}: holds neither records.jsonl nor lm-eval's samples_*.jsonl nor lighteval's details_*.parquet; "
            "give the folder that does"
        )
    if samples and details:
        raise RecordsError(f"{path}: holds files of lm-eval and of lighteval; name the files of one of them")
    records: list[Record] = []
    source: dict[str, Path] = {}
    for file in samples or details:
        found = lm_eval.read_samples(file, choice) if samples else lighteval.read_details(file, choice)
        for task in sorted({record.task for record in found}):
            if task in source:
                raise RecordsError(f"{path}: holds two runs of {task} ({source[task].name} and {file.name}); name the files of one run")
            source[task] = file
        records += found
    return tuple(records)


def _is_lm_eval(path: Path) -> bool:
    """Whether the first line is one of lm-eval's."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            first = next((line for line in lines if line.strip()), "")
        values = json.loads(first)
    except (OSError, ValueError, RecursionError):
        return False  # said by whoever reads it as records
    return isinstance(values, dict) and lm_eval.is_sample(values)
