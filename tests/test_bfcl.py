"""Function calls: read without running anything, compared by the leaderboard's rules, on every real item."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data import data_dir
from loopwise.decoding import Completion, DecodingRule
from loopwise.evaluation.answering import Answering, Batching, Row
from loopwise.tasks import Item, TaskError, bfcl, task_named
from loopwise.tasks.bfcl_calls import Call, CallsError, parse_calls
from loopwise.tasks.bfcl_check import call_matches, calls_match, standard, value_matches
from loopwise.tasks.bfcl_prompts import HINT
from tiny import tiny_model, tiny_tokenizer

TASK = task_named("bfcl_v3")


def items_of(category: str) -> tuple[Item, ...]:
    return task_named(f"bfcl_v3:{category}").load(data_dir())


# Gold calls, written out


def right_value(wanted: list[Any], described: dict[str, Any]) -> Any:
    """The first value that a gold calls right, written as a model would write it."""
    value = next((one for one in wanted if one != ""), "")
    nested = described.get("items", {}).get("type") == "dict"
    if isinstance(value, dict):
        return entries(value)
    if isinstance(value, list) and nested:
        return [entries(one) if isinstance(one, dict) else one for one in value]
    return value


def entries(option: dict[str, Any]) -> dict[str, Any]:
    """One right value for every entry of a gold dictionary that has to be there."""
    return {key: next(one for one in values if one != "") for key, values in option.items() if "" not in values}


def right_calls(item: Item) -> list[tuple[str, dict[str, Any]]]:
    """The calls that an item's gold asks for, without what may be left out."""
    described = {function["name"]: function["parameters"]["properties"] for function in item.extra["functions"]}
    required = {function["name"]: function["parameters"]["required"] for function in item.extra["functions"]}
    calls = []
    for gold in json.loads(item.gold):
        ((name, wanted),) = gold.items()
        offered = name if name in described else next(iter(described))  # one gold misspells it
        needed = {key: values for key, values in wanted.items() if "" not in values or key in required[offered]}
        calls.append((offered, {key: right_value(values, described[offered].get(key, {})) for key, values in needed.items()}))
    return calls


