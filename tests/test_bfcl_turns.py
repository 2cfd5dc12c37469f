"""BFCL's conversations: the leaderboard's prompts, executor and checker, nothing evaluated, every gold right through the project's path."""

from __future__ import annotations

import ast
import copy
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loopwise
from data import data_dir
from loopwise.evaluation import check_parity, evaluate
from loopwise.tasks import Item, TaskError, bfcl_systems, bfcl_turns, task_named
from loopwise.tasks.bfcl_calls import CallsError, parse_calls
from loopwise.tasks.bfcl_systems import OUT_OF_LIMITS, Systems, package_folders
from loopwise.tasks.bfcl_turn_golds import UNANSWERABLE_TURNS, WRONG_TURN_GOLDS
from loopwise.tasks.bfcl_turns import MOST_STEPS, MULTI_TURN, TURN_RULES, Turns, as_source
from tiny import tiny_model

CONFIG = {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "one two"}}}}}}
ENTRY = {"id": "multi_turn_base_0", "initial_config": CONFIG, "involved_classes": ["GorillaFileSystem", "MathAPI"]}
GOLD = [["mkdir(dir_name='d')", "mv(source='a.txt',destination='d')"], [], ["add(a=1, b=2)"]]
SAID = ["Make d and move a.txt there.", "Add some numbers.", "1 and 2."]


@pytest.fixture(scope="module")
def package() -> Path:
    """Where bfcl-eval is installed."""
    try:
        return package_folders()[0]
    except TaskError as error:
        pytest.skip(str(error))


def write_rows(folder: Path, *, gold: Any = GOLD, category: str = "multi_turn_base", **fields: Any) -> Path:
    """A data folder with one conversation."""
    top = folder / "bfcl_v3"
    (top / "possible_answer").mkdir(parents=True, exist_ok=True)
    row = ENTRY | {"id": f"{category}_0", "question": [[{"role": "user", "content": said}] for said in SAID]} | fields
    (top / f"BFCL_v3_{category}.json").write_text(json.dumps(row) + "\n")
    (top / "possible_answer" / f"BFCL_v3_{category}.json").write_text(json.dumps({"id": row["id"], "ground_truth": gold}) + "\n")
    return folder


@pytest.fixture
def item(package: Path, tmp_path: Path) -> Item:
    return task_named("bfcl_v3:multi_turn_base").load(write_rows(tmp_path))[0]


def held(item: Item, *answers: str) -> Turns:
    """The conversation after these answers."""
    conversation = Turns(item)
    for answer in answers:
        conversation.reply(answer)
    return conversation


RIGHT = ["[mkdir(dir_name='d'), mv(source='a.txt', destination='d')]", "Done.", "Which numbers?", "[add(a=1, b=2)]", "3"]


# What is asked, and how a conversation goes on


def official(package: Path, file: str, *names: str) -> dict[str, Any]:
    """Functions and constants of a file of the package, without the imports that need every vendor's library."""
    tree = ast.parse((package / file).read_text())
    kept = [
        node for node in tree.body if (getattr(node, "name", None) or getattr(getattr(node, "targets", [None])[0], "id", None)) in names
    ]
    found: dict[str, Any] = {"ast": ast, "json": json}
    exec(compile(ast.Module(kept, []), file, "exec"), found)
    return found


@pytest.mark.parametrize("category", MULTI_TURN)
def test_prompts_and_later_turns_are_the_leaderboards(category: str, package: Path) -> None:
    prompts = official(
        package,
        "constants/default_prompts.py",
        "DEFAULT_SYSTEM_PROMPT_WITHOUT_FUNC_DOC",
        "DEFAULT_SYSTEM_PROMPT",
        "DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC",
        "DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING",
    )
    mapping = official(package, "constants/category_mapping.py", "MULTI_TURN_FUNC_DOC_FILE_MAPPING")["MULTI_TURN_FUNC_DOC_FILE_MAPPING"]
    assert {name: f"{file}.json" for name, file in bfcl_turns.DOCUMENTS.items()} == mapping
    rows = [json.loads(line) for line in (data_dir() / "bfcl_v3" / f"BFCL_v3_{category}.json").open()]
    for row, item in zip(rows, task_named(f"bfcl_v3:{category}").load(data_dir()), strict=True):
        listed = [(package / "data/multi_turn_func_doc" / mapping[name]).open() for name in row["involved_classes"]]
        functions = [json.loads(line) for lines in listed for line in lines]
        held_back = {}
        for turn, names in row.get("missed_function", {}).items():
            held_back[int(turn)] = [one for name in names for one in functions if one["name"] == name]
            functions = [one for one in functions if one["name"] not in names]
        shown = copy.deepcopy(functions)
        for one in shown:
            one["description"] += " Note that the provided function is in Python 3 syntax."
        wanted = [messages[0]["content"] if messages else None for messages in row["question"]]
        for turn, given in held_back.items():
            wanted[turn] = prompts["DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING"].format(functions=given)
        assert item.prompt == prompts["DEFAULT_SYSTEM_PROMPT"].format(functions=shown) + "\n\n" + wanted[0]
        assert item.conversation is not None and list(item.conversation["turns"]) == wanted[1:]


