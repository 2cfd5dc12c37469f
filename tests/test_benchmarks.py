"""The benchmarks on their real rows: every gold passes its own grader, another one does not, and what is fixed stays fixed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data import data_dir
from loopwise.tasks import TASKS, Item, TaskError, bbh, gpqa, mmlu_pro, task_named, tasks_named
from loopwise.tasks.latex import cleaned, exact_number, without_unit

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def fingerprint(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def letter_after(letter: str, item: Item) -> str:
    """Another option of an item."""
    letters = "ABCDEFGHIJ"[: len(item.choices)]
    return letters[(letters.index(letter) + 1) % len(letters)]


# MATH and AIME


def test_every_gold_of_the_math_test_set_is_right_and_a_changed_one_is_wrong():
    task = task_named("math")
    items = task.load(data_dir())
    assert len(items) == 5000 and Counter(item.extra["level"] for item in items)["Level 5"] == 1324
    assert items[0].prompt.endswith(f"\n{INSTRUCTION}") and re.fullmatch(r"test/[0-9a-f]{12}", items[0].name)
    num_changed = 0
    for item in items:
        assert task.grade(item, item.extra["solution"]).correct, item.name
        number = exact_number(without_unit(cleaned(item.gold)))
        if number is not None:
            num_changed += 1
            assert not task.grade(item, f"\\boxed{{{number.value + 1}}}").correct, item
    assert num_changed > 3800
    expressions = [item for item in items if exact_number(without_unit(cleaned(item.gold))) is None][:60]
    for item, other in pairwise(expressions):
        assert not task.grade(item, f"\\boxed{{{other.gold}}}").correct or item.gold == other.gold, (item, other)


def test_math_500_is_in_math():
    """The gold of the whole set, taken from a solution's last box, is the one that MATH-500 names."""
    by_prompt = {" ".join(item.prompt.split()): item for item in task_named("math").load(data_dir())}
    shared = [
        (by_prompt[key], item) for item in task_named("math500").load(data_dir()) if (key := " ".join(item.prompt.split())) in by_prompt
    ]
    assert len(shared) > 450
    assert all(task_named("math500").grade(small, f"\\boxed{{{whole.gold}}}").correct for whole, small in shared)


def test_math_has_training_problems():
    items = task_named("math").load(data_dir(), split="train")
    assert len(items) == 7498, "two solutions box nothing"
    bare = [item for item in items if "boxed{" not in item.extra["solution"].replace(" ", "")]
    assert sorted(item.gold for item in bare) == ["2", "9"], "two solutions box their answer without braces"


@pytest.mark.parametrize("name", ["aime24", "aime25"])
def test_aime_golds(name: str):
    task = task_named(name)
    items = task.load(data_dir())
    assert len(items) == 30 and (task.samples, task.temperature) == (8, 0.6)
    for item in items:
        gold = int(item.gold)
        assert 0 <= gold <= 999
        for text in (f"\\boxed{{{gold}}}", f"\\boxed{{{gold:03d}}}", f"<think>\\boxed{{1}}</think>So \\boxed{{{gold}}}."):
            assert task.grade(item, text).correct, item
        for text in (f"\\boxed{{{gold + 1}}}", f"so {gold}", f"<think>\\boxed{{{gold}}}", ""):
            assert not task.grade(item, text).correct


def test_aime_rows_of_another_publisher_have_the_same_golds():
    task = task_named("aime24")
    other = task.load(data_dir() / "aime24" / "test_qwen_solutions.jsonl")
    assert Counter(item.gold for item in other) == Counter(item.gold for item in task.load(data_dir()))


# GPQA


def test_gpqa_rows_come_out_of_the_packed_archive():
    task = task_named("gpqa_diamond")
    items = task.load(data_dir())
    assert len(items) == 198 and task.private
    golds = Counter(item.gold for item in items)
    assert set(golds) == set("ABCD") and min(golds.values()) > 30, "the options are shuffled"
    assert task.load(data_dir() / "gpqa" / "dataset.zip", limit=5) == items[:5] == task.load(data_dir() / "gpqa", limit=5)
    for item in items:
        assert len(item.choices) == 4 and item.prompt.endswith("\\boxed{}.") and f"\n{item.gold}. " in item.prompt
        assert task.grade(item, f"Because.\n\\boxed{{{item.gold}}}").correct
        grade = task.grade(item, f"The answer is ({letter_after(item.gold, item)}), {item.choices[0]}")
        assert not grade.correct and grade.answer in "ABCD", "nothing but a letter is taken from the text"