def written(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "[" + ", ".join(f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls) + "]"


GOLD_CATEGORIES = tuple(one for one in bfcl.CATEGORIES if "relevance" not in one)


@pytest.mark.parametrize("category", GOLD_CATEGORIES)
def test_every_gold_is_right_and_changed_ones_are_wrong(category: str):
    changed: Counter[str] = Counter()
    for item in items_of(category):
        calls = right_calls(item)
        if item.name in bfcl.UNANSWERABLE:
            assert not TASK.grade(item, written(calls)).correct, f"{item.name} can be answered now: take it off the list"
            continue
        grade = TASK.grade(item, written(calls))
        assert grade.correct and grade.rule == "calls", (item.name, written(calls))
        assert TASK.grade(item, f"<think>f(a=1)</think>\n```{written(calls)}```").correct
        for what, wrong in wrong_calls(calls).items():
            changed[what] += 1
            assert not TASK.grade(item, written(wrong)).correct, (item.name, what, written(wrong))
        assert not TASK.grade(item, "I cannot do that.").correct and not TASK.grade(item, "[]").correct
        if "parallel" in category and item.name != "parallel_178":  # its golds overlap, and each takes the first call that fits it
            assert TASK.grade(item, written(calls[::-1])).correct, "parallel calls come in any order"
    assert min(changed[what] for what in ("renamed", "one more", "one less", "unknown parameter")) >= 16
    assert changed["another value"] > 0


def wrong_calls(calls: list[tuple[str, dict[str, Any]]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    (name, given), *others = calls
    wrong = {
        "renamed": [(name + "x", given), *others],
        "one more": [*calls, calls[0]],
        "one less": others,
        "unknown parameter": [(name, given | {"no_such": 1}), *others],
    }
    for key, value in given.items():
        if isinstance(value, str) and standard(value):
            wrong["another value"] = [(name, given | {key: value + "qqq"}), *others]
        elif isinstance(value, bool):
            continue  # some golds take both
        elif isinstance(value, int | float):
            wrong["another value"] = [(name, given | {key: value + 12345}), *others]
        else:
            wrong["another type"] = [(name, given | {key: 12345.5}), *others]
    return wrong


def test_where_no_call_or_any_call_is_right():
    for category, called, silent in (("irrelevance", False, True), ("live_irrelevance", False, True), ("live_relevance", True, False)):
        items = items_of(category)
        assert len(items) == {"irrelevance": 240, "live_irrelevance": 882, "live_relevance": 18}[category]
        for item in items[:30]:
            assert TASK.grade(item, "[f(a=1)]").correct is called
            for text in ("None of the functions can be used.", "[]", ""):
                assert TASK.grade(item, text).correct is silent
            assert TASK.grade(item, "<think>none of these").correct is False, "an endless thought is right nowhere"


def test_counts_and_known_wrong_golds():
    items = TASK.load(data_dir())
    counts = Counter(item.extra["subtask"] for item in items)
    assert tuple(counts) == bfcl.CATEGORIES and sum(counts.values()) == len(items) == 3491
    assert counts["simple"] == 400 and counts["live_multiple"] == 1053 and counts["live_parallel"] == 16
    listed = {name for name in bfcl.WRONG_GOLDS.keys() | bfcl.UNANSWERABLE.keys() if not name.startswith("java")}
    assert listed <= {item.name for item in items} and len(listed) == 20


def test_the_prompt_is_the_leaderboards():
    item = items_of("simple")[0]
    assert item.prompt.startswith("You are an expert in composing functions. You are given a question and a set of possible functions.")
    assert item.prompt.endswith("\n\n\n\nFind the area of a triangle with a base of 10 units and height of 5 units.")
    assert "that you can invoke.\n[{'name': 'calculate_triangle_area', 'description': 'Calculate the area" in item.prompt
    assert item.prompt.count(HINT) == 1
    assert HINT not in item.extra["functions"][0]["description"], "the functions that grading reads stay as they are"


def test_a_conversation_is_written_out_with_its_roles(tmp_path: Path):
    turn = [("system", "Be brief."), ("user", "Hi."), ("assistant", "Yes?"), ("user", "How?")]
    row = ROW | {"question": [[{"role": role, "content": content} for role, content in turn]]}
    (item,) = task_named("bfcl_v3:simple").load(folder_with(tmp_path, row, GOLD))
    assert item.prompt.endswith("\n\n\n\nBe brief.\n\nuser: Hi.\n\nassistant: Yes?\n\nuser: How?")


# Reading


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f(a=1, b='x')]", [("f", {"a": 1, "b": "x"})]),
        ("f(a=1)", [("f", {"a": 1})]),
        ("```\n[a.b.c(x=-1.5), g()]\n```", [("a.b.c", {"x": -1.5}), ("g", {})]),
        ("[f(a=[1, (2, 3)], b={'k': None}, c=True)]", [("f", {"a": [1, (2, 3)], "b": {"k": None}, "c": True})]),
        ("[f(a=2 * 3 + 1, b=10 ** 3, c=7 // 2)]", [("f", {"a": 7, "b": 1000, "c": 3})]),
        ("[f(a=name, b=g(c=1), d=g(), e=x[0], h=...)]", [("f", {"a": "name", "b": {"g": {"c": 1}}, "d": "g()", "e": "x[0]", "h": "..."})]),
        ("[f(1, a=2)]", [("f", {"a": 2})]),
        ("[f(a=1)", [("f", {"a": 1})]),
        ("[]", []),
        ("", []),
    ],
)
def test_calls_are_read(text: str, calls: list[tuple[str, dict[str, Any]]]):
    assert [(call.name, call.arguments) for call in parse_calls(text)] == calls


