"""Java and JavaScript calls: read by the leaderboard's rules without running anything, with its verdicts on every item."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bfcl_answers import ODD, SPELLINGS, answers_to, arguments_of, call_of
from data import data_dir
from loopwise.tasks import Item, TaskError, bfcl, task_named
from loopwise.tasks.bfcl_calls import CallsError
from loopwise.tasks.bfcl_languages import read_java, read_javascript
from loopwise.tasks.bfcl_source import UNNAMED, parse_java, parse_javascript, source_parser

LANGUAGES = ("java", "javascript")


@pytest.fixture
def grammars() -> None:
    """Skips a test where tree-sitter's grammars are not installed."""
    for module in ("tree_sitter", "tree_sitter_java", "tree_sitter_javascript"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'loopwise[bfcl]'")


def items_of(language: str) -> tuple[Item, ...]:
    return task_named(f"bfcl_v3:{language}").load(data_dir())


@pytest.mark.usefixtures("grammars")
@pytest.mark.parametrize(("language", "number"), [("java", 100), ("javascript", 50)])
def test_every_gold_is_right_in_some_spelling_and_changed_ones_are_wrong(language: str, number: int) -> None:
    task, items = task_named(f"bfcl_v3:{language}"), items_of(language)
    assert len(items) == number
    wrong: Counter[str] = Counter()
    for item in items:
        answerable = item.name not in bfcl.UNANSWERABLE
        every = {name: [arguments_of(item, spelling)[name] for spelling in range(SPELLINGS)] for name in arguments_of(item, 0)}
        right = {}
        for name in every:  # each value by itself first, to find its spelling
            alone = item.extra["functions"][0] | {"parameters": _only(item, name)}
            gold = json.dumps([{key: {name: wanted[name]} for key, wanted in json.loads(item.gold)[0].items()}])
            part = Item(name=item.name, prompt="", gold=gold, extra={"functions": [alone], "subtask": language})
            fitting = [text for text in every[name] if task.grade(part, f"[{call_of(part, {name: text})}]").correct]
            right[name] = next((text for text in fitting if not text.startswith(ODD)), every[name][0])
        assert task.grade(item, f"[{call_of(item, right)}]").correct is answerable, (item.name, right)
        if not answerable:
            continue
        name, text = next(iter(right.items()))
        changed = {
            "renamed": f"[x{call_of(item, right)}]",
            "unknown": f"[{call_of(item, right | {'no_such': '1'})}]",
            "twice": f"[{call_of(item, right)[:-1]}, {name}={text})]",
            "other": f"[{call_of(item, right | {name: 'somethingElse'})}]",
            "broken": f"[{call_of(item, right | {name: 'a b'})}]",
            "chat": f"I cannot say, but {call_of(item, right)} would do.",
        }
        for what, answer in changed.items():
            wrong[what] += 1
            assert not task.grade(item, answer).correct, (item.name, answer)
    assert min(wrong.values()) >= number - 7


def _only(item: Item, name: str) -> dict[str, Any]:
    described = item.extra["functions"][0]["parameters"]
    return {"properties": {name: described["properties"][name]}, "required": []}


# The leaderboard's own checker


@pytest.fixture
def official(grammars: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Item, str], bool]]:
    """The verdict of ``bfcl-eval`` (pip install --no-deps bfcl-eval==2025.7.17)."""
    if importlib.util.find_spec("bfcl_eval") is None:
        pytest.skip("bfcl-eval is not installed: pip install --no-deps bfcl-eval==2025.7.17")
    models = types.ModuleType("bfcl_eval.constants.model_config")  # the real one imports every vendor's library
    models.MODEL_CONFIG_MAPPING = {"any": types.SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bfcl_eval.constants.model_config", models)
    monkeypatch.setitem(sys.modules, "tree_sitter", _older_tree_sitter())
    checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    parsers = {
        "java": importlib.import_module("bfcl_eval.model_handler.parser.java_parser").parse_java_function_call,
        "javascript": importlib.import_module("bfcl_eval.model_handler.parser.js_parser").parse_javascript_function_call,
    }

    def verdict(language: str, item: Item, answer: str) -> bool:
        answer = answer.strip("`\n ")
        inside = answer[answer.startswith("[") : len(answer) - answer.endswith("]")]
        try:
            calls = parsers[language](inside)
        except Exception:  # whatever it raises counts as an answer that cannot be read, there as here
            return False
        named = {"java": "Java", "javascript": "JavaScript"}[language]
        with contextlib.redirect_stdout(io.StringIO()):
            functions, gold = item.extra["functions"], json.loads(item.gold)
            return isinstance(calls, list) and checker(functions, calls, gold, named, language, "any")["valid"]

    yield verdict
    for name in [name for name in sys.modules if name.startswith("bfcl_eval")]:
        del sys.modules[name]


def _older_tree_sitter() -> types.ModuleType:
    """What the package calls of tree-sitter 0.21, by the version that is installed."""
    real = importlib.import_module("tree_sitter")

    class Root:
        def __init__(self, node: Any) -> None:
            self._node = node

        def __getattr__(self, name: str) -> Any:
            return getattr(self._node, name)

        def sexp(self) -> str:
            return str(self._node)

    class Parser:
        def set_language(self, language: Any) -> None:
            self._parser = real.Parser(language)

        def parse(self, source: bytes) -> Any:
            self._tree = self._parser.parse(source)
            return types.SimpleNamespace(root_node=Root(self._tree.root_node))

    older = types.ModuleType("tree_sitter")
    older.Parser = Parser  # type: ignore[attr-defined]
    older.Language = lambda pointer, name: real.Language(pointer)  # type: ignore[attr-defined]
    return older


@pytest.mark.parametrize("language", LANGUAGES)
def test_verdicts_are_the_leaderboards(language: str, official: Callable[[str, Item, str], bool]) -> None:
    task, verdicts = task_named(f"bfcl_v3:{language}"), Counter[bool]()
    source_parser(language)
    for item in items_of(language):
        for answer in answers_to(item):
            wanted = official(language, item, answer)
            assert task.grade(item, answer).correct is wanted, (item.name, answer)
            verdicts[wanted] += 1
    assert min(verdicts.values()) > 500, "answers of both kinds"


# Reading


@pytest.mark.usefixtures("grammars")
@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('[a.B.f(x=1, y="t, u", z=\'c\')]', "a.B.f", {"x": "1", "y": "t, u", "z": "c"}),
        ("f(x=new HashMap<String, Object>() {{ put(\"k\", 1); }}, y=-1.5f)", "f", {"x": "new HashMap<String,Object>()", "y": "-1.5f"}),
        ("f(x=new int[] { 1, 2 }, y=g(1,  2), z=a . B)", "f", {"x": "new int[]{1,2}", "y": "g(1,  2)", "z": "a.B"}),
        ("[int n = f(x=true, loose);]", "f", {"x": "true", UNNAMED: "loose"}),
        ("f(1, g(), x=2)", "f", {"x": "2"}),
    ],
)  # fmt: skip
def test_a_java_call_is_read(text: str, name: str, arguments: dict[str, str]) -> None:
    (call,) = parse_java(text)
    assert (call.name, call.arguments) == (name, arguments)


