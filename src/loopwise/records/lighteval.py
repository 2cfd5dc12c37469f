"""The per-item files of lighteval (``--save-details``): ``details_TASK_DATE.parquet``, a row for each document.

A row has three columns: ``doc`` (``id``, ``query``, ``choices``, ``gold_index``, ``task_name``, ``sampling_methods``), ``metric`` (a value
under each metric's name) and ``model_response`` (``text`` and ``output_tokens``: one for each answer that was generated,
``input_tokens``). A task with metrics of written answers and of scored choices has two rows for each document, with the metrics of one
kind each. Where answers were generated their tokens are counted, without the padding of their batch; FLOPs are not there.
``results/MODEL/results_DATE.json``, in the folder that also holds ``details/``, says the tasks' versions, and up to lighteval 0.10 how many
documents were evaluated (read with lighteval 0.13.0).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

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
    documents: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for n, row in enumerate(rows):
        own = _text(row["doc"].get("task_name")) or choice.task  # what lighteval's own results call it
        if own is None:
            raise RecordsError(f"{file}: its rows hold no task_name; give --task-name")
        documents.setdefault((own, _text(row["doc"].get("id")) or str(n)), []).append(row)
    metrics = [_metrics(document, item, choice.task or own, file) for (own, item), document in documents.items()]
    metric = choose_metric(metrics, [item for _, item in documents], choice, str(file))
    facts = _run_facts(file)
    padding = _padding(rows, facts)
    records = []
    for (own, item), document in documents.items():
        row = next(row for row in document if row["metric"].get(metric) is not None)
        records.append(_record(row, choice.task or own, item, metric, choice, padding, facts.version(own), file))
    _check_all_there(file, documents, facts)
    return adopt(records, choice)


def _metrics(document: list[dict[str, Any]], item: str, task: str, file: Path) -> dict[str, Any]:
    """A document's metrics over its rows, one for each way in which it was asked.

    Raises:
        RecordsError: two rows of one way.
    """
    found: dict[str, Any] = {}
    for row in document:
        # A struct column holds every metric of any row: null is a metric that this row does not have.
        own = {name: value for name, value in row["metric"].items() if value is not None}
        if len(document) > 1 and (not own or own.keys() & found.keys()):
            raise RecordsError(f"{file}: document {item!r} of {task} is there twice; two runs were written into one file, keep one of them")
        found |= own
    return found


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


def _record(
    row: dict[str, Any], task: str, item: str, metric: str, choice: ResultsChoice, padding: _Padding, version: str | None, file: Path
) -> Record:
    doc, response = row["doc"], row["model_response"]
    values: dict[str, Any] = {
        "task": task,
        "item": item,
        "seed": choice.seed or 0,
        "sample": 0,
        "correct": bool(row["metric"][metric]),
        # The question's hash stands in the reference answer, which two arms must share: an equal number alone is no equal question.
        "gold": f"{_gold(doc)} (question {_digest(str(doc.get('query')))[:12]})",
        "rule": metric,
    }
    prompt = _prompt(response, padding)
    values |= {} if prompt is None else {"prompt_hash": _digest(prompt)}
    values |= {} if version is None else {"task_version": version}
    return record_from(values | _tokens(doc, response, item, padding, file), f"{file}, item {item!r}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _gold(doc: dict[str, Any]) -> str:
    index, choices = doc.get("gold_index"), doc.get("choices") or []
    listed = index if isinstance(index, list) else [index]
    return ", ".join(str(choices[n]) for n in listed if isinstance(n, int) and 0 <= n < len(choices))


@dataclass(frozen=True, slots=True)
class _Padding:
    """What a file tells of the padding of its batches: lighteval keeps it among the tokens."""

    token: int | None
    """The one that prompts and answers were filled up with, which also ends answers; None: no prompt was filled up."""
    none: bool
    """Whether no answer can have been filled up."""


def _padding(rows: list[dict[str, Any]], facts: _RunFacts) -> _Padding:
    """From prompts that say that they were padded; else answers are whole if each was a batch of its own, or none ends in a token twice."""
    tokens = set()
    for response in (row["model_response"] for row in rows):
        count, prompt = response.get("padded_tokens_count"), response.get("input_tokens")
        if _is_count(count) and count and _is_tokens(prompt):
            tokens |= set(prompt[:count])
    answers = [answer for row in rows if _is_written(row) for answer in row["model_response"]["output_tokens"] if _is_tokens(answer)]
    doubled = any(len(answer) > 1 and answer[-1] == answer[-2] for answer in answers)
    return _Padding(tokens.pop() if len(tokens) == 1 else None, not tokens and (facts.batch_size == 1 or not doubled))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_tokens(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)


def _is_written(row: dict[str, Any]) -> bool:
    """Whether a row holds an answer that was generated, and not choices that were scored."""
    methods = [str(one).rpartition(".")[2] for one in row["doc"].get("sampling_methods") or []]
    response = row["model_response"]
    return "GENERATIVE" in methods and bool(response.get("text")) and isinstance(response.get("output_tokens"), list)


def _prompt(response: dict[str, Any], padding: _Padding) -> str | None:
    """What the model was asked, as text: its tokens without padding, else the text itself; None where neither is there."""
    tokens, count = response.get("input_tokens"), response.get("padded_tokens_count")
    if _is_tokens(tokens):
        own = tokens[count if _is_count(count) else 0 :]
        return " ".join(str(token) for token in _unpadded(own, padding))
    return str(response["input"]) if response.get("input") else None


def _unpadded(tokens: list[int], padding: _Padding) -> list[int]:
    """Tokens without what fills them up at their end: the padding, or -1 where several processes were gathered."""
    stop = len(tokens)
    while stop and tokens[stop - 1] in (padding.token, -1):
        stop -= 1
    return tokens[:stop]


def _tokens(doc: dict[str, Any], response: dict[str, Any], item: str, padding: _Padding, file: Path) -> dict[str, int]:
    """Tokens of a generated answer; choices that were only scored generated none that anybody counted."""
    if not _is_written({"doc": doc, "model_response": response}) or not response["output_tokens"]:
        return {}
    outputs, inputs = response["output_tokens"], response.get("input_tokens")
    if len(outputs) > 1:
        raise RecordsError(
            f"{file}: item {item!r} has {len(outputs)} answers and one grade; evaluate with one sample, or write each answer as a CSV row"
        )
    known = {}
    if _is_tokens(outputs[0]) and (padding.none or padding.token is not None):
        length = len(_unpadded(outputs[0], padding))
        known["generated_tokens"] = length + (outputs[0][length : length + 1] == [padding.token])  # what pads also ends an answer
    if _is_tokens(inputs):
        count = response.get("padded_tokens_count")
        known["prompt_tokens"] = len(_unpadded(inputs[count if _is_count(count) else 0 :], padding))
    return known


@dataclass(frozen=True, slots=True)
class _RunFacts:
    """What a run's aggregated results say of it; empty where these are not there."""

    num_documents: dict[str, int]
    """By task; lighteval counts them no more since 0.11."""
    versions: dict[str, str]
    batch_size: int | None

    def version(self, task: str) -> str | None:
        """Of a task."""
        return self.versions.get(_plain(task))


