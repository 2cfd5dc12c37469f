"""GPQA-Diamond: 198 science questions for experts, four options, with reasoning (no-free-loop, section 4.3 and appendix A.4).

Its authors ask that its questions never stand in plain text where a crawler could find them. The task is therefore private: its
rows are read from the authors' archive or streamed from the hub, and live in memory only; records keep the letter that was
found, and an answer's length and hash in place of its text.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from .grading import grade_letter
from .options import LETTERS, lettered
from .rows import Row, Source, checked_items, data_path, local_file, read_rows
from .values import Grade, Item, Task, TaskError

SOURCE = Source(folder="gpqa", hub="Idavidrein/gpqa", config="gpqa_diamond", hub_splits={"test": "train"}, streamed=True)
ARCHIVES = ("gpqa/dataset.zip", "dataset.zip")
CSV_FILE = "gpqa_diamond.csv"
PASSWORD = b"deserted-untie-orchid"
"""Of the archive, as its authors publish it beside it: it keeps crawlers out, not readers."""

PROMPT = "{question}\n\n{options}\n\nPlease reason step by step, and put the letter of your final answer within \\boxed{{}}."
"""The paper's instruction, said of a letter: a guess, for it does not print its own wording for options."""
SEED = 0
"""Of the order of the options: each item's follows from it and the item's name alone."""
FIELDS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """The authors' columns from their archive (``dataset.zip``, kept packed), a CSV or JSONL file of your own, or the hub."""
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(_rows(data, limit, split))])


def _rows(data: Path | None, limit: int | None, split: str) -> Iterator[Row]:
    path = data_path(data)
    if path is None:
        return read_rows(SOURCE, split, None, limit)
    file = local_file(path, (*ARCHIVES, f"gpqa/{CSV_FILE}", CSV_FILE, *SOURCE.file_names(split)))
    if file.suffix == ".zip":
        return islice(_csv_rows(_unpacked(file), f"{file}, {CSV_FILE}"), limit)
    if file.suffix == ".csv":
        return islice(_csv_rows(_decoded(file.read_bytes(), str(file)), str(file)), limit)
    return read_rows(SOURCE, split, file, limit)


def _unpacked(archive: Path) -> str:
    """The table inside the archive, read into memory.

    Raises:
        TaskError: no archive, one without the table, or one with another password.
    """
    try:
        with zipfile.ZipFile(archive) as files:
            name = next((name for name in files.namelist() if Path(name).name == CSV_FILE), None)
            if name is None:
                raise TaskError(f"{archive}: holds no {CSV_FILE}; give the authors' archive")
            return _decoded(files.read(name, pwd=PASSWORD), f"{archive}, {CSV_FILE}")
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise TaskError(f"{archive}: cannot be unpacked ({error}); give the authors' archive as it is") from None


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TaskError(f"{where}: not UTF-8 text; give the authors' table") from None


def _csv_rows(text: str, where: str) -> Iterator[Row]:
    for number, values in enumerate(csv.DictReader(io.StringIO(text, newline="")), 1):
        yield Row(dict(values), f"{where}, row {number}")


def _item(row: Row, position: str) -> Item:
    """No message about a row shows what stands in it."""
    question, *options = (_text(row, field) for field in ("Question", *FIELDS))
    name = str(row.values.get("Record ID") or position)
    order = sorted(range(len(options)), key=lambda place: hashlib.sha256(f"{SEED}/{name}/{place}".encode()).hexdigest())
    choices = tuple(options[place] for place in order)
    prompt = PROMPT.format(question=question, options=lettered(choices))
    return Item(name=name, prompt=prompt, gold=LETTERS[order.index(0)], choices=choices)


def _text(row: Row, field: str) -> str:
    value = row.values.get(field)
    if not isinstance(value, str) or not value.strip():
        raise row.error(field, "is missing or empty; give some text")
    return value.strip()


def grade(item: Item, text: str) -> Grade:
    """The letter in the last box after the thinking, else the last one that the text calls its answer; nothing else is kept of it."""
    return grade_letter(item.gold, text, LETTERS[: len(FIELDS)])


GPQA_DIAMOND = Task(
    name="gpqa_diamond",
    version="1",
    kind="generate",
    budget_tokens=2048,
    thinking_budget_tokens=8192,
    reserve_tokens=512,
    answer_opener="\n\nFinal answer: \\boxed{",
    private=True,
    loader=load,
    grader=grade,
)
"""The budgets are guesses: the paper names none; that of MATH-500, and twice that of thinking-mode GSM8K."""