@pytest.mark.parametrize(
    "text",
    [
        "None of them.",
        "[1]",
        "[f]",
        "[f(a=1",
        "[f(**{'a': 1})]",
        "[f(a={**b})]",
        "[f(a=1)] and more",
        "[f(a=x.y)]",
        "[f(a=lambda: 1)]",
        "[f(a=[x for x in y])]",
        "[f(a='x' * 9)]",
        "[f(a=9 ** 9 ** 9)]",
        "[f(a=2 ** 65)]",
        "[f(a=1e308 * 10)]",
        "[f(a=1 / 0)]",
        "[f(a=(-8) ** 0.5)]",
        "[f(a={[1]: 2})]",
        "[f()(a=1)]",
        "[f(a=f'{x}')]",
        "\x00",
        "\ud800",
        "[" * 5000,
        "-" * 15_000 + "1",
        "[f(a=" + "-" * 15_000 + "1)]",
        "[f(a=" + "(" * 500 + ")" * 500 + ")]",
        "[f(a=x" + "[0]" * 5000 + ")]",
        "[" + "a." * 9000 + "b(c=1)",
        "[f(a=" + "1+" * 9000 + "1)]",
        "[f(a=" + "9" * 6000 + ")]",
        "f(a=1)," * 10_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_list_of_calls_is_refused_in_passing(text: str):
    started = time.process_time()
    try:
        calls = parse_calls(text)
    except CallsError as error:
        assert "\n" not in str(error)
    else:
        assert text.startswith("[a.a.") and calls[0].arguments == {"c": 1}, "a long name is a name"
    assert time.process_time() - started < 2


def test_nothing_that_a_model_writes_is_run(tmp_path: Path):
    file = tmp_path / "made"
    for code in (
        f"__import__('pathlib').Path({str(file)!r}).touch()",
        f"f(a=__import__('pathlib').Path({str(file)!r}).touch())",
        f"f(a=1 + __import__('pathlib').Path({str(file)!r}).touch())",
        f"f(a=(lambda: open({str(file)!r}, 'w'))())",
        f"f(a=[open({str(file)!r}, 'w')])",
    ):
        item = Item(name="x", prompt="", gold='[{"f": {"a": [1]}}]', extra={"functions": [FUNCTION], "subtask": "simple"})
        assert not TASK.grade(item, code).correct
    assert not file.exists()


def test_only_what_budget_forcing_opened_begins_at_the_opener():
    item = items_of("simple")[0]
    text = f"Let me think about [this], which{TASK.answer_opener}{written(right_calls(item))[1:]}"
    assert TASK.grade(item, text, forced=True).correct
    assert not TASK.grade(item, text).correct, "the leaderboard wants nothing else in an answer"
    assert TASK.grade(item, f"<think>{text}</think>\n{written(right_calls(item))}", forced=True).correct
    for closed in ("", "</think>"):  # a thought that never ended answers nothing, whatever was opened in it
        thought = f"<think>a{TASK.answer_opener}{written(right_calls(item))[1:]}{closed}"
        assert not TASK.grade(item, thought, forced=True).correct
    nothing = items_of("irrelevance")[0]
    assert not TASK.grade(nothing, f"<think>still thinking{TASK.answer_opener}none of them fits", forced=True).correct
    assert not TASK.grade(nothing, text, forced=True).correct and TASK.grade(nothing, text).correct


def test_a_record_knows_whether_the_opener_was_forced():
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    answering = Answering(model, tokenizer, TASK, DecodingRule(), 64, 0, Batching(1, False, "eager"))
    item = items_of("simple")[0]
    text = f"So:{TASK.answer_opener}{written(right_calls(item))[1:]}"
    opener, closing = answering.chat.continuation(TASK.answer_opener), (3, 4, 5)
    assert opener[: len(closing)] != closing
    for forced, opened in ((opener, True), (closing, False), ((), False)):
        done = Completion(
            text=text,
            token_ids=(9, *forced, 8),
            prompt_tokens=1,
            generated_tokens=len(forced) + 2,
            forced_tokens=len(forced),
            forced_mask=(False, *[True] * len(forced), False),
            stop_reason="forced" if forced else "end",
            finished=True,
            seconds=1.0,
        )
        record = answering.graded(Row(item, (1,), 0), done)
        assert record.correct == opened and record.forced_tokens == len(forced)


def test_a_long_answer_is_cut_and_strange_values_are_written():
    item = items_of("simple")[0]
    assert len(TASK.grade(item, f"[f(a='{'x' * 5000}')]").answer) == bfcl.LONGEST_SHOWN + 3
    assert TASK.grade(item, "[f(b={(1, 2): b'y'}, a=2j)]").answer == "[f(a=2j, b={(1, 2): b'y'})]"


# Comparing


FUNCTION = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}}


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"a": 1}, True),
        ({"a": 1, "b": "X-y"}, True),
        ({"a": 1, "b": "xz"}, False),
        ({"b": "xy"}, False),
        ({"a": 1, "c": 1}, False),
        ({"a": "1"}, False),
        ({"a": True}, False),
        ({"a": 1.0}, False),
    ],
)
def test_one_call(arguments: dict[str, Any], fits: bool):
    gold = {"f": {"a": [1, 2], "b": ["xy", ""]}}
    assert call_matches(FUNCTION, Call("f", arguments), gold) is fits
    assert not call_matches(FUNCTION, Call("g", arguments), gold)
    assert not call_matches(FUNCTION, Call("f", {"a": 1}), {"f": {"a": [1], "b": ["xy"]}}), "only what may be left out can be"


