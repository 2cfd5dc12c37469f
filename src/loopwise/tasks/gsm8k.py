"""GSM8K: grade-school word problems (no-free-loop, appendix A.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .grading import grade_number
from .latex import cleaned, exact_number
from .rows import Row, Source, checked_items, read_rows
from .values import Grade, Item, Task

SOURCE = Source(folder="gsm8k", hub="openai/gsm8k", config="main")
PROMPT = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
GOLD_MARK = "####"


def load(data: Path | None, limit: int | None, split: str) -> tuple[Item, ...]:
    """Rows with ``question`` and ``answer``, whose gold stands after ``####``."""
    return checked_items([(_item(row, f"{split}/{n}"), row) for n, row in enumerate(read_rows(SOURCE, split, data, limit))])


def _item(row: Row, position: str) -> Item:
    question, answer = row.text("question"), row.text("answer")
    solution, mark, gold = answer.rpartition(GOLD_MARK)
    number = exact_number(cleaned(gold))
    if not mark or number is None:
        raise row.error("answer", f"ends in {answer[-20:]!r}; give a solution and the gold number after {GOLD_MARK}")
    name = str(row.values.get("id", position))
    prompt = PROMPT.format(question=question.strip())
    return Item(name=name, prompt=prompt, gold=str(number.value), extra={"solution": solution.strip()})


def grade(item: Item, text: str) -> Grade:
    """The last box after the thinking, else the last number, against the gold number."""
    return grade_number(item.gold, text)


GSM8K = Task(
    name="gsm8k",
    version="1",
    kind="generate",
    budget_tokens=768,
    thinking_budget_tokens=4096,
    reserve_tokens=512,
    answer_opener="\n\nFinal answer: \\boxed{",
    splits=("test", "train"),
    loader=load,
    grader=grade,
)

GSM8K_THINKING = replace(GSM8K, name="gsm8k_thinking", thinking=True, budget_tokens=4096)
"""Thinking-mode GSM8K: the same items and grading with the template's thinking, at its own budget (no-free-loop, A.4 and Table 11)."""