def test_results_come_as_the_leaderboard_tells_them(item: Item) -> None:
    conversation = held(item, "<think>\nhm\n</think>\n\n[cd(folder='nowhere'), ls(a=True)]")
    assert conversation.messages[1:] == [
        {"role": "assistant", "content": "[cd(folder='nowhere'), ls(a=True)]"},
        {
            "role": "user",
            "content": repr(
                [
                    {
                        "role": "tool",
                        "name": "cd(folder='nowhere')",
                        "content": '{"error": "cd: nowhere: No such directory. You cannot use path to change directory."}',
                    },
                    {"role": "tool", "name": "ls(a=True)", "content": '{"current_directory_content": ["a.txt"]}'},
                ]
            ),
        },
    ]
    conversation.reply("I cannot.")
    assert conversation.messages[-1] == {"role": "user", "content": SAID[1]} and 0 < conversation.share < 1


def test_later_turns_find_what_earlier_ones_did(item: Item) -> None:
    [told] = ast.literal_eval(held(item, "[mkdir(dir_name='d')]", "Done.", "[ls()]").messages[-1]["content"])
    assert told == {"role": "tool", "name": "ls()", "content": '{"current_directory_content": ["a.txt", "d"]}'}


# Who is right


def test_a_conversation_with_the_golds_calls_is_right(item: Item) -> None:
    conversation = held(item, *RIGHT)
    assert conversation.over and conversation.share == 1
    grade = conversation.grade()
    assert (grade.correct, grade.rule) == (True, "turns-right")
    assert grade.answer == "mkdir(dir_name='d'), mv(source='a.txt', destination='d'); no call; add(a=1, b=2)"
    stepwise = held(item, "[mkdir(dir_name='d')]", "cd(folder='nowhere')", "[mv(source='a.txt', destination='d')]", *RIGHT[1:])
    assert stepwise.grade().correct, "steps and failed calls between make nothing wrong"
    eager = held(item, RIGHT[0], "Done.", "[add(a=1, b=2)]", "3", "[sqrt()]", "3")
    assert eager.grade().correct, "a result that was had in an earlier turn counts"


@pytest.mark.parametrize(
    "answers, rule",
    [
        (["[mkdir(dir_name='d')]", *RIGHT[1:]], "wrong-state"),
        (["[mkdir(dir_name='e'), mv(source='a.txt', destination='e')]", *RIGHT[1:]], "wrong-state"),
        ([*RIGHT[:3], "[add(a=1, b=3)]", "4"], "missing-results"),
        ([*RIGHT[:3], "3"], "empty-turn"),
        (["Done.", *RIGHT[2:]], "empty-turn"),
        (["[pwd()]"] * (MOST_STEPS + 1), "too-many-steps"),
        ([*RIGHT[:3], *["[add(a=1, b=3)]"] * (MOST_STEPS + 1)], "missing-results"),
        ([*RIGHT[:3], *["[mkdir(dir_name='e'), add(a=1, b=2)]"] * (MOST_STEPS + 1)], "wrong-state"),
        (RIGHT[:3], "broken-off"),
        (["<think>[mkdir(dir_name='d')]", "", "", ""][:3], "empty-turn"),
    ],
)
def test_what_is_wrong_is_named(answers: list[str], rule: str, item: Item) -> None:
    grade = held(item, *answers).grade()
    assert (grade.correct, grade.rule) == (False, rule) and rule in TURN_RULES