@pytest.mark.parametrize(
    ("described", "value", "wanted", "fits"),
    [
        ({"type": "float"}, 5, [5.0], True),
        ({"type": "float"}, 5, [5], True),
        ({"type": "integer"}, 5.0, [5], False),
        ({"type": "boolean"}, True, [True], True),
        ({"type": "boolean"}, "true", [True], False),
        ({"type": "string"}, "New York, NY", ["new york ny"], True),
        ({"type": "string"}, "it's", ['it"s'], True),
        ({"type": "any"}, "x", ["X"], True),
        ({"type": "integer"}, "n", ["n"], True),
        ({"type": "integer"}, "m", ["n"], False),
        ({"type": "array", "items": {"type": "string"}}, ["A b", "c"], [["ab", "c"]], True),
        ({"type": "array", "items": {"type": "string"}}, ["c", "ab"], [["ab", "c"]], False),
        ({"type": "array", "items": {"type": "integer"}}, [1, "2"], [[1, 2]], False),
        ({"type": "array", "items": {"type": "integer"}}, [], [[1], ""], True),
        ({"type": "tuple", "items": {"type": "float"}}, (1.0, 2.0), [[1.0, 2.0]], True),
        ({"type": "array", "items": {"type": "float"}}, (1.0, 2.0), [[1.0, 2.0]], False),
        ({"type": "dict"}, {"k": "X"}, [{"k": ["x", "y"]}], True),
        ({"type": "dict"}, {"k": "x", "l": 1}, [{"k": ["x"]}], False),
        ({"type": "dict"}, {}, [{"k": ["x", ""]}], True),
        ({"type": "dict"}, {}, [{"k": ["x"]}], False),
        ({"type": "array", "items": {"type": "dict"}}, [{"k": 1}], [[{"k": [1]}]], True),
        ({"type": "array", "items": {"type": "dict"}}, [{"k": 1}, {"k": 2}], [[{"k": [2]}, {"k": [1]}]], False),
        ({"type": "array", "items": {"type": "dict"}}, [{"k": 1}, {"k": 1}], [[{"k": [1]}]], False),
    ],
)
def test_one_value(described: dict[str, Any], value: Any, wanted: list[Any], fits: bool):
    assert value_matches(described, value, wanted) is fits


