"""HumanEval and MBPP: their rows, the program in an answer, the reference solutions, and the permission to run anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loopwise
from data import data_dir
from loopwise.cli import main
from loopwise.evaluation import evaluate
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.recipes.validation import validate
from loopwise.tasks import CODE_RULES, Item, SandboxError, Task, TaskError, permit, sandbox, task_named
from loopwise.tasks.code_answers import cut_completion, defines, fenced_blocks, find_code
from tiny import tiny_model, tiny_tokenizer

NAMES = ("humaneval", "mbpp")


@pytest.fixture
def walls() -> None:
    try:
        sandbox.find_walls()
    except SandboxError as error:
        pytest.skip(str(error))


def allowed(name: str) -> Task:
    return permit(task_named(name), True)


# The permission


@pytest.mark.parametrize("name", NAMES)
def test_nothing_runs_without_the_permission(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it went on")

    monkeypatch.setattr(sandbox, "run_program", fail)
    monkeypatch.setattr(Task, "load", fail)
    for variable in ("HF_ALLOW_CODE_EVAL", "ALLOW_CODE_EXECUTION", "LOOPWISE_ALLOW_CODE_EXECUTION"):
        monkeypatch.setenv(variable, "1")
    said = rf"^task {name} runs the code that a model writes; give --allow-code-execution \(in Python allow_code_execution=True\) [^\n]*$"
    with pytest.raises(TaskError, match=said):
        task_named(name).grade(Item(name="x", prompt="", gold=""), "```python\n```")
    with pytest.raises(TaskError, match=said):
        evaluate(None, None, name)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=said):
        trial("no-model", out=tmp_path / "trial", tasks=[name], loops="1:2 x2")
    with pytest.raises(TaskError, match=said):
        trial("no-model", out=tmp_path / "trial", tasks=["ladder", name], settings=TrialSettings())
    with pytest.raises(TaskError, match=said):
        validate(tmp_path, tasks=[name])
    for permission in (1, "yes", "true"):
        with pytest.raises(TaskError, match=said):
            permit(task_named(name), permission)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["evaluate", "trial"])
def test_commands_refuse_in_one_line_before_anything_loads(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(SystemExit) as stop:
        main([command, "no-such-model", "--task", "humaneval", "--out", str(tmp_path / "x"), "--data", str(tmp_path / "none")])
    error = capsys.readouterr().err
    assert stop.value.code == 1 and error.count("\n") == 1
    assert error.startswith(f"loopwise {command}: task humaneval runs the code that a model writes; give --allow-code-execution")
    assert not (tmp_path / "x").exists()


@pytest.mark.usefixtures("walls")
def test_with_the_permission_the_next_thing_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(SystemExit):
        arguments = ["--task", "mbpp", "--allow-code-execution", "--out", str(tmp_path / "x"), "--data", str(tmp_path / "none")]
        main(["evaluate", "no-such-model", *arguments])
    assert "none: no such file or folder" in capsys.readouterr().err


def test_a_saved_configuration_gives_no_permission(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    config = {"model": "no-such-model", "task": "humaneval", "out": str(tmp_path / "x"), "allow_code_execution": True}
    (tmp_path / "config.json").write_text(json.dumps({"command": "evaluate", "config": config}))
    with pytest.raises(SystemExit):
        main(["evaluate", "--config", str(tmp_path / "config.json")])
    assert "give --allow-code-execution" in capsys.readouterr().err


def test_other_tasks_need_no_permission():
    assert permit(task_named("ladder"), False) is task_named("ladder")


# The program in an answer

F = "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"```python\n{F}\n```", F),
        (f"Sure!\n\n```python\n{F}\n```\nIt returns x.", F),
        (f"```\n{F}\n```", F),
        (f"```py\n{F}\n```", F),
        (f"``` Python \n{F}\n```", F),
        (f"~~~python\n{F}\n~~~", F),
        (f"````python\n{F}\n````", F),
        (f"Here it is: ```python\n{F}\n```", F),
        (f"```python\n{F}```", F),
        (f"```python\r\n{F}\r\n```\r\n".replace("\n    ", "\r\n    "), F),
        (f"```python\n{F}", F),
        (f"```python\n{F[:9]}", F[:9]),
        (f"1. First:\n\n   ```python\n   {F.replace(chr(10), chr(10) + '   ')}\n   ```", F),
        (f"```python\ndef f(x):\n    return 0\n```\nBetter:\n```python\n{F}\n```", F),
        (f"```python\n{F}\n```\nUse:\n```python\nprint(f(1))\n```\nor\n```\n$ python f.py\n```", F),
        (f"```python\n{F}\n```\n```python\ndef test_f():\n    assert f(1)\n```", F),
        ("```python\nclass f:\n    pass\n```", "class f:\n    pass"),
        ("```python\nf = lambda x: x\n```", "f = lambda x: x"),
        ("```python\nf: int = abs\n```", "f: int = abs"),
        ("```python\nasync def f(x): ...\n```", "async def f(x): ..."),
        ("```python\nprint(f(1))\n```", "```python\nprint(f(1))\n```"),
        ("```python\nx = f(1)\nf == x\n```", "```python\nx = f(1)\nf == x\n```"),
        ("```python\ndef ff(x): pass\n```", "```python\ndef ff(x): pass\n```"),
        (F, F),
        (f"<think>```python\ndef f(x): wrong\n```</think>\n```python\n{F}\n```", F),
        (f"<think>\n```python\n{F}\n```", None),
        ("I cannot.", "I cannot."),
        ("", ""),
        (f'```python\n"""Use ``f``."""\n{F}\n```', f'"""Use ``f``."""\n{F}'),
    ],
)
def test_the_last_block_that_defines_the_function(text: str, code: str | None):
    found = find_code(text, "f")
    assert (found if found is None or "```" in found else found.strip()) == code


def test_a_megabyte_of_fences_is_read_in_passing():
    for text in ("```\n" * 250_000, "`" * 10**6, "def f" * 200_000, "~~~ " * 250_000):
        assert find_code(text, "f") is not None
    assert len(fenced_blocks("```\nx\n```\n" * 1000)) == 1000
    assert defines("x = 1\ndef f (x): pass", "f") and not defines("  def f(x): pass", "f")


def test_completions_are_cut_where_the_function_ends():
    stops = ("\ndef", "\n#", "\nprint")
    assert cut_completion("\n    return x\n\nprint(f(1))\ndef g(): pass", stops) == "\n    return x\n"
    assert cut_completion("\r\n    return x # not here", stops) == "\n    return x # not here"


# Real rows


def in_chat(item: Item, code: str) -> str:
    return f"Here is my solution:\n\n```python\n{code}\n```\nIt passes the tests."


def solution(task: Task, item: Item) -> str:
    start = f"{item.completion}\n" if task.name == "humaneval" else ""
    return start + item.extra["solution"]


def test_humaneval_rows():
    task = task_named("humaneval")
    items = task.load(data_dir())
    assert len(items) == 164 and items[0].name == "HumanEval/0" and items[0].extra["entry_point"] == "has_close_elements"
    assert items[0].prompt.startswith("Please provide a self-contained Python script") and items[0].prompt.endswith('"""\n```')
    assert items[0].completion.startswith("from typing import List") and items[0].completion.endswith('"""')
    assert items[0].gold.endswith("check(has_close_elements)\n")
    assert [len(task.load(data_dir(), limit=n)) for n in (1, 7)] == [1, 7]


def test_mbpp_rows_are_the_500_of_the_test_split():
    task = task_named("mbpp")
    items = task.load(data_dir())
    assert [item.name for item in items] == [f"mbpp/{n}" for n in range(11, 511)]
    assert items[0].prompt.startswith("You are an expert Python programmer, and here is your task: Write a python function to remove first")
    assert items[0].prompt.count("assert remove_Occ(") == 3 and items[0].completion.startswith('"""\nWrite a python function')
    assert {item.name: item.extra["called"] for item in items}["mbpp/367"] == ("is_tree_balanced", "Node")
    assert {item.name: item.extra["called"] for item in items}["mbpp/126"] == ("sum",)
    assert len(task.load(data_dir(), limit=3)) == 3


def grades(task: Task, items: Sequence[Item], answer: Callable[[Item], str], *, threads: int = 2) -> dict[str, str]:
    """The rule for each item; correct ones and only those are named tests-passed."""
    with ThreadPoolExecutor(threads) as pool:
        found = dict(zip((item.name for item in items), pool.map(lambda item: task.grade(item, answer(item)), items), strict=True))
    assert all(grade.correct == (grade.rule == "tests-passed") and grade.rule in CODE_RULES for grade in found.values())
    return {name: grade.rule for name, grade in found.items()}


HARD = {
    "humaneval": ("HumanEval/0", "HumanEval/10", "HumanEval/32", "HumanEval/38", "HumanEval/53"),
    "mbpp": ("mbpp/11", "mbpp/126", "mbpp/367", "mbpp/486"),
}
"""Items whose tests use more than one function, helpers of the prompt, classes of the answer, or much calling."""


@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("name", NAMES)
def test_a_handful_of_reference_solutions_pass_and_wrong_ones_fail(name: str):
    task = allowed(name)
    items = [item for item in task.load(data_dir()) if item.name in HARD[name]]
    assert set(grades(task, items, lambda item: in_chat(item, solution(task, item))).values()) == {"tests-passed"}
    assert set(grades(task, items, lambda item: "").values()) == {"no-answer"}
    assert set(grades(task, items, lambda item: "I do not know.").values()) == {"tests-failed"}
    asked = [item.asked(in_chat=False) for item in items]
    start = "\n" if name == "humaneval" else ""
    goes_on = "\n\nprint(" if name == "humaneval" else "\nassert None"
    assert set(grades(task, asked, lambda item: start + item.extra["solution"] + goes_on).values()) == {"tests-passed"}
    assert set(grades(task, asked, lambda item: start + "    return None" if start else F).values()) == {"tests-failed"}


@pytest.mark.slow
@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("name", NAMES)
def test_every_reference_solution_passes(name: str):
    task = allowed(name)
    items = task.load(data_dir())
    found = grades(task, items, lambda item: in_chat(item, solution(task, item)))
    assert len(found) == {"humaneval": 164, "mbpp": 500}[name]
    assert not {item: rule for item, rule in found.items() if rule != "tests-passed"}


@pytest.mark.slow
@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_returns_nothing_fails_everywhere(name: str):
    task = allowed(name)
    items = task.load(data_dir())[::3]

    def nothing(item: Item) -> str:
        function = item.extra["entry_point"] if name == "humaneval" else item.extra["called"][0]
        return in_chat(item, f"def {function}(*args, **kwargs):\n    return None")

    assert not {item: rule for item, rule in grades(task, items, nothing).items() if rule != "tests-failed"}


# Rows that cannot be used

GOOD = {
    "humaneval": {
        "task_id": "T/0",
        "prompt": 'def f(x):\n    """Square."""\n',
        "entry_point": "f",
        "canonical_solution": "    return x * x\n",
        "test": "def check(candidate):\n    assert candidate(3) == 9\n",
    },
    "mbpp": {"task_id": 11, "text": "Square.", "code": F, "test_list": ["assert f(3) == 9"], "test_setup_code": ""},
}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("humaneval", {"prompt": None}, "field 'prompt' is None; give some text"),
        ("humaneval", {"prompt": "def f("}, "field 'prompt' is no Python"),
        ("humaneval", {"test": "assert ("}, "field 'test' is no Python"),
        ("humaneval", {"entry_point": " "}, "field 'entry_point' is ' '"),
        ("mbpp", {"task_id": None}, "field 'task_id' is missing"),
        ("mbpp", {"task_id": "11"}, "field 'task_id' is '11'; give the problem's number"),
        ("mbpp", {"test_list": None}, "field 'test_list' is missing"),
        ("mbpp", {"test_list": "assert f(3)"}, "field 'test_list' is 'assert f(3)'; give a list"),
        ("mbpp", {"test_list": ["assert ("]}, "field 'test_list' is no Python"),
        ("mbpp", {"test_list": ["assert g(3)"]}, "field 'test_list' asserts nothing of what field 'code' defines"),
        ("mbpp", {"test_list": ["f(3)"]}, "field 'test_list' asserts nothing"),
        ("mbpp", {"code": "def f(:"}, "field 'code' is no Python"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(name: str, changes: dict[str, Any], message: str, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD[name]) + "\n" + json.dumps(GOOD[name] | changes) + "\n")
    with pytest.raises(TaskError) as error:
        task_named(name).load(file)
    assert str(error.value).startswith(f"{file}, line 2: {message}") and "\n" not in str(error.value)
    assert len(task_named(name).load(file, limit=1)) == 1


def test_problems_outside_the_test_split_are_left_out(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(GOOD["mbpp"] | {"task_id": n}) + "\n" for n in (1, 10, 11, 510, 511)))
    assert [item.name for item in task_named("mbpp").load(file)] == ["mbpp/11", "mbpp/510"]
    assert [item.name for item in task_named("mbpp").load(file, limit=1)] == ["mbpp/11"]


# A whole evaluation


def rows_file(folder: Path) -> Path:
    """A problem in words that the tiny tokenizer knows."""
    file = folder / "rows.jsonl"
    prompt = "w5 = 1\ndef f(x):\n    return w5\n"
    test = "def check(candidate):\n    assert candidate(3) == 1\n"
    row = GOOD["humaneval"] | {"prompt": prompt, "test": test}
    file.write_text("".join(json.dumps(row | {"task_id": f"T/{n}"}) + "\n" for n in range(3)))
    return file


@pytest.mark.usefixtures("walls")
def test_an_evaluation_says_behind_which_walls_it_ran_and_asks_base_models_for_a_completion(tmp_path: Path):
    data, tokenizer = rows_file(tmp_path), tiny_tokenizer()
    settings: dict[str, Any] = {"data": data, "budget_tokens": 8, "out": tmp_path / "run", "allow_code_execution": True}
    run = loopwise.evaluate(tiny_model("llama"), tokenizer, "humaneval", **settings)
    facts = run.header["code_execution"]
    assert facts["walls"] in ("namespaces", "user") and facts["network"].startswith("none" if facts["walls"] == "namespaces" else "as")
    assert facts["cpu_seconds"] == 15 and run.header["num_items"] == len(run.records) == 3
    (item, *_) = task_named("humaneval").load(data)
    assert {record.prompt_tokens for record in run.records} == {len(tokenizer(item.completion)["input_ids"])}
    assert all(record.rule in CODE_RULES and record.gold == item.gold for record in run.records)
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(TaskError, match="give --allow-code-execution"):
        loopwise.evaluate(tiny_model("llama"), tokenizer, "humaneval", **(settings | {"allow_code_execution": False}))
    again = loopwise.evaluate(tiny_model("llama"), tokenizer, permit(task_named("humaneval"), True), data=data, budget_tokens=8)
    assert [r.rule for r in again.records] == [r.rule for r in run.records]
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %} w7"
    tokenizer.chat_template = template
    chat = loopwise.evaluate(tiny_model("llama"), tokenizer, "humaneval", data=data, budget_tokens=8, allow_code_execution=True)
    assert chat.header["items_hash"] != run.header["items_hash"] and chat.records[0].prompt_tokens > run.records[0].prompt_tokens


def test_an_item_is_asked_in_one_of_two_ways():
    item = Item(name="a", prompt="chat", completion="base", gold="")
    assert item.asked(in_chat=True) is item and item.asked(in_chat=False) == replace(item, prompt="base")
    plain = Item(name="a", prompt="chat", gold="")
    assert plain.asked(in_chat=False) is plain


@pytest.mark.slow
@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_model_answers_real_rows(name: str):
    from loopwise.models import ModelError, load

    try:
        model, tokenizer = load("smollm2", loops="none")
    except ModelError as error:
        pytest.skip(str(error))
    run = loopwise.evaluate(model, tokenizer, name, data=data_dir(), limit=2, budget_tokens=96, allow_code_execution=True)
    assert len(run.records) == 2 and all(record.rule in CODE_RULES for record in run.records)
    assert any("def " in (record.text or "") for record in run.records)


def test_every_rule_is_documented():
    document = (Path(__file__).parents[1] / "docs" / "code-execution.md").read_text()
    for rule in CODE_RULES:
        assert f"| `{rule}` |" in document
    assert os.path.exists(sandbox._LAUNCHER)
