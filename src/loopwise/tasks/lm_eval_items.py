"""Items of lm-eval's tasks: contexts and continuations are written by lm-eval from its own configurations, only the rows may be local.

lm-eval is imported inside functions: it is an extra, and takes seconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .log_likelihood_rows import labelled_rows
from .rows import DATA_VARIABLE, data_path, local_file
from .values import Item, TaskError

if TYPE_CHECKING:
    from .log_likelihood import Likelihood

FEWSHOT_SEED = 1234
"""lm-eval's own default: demonstrations are drawn item after item, so that the first items have the same ones under any limit."""


@dataclass(frozen=True, slots=True)
class _Local:
    """Rows of local files, by split, and which splits are used for what."""

    rows: dict[str, list[dict[str, Any]]]
    items_from: str
    demonstrations_from: str | None


def likelihood_items(
    name: str, benchmark: Likelihood, parts: Sequence[str], *, shots: int, data: Path | None, limit: int | None
) -> tuple[Item, ...]:
    """The first ``limit`` items of a benchmark, from all its parts alike, with ``shots`` demonstrations before each.

    Args:
        name: for messages.
        parts: lm-eval's tasks of which the benchmark consists.
        data: a local file or folder; None: ``LOOPWISE_DATA``, then the hub.

    Raises:
        TaskError: lm-eval is not installed, no rows, a damaged one, or too few demonstrations.
    """
    with quiet_lm_eval():
        data = data_path(data)
        local = None if data is None else _read_local(name, benchmark, shots, data, limit)
        shares = _shares(len(parts), limit)
        wanted = {part: share for part, share in zip(parts, shares, strict=True) if share != 0}
        tasks = _lm_eval_tasks(benchmark, list(wanted), shots, local)
        columns = [
            _items(tasks[part], part.removeprefix(f"{name}_") if len(parts) > 1 else None, share, shots, local)
            for part, share in wanted.items()
        ]
    # Parts take turns, as in BIG-Bench Hard: the first items are a mixture.
    turns = [column[place] for place in range(max(map(len, columns))) for column in columns if place < len(column)]
    return _with_names_of_their_own(name, turns)


@contextlib.contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """Without lm-eval's warnings and the bars of ``datasets``; both are as before afterwards.

    Raises:
        TaskError: one of the two is not installed.
    """
    try:
        import datasets
        import lm_eval  # noqa: F401
    except ImportError:
        raise TaskError("tasks of lm-eval need it: pip install 'loopwise[lm-eval]'") from None
    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def _shares(num_parts: int, limit: int | None) -> list[int | None]:
    """How many items each part gives; None is all."""
    if limit is None:
        return [None] * num_parts
    each, further = divmod(limit, num_parts)
    return [each + (place < further) for place in range(num_parts)]


def _read_local(name: str, benchmark: Likelihood, shots: int, data: Path, limit: int | None) -> _Local:
    """The splits of a data folder that stand for those of lm-eval; items are read up to the limit, demonstrations to the end."""
    found = {split: _split_file(benchmark, split, data) for split in (*benchmark.splits, *benchmark.demonstrations)}
    items_from = next((split for split in benchmark.splits if found[split]), None)
    if items_from is None:
        local_file(data, benchmark.source.file_names(benchmark.splits[0]))  # says what is missing
        raise AssertionError("a file that is there was not found")
    demonstrations_from = None
    if shots:
        demonstrations_from = next((split for split in benchmark.demonstrations if found[split]), None)
        if demonstrations_from is None:
            wanted = " or ".join(f"{benchmark.source.folder}/{split}.jsonl" for split in benchmark.demonstrations)
            raise TaskError(f"{data}: holds no {wanted} for the {shots} demonstrations of {name}; add it, or ask without (@0)")
    limits = {items_from: None if benchmark.subtasks else limit} | ({demonstrations_from: None} if demonstrations_from else {})
    rows = {split: _columns(benchmark, file, most) for split, most in limits.items() if (file := found[split]) is not None}
    return _Local(rows, items_from, demonstrations_from)


def _split_file(benchmark: Likelihood, split: str, data: Path) -> Path | None:
    """A split's file; a single file that is named is the split of the items."""
    if not data.is_dir():
        return data if data.is_file() and split == benchmark.splits[0] else None
    return next((data / file for file in benchmark.source.file_names(split) if (data / file).is_file()), None)


def _columns(benchmark: Likelihood, file: Path, most: int | None) -> list[dict[str, Any]]:
    rows = labelled_rows(file)[:most]
    if not rows:
        raise TaskError(f"{file}: holds no rows; give one JSON object a line")
    return [benchmark.columns(row) for row in rows]


