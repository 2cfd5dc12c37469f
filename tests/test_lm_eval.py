"""Tasks that lm-eval asks: their names, their items from local files, golds and metrics, and the papers' suites."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from data import data_dir
from likelihood_rows import FILES, row, write_rows
from loopwise.tasks import LIKELIHOODS, SUITES, Item, TaskError, spread, task_named, tasks_named

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is an extra")


def items(name: str, data: Path, limit: int | None = None) -> tuple[Item, ...]:
    return task_named(f"lm-eval:{name}").load(data, limit)


# Names


@pytest.mark.parametrize(
    ("given", "name", "shots", "metric"),
    [
        ("arc_easy", "arc_easy", 0, "acc"),
        ("arc_challenge@25:acc_norm", "arc_challenge@25:acc_norm", 25, "acc_norm"),
        ("hellaswag@10:acc_norm", "hellaswag@10", 10, "acc_norm"),
        ("hellaswag:acc", "hellaswag:acc", 0, "acc"),
        ("openbookqa@0", "openbookqa", 0, "acc_norm"),
        ("mmlu_anatomy@5", "mmlu_anatomy@5", 5, "acc"),
    ],
)
def test_a_name_says_task_shots_and_metric(given: str, name: str, shots: int, metric: str) -> None:
    task = task_named(f"lm-eval:{given}")
    assert (task.name, task.kind) == (f"lm-eval:{name}", "log-likelihood")
    assert task.facts == {"shots": shots, "metric": metric}
    assert task_named(task.name).facts == task.facts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arc", "'arc' is not among the benchmarks arc_easy, arc_challenge"),
        ("mmlu_alchemy", "'mmlu_alchemy' is not among the benchmarks"),
        ("arc_easy@", "'' shots; give a whole number from 0 to 64"),
        ("arc_easy@-1", "'-1' shots"),
        ("arc_easy@65", "'65' shots"),
        ("arc_easy@2.5", "'2.5' shots"),
        ("race@3", "lm-eval has no demonstrations for race apart from its items; leave out @3"),
        ("lambada_openai@1", "lm-eval has no demonstrations for lambada_openai"),
        ("winogrande:acc_norm", "metric 'acc_norm'; winogrande has acc"),
        ("arc_easy:f1", "metric 'f1'; arc_easy has acc and acc_norm"),
        ("arc_easy:", "metric ''; arc_easy has acc and acc_norm"),
    ],
)
def test_names_that_cannot_be(name: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        task_named(f"lm-eval:{name}")


def test_a_log_likelihood_task_grades_no_text(tmp_path: Path) -> None:
    task = task_named("lm-eval:piqa")
    (item, *_) = task.load(write_rows(tmp_path, "piqa"))
    with pytest.raises(TaskError, match="is answered by log-likelihood, and no text is graded"):
        task.grade(item, "A")


# Items


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_golds_are_those_of_the_rows(name: str, tmp_path: Path) -> None:
    found = items(name, write_rows(tmp_path, name), 2 if name == "mmlu" else None)
    assert len(found) == (2 if name == "mmlu" else 8)
    golds = {
        "hellaswag": lambda values: "ABCD"[int(values["label"])],
        "winogrande": lambda values: "AB"[int(values["answer"]) - 1],
        "piqa": lambda values: "AB"[values["label"]],
        "race": lambda values: ast.literal_eval(values["problems"])[-1]["answer"],
        "sciq": lambda values: "D",
        "lambada_openai": lambda values: values["text"].split()[-1],
        "lambada_standard": lambda values: values["text"].split()[-1],
        "mmlu": lambda values: "ABCD"[values["answer"]],
    }
    for n, item in enumerate(found):
        values = row(name, n)
        assert item.gold == golds.get(name, lambda values: values["answerKey"])(values), n
        assert item.extra["items_from"] == FILES[name][0].rpartition("/")[2].removeprefix("openai_").removeprefix("standard_")
    assert len({item.name for item in found}) == len(found)


def test_prompts_are_lm_evals(tmp_path: Path) -> None:
    (first, second, *_) = items("arc_easy@1", write_rows(tmp_path, "arc_easy"))
    assert first.prompt.endswith("\n\nQuestion: Which is near the stone number 0?\nAnswer:")
    assert first.prompt.startswith("Question: Which is near the ") and first.prompt.count("Question:") == 2
    assert first.requests[1] == (first.prompt, " the river of old") and first.choices == tuple(row("arc_easy", 0)["choices"]["text"])
    assert (first.name, first.extra["demonstrations_from"]) == ("q0", "train") and second.prompt != first.prompt
    (blank, *_) = items("winogrande", write_rows(tmp_path, "winogrande"))
    assert blank.requests[0] == ("The stone fell on the garden because the stone", " was heavy.")


def test_a_limit_takes_the_first_items_with_the_same_demonstrations(tmp_path: Path) -> None:
    write_rows(tmp_path, "arc_easy")
    assert items("arc_easy@2", tmp_path, 3) == items("arc_easy@2", tmp_path)[:3]
    write_rows(tmp_path, "hellaswag", files=("hellaswag/validation",))
    assert items("hellaswag@3", tmp_path, 2) == items("hellaswag@3", tmp_path)[:2]


def test_without_training_rows_demonstrations_are_validation_rows_and_never_the_item(tmp_path: Path) -> None:
    write_rows(tmp_path, "hellaswag", files=("hellaswag/validation",), num_rows=4)
    for n, item in enumerate(items("hellaswag@3", tmp_path)):
        own = f"A man walks to the {('stone', 'river', 'lamp', 'garden')[n]}."
        assert item.extra["demonstrations_from"] == "validation"
        assert item.prompt.count(own) == 1 and item.prompt.count("Walking:") == 4


def test_validation_stands_in_for_test_and_says_so(tmp_path: Path) -> None:
    write_rows(tmp_path, "sciq", files=("sciq/validation",))
    (item, *_) = items("sciq", tmp_path)
    assert (item.name, item.extra["items_from"]) == ("validation/0", "validation")


def test_both_forms_of_science_rows_are_asked_alike(tmp_path: Path) -> None:
    values = row("arc_easy", 2)
    plain = {"id": values["id"], "question": values["question"], "choices": values["choices"]["text"], "gold": 2}
    numbered = values | {"choices": values["choices"] | {"label": ["1", "2", "3", "4"]}, "answerKey": "3"}
    file = tmp_path / "rows.jsonl"
    found = []
    for one in (values, plain, numbered):
        file.write_text(json.dumps(one) + "\n")
        found.append(items("arc_easy", file))
    assert found[0] == found[1] == found[2]


def test_labels_of_piqa_may_stand_beside_its_rows(tmp_path: Path) -> None:
    folder = tmp_path / "piqa"
    folder.mkdir()
    rows = [row("piqa", n) for n in range(3)]
    without = [{name: value for name, value in one.items() if name != "label"} for one in rows]
    (folder / "valid.jsonl").write_text("".join(json.dumps(one) + "\n" for one in without))
    (folder / "valid-labels.lst").write_text("1\n0\n1\n")
    assert [item.gold for item in items("piqa", tmp_path)] == ["B", "A", "B"]
    (folder / "valid-labels.lst").write_text("1\n0\n")
    with pytest.raises(TaskError, match=r"valid-labels.lst: holds 2 labels for the 3 rows of valid.jsonl"):
        items("piqa", tmp_path)


def test_subjects_take_turns_and_single_ones_can_be_asked(tmp_path: Path) -> None:
    write_rows(tmp_path, "mmlu")
    found = items("mmlu@3", tmp_path, 2)
    assert [(item.name, item.extra["subtask"]) for item in found] == [
        ("abstract_algebra/0", "abstract_algebra"),
        ("anatomy/0", "anatomy"),
    ]
    assert all(item.prompt.startswith("The following are multiple choice questions (with answers) about") for item in found)
    assert found[0].prompt.count("Answer:") == 4 and found[0].extra["demonstrations_from"] == "dev"
    assert len(items("mmlu_anatomy", tmp_path)) == 4
    with pytest.raises(TaskError, match=r"mmlu/test.jsonl: has no rows of astronomy; give the whole data"):
        items("mmlu_astronomy", tmp_path)
    with pytest.raises(TaskError, match=r"mmlu/dev.jsonl: 5 demonstrations of mmlu_anatomy need 5 rows, and it has 4; ask with fewer"):
        items("mmlu_anatomy@5", tmp_path)


BAD_ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("arc_easy", {"question": ""}, "field 'question' is ''; give some text"),
    ("arc_easy", {"answerKey": "E"}, "field 'answerKey' is 'E', which is none of the labels"),
    ("arc_easy", {"choices": ["x", "y"]}, "field 'gold' is missing"),
    ("arc_easy", {"choices": ["x", "y"], "gold": 2}, "field 'gold' is 2; give the position of one of the 2 options"),
    ("arc_easy", {"choices": ["x", "y"], "gold": True}, "field 'gold' is True"),
    ("openbookqa", {"choices": {"text": ["x"], "label": ["A"]}}, "field 'choices' is"),
    ("hellaswag", {"label": ""}, "field 'label' is ''; give the position of one of the 4 options"),
    ("hellaswag", {"ctx_b": None}, "field 'ctx_b' is None; give a text"),
    ("winogrande", {"sentence": "No blank here."}, "field 'sentence' is 'No blank here.', without a blank _"),
    ("winogrande", {"answer": "3"}, "field 'answer' is '3'; give 1 or 2"),
    ("piqa", {"label": 2}, "field 'label' is 2"),
    ("race", {"problems": "none"}, "field 'problems' is 'none'; give a list of problems"),
    ("sciq", {"distractor2": None}, "field 'distractor2' is None"),
    ("lambada_openai", {"text": "word"}, "field 'text' is 'word'; give a text of several words"),
    ("mmlu", {"choices": ["x", "y"]}, "field 'choices' has 2 options; give 4"),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD_ROWS)
def test_a_damaged_row_is_refused_with_its_place(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_rows(tmp_path, name)
    file = tmp_path / f"{FILES[name][0]}.jsonl"
    good, *_ = file.read_text().splitlines()
    file.write_text(good + "\n" + json.dumps(json.loads(good) | change) + "\n")
    with pytest.raises(TaskError) as caught:
        items("mmlu_abstract_algebra" if name == "mmlu" else name, tmp_path)
    assert str(caught.value).startswith(f"{file}, line 2: ") and message in str(caught.value)


def test_missing_rows_and_demonstrations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"holds no arc_easy/test.jsonl; name a folder that does"):
        items("arc_easy", tmp_path)
    write_rows(tmp_path, "arc_easy", files=("arc_easy/test",))
    with pytest.raises(TaskError, match=r"holds no arc_easy/train.jsonl or arc_easy/validation.jsonl for the 2 demonstrations of arc_easy"):
        items("arc_easy@2", tmp_path)
    write_rows(tmp_path, "arc_easy", num_rows=3)
    with pytest.raises(TaskError, match=r"arc_easy/train.jsonl: 4 demonstrations of arc_easy need 4 rows, and it has 3; ask with fewer"):
        items("arc_easy@4", tmp_path)
    write_rows(tmp_path, "hellaswag", files=("hellaswag/validation",), num_rows=3)
    with pytest.raises(TaskError, match=r"3 demonstrations of hellaswag need 4 rows, and it has 3"):
        items("hellaswag@3", tmp_path)
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "validation.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="holds no rows; give one JSON object a line"):
        items("piqa", tmp_path)


def test_two_items_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(2 * (json.dumps(row("arc_easy", 1)) + "\n"))
    with pytest.raises(TaskError, match="arc_easy: two items are named 'q1'; items need names of their own"):
        items("arc_easy", file)


def test_without_lm_eval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_rows(tmp_path, "arc_easy")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(TaskError, match=r"tasks of lm-eval need it: pip install 'loopwise\[lm-eval\]'"):
        items("arc_easy", tmp_path)


def test_without_local_rows_and_hub_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("LOOPWISE_DATA", raising=False)
    with pytest.raises(TaskError, match=r"allenai/sciq: cannot be had from the hub \(.*a folder with sciq/test.jsonl\)"):
        task_named("lm-eval:sciq").load(None, 2)


def test_lm_evals_log_level_and_the_bars_are_as_before(tmp_path: Path) -> None:
    import logging

    import datasets

    before = logging.getLogger("lm_eval").level, datasets.are_progress_bars_disabled()
    items("sciq", write_rows(tmp_path, "sciq"))
    assert (logging.getLogger("lm_eval").level, datasets.are_progress_bars_disabled()) == before


# Metrics


def graded(metric: str, nats: list[float], choices: tuple[str, ...] = ("aaaa", "b", "cc")) -> tuple[bool, str | None]:
    task = task_named(f"lm-eval:arc_easy:{metric}")
    assert task.scorer is not None
    grade = task.scorer(Item(name="i", prompt="p", gold="B", choices=choices), [(one, False) for one in nats])
    assert grade.rule == metric
    return grade.correct, grade.answer


def test_acc_and_acc_norm() -> None:
    assert graded("acc", [-3.0, -2.0, -2.5]) == (True, "B")
    assert graded("acc_norm", [-3.0, -2.0, -2.5]) == (False, "A")  # -0.75, -2, -1.25 a character
    assert graded("acc", [-2.0, -2.0, -2.0]) == (False, "A"), "the first of several best ones, as lm-eval's argmax"
    assert graded("acc_norm", [-9.0, -1.0, -9.0], ("x", "y", "")) == (True, "B")
    assert graded("acc", [float("-inf"), -1e30, float("-inf")]) == (True, "B")


def test_a_log_likelihood_that_is_no_number_is_refused() -> None:
    with pytest.raises(TaskError, match="item i: a log-likelihood is not a number"):
        graded("acc", [-1.0, float("nan"), -2.0])


def test_a_last_word_is_right_when_greedy_decoding_writes_it() -> None:
    scorer = task_named("lm-eval:lambada_openai").scorer
    assert scorer is not None
    word = Item(name="i", prompt="p", gold="bridge")
    assert scorer(word, [(-0.1, True)]).correct and not scorer(word, [(-0.1, False)]).correct
    assert (scorer(word, [(-0.1, True)]).answer, scorer(word, [(-0.1, False)]).answer) == ("bridge", None)


# Suites


def test_suites_are_of_tasks_in_the_papers_shots_and_metrics() -> None:
    for name, suite in SUITES.items():
        assert len({task.name for task in tasks_named([name])}) == len(suite.tasks), name
    controlled = {task.name: task.facts for task in tasks_named(["arloop-controlled"])}
    assert len(controlled) == 10 and {facts["shots"] for facts in controlled.values()} == {0}
    normalised = {name for name, facts in controlled.items() if facts["metric"] == "acc_norm"}
    assert normalised == {"lm-eval:hellaswag", "lm-eval:openbookqa", "lm-eval:piqa"}  # ARLoop, Table 8
    large = [(task.name, dict(task.facts)) for task in tasks_named(["arloop-large"])[:4]]
    assert large == [  # ARLoop, Table 13
        ("lm-eval:arc_challenge@25:acc_norm", {"shots": 25, "metric": "acc_norm"}),
        ("lm-eval:hellaswag@10", {"shots": 10, "metric": "acc_norm"}),
        ("lm-eval:winogrande@5", {"shots": 5, "metric": "acc"}),
        ("lm-eval:openbookqa", {"shots": 0, "metric": "acc_norm"}),
    ]
    guesses = {name: [one.task for one in suite.tasks if one.guessed] for name, suite in SUITES.items()}
    assert guesses["arloop-controlled"] == [] and guesses["arloop-large"] == ["gsm8k", "math", "mbpp", "humaneval"]
    assert len(guesses["free-loop-scratch"]) == 4


def test_a_suite_stands_for_its_tasks() -> None:
    assert spread(["ladder", "free-loop-scratch"]) == ("ladder", *SUITES["free-loop-scratch"].names)
    with pytest.raises(TaskError, match="arloop-controlled is a suite of 10 tasks; here one is wanted: lm-eval:arc_challenge, "):
        task_named("arloop-controlled")


def test_the_documented_suites_are_these() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    documented = {cells[0].strip("`"): cells for cells in lines if cells[0].strip("`") in SUITES}
    for name, suite in SUITES.items():
        _, source, tasks, guessed = documented[name]
        assert source == suite.source
        assert tuple(one.strip("` ") for one in tasks.split(",")) == suite.names
        assert bool(guessed) == any(one.guessed for one in suite.tasks)
    named = {cells[0].strip("`").removeprefix("lm-eval:") for cells in lines if cells[0].startswith("`lm-eval:")}
    assert named == set(LIKELIHOODS)


# Real rows


REAL = {
    "arc_easy": 2376,
    "arc_challenge": 1172,
    "winogrande": 1267,
    "openbookqa": 500,
    "piqa": 1838,
    "sciq": 1000,
    "lambada_openai": 5153,
    "hellaswag": 10042,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_every_real_row_is_an_item(name: str) -> None:
    found = items(name, data_dir())
    assert len(found) == REAL[name]
    assert all(len(item.requests) == max(1, len(item.choices or ())) for item in found)
    golds = {item.gold for item in found}
    assert len(golds) > 3000 if name.startswith("lambada") else golds <= set("ABCDE") and (len(golds) > 1 or name == "sciq")