def test_calls_against_golds():
    golds = [{"f": {"a": [1]}}, {"f": {"a": [1, 2]}}]
    one, two = Call("f", {"a": 1}), Call("f", {"a": 2})
    assert calls_match([FUNCTION], [one, two], golds, any_order=True) and calls_match([FUNCTION], [two, one], golds, any_order=True)
    assert not calls_match([FUNCTION], [two, two], golds, any_order=True)
    assert not calls_match([FUNCTION], [one], golds, any_order=True)
    assert not calls_match([FUNCTION, FUNCTION | {"name": "g"}], [one], [{"h": {"a": [1]}}], any_order=False)


# Files


ROW = {"id": "simple_0", "question": [[{"role": "user", "content": "How?"}]], "function": [FUNCTION | {"description": "Does it."}]}
GOLD = {"id": "simple_0", "ground_truth": [{"f": {"a": [1]}}]}


def folder_with(folder: Path, row: dict[str, Any], gold: dict[str, Any]) -> Path:
    (folder / "possible_answer").mkdir(exist_ok=True)
    (folder / "BFCL_v3_simple.json").write_text(json.dumps(row))
    (folder / "possible_answer" / "BFCL_v3_simple.json").write_text(json.dumps(gold))
    return folder


@pytest.mark.parametrize(
    ("row", "gold", "message"),
    [
        ({"function": []}, {}, "field 'function' is missing; give a list of functions"),
        ({"function": [{"name": "f"}]}, {}, "field 'function' has one that is not described"),
        (
            {"function": [FUNCTION | {"description": "x", "parameters": {"properties": {"a": {"type": "int"}}, "required": []}}]},
            {},
            "types are",
        ),
        ({"question": [[], []]}, {}, "field 'question' is no single turn"),
        ({"question": [[{"role": "user"}]]}, {}, "field 'question' holds a message without"),
        ({}, {"id": "simple_1"}, "field 'id' is 'simple_0', which has no gold"),
        ({}, {"ground_truth": []}, "field 'ground_truth' is missing"),
        ({}, {"ground_truth": [{"f": {"a": 1}}]}, "field 'ground_truth' has a parameter without a list"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row: dict[str, Any], gold: dict[str, Any], message: str, tmp_path: Path):
    task = task_named("bfcl_v3:simple")
    assert len(task.load(folder_with(tmp_path, ROW, GOLD))) == 1
    with pytest.raises(TaskError) as error:
        task.load(folder_with(tmp_path, ROW | row, GOLD | gold))
    assert "BFCL_v3_simple.json, line 1: " in str(error.value) and message in str(error.value) and "\n" not in str(error.value)


def test_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = folder_with(tmp_path, ROW, GOLD)
    expected = task_named("bfcl_v3:simple").load(folder)
    with pytest.raises(TaskError, match=r"needs its golds beside its questions; name the folder with BFCL_v3_simple\.json"):
        task_named("bfcl_v3:simple").load(folder / "BFCL_v3_simple.json")
    with pytest.raises(TaskError, match=r"holds no bfcl_v3/possible_answer/BFCL_v3_parallel\.json"):
        task_named("bfcl_v3:parallel").load(folder)
    with pytest.raises(TaskError, match=r"^bfcl_v3:sql: 'sql' is no category here; they are simple, multiple"):
        task_named("bfcl_v3:sql")
    monkeypatch.delenv("LOOPWISE_DATA", raising=False)
    asked = []

    def hf_hub_download(name: str, file: str, *, repo_type: str) -> str:
        asked.append((name, file, repo_type))
        return str(folder / file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    assert task_named("bfcl_v3:simple").load() == expected
    hub = "gorilla-llm/Berkeley-Function-Calling-Leaderboard"
    assert asked == [(hub, "possible_answer/BFCL_v3_simple.json", "dataset"), (hub, "BFCL_v3_simple.json", "dataset")]


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch):
    def hf_hub_download(*args: Any, **more: Any) -> str:
        raise OSError("no way\nlong story")

    monkeypatch.delenv("LOOPWISE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    with pytest.raises(
        TaskError, match=r"^gorilla-llm/[^\n]*: possible_answer/BFCL_v3_simple\.json cannot be had from the hub \(no way\); [^\n]*$"
    ):
        task_named("bfcl_v3:simple").load()
