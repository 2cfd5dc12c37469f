"""BIG-Bench Hard: 27 subtasks with the chain-of-thought prompts of their authors (no-free-loop, section D.3, figure 6).

The prompts come with the data, ``cot-prompts/<subtask>.txt``, or from the hub's copy, and are no part of this package: their first
line asks that they stay out of training corpora. ``bbh`` is all of it, ``bbh:snarks`` one subtask, ``bbh:snarks,navigate`` two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import answers
from .rows import Row, Source, checked_items, data_path, file_rows, local_file, read_rows
from .values import Grade, Item, Task, TaskError

SUBTASKS = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages", "formal_fallacies",
    "geometric_shapes", "hyperbaton", "logical_deduction_five_objects", "logical_deduction_seven_objects",
    "logical_deduction_three_objects", "movie_recommendation", "multistep_arithmetic_two", "navigate", "object_counting",
    "penguins_in_a_table", "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects", "web_of_lies", "word_sorting",
)  # fmt: skip
FOLDER = "bbh"
HUB = "lukaemon/bbh"
PROMPTS_SOURCE = Source(
    folder=FOLDER,
    hub="Joschka/big_bench_hard",
    config="few_shot_prompts",
    hub_splits={"prompts": "few_shot_prompts"},
    files={"prompts": ("bbh",)},
)
PROMPT = "{examples}\n\nQ: {question}\nA: Let's think step by step."
CANARY_END = "-----\n"

WRONG_GOLDS = ("movie_recommendation/163", "ruin_names/99", "ruin_names/144")
"""Items whose gold in the data is an option's text, cut at a comma, where every other item of their subtasks has a letter. They are kept
as they come, and nobody who answers with a letter gets them right."""

_NEXT_QUESTION = re.compile(r"\n\s*Q:")
_ANSWER = re.compile(r"\banswer is[ \t:*]*", re.IGNORECASE)
_LETTER = re.compile(r"\(([A-Z])\).*|([A-Z])(?:[.:)].*)?", re.DOTALL)
_BETWEEN_BRACKETS = re.compile(r"(?<=[\[\](){}<>])\s+(?=[\[\](){}<>])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def load(data: Path | None, limit: int | None, split: str, *, subtasks: Sequence[str]) -> tuple[Item, ...]:
    """Items of the subtasks in turn, so that a limit takes from all alike.

    From ``bbh/bbh.jsonl`` (``task``, ``input``, ``target``) or ``bbh/<subtask>.jsonl`` each, beside ``bbh/cot-prompts/``; else from
    the hub.
    """
    path = data_path(data)
    if path is not None and path.is_file():
        raise TaskError(f"{path}: {FOLDER} needs its prompts beside its rows; name the folder that holds bbh.jsonl and cot-prompts/")
    each = None if limit is None else -(-limit // len(subtasks))
    prompts = _prompts(path, subtasks)
    columns = [[(_item(row, subtask, n, prompts[subtask]), row) for n, row in rows] for subtask, rows in _rows(path, subtasks, each)]
    longest = max(map(len, columns))
    turns = [column[place] for place in range(longest) for column in columns if place < len(column)]
    return checked_items(turns[:limit])


def _rows(path: Path | None, subtasks: Sequence[str], each: int | None) -> Iterator[tuple[str, list[tuple[int, Row]]]]:
    """The first ``each`` rows of every subtask with their places in it."""
    joined = None
    if path is not None:
        joined = next((file for file in (path / FOLDER / "bbh.jsonl", path / "bbh.jsonl") if file.is_file()), None)
    if joined is not None:
        found: dict[str, list[Row]] = {subtask: [] for subtask in subtasks}
        for row in file_rows(joined):
            name = row.text("task")
            if name not in SUBTASKS:
                raise row.error("task", f"is {name!r}, which is no subtask")
            if name in found:
                found[name].append(row)
        for subtask, rows in found.items():
            if not rows:
                raise TaskError(f"{joined}: has no rows of {subtask}; give the whole data")
            yield subtask, list(enumerate(rows[:each]))
        return
    for subtask in subtasks:
        source = Source(folder=FOLDER, hub=HUB, config=subtask, files={"test": (subtask,)})
        yield subtask, list(enumerate(read_rows(source, "test", path, each)))


def _prompts(path: Path | None, subtasks: Sequence[str]) -> dict[str, str]:
    """The worked examples of each subtask, without the line for crawlers above them."""
    if path is None:
        rows = list(read_rows(PROMPTS_SOURCE, "prompts", None, None))
        texts = {row.text("dataset_name"): row.text("chain_of_thought_prompt") for row in rows}
        if missing := [subtask for subtask in subtasks if subtask not in texts]:
            raise TaskError(f"{PROMPTS_SOURCE.hub}: has no chain-of-thought prompt of {missing[0]}; name a local copy with --data")
    else:
        texts = {name: _prompt_text(local_file(path, [f"{top}cot-prompts/{name}.txt" for top in (f"{FOLDER}/", "")])) for name in subtasks}
    return {subtask: texts[subtask].rpartition(CANARY_END)[2].strip() for subtask in subtasks}


def _prompt_text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TaskError(f"{file}: not UTF-8 text; give the prompt as it was published") from None
    if not text.rpartition(CANARY_END)[2].strip():
        raise TaskError(f"{file}: holds no prompt; give it as it was published")
    return text


def _item(row: Row, subtask: str, place: int, examples: str) -> Item:
    question, target = row.text("input").strip(), row.text("target").strip()
    prompt = PROMPT.format(examples=examples, question=question)
    return Item(name=f"{subtask}/{row.values.get('idx', place)}", prompt=prompt, gold=target, extra={"subtask": subtask})


def grade(item: Item, text: str) -> Grade:
    """What follows the last "the answer is" before the model goes on to a question of its own; a last box where nothing does.

    Letters are compared as letters, everything else as text without regard to case, blanks, a last full stop and markup.
    """
    part = answers.answer_part(text)
    found = None if part is None else answer_of(part)
    if found is None:
        return Grade(correct=False, answer=None, rule="no-answer")
    if re.fullmatch(r"\([A-Z]\)", item.gold):
        letter = _LETTER.fullmatch(found)
        answer = f"({letter[1] or letter[2]})" if letter else found
        return Grade(correct=answer == item.gold, answer=answer, rule="letter")
    return Grade(correct=normal_form(found) == normal_form(item.gold), answer=normal_form(found), rule="text")


def answer_of(part: str) -> str | None:
    """The answer that a text names, without markup; None where it names none."""
    part = _NEXT_QUESTION.split(part, maxsplit=1)[0]
    *_, last = [None, *_ANSWER.finditer(part)]
    line = part[last.end() :].partition("\n")[0] if last else answers.last_box(part)
    plain = re.sub(r"\\(?:text|mathrm|boxed)\s*\{([^{}]*)\}", r"\1", line or "").strip(" \t$*`\"'")
    return plain.rstrip(". ").strip(" $*`\"'")[:LONGEST_ANSWER] or None


LONGEST_ANSWER = 400
"""Characters; the longest gold, a sorted list of words, has 182."""


def normal_form(answer: str) -> str:
    """One text for answers that say the same: no case, blanks single and none between brackets, no commas."""
    words = _THOUSANDS.sub("", answer.casefold()).replace(",", " ").split()
    return _BETWEEN_BRACKETS.sub("", " ".join(words)).rstrip(".")


BBH = Task(
    name="bbh",
    version="1",
    kind="generate",
    budget_tokens=1024,
    reserve_tokens=128,
    answer_opener="\nSo the answer is ",
    from_templates=True,
    loader=partial(load, subtasks=SUBTASKS),
    grader=grade,
)
"""Budget and reserve are guesses: the paper names none; lm-eval takes 1,024 tokens."""


def bbh_of(names: str) -> Task:
    """Some subtasks: ``snarks``, or ``snarks,navigate``.

    Raises:
        TaskError: no such subtask, or text that names none.
    """
    subtasks = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in subtasks:
        if name not in SUBTASKS:
            raise TaskError(f"bbh:{names}: {name!r} is no subtask; they are {', '.join(SUBTASKS)}")
    return replace(BBH, name=f"bbh:{','.join(subtasks)}", loader=partial(load, subtasks=subtasks))
