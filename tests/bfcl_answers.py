"""Java and JavaScript answers for BFCL's items: what their golds ask for in several spellings, and what models get wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from loopwise.tasks import Item

SPELLINGS = 9
"""How many ways a value is written in."""
ODD = ("g(", '"""')
"""How spellings begin that keep a Java object's body for the leaderboard's reader, and that are no values of the type."""


def java_spellings(value: Any) -> list[str]:
    """A value in Java, as models write it: with and without quotes, suffixes, in arrays, lists and maps."""
    if isinstance(value, bool):
        return [str(value).lower(), f'"{str(value).lower()}"', str(value)]
    if isinstance(value, int | float):
        return [str(value), f"{value}L", f"{value}f", f"{value}.0", f'"{value}"', f"-{value}"]
    if isinstance(value, list):
        members = ", ".join(java_spellings(one)[0] for one in value)
        adds = " ".join(f"add({java_spellings(one)[0]});" for one in value)
        return [
            f"new ArrayList<>(Arrays.asList({members}))",
            f"new String[]{{{members}}}",
            f"new ArrayList<String>(Arrays.asList({members.replace(', ', ',')}))",
            f"new int[] {{ {members.replace(chr(34), '')} }}",
            f"Arrays.asList({members})",
            f"new ArrayList<>(Arrays.asList(\n    {members}\n))",
            f"new ArrayList<Long>(Arrays.asList({', '.join(f'{one}L' for one in value)}))",
            f"g(new ArrayList<>() {{{{ {adds} }}}})",
            f'"""\n new ArrayList<>() {{{{ {adds} }}}}"""',
        ]
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {java_spellings(_first(one))[0]});' for key, one in value.items())
        filled = f"new HashMap<String, Object>() {{{{ {puts} }}}}"
        odd = ["new HashMap<>()", f"Map.of({puts})", f"new HashMap<>() {{ {puts} }}", f"g({filled})", "new HashMap<>() {", "x", "{}"]
        return [filled, *odd, f'"""\n {filled}"""']
    return [f'"{value}"', str(value), f"'{value}'", f'"{value} "', f'new String("{value}")', f'"{str(value).upper()}"']


def javascript_spellings(value: Any) -> list[str]:
    """A value in JavaScript likewise."""
    if isinstance(value, bool):
        return [str(value).lower(), f'"{str(value).lower()}"', str(value)]
    if isinstance(value, int | float):
        return [str(value), f"{value:g}", f"{value}n", f'"{value}"', f"-{value}", f"{value}e0"]
    if isinstance(value, list):
        members = ", ".join(javascript_spellings(one)[0] for one in value)
        return [
            f"[{members}]",
            f"new Array({members})",
            f"[[{members}], [{members}]]",
            f"[ {members.replace(chr(34), chr(39))} ]",
            f"[\n  {members}\n]",
            f"new Array([{members}], [1, 'x'])",
        ]
    if isinstance(value, dict):
        entries = [(key, javascript_spellings(_first(one))[0]) for key, one in value.items()]
        inner = ", ".join(f"{key}: {one}" for key, one in entries)
        quoted = ", ".join(f"'{key}': {one}" for key, one in entries)
        return [f"{{{inner}}}", f"{{ {quoted} }}", "{}", f"{{{inner}, more: [1, 2]}}", f"{{\n{inner}\n}}", f"({{{inner}}})"]
    return [f'"{value}"', str(value), f"'{value}'", f"`{value}`", f'"{value} "', f'"{str(value).upper()}"']


def _first(values: Any) -> Any:
    return next((one for one in values if one != ""), "") if isinstance(values, list) else values


def arguments_of(item: Item, spelling: int) -> dict[str, str]:
    """One way to write the values that an item's gold asks for first."""
    ((_, wanted),) = json.loads(item.gold)[0].items()
    spell = java_spellings if item.extra["subtask"] == "java" else javascript_spellings
    written = {name: spell(_first(values)) for name, values in wanted.items()}
    return {name: texts[spelling % len(texts)] for name, texts in written.items()}


def call_of(item: Item, arguments: dict[str, str]) -> str:
    """A call of the item's function."""
    return f"{item.extra['functions'][0]['name']}({', '.join(f'{name}={text}' for name, text in arguments.items())})"


def answers_to(item: Item) -> Iterator[str]:
    """Right ones and wrong ones; which is which is the checker's to say."""
    for spelling in range(SPELLINGS):
        yield f"[{call_of(item, arguments_of(item, spelling))}]"
    ((_, wanted),) = json.loads(item.gold)[0].items()
    first = arguments_of(item, 0)
    for name in wanted:  # each value in each spelling, the others in the first
        yield from (f"[{call_of(item, first | {name: arguments_of(item, spelling)[name]})}]" for spelling in range(SPELLINGS))
        yield f"[{call_of(item, {key: text for key, text in first.items() if key != name})}]"
        yield from (f"[{call_of(item, first | {name: text})}]" for text in ("null", "[]", "{}", '""', '"é"', "12345", "f(x, y)", "a + b"))
    call = call_of(item, first)
    yield from (call, f"```\n[{call}]\n```", f"[{call};]", f"{call};", f"[{call}", f"{call}]", f"[[{call}]]", f"Sure: [{call}]")
    yield from (f"[{call}, {call}]", f"[{call}; {call}]", f"[x = {call}]", f"[return {call};]", f"[await {call}]", f"[int x = {call};]")
    yield from (f"[{call[:-1]}]", f"[{call[:-1]}, no_such=1)]", f"[{call[:-1]}, loose)]", f"[{call[:-1]}, true)]", f"[{call[:-1]}, 5)]")
    yield from (f"[{call[:-1]}, loose, looser)]", f"[x{call}]", f"[{call.replace('=', ' = ')}]", f"[{call.replace('=', ': ')}]")
    yield from (f"[{call.replace('(', '(a.b=1, ', 1)}]", f"[{call} // that]", f"/* é */ {call}", f"[o.{call}]", f"[new {call}]")
    name, text = next(iter(first.items()))
    yield from (f"[{call[:-1]}, {name}={text})]", f"[{call_of(item, {name: 'a b'})}]", "None can be used.", "[]", "", "[f]", "f()", "\x00")