def _lm_eval_tasks(benchmark: Likelihood, parts: Sequence[str], shots: int, local: _Local | None) -> dict[str, Any]:
    """lm-eval's own tasks, from its own configurations."""
    import datasets
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks import __file__ as tasks_file

    manager = TaskManager(include_path=str(Path(tasks_file).parent / benchmark.folder), include_defaults=False)
    children = [{"task": part, "num_fewshot": shots} | _source(datasets, benchmark, part, shots, local) for part in parts]
    try:
        tasks: dict[str, Any] = manager.load({"group": "loopwise", "task": children})["tasks"]
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        files = f"{benchmark.source.folder}/{benchmark.splits[0]}.jsonl"
        raise TaskError(
            f"{benchmark.source.hub}: cannot be had from the hub ({reason}); "
            f"name a local copy with --data or {DATA_VARIABLE} (a folder with {files})"
        ) from None
    return tasks


def _source(datasets: Any, benchmark: Likelihood, part: str, shots: int, local: _Local | None) -> dict[str, Any]:
    """What takes the place of the hub in a configuration, and nothing else of it."""
    if local is None:
        return {}
    of_part = part.removeprefix("mmlu_") if benchmark.subtasks else None
    chosen = {split: [row for row in rows if of_part is None or row["subject"] == of_part] for split, rows in local.rows.items()}
    if missing := next((split for split, rows in chosen.items() if not rows), None):
        raise TaskError(f"{benchmark.source.folder}/{missing}.jsonl: has no rows of {of_part}; give the whole data")
    if local.demonstrations_from is not None:
        # lm-eval draws one more where the item itself could be among them.
        there, needed = len(chosen[local.demonstrations_from]), shots + (local.demonstrations_from == local.items_from)
        if there < needed:
            where = f"{benchmark.source.folder}/{local.demonstrations_from}.jsonl"
            raise TaskError(f"{where}: {shots} demonstrations of {part} need {needed} rows, and it has {there}; ask with fewer")
    splits = {kind: kind if kind in chosen else None for kind in ("validation", "test")}

    def dataset(**_: Any) -> Any:  # a function, because lm-eval copies its configurations deeply, and rows need no copies
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in chosen.items()})

    return {
        "custom_dataset": dataset,
        "training_split": "train" if local.demonstrations_from == "train" else None,
        "validation_split": splits["validation"],
        "test_split": splits["test"],
        "fewshot_split": "dev" if local.demonstrations_from == "dev" else None,
    }


def _items(task: Any, subtask: str | None, limit: int | None, shots: int, local: _Local | None) -> list[Item]:
    """One lm-eval task's items, asked as its own loop over requests asks them."""
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    items_from = local.items_from if local else task.config.test_split or task.config.validation_split
    extra = {
        "items_from": items_from,
        "demonstrations_from": (local.demonstrations_from if local else _demonstrations(task)) if shots else None,
    } | ({"subtask": subtask} if subtask else {})
    found = []
    for place, doc in islice(task.doc_iterator(), limit):
        context = task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
        built = task.construct_requests(doc=doc, ctx=context, metadata=(task.config.task, place, 1))
        name = f"{subtask}/{place}" if subtask else str(doc.get("id") or f"{items_from}/{place}")
        found.append(_item(task, doc, name, extra, [one.args for one in (built if isinstance(built, list) else [built])]))
    return found


def _item(task: Any, doc: dict[str, Any], name: str, extra: dict[str, Any], requests: Sequence[tuple[str, str]]) -> Item:
    from .log_likelihood import option_name

    if any(not context or not continuation for context, continuation in requests):
        raise TaskError(f"{task.config.task}, item {name}: a context or a continuation is empty; its row is damaged")
    values: dict[str, Any] = {"name": name, "prompt": requests[0][0], "requests": tuple(requests), "extra": extra}
    if task.OUTPUT_TYPE == "loglikelihood":
        return Item(gold=requests[0][1].strip(), **values)
    choices = tuple(task.doc_to_choice(doc))
    gold = (task.doc_to_text if task.multiple_input else task.doc_to_target)(doc)
    if not isinstance(gold, int) or not 0 <= gold < len(choices) or len(requests) != len(choices):
        raise TaskError(f"{task.config.task}, item {name}: the gold {gold!r} is none of its {len(choices)} options; its row is damaged")
    return Item(gold=option_name(gold), choices=choices, **values)


def _demonstrations(task: Any) -> str:
    return str(task.config.fewshot_split or task.config.training_split or task.config.validation_split)


def _with_names_of_their_own(name: str, items: Sequence[Item]) -> tuple[Item, ...]:
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise TaskError(f"{name}: two items are named {item.name!r}; items need names of their own")
        seen.add(item.name)
    if not items:
        raise TaskError(f"{name}: there are no items; give rows")
    return tuple(items)
