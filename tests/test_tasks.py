"""Items: the procedural ladder, real rows in every layout, and what is said of rows that cannot be used."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data import data_dir
from loopwise.tasks import RULES, TASKS, Task, TaskError, ladder, problems, task_named, worked_text
from loopwise.tasks.values import Item

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
EVERY_RUNG = range(len(problems.RUNGS))


# What the tasks are


def test_budgets_and_reserves_are_the_papers():
    budgets = {name: (task.budget_tokens, task.thinking_budget_tokens, task.reserve_tokens, task.kind) for name, task in TASKS.items()}
    assert budgets == {
        "ladder": (128, None, 8, "generate"),
        "gsm8k": (768, 4096, 512, "generate"),
        "gsm8k_thinking": (4096, 4096, 512, "generate"),
        "math500": (2048, None, 512, "generate"),
        "math": (2048, None, 512, "generate"),
        "aime24": (8192, 16384, 512, "generate"),
        "aime25": (8192, 16384, 512, "generate"),
        "gpqa_diamond": (2048, 8192, 512, "generate"),
        "bbh": (1024, None, 128, "generate"),
        "bfcl_v3": (1024, 4096, 512, "generate"),
        "humaneval": (1024, None, 512, "generate"),
        "mbpp": (1024, None, 512, "generate"),
        "arc_challenge": (1, None, 0, "letters"),
        "commonsense_qa": (1, None, 0, "letters"),
        "mmlu_pro": (1, None, 0, "letters"),
    }
    assert all(name == task.name for name, task in TASKS.items())


def test_unknown_names_are_refused_in_one_line():
    with pytest.raises(TaskError, match=r"^no task is named 'gsm9k'; tasks are ladder, gsm8k, .*; parts are chosen as in ladder:2-4, .*$"):
        task_named("gsm9k")
    for name in ("ladder:", "ladder:10", "ladder:4-2", "ladder:x", "ladder:0-"):
        with pytest.raises(TaskError, match=r"names no rungs; they are 0 to 9"):
            task_named(name)
    with pytest.raises(TaskError, match=r"^task math500 has no split 'train'; its splits are test$"):
        task_named("math500").load(split="train")
    with pytest.raises(TaskError, match=r"^limit is 0; give at least 1 item"):
        task_named("ladder").load(limit=0)


# The ladder


def test_any_number_of_items_mixes_the_rungs_evenly():
    items = task_named("ladder").load()
    assert [item.extra["rung"] for item in items] == list(ladder.LOWER_RUNGS) * ladder.ITEMS_PER_RUNG
    assert task_named("ladder").load(limit=7) == items[:7]
    assert {item.extra["rung"] for item in task_named("ladder:2-4").load()} == {2, 3, 4}
    assert [item.extra["rung"] for item in task_named("ladder:7,0").load(limit=4)] == [7, 0, 7, 0]
    assert task_named("ladder:2-4").name == "ladder:2-4"


def test_an_item_depends_on_seed_rung_and_index_alone():
    assert task_named("ladder:1").load(limit=5) == task_named("ladder:0-2").load(limit=15)[1::3]
    for rung in EVERY_RUNG:
        assert problems.problems(0, rung, "test", 20) == problems.problems(0, rung, "test", 60)[:20]
        assert problems.problems(0, rung, "test", 20) != problems.problems(1, rung, "test", 20)


def test_the_test_items_are_the_published_ones():
    """Written down, so that no change of Python or of the generator moves them unseen; a new version of the task may."""
    items = [(item.name, item.prompt.partition("\n")[0], item.gold) for item in task_named("ladder:0-9").load(limit=200)]
    assert tuple(items[:4]) == PUBLISHED
    assert hashlib.sha256(repr(items).encode()).hexdigest() == PUBLISHED_SHA256


def test_the_test_items_are_equal_in_a_process_with_another_hash_seed():
    code = "from loopwise.tasks import task_named; print([i.prompt for i in task_named('ladder:0-9').load(limit=50)])"
    source = str(Path(ladder.__file__).parents[2])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("rung", EVERY_RUNG)
def test_names_and_questions_are_unique_and_answers_fit(rung: int):
    items = task_named(f"ladder:{rung}").load(limit=150)
    assert len({item.name for item in items}) == len({item.prompt for item in items}) == 150
    for item in items:
        assert 0 <= int(item.gold) <= problems.LARGEST_VALUE
        assert task_named("ladder").grade(item, f"The answer is {item.gold}.").correct
        assert not task_named("ladder").grade(item, f"The answer is {int(item.gold) + 1}.").correct


@pytest.mark.parametrize("rung", EVERY_RUNG)
def test_no_calculation_is_shared_by_test_and_train_whatever_the_seed(rung: int):
    num_train = 15 if rung in (0, 1, 2) else 60
    test = {_calculation(problem) for seed in range(5) for problem in problems.problems(seed, rung, "test", 60)}
    train = {_calculation(problem) for seed in range(5) for problem in problems.problems(seed, rung, "train", num_train)}
    assert test and train and not test & train


def _calculation(problem: problems.Problem) -> tuple[str, ...]:
    return tuple(sorted(problem.key.split()))


@pytest.mark.parametrize("rung", EVERY_RUNG)
def test_the_written_out_calculations_are_right(rung: int):
    for problem in problems.problems(3, rung, "test", 80):
        for step in problem.steps:
            left, right = step.split(" = ")
            assert re.fullmatch(r"\d+ [-+*/] \d+", left) and eval(left) == int(right), problem
        assert problem.steps[-1].endswith(f"= {problem.answer}")


@pytest.mark.parametrize("rung", EVERY_RUNG)
def test_the_answers_are_those_of_the_questions(rung: int):
    """Read back from the question's text, not from the generator's own calculation."""
    for problem in problems.problems(4, rung, "test", 80):
        assert _solve(problem.question) == problem.answer, problem


def _solve(question: str) -> int:
    if remainder := re.fullmatch(r"What is the remainder when (\d+) \* (\d+) is divided by (\d+)\?", question):
        a, b, c = map(int, remainder.groups())
        return a * b % c
    if question.startswith("What is "):
        text = re.sub(r"the (sum|product) of (\d+) and (\d+)", lambda m: f"{m[2]} {'+' if m[1] == 'sum' else '*'} {m[3]}", question[8:-1])
        return eval(text.replace("plus", "+").replace("minus", "-").replace("times", "*"))
    first, *events, _ = re.split(r"(?<=[.?]) ", question)
    value = int(re.search(r"\d+", first)[0])
    for event in events:
        numbers = [int(n) for n in re.findall(r"\d+", event)]
        if "in each" in event:
            value += numbers[0] * numbers[1]
        elif "as many" in event:
            value *= 2
        elif "equal piles" in event:
            assert value % numbers[0] == 0
            value -= value // numbers[0]
        elif re.search(r"buys|finds|gives \w+ \d+ more", event):
            value += numbers[0]
        else:
            assert re.search(r"gives \d+ to|loses|sells", event), event
            value -= numbers[0]
    return value


def test_a_small_rung_says_when_it_has_no_more_questions():
    with pytest.raises(TaskError, match=r"^rung 0 \(sums of numbers below 10\) has \d+ test questions; take fewer items or more rungs$"):
        task_named("ladder:0").load(limit=500)
    assert len({problem.key for problem in problems.problems(0, 0, "test", 60)}) == 60, "other wordings only when no sum is left"


def test_worked_text_asks_nothing_that_the_test_asks():
    documents = worked_text(0, 30)
    assert len(documents) == 30 and documents == worked_text(0, 30) and documents[:5] == worked_text(0, 5) != worked_text(1, 5)
    asked = set(re.findall(r"^Question: (.*)$", "\n".join(documents), flags=re.MULTILINE))
    assert len(asked) > 120
    for seed in range(3):
        for rung in EVERY_RUNG:
            assert not asked & {problem.question for problem in problems.problems(seed, rung, "test", 150)}
    assert all(re.search(r"The answer is \d+\.$", document) for document in documents)


def test_the_opener_and_four_digits_fit_the_reserve():
    """SmolLM2's tokenizer splits numbers into digits and gives this opener four tokens."""
    from tokenizers import Tokenizer

    from loopwise.models.embedded import embedded_model, gguf_file
    from loopwise.models.families import ModelError

    try:
        gguf_file()
    except ModelError as error:
        pytest.skip(str(error))
    tokenizer = Tokenizer.from_file(str(embedded_model() / "tokenizer.json"))
    opener = task_named("ladder").answer_opener
    assert len(tokenizer.encode(opener, add_special_tokens=False).ids) == 4
    longest = tokenizer.encode(f"{opener}{problems.LARGEST_VALUE}", add_special_tokens=False).ids
    assert len(longest) <= task_named("ladder").reserve_tokens