def test_as_many_steps_as_the_leaderboard_allows_are_no_fault(item: Item) -> None:
    conversation = held(item, *RIGHT[:3], *["[add(a=1, b=2)]"] * MOST_STEPS)
    assert not conversation.over
    conversation.reply("3")
    assert conversation.grade().correct


def test_one_step_more_in_the_last_turn_ends_it_and_the_checker_decides(item: Item) -> None:
    conversation = held(item, *RIGHT[:3], *["[add(a=1, b=2)]"] * (MOST_STEPS + 1))
    assert conversation.over and conversation.grade().rule == "turns-right", "no turn is missing, so it is checked as on the leaderboard"


@pytest.mark.parametrize(
    "answer",
    [
        f"[add(a=0x{'f' * 5000}, b=1)]",
        f"[add(a={{0x{'f' * 5000}: 1}}, b=1)]",
        "[add(a={'\\ud800': 1}, b=2)]",
        "[add(a={'\\ud800': {'\\ud800': 1}}, b=2)]",
        "[add(a='\\ud800', b=2)]",
        "[add(a='\ud800', b=2)]",
        f"[add(a={'[' * 190}{']' * 190}, b=1)]",
        f"[add(a={'-' * 9000}1, b=1)]",
        f"[add(a={'{1: ' * 150}1{'}' * 150}, b=1)]",
        f"[{'a.' * 9000}f(b=1)]",
    ],
)
def test_no_answer_breaks_a_run(answer: str, item: Item) -> None:
    conversation = held(item, answer, "\ud800", "", "", "")
    conversation.grade().answer.encode()  # type: ignore[union-attr]
    json.dumps(conversation.messages, ensure_ascii=False).encode()


GOLDS = "ground_truth_eval_"
"""In the names that the package gives to the gold's systems."""


def test_keys_are_quoted_and_never_read_as_source(item: Item) -> None:
    gold = f"model_{GOLDS}multi_turn_base_0_gorillafilesystem_instance"
    evil = f"[pwd(a={{\"x': {gold}.mkdir #\\n(dir_name='e'), 'y\": 1}})]"
    others = ["[f(a={'g(b=1), x': {'h=i(), j': 1}})]", '[f(a={"it\'s": 1})]']
    assert bfcl_turns._calls(others[0]) == ("f(a='g(b=1), x'(**{'h=i(), j': 1}))",)
    assert bfcl_turns._calls(others[1]) == ('f(a={"it\'s": 1})',)
    [call] = bfcl_turns._calls(evil)
    argument = ast.parse(call, mode="eval").body.keywords[0].value  # type: ignore[attr-defined]
    assert len(ast.literal_eval(argument)) == 1
    assert held(item, *RIGHT[:3], "[mkdir(dir_name='e'), add(a=1, b=2)]", evil, "3").grade().rule == "wrong-state"


def test_a_call_reaches_no_systems_but_its_own(package: Path) -> None:
    gold, own = (f"add(a=model_{which}multi_turn_base_0_gorillafilesystem_instance.mkdir #\n(dir_name='e'), b=1)" for which in (GOLDS, ""))
    steps = [[["pwd()"]], [["mkdir(dir_name='e')", "pwd()", gold]]]  # there are none of the gold before its first turn
    assert bfcl_turns.systems().check(ENTRY, steps, [["pwd()"], ["pwd()"]]) == "multi_turn:instance_state_mismatch"
    results = bfcl_turns.systems().execute(ENTRY, [], [gold, own, "ls()"])
    assert "is not defined" in (results[0] or "") and results[2] == '{"current_directory_content": ["a.txt", "e"]}'


def test_prose_before_calls_is_left_out_where_budget_forcing_put_it(item: Item) -> None:
    answer = f"I will.{bfcl_turns.OPENER}[mkdir(dir_name='d')]"
    unforced, forced = Turns(item), Turns(item)
    unforced.reply(answer)
    forced.reply(answer, forced=True)
    assert unforced.messages[-1]["content"] == SAID[1] and "mkdir" in forced.messages[-1]["content"]


