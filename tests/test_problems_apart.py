"""Training problems are kept apart from what is evaluated, the tasks' own test items among it."""

from __future__ import annotations

import json
from pathlib import Path

from loopwise.data import ItemIndex
from loopwise.recipes.evaluation_items import items_apart_from, keep_apart
from loopwise.recipes.learning_problems import training_problems
from loopwise.tasks import task_named

LONG = "Mara has seven red boxes with nine green marbles in each box and gives four of them away today."
SHORT = "What is 2+2 in base ten?"
OWN = "Tom runs three miles."


def write(file: Path, questions: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"question": question, "answer": "so #### 4"}) + "\n" for question in questions))


def test_choosing_what_else_to_keep_apart_from_leaves_the_own_test_items_in(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k" / "train.jsonl", [LONG, SHORT, OWN])
    write(tmp_path / "gsm8k" / "test.jsonl", [LONG, SHORT])
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"question": "Nothing of the kind is asked here, whatever anybody may say about it at all."}) + "\n")
    task = task_named("gsm8k")
    problems = task.load(tmp_path, None, "train")
    for against in ((), (str(other),)):
        items, _ = items_apart_from([task], against or ("gsm8k",), tmp_path)
        kept, benchmarks = keep_apart(problems, ItemIndex(items), items)
        assert [OWN in item.prompt for item in kept] == [True] and benchmarks == {"gsm8k"}
    assert len(keep_apart(problems, ItemIndex(()), items_apart_from([task], ("none",), tmp_path)[0])[0]) == 3
    told: list[str] = []
    found = training_problems(["gsm8k"], against=(str(other),), data=tmp_path, note=told.append)
    assert len(found.problems) == 1 and "2 of 3 problems of gsm8k refused: they overlap with gsm8k" in told[0]