# Real rows


def test_gsm8k_rows():
    task = task_named("gsm8k")
    items = task.load(data_dir())
    assert len(items) == 1319 and items[0].name == "test/0" and items[0].gold == "18"
    assert items[0].prompt.startswith("Janet’s ducks lay 16 eggs") and items[0].prompt.endswith(f"\n{INSTRUCTION}")
    assert "114200" in {item.gold for item in items}, "thousands separators are gone"
    assert len(task.load(data_dir(), split="train")) == 7473
    for item in items:
        assert task.grade(item, f"{item.extra['solution']}\n#### {item.gold}").correct
        assert task.grade(item, f"So it is \\boxed{{{int(item.gold):,}}}.").correct
        assert not task.grade(item, f"\\boxed{{{int(item.gold) + 1}}}").correct


def test_math500_rows():
    task = task_named("math500")
    items = task.load(data_dir())
    assert len(items) == 500 and items[0].name == "test/precalculus/807.json"
    assert items[0].extra == {"subject": "Precalculus", "level": 2} and items[0].prompt.endswith(f"\n{INSTRUCTION}")
    assert all(task.grade(item, f"\\boxed{{{item.gold}}}").correct for item in items)


def test_arc_rows_in_both_layouts():
    task = task_named("arc_challenge")
    items = task.load(data_dir())
    assert len(items) == 1172 and {len(item.choices) for item in items} == {3, 4, 5}
    assert items[0].gold == "C" and items[0].choices[2] == "Planetary days will become shorter."
    assert "\nC. Planetary days will become shorter.\n" in items[0].prompt
    rows = [json.loads(line) for line in (data_dir() / "arc_challenge" / "validation.jsonl").read_text().splitlines()]
    validation = task.load(data_dir(), split="validation")
    numbered = [(row, item) for row, item in zip(rows, validation, strict=True) if row["answerKey"].isdigit()]
    assert len(numbered) == 4
    for row, item in numbered:
        assert item.gold == "ABCD"[int(row["answerKey"]) - 1] and "\nA. " in item.prompt and "1. " not in item.prompt.splitlines()[1]