def _plain(task: str) -> str:
    return task.replace(":", "|")


def _run_facts(file: Path) -> _RunFacts:
    results = _results_file(file)
    if results is None:
        return _RunFacts({}, {}, None)
    try:
        values = json.loads(results.read_text(encoding="utf-8"))
        tasks = {_plain(str(name)): one for name, one in values["config_tasks"].items() if isinstance(one, dict)}
        counts = {name: one.get("effective_num_docs") for name, one in tasks.items()}
        versions = {name: one.get("version") for name, one in tasks.items()}
        general = values.get("config_general", {})
        batch_size = general.get("model_config", {}).get("batch_size") if isinstance(general.get("model_config", {}), dict) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RecordsError(f"{results}: damaged; it says what {file.name} must hold: repeat the run, or move it away") from None
    return _RunFacts(
        {name: count for name, count in counts.items() if _is_count(count)},
        {name: str(version) for name, version in versions.items() if isinstance(version, int | float | str)},
        batch_size if _is_count(batch_size) else None,
    )


def _check_all_there(file: Path, documents: Collection[tuple[str, str]], facts: _RunFacts) -> None:
    """Against the number of documents that were evaluated, where that is known."""
    for task in sorted({task for task, _ in documents}):
        there, wanted = sum(one == task for one, _ in documents), facts.num_documents.get(_plain(task))
        if wanted is not None and there != wanted:
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
