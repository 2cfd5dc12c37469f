"""The per-item files of lighteval (``--save-details``): ``details_TASK_DATE.parquet``, one row for each document.

A row has three columns: ``doc`` (``id``, ``query``, ``choices``, ``gold_index``, ``task_name``, ``sampling_methods``), ``metric`` (a value
under each metric's name) and ``model_response`` (``output_tokens``: one list for each answer that was generated, ``input_tokens``). Where
answers were generated their tokens are counted; FLOPs are not there. ``results/MODEL/results_DATE.json``, in the folder that also holds
``details/``, says how many documents were evaluated.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from .choices import ResultsChoice, adopt, choose_metric
from .runs import Record, RecordsError, record_from

_COLUMNS = ("doc", "metric", "model_response")
_DATE = re.compile(r"_(?P<date>\d{4}-\d\d-\d\dT[^_]+)\.parquet$")


def read_details(file: Path, choice: ResultsChoice) -> tuple[Record, ...]:
    """The answers to one task.

    Raises:
        RecordsError: not such a file, or pyarrow is missing; several metrics with none chosen, several answers an item, a document that
            is there twice, or fewer documents than were evaluated.
    """
    rows = _rows(file)
    items = [_text(row["doc"].get("id")) or str(n) for n, row in enumerate(rows)]
    # A struct column holds every metric of any row: null is a metric that this row does not have.
    metrics = [{name: value for name, value in row["metric"].items() if value is not None} for row in rows]
    metric = choose_metric(metrics, items, choice, str(file))
    seen: set[tuple[str, str]] = set()
    records = []
    for row, item, grades in zip(rows, items, metrics, strict=True):
        own = _text(row["doc"].get("task_name")) or choice.task  # what lighteval's own results call it
        task = choice.task or own
        if own is None or task is None:
            raise RecordsError(f"{file}: its rows hold no task_name; give --task-name")
        if (own, item) in seen:
            raise RecordsError(f"{file}: document {item!r} of {task} is there twice; two runs were written into one file, keep one of them")
        seen.add((own, item))
        records.append(_record(row, task, item, grades[metric], metric, choice, file))
    _check_all_there(file, seen)
    return adopt(records, choice)


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RecordsError(f"{file}: reading Parquet needs pyarrow; pip install 'loopwise[hub]'") from None
    try:
        names = parquet.read_schema(file).names
        if missing := [name for name in _COLUMNS if name not in names]:
            raise RecordsError(
                f"{file}: has no column {missing[0]!r}; its columns are {', '.join(names)[:200]}; give details of lighteval 0.11 or later, "
                "or write the answers as CSV"
            )
        rows: list[dict[str, Any]] = parquet.read_table(file, columns=list(_COLUMNS)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordsError(f"{file}: not a Parquet file that can be read ({' '.join(str(error).split())[:80]})") from None
    if not rows:
        raise RecordsError(f"{file}: holds no records")
    for n, row in enumerate(rows):
        for name in _COLUMNS:
            if not isinstance(row[name], dict):
                raise RecordsError(f"{file}, row {n}: {name} is {str(row[name])[:40]!r}, not a group of fields; not lighteval's details")
    return rows


def _text(value: Any) -> str | None:
    return str(value) if value not in (None, "") else None


def _record(row: dict[str, Any], task: str, item: str, grade: Any, metric: str, choice: ResultsChoice, file: Path) -> Record:
    doc, response = row["doc"], row["model_response"]
    values = {
        "task": task,
        "item": item,
        "seed": choice.seed or 0,
        "sample": 0,
        "correct": bool(grade),
        # The question's hash stands in the reference answer, which two arms must share: an equal number alone is no equal question.
        "gold": f"{_gold(doc)} (question {hashlib.sha256(str(doc.get('query')).encode()).hexdigest()[:12]})",
        "rule": metric,
    }
    return record_from(values | _tokens(doc, response, item, file), f"{file}, item {item!r}")


def _gold(doc: dict[str, Any]) -> str:
    index, choices = doc.get("gold_index"), doc.get("choices") or []
    listed = index if isinstance(index, list) else [index]
    return ", ".join(str(choices[n]) for n in listed if isinstance(n, int) and 0 <= n < len(choices))


def _tokens(doc: dict[str, Any], response: dict[str, Any], item: str, file: Path) -> dict[str, int]:
    """Tokens of a generated answer; choices that were only scored generated none that anybody counted."""
    methods = [str(one).rpartition(".")[2] for one in doc.get("sampling_methods") or []]
    outputs, inputs = response.get("output_tokens"), response.get("input_tokens")
    if "GENERATIVE" not in methods or not isinstance(outputs, list) or not outputs:
        return {}
    if len(outputs) > 1:
        raise RecordsError(
            f"{file}: item {item!r} has {len(outputs)} answers and one grade; evaluate with one sample, or write each answer as a CSV row"
        )
    known = {"generated_tokens": len(outputs[0])} if isinstance(outputs[0], list) and outputs[0] else {}
    return known | ({"prompt_tokens": len(inputs)} if isinstance(inputs, list) and inputs else {})


def _check_all_there(file: Path, seen: set[tuple[str, str]]) -> None:
    """Against the number of documents in the run's aggregated results, where these are there."""
    results = _results_file(file)
    if results is None:
        return
    try:
        tasks = json.loads(results.read_text(encoding="utf-8"))["config_tasks"]
        expected = {str(name).replace(":", "|"): one.get("effective_num_docs") for name, one in tasks.items() if isinstance(one, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RecordsError(f"{results}: damaged; it says how many items {file.name} must hold: repeat the run, or move it away") from None
    for task in sorted({task for task, _ in seen}):
        there, wanted = sum(one == task for one, _ in seen), expected.get(task.replace(":", "|"))
        if isinstance(wanted, int) and wanted >= 0 and there != wanted:
            raise RecordsError(
                f"{file}: holds {there} of the {wanted} items of {task} that were evaluated; a run must cover all of its items"
            )


def _results_file(file: Path) -> Path | None:
    name = _DATE.search(file.name)
    root = next((parent for parent in file.absolute().parents if parent.name == "details"), None)
    if name is None or root is None:
        return None
    model = file.absolute().parent.parent.relative_to(root)
    found = root.parent / "results" / model / f"results_{name['date']}.json"
    return found if found.is_file() else None