def test_arc_letters_in_a_text_are_those_of_the_item():
    task = task_named("arc_challenge")
    three = Item(name="x", prompt="", gold="C", choices=("a", "b", "c"))
    assert task.grade(three, "The answer is (C).").correct
    assert task.grade(three, "The answer is D.").rule == "no-answer"


# Where rows come from

GSM_ROW = {"question": "How many?", "answer": "Two.\n#### 2"}
GOOD = {
    "gsm8k": GSM_ROW,
    "math500": {"problem": "How many?", "answer": "2", "unique_id": "a/1"},
    "arc_challenge": {"question": "Which?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2", "id": "q1"},
    "gsm8k_thinking": GSM_ROW,
    "math": {"problem": "How many?", "solution": "So $\\boxed{2}$.", "level": "Level 1", "type": "Algebra"},
    "aime24": {"id": "a-0", "problem": "How many?", "expected_answer": "023"},
    "aime25": {"id": 60, "problem": "How many?", "answer": 23},
    "gpqa_diamond": {
        "Record ID": "r1",
        "Question": "Which?",
        "Correct Answer": "w",
        **{f"Incorrect Answer {n}": f"x{n}" for n in (1, 2, 3)},
    },
    "commonsense_qa": {"id": "q1", "question": "Which?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
    "mmlu_pro": {"question_id": 70, "question": "Which?", "options": ["x", "y", "N/A"], "answer": "B", "category": "law"},
}
FOLDERS = {"gsm8k_thinking": "gsm8k", "gpqa_diamond": "gpqa"}
"""Where rows lie that are not in a folder of their task's name."""

HUB = {
    "gsm8k": ("openai/gsm8k", "main"),
    "math500": ("HuggingFaceH4/MATH-500", None),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge"),
    "gsm8k_thinking": ("openai/gsm8k", "main"),
    "math": ("DigitalLearningGmbH/MATH-lighteval", None),
    "aime24": ("HuggingFaceH4/aime_2024", None),
    "aime25": ("math-ai/aime25", None),
    "gpqa_diamond": ("Idavidrein/gpqa", "gpqa_diamond"),
    "commonsense_qa": ("tau/commonsense_qa", None),
    "mmlu_pro": ("TIGER-Lab/MMLU-Pro", None),
}
HUB_SPLITS = {"aime24": "train", "gpqa_diamond": "train", "commonsense_qa": "validation"}
"""What the hub calls the split that is scored, where it is not called test."""


def _file(folder: Path, *rows: Mapping[str, Any] | str) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("name", GOOD)
def test_a_file_a_folder_and_the_environment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = task_named(name)
    file = _file(tmp_path, GOOD[name])
    expected = task.load(file)
    assert len(expected) == 1 and task.load(str(file)) == expected
    folder = tmp_path / FOLDERS.get(name, name)
    folder.mkdir()
    (folder / "test.jsonl").write_text(file.read_text())
    assert task.load(tmp_path) == expected and task.load(folder) == expected
    monkeypatch.setenv("LOOPWISE_DATA", str(tmp_path))
    assert task.load() == expected
    (folder / "test.jsonl").unlink()
    with gzip.open(folder / "test.jsonl.gz", "wt") as lines:
        lines.write(file.read_text())
    assert task.load() == expected


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"answer": "#### 2"}, "line 2: field 'question' is missing"),
        ("gsm8k", {"question": 5, "answer": "#### 2"}, "line 2: field 'question' is 5; give some text"),
        (
            "gsm8k",
            {"question": "x", "answer": "Two"},
            "line 2: field 'answer' ends in 'Two'; give a solution and the gold",
        ),
        ("gsm8k", {"question": "x", "answer": "#### two"}, "line 2: field 'answer' ends in '#### two'"),
        ("math500", {"problem": "x", "answer": " "}, "line 2: field 'answer' is ' '; give some text"),
        ("math500", GOOD["math500"], "line 2: item 'a/1' was already at"),
        ("arc_challenge", {"question": "x", "gold": 0}, "line 2: field 'choices' is missing"),
        ("arc_challenge", {"question": "x", "choices": ["a"], "gold": 0}, "line 2: field 'choices' is"),
        ("arc_challenge", {"question": "x", "choices": ["a", "b"]}, "line 2: field 'gold' is missing"),
        ("arc_challenge", {"question": "x", "choices": ["a", "b"], "gold": 2}, "line 2: field 'gold' is 2; give the position"),
        ("arc_challenge", {"question": "x", "choices": {"text": ["a", "b"], "label": ["A", "B"]}}, "line 2: field 'answerKey' is missing"),
        ("arc_challenge", GOOD["arc_challenge"] | {"answerKey": "C"}, "line 2: field 'answerKey' is 'C', which is none of the labels"),
        ("math", {"problem": "x", "solution": "So it is 2."}, "line 2: field 'solution' ends in 'So it is 2.'; give a solution with its"),
        ("math", GOOD["math"] | {"level": "Level 2"}, "line 2: item 'test/"),
        ("aime24", {"problem": "x"}, "line 2: field 'answer' is missing"),
        ("aime24", {"problem": "x", "expected_answer": "1000"}, "line 2: field 'expected_answer' is '1000'; give a whole number from 0"),
        ("aime25", {"problem": "x", "answer": "1/2"}, "line 2: field 'answer' is '1/2'; give a whole number from 0 to 999"),
        ("commonsense_qa", GOOD["commonsense_qa"] | {"answerKey": ""}, "line 2: field 'answerKey' is ''; give some text"),
        ("commonsense_qa", GOOD["commonsense_qa"] | {"choices": {"text": ["x"], "label": ["A", "B"]}}, "line 2: field 'choices' is"),
        (
            "commonsense_qa",
            {"question": {"stem": "x", "choices": [{"label": "A"}, 5]}, "answerKey": "A"},
            "line 2: field 'choices' is missing",
        ),
        ("gsm8k", "{cut off", "line 2: not JSON"),
        ("gsm8k", "[1]", "line 2: not a JSON object but list"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(name: str, row: Mapping[str, Any] | str, message: str, tmp_path: Path):
    file = _file(tmp_path, GOOD[name], row)
    with pytest.raises(TaskError) as error:
        task_named(name).load(file)
    assert str(error.value).startswith(f"{file}, {message}") and "\n" not in str(error.value)
    assert len(task_named(name).load(file, limit=1)) == 1, "rows beyond the limit are not read"


def test_data_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = task_named("gsm8k")
    with pytest.raises(TaskError, match=r"/none: no such file or folder; --data and LOOPWISE_DATA name .* gsm8k/test\.jsonl$"):
        task.load(tmp_path / "none")
    with pytest.raises(TaskError, match=r": holds no gsm8k/test\.jsonl; name a folder that does"):
        task.load(tmp_path)
    with pytest.raises(TaskError, match=r"holds no rows"):
        task.load(_file(tmp_path))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match=r"not UTF-8 JSON lines"):
        task.load(tmp_path / "binary.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"question": "x"}\n' * 999)[:40])
    with pytest.raises(TaskError, match=r"not UTF-8 JSON lines"):
        task.load(tmp_path / "cut.jsonl.gz")
    monkeypatch.setenv("LOOPWISE_DATA", str(tmp_path / "none"))
    with pytest.raises(TaskError, match=r"no such file or folder"):
        task.load()


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOPWISE_DATA", raising=False)


@pytest.mark.usefixtures("no_data")
def test_without_the_extra_the_error_names_it_and_the_local_way(monkeypatch: pytest.MonkeyPatch):
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TaskError, match=r"^gsm8k comes from the hub: pip install 'loopwise\[hub\]', or name a local copy with --data or"):
        task_named("gsm8k").load()


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("error", [ConnectionError("no way\nlong story"), FileNotFoundError("no such data set"), ValueError("x")])
def test_an_unreachable_hub(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(TaskError, match=r"^openai/gsm8k, split test: cannot be had from the hub \([^\n]*\); name a local copy[^\n]*$"):
        task_named("gsm8k").load()


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("name", GOOD)
def test_rows_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*args: Any, split: str, **more: bool) -> list[dict[str, Any]]:
        asked.append((*args, split, more))
        return [dict(GOOD[name])]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert task_named(name).load() == task_named(name).load(_file(tmp_path, GOOD[name]))
    assert asked == [(*HUB[name], HUB_SPLITS.get(name, "test"), {"streaming": True} if task_named(name).private else {})]


