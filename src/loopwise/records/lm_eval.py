"""The per-item files of lm-eval (``--log_samples``): ``samples_TASK_DATE.jsonl``, one line for each document and filter.

A line holds ``doc_id``, ``doc``, ``target``, ``filter``, the names of its ``metrics`` and a value under each name, and hashes of
document and prompt. It holds no counts of tokens and no costs. Beside it lies ``results_DATE.json``, which says how many documents were
evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .choices import ResultsChoice, adopt, choose_metric
from .runs import Record, RecordsError

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>[^_]+)\.jsonl")
_FIXED = frozenset(
    ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash", "target_hash")
)
_NO_FILTER = "none"
"""What lm-eval calls the filter that changes nothing; older versions leave the name out."""


@dataclass(frozen=True, slots=True)
class _Sample:
    doc_id: int
    filter: str
    metrics: dict[str, Any]
    target: str
    doc_hash: str | None
    prompt_hash: str | None


def is_sample(values: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a line of such a file."""
    return "doc_id" in values and "filtered_resps" in values and "item" not in values


def read_samples(file: Path, choice: ResultsChoice) -> tuple[Record, ...]:
    """The answers to one task.

    Raises:
        RecordsError: a damaged line, a file without its task's name, several filters or metrics with none chosen, a document that is
            there twice, or fewer documents than were evaluated.
    """
    name = _NAME.fullmatch(file.name)
    own = name["task"] if name else choice.task  # what lm-eval's own results call it, whatever it is called here
    task = choice.task or own
    if own is None or task is None:
        raise RecordsError(f"{file}: its name holds no task; keep lm-eval's own samples_TASK_DATE.jsonl, or give --task-name")
    samples = _of_filter(list(_samples(file)), choice, file)
    metric = choose_metric([one.metrics for one in samples], [str(one.doc_id) for one in samples], choice, str(file))
    seen: set[int] = set()
    for one in samples:
        if one.doc_id in seen:
            raise RecordsError(f"{file}: document {one.doc_id} is there twice; two runs were written into one file, keep one of them")
        seen.add(one.doc_id)
    results = _results(file, name["date"] if name else None)
    _check_all_there(file, own, seen, results)
    return adopt([_record(one, task, metric, choice, _facts(own, results)) for one in samples], choice)


def _samples(file: Path) -> Iterator[_Sample]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RecordsError(f"{file}: not UTF-8 text; lm-eval writes JSON lines") from None
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _sample(line, f"{file}, line {n}")


def _sample(line: str, where: str) -> _Sample:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordsError(f"{where}: not a JSON object ({line[:40]!r}...): the file is damaged or was cut; repeat its run") from None
    if not isinstance(values, dict) or not is_sample(values):
        raise RecordsError(f"{where}: no sample of lm-eval: it has no doc_id and filtered_resps")
    doc_id = values["doc_id"]
    if isinstance(doc_id, bool) or not isinstance(doc_id, int) or doc_id < 0:
        raise RecordsError(f"{where}: doc_id is {str(doc_id)[:40]!r}; give a whole number from 0")
    named = values.get("metrics")
    names = [str(one) for one in named] if isinstance(named, list) else [key for key in values if key not in _FIXED]
    return _Sample(
        doc_id,
        str(values.get("filter", _NO_FILTER)),
        {one: values[one] for one in names if one in values},
        str(values.get("target")),
        _text(values.get("doc_hash")),
        _text(values.get("prompt_hash")),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _of_filter(samples: list[_Sample], choice: ResultsChoice, file: Path) -> list[_Sample]:
    found = list(dict.fromkeys(one.filter for one in samples))
    if not found:
        raise RecordsError(f"{file}: holds no records")
    wanted = next((name for name in choice.filters if name in found), None)
    if choice.filters and wanted is None:
        raise RecordsError(f"{file}: has no filter {' or '.join(choice.filters)}; its filters are {', '.join(found)}")
    if wanted is None and len(found) > 1:
        raise RecordsError(f"{file}: every answer was read by {' and '.join(found)}; choose one with --filter, e.g. --filter {found[0]}")
    return [one for one in samples if one.filter == (wanted or found[0])]


def _results(file: Path, date: str | None) -> dict[str, Any]:
    """The aggregated results of the same run; empty where they are not there."""
    for beside in [] if date is None else sorted(file.parent.glob(f"*_{date}.json")):
        try:
            values = json.loads(beside.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise RecordsError(
                f"{beside}: damaged; it says how many items {file.name} must hold: repeat the run, or move it away"
            ) from None
        if isinstance(values, dict) and isinstance(values.get("n-samples"), dict):
            return values
    return {}


def _check_all_there(file: Path, task: str, doc_ids: set[int], results: dict[str, Any]) -> None:
    counts = results.get("n-samples", {}).get(task)
    expected = counts.get("effective") if isinstance(counts, dict) else None
    if isinstance(expected, int):
        if len(doc_ids) != expected:
            raise RecordsError(
                f"{file}: holds {len(doc_ids)} of the {expected} items that were evaluated; a run must cover all of its items"
            )
        return
    missing = next((n for n in range(max(doc_ids)) if n not in doc_ids), None)
    if missing is not None:
        raise RecordsError(
            f"{file}: document {missing} of 0 to {max(doc_ids)} is missing; a run must cover all of its items (if only some were chosen, "
            "put lm-eval's results_DATE.json beside it, which says how many)"
        )


def _facts(task: str, results: dict[str, Any]) -> dict[str, Any]:
    """What the aggregated results say of the task and the model."""
    facts: dict[str, Any] = {}
    versions, config = results.get("versions"), results.get("config")
    if isinstance(versions, dict) and isinstance(versions.get(task), str | int | float):
        facts["task_version"] = str(versions[task])
    parameters = config.get("model_num_parameters") if isinstance(config, dict) else None
    if isinstance(parameters, int) and not isinstance(parameters, bool) and parameters > 0:
        facts["num_parameters"] = parameters
    return facts


def _record(one: _Sample, task: str, metric: str, choice: ResultsChoice, facts: dict[str, Any]) -> Record:
    # The document's hash stands in the reference answer, which two arms must share: an equal number alone is no equal question.
    gold = one.target if one.doc_hash is None else f"{one.target} (document {one.doc_hash[:12]})"
    prompt = {} if one.prompt_hash is None else {"prompt_hash": one.prompt_hash}
    return Record(
        task=task,
        item=str(one.doc_id),
        seed=choice.seed or 0,
        sample=0,
        correct=bool(one.metrics[metric]),
        gold=gold,
        rule=f"{metric}, {one.filter}",
        extra=facts | prompt,
    )