@pytest.mark.usefixtures("grammars")
@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("[a.f(x=1, y=\"t, u\", z='c')]", "a.f", {"x": "1", "y": "t, u", "z": "c"}),
        ("f(x={a: [1, 2]}, y=() => g(), z=`t`)", "f", {"x": "{a: [1, 2]}", "y": "() => g()", "z": "`t`"}),
        ("let n = 1; f(x=é, true)", "f", {"x": "é", UNNAMED: "true"}),
    ],
)
def test_a_javascript_call_is_read(text: str, name: str, arguments: dict[str, str]) -> None:
    (call,) = parse_javascript(text)
    assert (call.name, call.arguments) == (name, arguments)


@pytest.mark.usefixtures("grammars")
@pytest.mark.parametrize("parse", [parse_java, parse_javascript])
@pytest.mark.parametrize(
    "text",
    ["", "[]", "None can be used.", "f(x=1 2)", "f(x=1, x=2)", "f(a, b)", "f(x=", "\x00", "\ud800", "f(x=1)," * 9000, "f(x=" + "(" * 9000],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_call_is_refused_in_passing(parse: Callable[[str], Any], text: str) -> None:
    started = time.process_time()
    with pytest.raises(CallsError) as refused:
        parse(text)
    assert "\n" not in str(refused.value) and time.process_time() - started < 5


@pytest.mark.usefixtures("grammars")
def test_a_deep_value_is_refused_or_read_and_never_ends_the_process() -> None:
    for deep in ("-" * 9000 + "1", "(" * 4000 + "1" + ")" * 4000, "[" * 4000 + "]" * 4000, "a" + ".b" * 4000):
        for parse in (parse_java, parse_javascript):
            with contextlib.suppress(CallsError):
                assert parse(f"f(x={deep})")[0].name == "f"


@pytest.mark.parametrize(
    ("text", "kind", "inner", "value"),
    [
        ("5", "integer", None, 5),
        ("5L", "integer", None, "5L"),
        ("-5L", "long", None, -5),
        ("5", "long", None, "5"),
        ("1.5f", "float", None, 1.5),
        ("1.5", "float", None, "1.5"),
        ("-1e-3", "double", None, -0.001),
        ("true", "boolean", None, True),
        ("True", "boolean", None, "True"),
        ("x", "any", None, "x"),
        ("9" * 5000, "integer", None, "9" * 5000),
        ("new int[]{1,2,}", "Array", "integer", [1, 2]),
        ('new String[]{"a"}', "Array", "String", ['"a"']),
        ("args", "Array", "String", "args"),
        ('new ArrayList<>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Long>(Arrays.asList(1L, 2))", "ArrayList", "long", [1, "2"]),
        ("new ArrayList<>()", "ArrayList", "long", []),
        ("List.of(1L)", "ArrayList", "long", "List.of(1L)"),
        ("new HashMap<String,Object>()", "HashMap", None, {}),
        ('new HashMap<>() {{ put("a", 1); put("b", "c"); put("d", 2L); }}', "HashMap", None, {"a": 1, "b": "c", "d": 2}),
        ("map", "HashMap", None, "map"),
    ],
)
def test_java_values(text: str, kind: str, inner: str | None, value: Any) -> None:
    found = read_java(text, kind, inner)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "inner", "value"),
    [
        ("5", "integer", None, 5),
        ("5.0", "integer", None, "5.0"),
        ("5", "float", None, 5.0),
        ("1e3", "float", None, "1e3"),
        ("5n", "Bigint", None, 5),
        ("false", "Boolean", None, False),
        ("'x'", "String", None, "x"),
        ("x", "String", None, "x"),
        ("x()", "any", None, "x()"),
        ("['a', \"b\"]", "array", "String", ["a", "b"]),
        ("new Array(1, 2)", "array", "float", [1.0, 2.0]),
        ("[[1, 2], [3, 'x']]", "array", "float", [[1, 2], [3, "x"]]),
        ("[]", "array", "String", []),
        ("items", "array", "String", "items"),
        ("[\n1]", "array", "float", "[\n1]"),
        ("{}", "dict", None, {}),
        ("{a: 1, 'b': [1, 'x'], c: f(x, y), d: true}", "dict", None, {"a": 1, "b": [1, "x"], "c": "f(x, y)", "d": True}),
        ("options", "dict", None, "options"),
    ],
)
def test_javascript_values(text: str, kind: str, inner: str | None, value: Any) -> None:
    found = read_javascript(text, kind, inner)
    assert found == value and type(found) is type(value)


# Asking, and what is refused


@pytest.mark.usefixtures("grammars")
def test_parameters_are_described_as_texts() -> None:
    java, script = items_of("java")[1].prompt, items_of("javascript")[3].prompt
    assert java.count(" Note that the provided function is in Java 8 SDK syntax.") == 1
    assert "This is Java boolean type parameter in string representation." in java and "'type': 'boolean'" not in java
    assert "This parameter can be of any type of Java object in string representation." in java
    assert "in JavaScript syntax." in script and "The list elements are of type float; they are not in string representation." in script
    assert items_of("javascript")[3].extra["functions"][0]["parameters"]["properties"]["coordinates"]["type"] == "array"


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_the_grammars_one_line_says_what_to_install(language: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    source_parser.cache_clear()
    with pytest.raises(TaskError, match=r"pip install 'loopwise\[bfcl\]'"):
        task_named(f"bfcl_v3:{language}").load(tmp_path)
    source_parser.cache_clear()