def test_a_call_that_never_ends_is_told_so_and_undone(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Systems(call_seconds=0.5)
    monkeypatch.setattr(bfcl_turns, "systems", lambda: quick)
    conversation = held(item, "[mkdir(dir_name='d'), power(base=7.0, exponent=2), power(base=7, exponent=10**10), ls()]")
    told = ast.literal_eval(conversation.messages[-1]["content"])
    assert [one["content"] for one in told] == ["None", '{"result": 49.0}', OUT_OF_LIMITS, '{"current_directory_content": ["a.txt", "d"]}']
    for answer in ("[mv(source='a.txt', destination='d')]", *RIGHT[1:]):
        conversation.reply(answer)
    assert conversation.grade().correct
    quick.close()


HUGE = "power(base=7, exponent=10000000000)"


def test_one_answer_cannot_take_more_than_its_time(package: Path) -> None:
    quick = Systems(call_seconds=0.3)
    results = quick.execute(ENTRY, [], ["pwd()", *[HUGE] * 50, "pwd()"])
    assert results[0] is not None and results[1:] == [None] * 51
    quick.close()
    whole = Systems(call_seconds=30.0, request_seconds=1)
    assert whole.execute(ENTRY, [], ["pwd()", HUGE, "pwd()"]) == [results[0], None, None]
    assert whole.check(ENTRY, [[[HUGE]]], [["pwd()"]]) == "fault"
    whole.close()
    assert bfcl_systems.WAITING_SECONDS > 4 * bfcl_systems.REQUEST_SECONDS


def test_a_long_result_is_told_by_its_beginning(package: Path) -> None:
    text = "x" * 150_000
    call = f"echo(content='{text}')"
    [told] = bfcl_turns.systems().execute(ENTRY, [], [call])
    assert told is not None and told.endswith("xxx... (150023 characters in all)") and 100_000 < len(told) < 100_100
    assert bfcl_turns.systems().check(ENTRY, [[[call]]], [[call]]) is None


def test_an_interrupted_request_leaves_nothing_to_the_next(package: Path) -> None:
    systems = Systems()

    def interrupt(process: Any, seconds: float) -> None:
        raise KeyboardInterrupt

    systems.execute(ENTRY, [], ["pwd()"])
    systems._line = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        systems.execute(ENTRY, [], ["add(a=1, b=0)"])
    del systems._line
    assert systems.execute(ENTRY, [], ["add(a=2, b=0)"]) == ['{"result": 2}']
    systems.close()


def test_half_a_line_is_the_last_of_its_fork(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    half = r"""print('{"ready": true}', flush=True)
for line in open(0):
    print('{"result": "a"}\n{"result": "b{"ended": 27}', flush=True)
"""
    worker.write_text(half)
    monkeypatch.setattr(bfcl_systems, "_WORKER", worker)
    systems = Systems()
    assert systems._ask({}) == systems._ask({}) == ([{"result": "a"}], 0)
    systems.close()


def test_a_gold_of_another_length_makes_nothing_right(package: Path, tmp_path: Path) -> None:
    [item] = task_named("bfcl_v3:multi_turn_base").load(write_rows(tmp_path, gold=[*GOLD, []]))
    assert held(item, *RIGHT).grade().rule == "other-length"


def test_functions_that_are_held_back_come_in_their_turn(package: Path, tmp_path: Path) -> None:
    question = [[{"role": "user", "content": SAID[0]}], [], [{"role": "user", "content": SAID[2]}]]
    folder = write_rows(tmp_path, category="multi_turn_miss_func", question=question, missed_function={"1": ["add"]})
    [item] = task_named("bfcl_v3:multi_turn_miss_func").load(folder)
    assert "'name': 'add'" not in item.prompt and "'name': 'subtract'" in item.prompt
    conversation = held(item, "Done.")
    assert conversation.messages[-1]["content"].startswith("[{'name': 'add'")
    assert conversation.messages[-1]["content"].endswith("\nI have updated some more functions you can choose from. What about now?")


# The executor


@pytest.fixture
def executor(package: Path) -> Iterator[Any]:
    """The package's own, which evaluates."""
    yield importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    for name in [name for name in sys.modules if name.startswith("bfcl_eval")]:
        del sys.modules[name]


CALLS = [
    "ls()", "ls(a=True)", "mkdir(dir_name='d')", "cd(folder='d')", "cd('..')", "touch(file_name='b.txt')",
    "echo(content='x y', file_name='b.txt')", "cat(file_name='b.txt')", "cat(file_name='none')", "cat(name='b.txt')", "cat()",
    "grep(file_name='a.txt', pattern='two')", "rm(file_name='b.txt')", "echo(content='cd (here) and mean ( [1] )')", "add(a=1, b=2)",
    "add(a='x', b=2)", "add(a=add(a=1, b=2), b=3)", "mean(numbers=[1, 2.5, -3])", "mean(numbers=())", "divide(a=1, b=0)",
    "power(base=2, exponent=5000.5)", "power(base=2, exponent=20000)", "round_number(number=2.567)",
    "square_root(number=-1, precision=5)", "logarithm(value=10, base=10, precision=5)", "unknown(a=1)", "MathAPI.add(a=1, b=2)",
    "cd.add(a=1)", "_load_scenario(scenario={'a': 1})", "kill(pid=1)", "os.kill(pid=1)", "add(a=inf, b=1)", "add(a=nan, b=-inf)",
    "add(a=1, b={'x': 1})", "add(a={'it's': 1}, b=2)", "(a=1)", "", "find(path='.', name='a')", "wc(file_name='a.txt', mode='w')",
    "du(human_readable=True)", "sort(file_name='a.txt')", "tail(file_name='a.txt', lines=1)",
    "diff(file_name1='a.txt', file_name2='a.txt')", "pwd()", "add(a=1+2j, b=1)", "cp(source='a.txt', destination='d')",
    "mv(source='a.txt', destination='c.txt')", "rmdir(dir_name='d')", "sum_values(numbers=[1, [2]])",
]  # fmt: skip


def test_results_and_state_are_the_executors(executor: Any) -> None:
    theirs, instances = executor.execute_multi_turn_func_call(CALLS, CONFIG, ENTRY["involved_classes"], "model", ENTRY["id"])
    systems = Systems()
    ours = systems.execute(ENTRY, [], CALLS)
    for call, one, other in zip(CALLS, ours, theirs, strict=True):
        assert one == other, call
    again = systems.execute(ENTRY, CALLS, ["find(path='.', name='')"])
    assert again == [json.dumps(instances["GorillaFileSystem"].find(path=".", name=""))], "the state is that of all calls before"
    systems.close()


@pytest.mark.parametrize(
    "call, message",
    [
        ("print(sep='')", "name 'print' is not defined"),
        ("__import__(name='os')", "name '__import__' is not defined"),
        ("add(a={'x': __import__('os').mkdir('FOLDER')}, b=1)", "a call of something without a name"),
        ("add(a=__import__(name='os'), b=1)", "name '__import__' is not defined"),
        ("add(a=[c for c in ().__class__.__base__.__subclasses__()], b=1)", "malformed node"),
        ("model_multi_turn_base_0_mathapi_instance._api_description.format(a=1)", "name 'model_multi_turn_base_0_mathapi_instance'"),
        ("model_multi_turn_base_0_gorillafilesystem_instance._load_scenario(scenario={})", "has no attribute '_load_scenario'"),
        ("model_multi_turn_base_0_gorillafilesystem_instance.__init__()", "has no attribute '__init__'"),
        ("add(*[1, 2])", "unpacked arguments are not allowed"),
        ("add(**{'a': 1, 'b': 2})", "unpacked arguments are not allowed"),
        ("add(a=1, b=2).__class__()", "a call of something without a name"),
        ("add(a=lambda: 1, b=2)", "malformed node"),
    ],
)
def test_nothing_but_the_systems_own_methods_is_called(call: str, message: str, package: Path, tmp_path: Path) -> None:
    [result] = bfcl_turns.systems().execute(ENTRY, [], [call.replace("FOLDER", str(tmp_path / "made"))])
    assert result is not None and result.startswith("Error during execution: ") and message in result
    assert not (tmp_path / "made").exists()


def test_a_conversation_finds_nothing_of_another_one(package: Path) -> None:
    one = bfcl_turns.systems().execute(ENTRY, [], ["logarithm(value=7, base=10, precision=50)", "mkdir(dir_name='d')"])
    assert one[1] == "None"
    [precise, plain] = bfcl_turns.systems().execute(ENTRY, [], ["logarithm(value=7, base=10, precision=15)", "mkdir(dir_name='d')"])
    assert plain == "None" and precise != one[0]


def test_a_child_that_was_killed_is_an_error_and_the_next_request_has_another(package: Path) -> None:
    systems = Systems()
    assert systems.execute(ENTRY, [], ["pwd()"]) == systems.execute(ENTRY, [], ["pwd()"])
    assert systems._process is not None
    systems._process.kill()
    systems._process.wait()
    with pytest.raises(TaskError, match="the process of bfcl-eval's systems ended"):
        systems.execute(ENTRY, [], ["pwd()"])
    assert systems.execute(ENTRY, [], ["pwd()"]) == ['{"current_working_directory": "/home"}']
    systems.close()


# Reading answers


ANSWERS = [
    "[add(a=1, b=2)]", "add(a=1, b=2)", "```\n[add(a=1, b=2)]\n```", "[add(a=1, b=2), mean(numbers=[1, 2])]", "[MathAPI.add(a=1, b=2)]",
    "[add(a=add(a=1, b=2), b=-3)]", "[add(a=one(), b=x)]", "[add(1, b=2)]", "[f(a={'x': 1, 'y': {'z': [1]}})]",
    "[f(a={'x': {'y': 1}})]", "[f(a={'x': g(b=1), 'y': 2})]", "[f(a={})]", "[f(a='it\\'s', b=\"q\")]", "[f(a=True, b=None, c=1.5)]",
    "[f(a=x[0], b=(1, 2))]", "[f(a=1 + 2)]", "[]", "", "hello", "I cannot do that.", "[add(a=1, b=2)] is it", "[add(a=1, b=2), 'x']",
    "[add(a=1, b=]", "f(a=1)]", "[f()]", "[f(a=...)]", "[f(a={1: 2})]", "[f(**x)]", "[f(a=lambda: 1)]", "[f(a=[g(b=1)])]",
    "[[f(a=1)]]", "[f(a=1)]]", "'[f(a=1)]'", "['f(a=1)']", "[(f(a=1), g(b=2))]", "[f(a=1)], [g(b=2)]", "[[f(a=1), g(b=2)]]", "f(a=1) # so",
    "[f(a='x' + \"y\" + 'z')]", "[f(a='x' + y)]", "[f(a='x' + 1)]", "[f(a=-1.5)]", "[f(a={'g': {}})]", "f(a=[1])", "{f(a=1), g(b=2)}",
    "I will. [f(a=1)]", "I will.\n\nFunction calls:\n[f(a=1)]",
]  # fmt: skip


def test_answers_become_the_calls_that_the_leaderboard_executes(package: Path) -> None:
    names = ("ast_parse", "resolve_ast_call", "resolve_ast_by_type", "default_decode_execute_prompting", "parse_nested_value")
    decode = official(package, "model_handler/utils.py", *names, "decoded_output_to_execution_list")["default_decode_execute_prompting"]
    for answer in ANSWERS:
        try:
            theirs = decode(answer)
        except Exception:  # whatever it raises ends the turn there
            theirs = []
        assert list(bfcl_turns._calls(answer)) == (theirs if "**" not in answer else []), answer
    with pytest.raises(CallsError, match="an empty mapping"):
        as_source(parse_calls("[f(a={})]")[0])


# All rows


def in_names(call: str, item: Item, package: Path) -> str:
    """A gold's call as a model has to write it: arguments without a name are dropped from answers."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and item.conversation is not None
    documents = bfcl_turns._documents(package)
    offered = {one["name"]: one for name in item.conversation["entry"]["involved_classes"] for one in documents[name]}
    names = list(offered[node.func.id]["parameters"]["properties"])
    given = {name: value for name, value in zip(names, node.args, strict=False)} | {str(one.arg): one.value for one in node.keywords}
    return f"{node.func.id}({', '.join(f'{name}={ast.unparse(value)}' for name, value in given.items())})"


@pytest.mark.parametrize("limit", [3, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("category", MULTI_TURN)
def test_every_gold_is_right_through_the_projects_path(category: str, limit: int | None, package: Path) -> None:
    items = task_named(f"bfcl_v3:{category}").load(data_dir(), limit)
    assert len(items) == limit or len(items) == 200
    for item in items:
        answers = []
        for calls in json.loads(item.gold):
            answers += [f"[{', '.join(in_names(call, item, package) for call in calls)}]"] if calls else []
            answers.append("That is all.")
        conversation = held(item, *answers)
        grade = conversation.grade()
        assert conversation.over and grade.correct == (item.name not in UNANSWERABLE_TURNS), (item.name, grade)


def test_the_lists_of_wrong_golds_name_real_items(package: Path) -> None:
    names = {item.name for item in task_named("bfcl_v3:multi_turn").load(data_dir())}
    assert len(names) == 800 and WRONG_TURN_GOLDS.keys() | UNANSWERABLE_TURNS.keys() <= names
    assert len(WRONG_TURN_GOLDS) == 35


@pytest.mark.slow
def test_the_embedded_model_holds_a_real_conversation(package: Path, tmp_path: Path) -> None:
    try:
        model, tokenizer = loopwise.load("smollm2", loops="none")
    except ValueError as error:
        pytest.skip(str(error))
    items = task_named("bfcl_v3:multi_turn_base").load(data_dir())
    item = min(items, key=lambda one: (len(json.loads(one.gold)), len(one.prompt)))
    parity = check_parity(tiny_model("llama"), [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]], new_tokens=2)  # a real one takes minutes here
    run = evaluate(model, tokenizer, "bfcl_v3:multi_turn_base", items=[item], out=tmp_path, budget_tokens=24, parity=parity)
    [record] = run.records
    told = json.loads(record.text or "")
    assert record.rule in TURN_RULES and record.extra["subtask"] == "multi_turn_base"
    assert [one["role"] for one in told] == ["assistant", "user"] * (len(told) // 2) + ["assistant"]
    assert len(record.extra["rounds"]) == len(told) // 2 + 1 and run.header["bfcl_eval"] == bfcl_systems.VERSION


# What is refused


def test_parts_are_named_together_but_not_mixed(package: Path, tmp_path: Path) -> None:
    assert task_named("bfcl_v3:multi_turn").name == "bfcl_v3:" + ",".join(MULTI_TURN)
    with pytest.raises(TaskError, match="multi_turn_base is of conversations and others are of single answers; make two tasks"):
        task_named("bfcl_v3:simple,multi_turn_base")
    with pytest.raises(TaskError, match="'multi' is no category here"):
        task_named("bfcl_v3:multi")
    task = task_named("bfcl_v3:multi_turn_base")
    with pytest.raises(TaskError, match="is a conversation, whose end is graded and not an answer"):
        task.grade(task.load(write_rows(tmp_path))[0], "[add(a=1, b=2)]")


def test_without_the_package_or_with_another_version_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = task_named("bfcl_v3:multi_turn_base")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"^BFCL's multi-turn .* need bfcl-eval.*; pip install --no-deps bfcl-eval==2025.7.17$"):
        task.load(tmp_path)
    monkeypatch.undo()
    found = importlib.machinery.ModuleSpec("bfcl_eval", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2026.3.23")
    with pytest.raises(TaskError, match=r"need bfcl-eval 2025.7.17, found 2026.3.23; pip install --no-deps"):
        task.load(tmp_path)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"involved_classes": ["Bank"]}, "field 'involved_classes' is no list of systems"),
        ({"involved_classes": []}, "field 'involved_classes' is no list of systems"),
        ({"initial_config": None}, "field 'initial_config' is missing"),
        ({"question": []}, "field 'question' is no list of turns"),
        ({"question": [[]]}, "field 'question' has no single user message in turn 0"),
        ({"question": [[{"role": "user", "content": 3}]]}, "field 'question' has no single user message in turn 0"),
        ({"missed_function": {"x": ["add"]}}, "field 'missed_function' is no object of turns"),
        ({"missed_function": {"1": ["fly"]}}, "field 'missed_function' names 'fly'"),
        ({"missed_function": {"1": ["add"]}}, "field 'question' has no single user message in turn 1"),
        ({"missed_function": {"7": ["add"]}}, "field 'question' is no list of turns"),
        ({"gold": None}, "field 'ground_truth' is no list of lists"),
        ({"gold": [["x"], "y"]}, "field 'ground_truth' is no list of lists"),
    ],
)
def test_a_damaged_row_is_named(fields: dict[str, Any], message: str, package: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"multi_turn_base.json, line 1: " + message):
        task_named("bfcl_v3:multi_turn_base").load(write_rows(tmp_path, **fields))


def test_a_state_that_the_systems_do_not_take_is_named(package: Path, tmp_path: Path) -> None:
    [item] = task_named("bfcl_v3:multi_turn_base").load(write_rows(tmp_path, initial_config={"GorillaFileSystem": {"root": 3}}))
    with pytest.raises(TaskError, match=r"multi_turn_base_0: bfcl-eval cannot set up its systems .* repair the row's initial_config"):
        held(item, "[pwd()]")
