"""Rows of local files as the columns that lm-eval's own configurations read: nothing is stripped, so prompts are as with the hub's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .options import LETTERS
from .rows import Row, file_rows
from .values import TaskError

Columns = dict[str, Any]


def science(row: Row, question: str = "question") -> Columns:
    """ARC and OpenBookQA: the hub's ``choices`` (text, label) and ``answerKey``, or a list of choices and the position ``gold``.

    Raises:
        TaskError: a field that is missing, or a gold that is none of the choices.
    """
    asked = row.text(question if question in row.values else "question")
    choices = row.values.get("choices")
    if isinstance(choices, dict):
        texts, labels, key = _texts(row, "choices", choices.get("text")), choices.get("label"), row.text("answerKey")
        if not isinstance(labels, list) or len(labels) != len(texts) or key.strip() not in labels:
            raise row.error("answerKey", f"is {key!r}, which is none of the labels {labels!r}")
        return _named(row, {question: asked, "choices": {"text": texts, "label": labels}, "answerKey": key})
    texts = _texts(row, "choices", choices)
    gold = _position(row, "gold", len(texts))
    labels = list(LETTERS[: len(texts)])
    return _named(row, {question: asked, "choices": {"text": texts, "label": labels}, "answerKey": labels[gold]})


def open_book(row: Row) -> Columns:
    """OpenBookQA, whose question the hub calls ``question_stem``."""
    return science(row, "question_stem")


def hellaswag(row: Row) -> Columns:
    """``activity_label``, ``ctx_a``, ``ctx_b`` (may be empty), four ``endings`` and ``label``."""
    endings = _texts(row, "endings", row.values.get("endings"))
    fields = {name: _string(row, name) for name in ("activity_label", "ctx_a", "ctx_b")}
    return fields | {"endings": endings, "label": str(_position(row, "label", len(endings)))}


def winogrande(row: Row) -> Columns:
    """``sentence`` with one blank ``_``, ``option1``, ``option2``, and ``answer``, 1 or 2."""
    sentence = row.text("sentence")
    if "_" not in sentence:
        raise row.error("sentence", f"is {sentence[:40]!r}, without a blank _; give the sentence with its blank")
    answer = str(row.values.get("answer"))
    if answer not in ("1", "2"):
        raise row.error("answer", f"is {answer!r}; give 1 or 2")
    return {"sentence": sentence, "option1": row.text("option1"), "option2": row.text("option2"), "answer": answer}


def piqa(row: Row) -> Columns:
    """``goal``, ``sol1``, ``sol2``, and ``label``, which its authors keep in a file of its own."""
    return {name: row.text(name) for name in ("goal", "sol1", "sol2")} | {"label": _position(row, "label", 2)}


def race(row: Row) -> Columns:
    """``article`` and ``problems``: a list of problems with ``question``, ``options`` and ``answer``, or its text, as on the hub."""
    problems = row.values.get("problems")
    if isinstance(problems, list):
        problems = repr(problems)
    if not isinstance(problems, str) or not problems.startswith("[{"):
        raise row.error("problems", f"is {str(problems)[:40]!r}; give a list of problems with question, options and answer")
    return {"article": row.text("article"), "problems": problems}


def sciq(row: Row) -> Columns:
    """``question``, ``correct_answer``, three distractors, and ``support``, which may be empty."""
    names = ("question", "correct_answer", "distractor1", "distractor2", "distractor3")
    return {name: row.text(name) for name in names} | {"support": _string(row, "support")}


def lambada(row: Row) -> Columns:
    """``text``, whose last word is to be predicted."""
    text = row.text("text")
    context, _, word = text.rpartition(" ")
    if not context.strip() or not word:
        raise row.error("text", f"is {text[-40:]!r}; give a text of several words that ends in the one to predict")
    return {"text": text}


def mmlu(row: Row) -> Columns:
    """``question``, ``subject``, four ``choices`` and the position ``answer``."""
    choices = _texts(row, "choices", row.values.get("choices"))
    if len(choices) != 4:
        raise row.error("choices", f"has {len(choices)} options; give 4")
    return {
        "question": row.text("question"),
        "subject": row.text("subject"),
        "choices": choices,
        "answer": _position(row, "answer", len(choices)),
    }


def labelled_rows(file: Path) -> list[Row]:
    """The rows of a file, each with the ``label`` on its line of ``<file>-labels.lst`` where that file stands beside it.

    Raises:
        TaskError: as many labels as rows are needed.
    """
    rows = list(file_rows(file))
    labels = file.with_name(f"{file.name.partition('.')[0]}-labels.lst")
    if not labels.is_file():
        return rows
    lines = labels.read_text(encoding="utf-8").split()
    if len(lines) != len(rows):
        raise TaskError(f"{labels}: holds {len(lines)} labels for the {len(rows)} rows of {file.name}; give one a row")
    return [Row(row.values | {"label": label}, row.where) for row, label in zip(rows, lines, strict=True)]


def _named(row: Row, columns: Columns) -> Columns:
    """The columns with the row's own identifier, where it has one."""
    return columns | ({"id": str(row.values["id"])} if row.values.get("id") is not None else {})


def _string(row: Row, field: str) -> str:
    value = row.values.get(field)
    if not isinstance(value, str):
        raise row.error(field, "is missing" if field not in row.values else f"is {value!r}; give a text")
    return value


def _texts(row: Row, field: str, texts: object) -> list[str]:
    if not isinstance(texts, list) or not 2 <= len(texts) <= len(LETTERS) or not all(isinstance(one, str) and one for one in texts):
        shown = str(row.values.get(field))[:40]
        raise row.error(field, f"is {shown!r}; give 2 to {len(LETTERS)} option texts" if row.values.get(field) else "is missing")
    return list(texts)


def _position(row: Row, field: str, num_options: int) -> int:
    """A position among the options, as a number or in digits."""
    value = row.values.get(field)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_options:
        what = f"is {value!r}; give the position of one of the {num_options} options"
        raise row.error(field, what if field in row.values else "is missing")
    return value