def test_the_order_of_gpqa_options_follows_from_the_items_name_alone(tmp_path: Path):
    rows = [
        {"Record ID": f"r{n}", "Question": "Which?", **{field: f"{field} {n}" for field in gpqa.FIELDS}, "unused": "x"} for n in range(30)
    ]
    file, turned = tmp_path / "rows.jsonl", tmp_path / "turned.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    turned.write_text("\n".join(map(json.dumps, reversed(rows))))
    items = task_named("gpqa_diamond").load(file)
    assert sorted(items, key=lambda item: item.name) == sorted(task_named("gpqa_diamond").load(turned), key=lambda item: item.name)
    assert "".join(item.gold for item in items) == "BBBADDBBBCDCBAABDCDCDADDAABCCA"
    assert all(item.choices["ABCD".index(item.gold)].startswith("Correct") for item in items)


def test_a_message_about_a_gpqa_row_shows_nothing_of_it(tmp_path: Path):
    row = {"Record ID": "r1", "Question": "SECRET question", "Correct Answer": "SECRET answer", "Incorrect Answer 1": ["SECRET"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskError, match=r"line 1: field 'Incorrect Answer 1' is missing or empty") as error:
        task_named("gpqa_diamond").load(tmp_path / "rows.jsonl")
    assert "SECRET" not in str(error.value)


def test_a_csv_file_and_archives_that_are_none(tmp_path: Path):
    task = task_named("gpqa_diamond")
    (tmp_path / "gpqa_diamond.csv").write_text(
        "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n1,a,b,c,d,e\n"
    )
    assert [item.name for item in task.load(tmp_path)] == ["1"]
    (tmp_path / "broken.zip").write_bytes(b"PK nothing")
    with pytest.raises(TaskError, match=r"broken\.zip: cannot be unpacked \(.*\); give the authors' archive as it is"):
        task.load(tmp_path / "broken.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "x")
    with pytest.raises(TaskError, match=r"other\.zip: holds no gpqa_diamond\.csv"):
        task.load(tmp_path / "other.zip")


# Letters


def test_commonsense_qa_rows():
    task = task_named("commonsense_qa")
    items = task.load(data_dir())
    assert len(items) == 1221 and {len(item.choices) for item in items} == {5}
    assert len(task.load(data_dir(), split="train")) == 9741
    assert items[0].gold == "A" and "\nA. bank\nB. library\n" in items[0].prompt
    for item in items:
        assert task.grade(item, f"Answer: {item.gold}").correct and not task.grade(item, f"Answer: {letter_after(item.gold, item)}").correct


def test_mmlu_pro_is_a_fixed_two_thousand(tmp_path: Path):
    task = task_named("mmlu_pro")
    items = task.load(data_dir())
    assert len(items) == mmlu_pro.NUM_ITEMS == 2000 and len({item.name for item in items}) == 2000
    assert fingerprint([(item.name, item.gold) for item in items]) == MMLU_PRO_CHOSEN
    assert task.load(data_dir(), limit=40) == items[:40] and len({item.extra["category"] for item in items[:40]}) > 8
    assert {len(item.choices) for item in items} == {3, 4, 5, 6, 7, 8, 9, 10}
    for item in items:
        assert task.grade(item, f"Answer: {item.gold}").correct and not task.grade(item, f"Answer: {letter_after(item.gold, item)}").correct


def test_the_chosen_mmlu_pro_questions_do_not_hang_on_the_files_order(tmp_path: Path):
    rows = [{"question_id": n, "question": f"Q{n}?", "options": ["x", "N/A", "y"], "answer": "C"} for n in range(2500)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    items = task_named("mmlu_pro").load(tmp_path / "rows.jsonl")
    random.Random(1).shuffle(rows)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert task_named("mmlu_pro").load(tmp_path / "rows.jsonl") == items and len(items) == 2000
    assert items[0].choices == ("x", "y") and items[0].gold == "B", "what fills up the options goes, and the gold moves with it"


# BIG-Bench Hard


def test_every_bbh_gold_is_right_and_another_one_is_wrong():
    task = task_named("bbh")
    items = task.load(data_dir())
    by_subtask: dict[str, list[Item]] = {}
    for item in items:
        by_subtask.setdefault(item.extra["subtask"], []).append(item)
    assert len(items) == 6511 and tuple(by_subtask) == bbh.SUBTASKS and len(by_subtask) == 27
    for own in by_subtask.values():
        for item, other in zip(own, own[1:] + own[:1], strict=True):
            for text in (
                f"First this.\nSo the answer is {item.gold}.",
                f"So the answer is **{item.gold}**\n\nQ: more?\nA: So the answer is x.",
            ):
                assert task.grade(item, text).correct, (item.name, text)
            same = bbh.normal_form(item.gold) == bbh.normal_form(other.gold)
            assert task.grade(item, f"So the answer is {other.gold}.").correct == same, (item.name, other.gold)


def test_the_known_wrong_bbh_golds_are_those_without_a_letter():
    letters = re.compile(r"\([A-Z]\)")
    items = task_named("bbh").load(data_dir())
    with_letters = {item.extra["subtask"] for item in items if letters.fullmatch(item.gold)}
    odd = [item.name for item in items if item.extra["subtask"] in with_letters and not letters.fullmatch(item.gold)]
    assert sorted(odd) == sorted(bbh.WRONG_GOLDS)


def test_a_bbh_prompt_is_its_authors_examples_and_the_question():
    items = {item.extra["subtask"]: item for item in task_named("bbh").load(data_dir(), limit=27)}
    assert len(items) == 27, "a limit takes from all subtasks alike"
    for subtask, item in items.items():
        published = (data_dir() / "bbh" / "cot-prompts" / f"{subtask}.txt").read_text()
        examples = published.partition("-----\n")[2].strip()
        assert item.prompt.startswith(examples) and item.prompt.count("\nA: Let's think step by step.") == 4
        assert item.prompt.endswith("\nA: Let's think step by step.") and "canary" not in item.prompt.lower()


def test_the_answers_of_the_worked_examples_are_read():
    """Whatever an example concludes, its conclusion is found in it."""
    for file in sorted((data_dir() / "bbh" / "cot-prompts").glob("*.txt")):
        for example in file.read_text().split("A: Let's think step by step.")[1:]:
            wanted = re.findall(r"So the answer is (.*?)\.?$", re.split(r"\n\s*Q:", example)[0].strip(), re.MULTILINE)[-1]
            assert bbh.answer_of(example) == wanted.strip(), file


def test_parts_of_bbh():
    chosen = task_named("bbh:snarks,navigate")
    items = chosen.load(data_dir(), limit=5)
    assert [item.name for item in items] == ["snarks/0", "navigate/0", "snarks/1", "navigate/1", "snarks/2"]
    assert len(task_named("bbh:snarks").load(data_dir())) == 178
    assert [task.name for task in tasks_named(["gsm8k", "bbh:each"])] == ["gsm8k", *(f"bbh:{name}" for name in bbh.SUBTASKS)]
    with pytest.raises(TaskError, match=r"^bbh:snark: 'snark' is no subtask; they are boolean_expressions, "):
        task_named("bbh:snark")


def _bbh_folder(folder: Path) -> Path:
    (folder / "cot-prompts").mkdir()
    (folder / "cot-prompts" / "snarks.txt").write_text(
        "for crawlers\n-----\nPick one.\n\nQ: a?\nA: Let's think step by step.\nSo the answer is (A)."
    )
    (folder / "snarks.jsonl").write_text('{"input": "b?", "target": "(B)"}')
    return folder


def test_bbh_files_one_a_subtask_and_what_is_said_of_missing_ones(tmp_path: Path):
    folder = _bbh_folder(tmp_path)
    (item,) = task_named("bbh:snarks").load(folder)
    assert item.prompt == ("Pick one.\n\nQ: a?\nA: Let's think step by step.\nSo the answer is (A).\n\nQ: b?\nA: Let's think step by step.")
    with pytest.raises(TaskError, match=r"holds no bbh/cot-prompts/navigate\.txt; name a folder that does"):
        task_named("bbh:navigate").load(folder)
    with pytest.raises(TaskError, match=r"snarks\.jsonl: bbh needs its prompts beside its rows; name the folder"):
        task_named("bbh:snarks").load(folder / "snarks.jsonl")
    (folder / "bbh.jsonl").write_text('{"task": "snark", "input": "b?", "target": "(B)"}')
    with pytest.raises(TaskError, match=r"line 1: field 'task' is 'snark', which is no subtask"):
        task_named("bbh:snarks").load(folder)
    (folder / "cot-prompts" / "snarks.txt").write_text("for crawlers\n-----\n")
    with pytest.raises(TaskError, match=r"snarks\.txt: holds no prompt"):
        task_named("bbh:snarks").load(folder)


def test_bbh_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = _bbh_folder(tmp_path)
    expected = task_named("bbh:snarks").load(folder)
    monkeypatch.delenv("LOOPWISE_DATA", raising=False)
    asked = []

    def load_dataset(name: str, config: str, *, split: str) -> list[dict[str, str]]:
        asked.append((name, config, split))
        prompt = {"dataset_name": "snarks", "chain_of_thought_prompt": (folder / "cot-prompts" / "snarks.txt").read_text()}
        return [prompt] if "prompts" in config else [{"input": "b?", "target": "(B)"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert task_named("bbh:snarks").load() == expected
    assert asked == [("Joschka/big_bench_hard", "few_shot_prompts", "few_shot_prompts"), ("lukaemon/bbh", "snarks", "test")]
    with pytest.raises(TaskError, match="has no chain-of-thought prompt of navigate"):
        task_named("bbh:navigate").load()


@pytest.mark.parametrize(
    ("gold", "text", "correct", "rule"),
    [
        ("(B)", "So the answer is (B).", True, "letter"),
        ("(B)", "The answer is B", True, "letter"),
        ("(A)", "So the answer is A car.", False, "letter"),
        ("(B)", "So the answer is (B) the blue one.", True, "letter"),
        ("(B)", "\\boxed{\\text{(B)}}", True, "letter"),
        ("(B)", "So the answer is (A). No, the answer is (B).", True, "letter"),
        ("(B)", "So the answer is (C).\n\nQ: next\nA: So the answer is (B).", False, "letter"),
        ("True", "so the answer is true", True, "text"),
        ("-35", "So the answer is -35.", True, "text"),
        ("1200", "So the answer is $1,200$.", True, "text"),
        ("] ]", "So the answer is ]]", True, "text"),
        ("] ]", "So the answer is ] >", False, "text"),
        ("ab cd", "So the answer is ab, cd", True, "text"),
        ("ab cd", "So the answer is cd ab", False, "text"),
        ("yes", "<think>the answer is yes", False, "no-answer"),
        ("yes", "I cannot say.", False, "no-answer"),
    ],
)
def test_bbh_answers(gold: str, text: str, correct: bool, rule: str):
    grade = task_named("bbh").grade(Item(name="x", prompt="", gold=gold), text)
    assert (grade.correct, grade.rule) == (correct, rule)


# Thinking, and what a task may say


def test_thinking_mode_gsm8k_asks_the_same_items():
    thinking, plain = task_named("gsm8k_thinking"), task_named("gsm8k")
    assert thinking.load(data_dir(), limit=20) == plain.load(data_dir(), limit=20)
    assert thinking.thinking and not plain.thinking


def test_samples_need_a_temperature():
    with pytest.raises(TaskError, match="task gsm8k: 4 samples at temperature 0; give at least 1 sample, and a temperature"):
        replace(TASKS["gsm8k"], samples=4)
    with pytest.raises(TaskError, match="temperature nan"):
        replace(TASKS["gsm8k"], temperature=float("nan"))


def test_the_page_of_benchmarks_names_every_task():
    page = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    for name, task in TASKS.items():
        line = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert line is not None, f"docs/benchmarks.md has no row for {name}"
        assert f" {task.budget_tokens:,} " in line.replace("/", " / "), line


MMLU_PRO_CHOSEN = "ec6bc7e6a71dd1e8"
"""Of the names and golds, so that no change of Python or of the code moves them unseen."""