def test_every_rule_of_the_table_is_one_that_grades_name():
    source = "".join(file.read_text() for file in Path(ladder.__file__).parent.glob("*.py"))
    assert all(source.count(f'"{rule}"') >= 2 for rule in RULES)


def test_the_documented_task_works(tmp_path: Path):
    document = (Path(__file__).parents[1] / "docs" / "add-a-task.md").read_text()
    names: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", document, re.DOTALL)[1], names)
    row = {"ID": "chal-1", "Body": "Mia has 3 plums.", "Question": "How many are 2 more?", "Answer": "5.0"}
    (item,) = names["SVAMP"].load(_file(tmp_path, row))
    assert item.name == "chal-1" and item.prompt.endswith(INSTRUCTION)
    assert names["SVAMP"].grade(item, "So it is \\boxed{5}.").correct and not names["SVAMP"].grade(item, "6").correct
    for rule in RULES:
        assert f"| `{rule}` |" in document


def test_a_task_is_a_value():
    task: Task = task_named("gsm8k")
    with pytest.raises(AttributeError):
        task.budget_tokens = 5  # type: ignore[misc]


PUBLISHED = (
    ("rung0-0000", "What is the sum of 3 and 8?", "11"),
    ("rung1-0000", "What is the product of 12 and 3?", "36"),
    ("rung2-0000", "Paul has 9 shells. Paul buys 5 more. How many shells does Paul have now?", "14"),
    ("rung3-0000", "What is 41 plus 60?", "101"),
)
PUBLISHED_SHA256 = "5d06c8c5786b4fc7373382d00d320e048d32fc56b11bebb92c41879c674e2825"
