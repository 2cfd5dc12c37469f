"""Whether function calls are the wanted ones, by the Berkeley Function Calling Leaderboard's published rules (version 3).

A gold names one function and, for each parameter, the values that are right; an empty text among them means that the parameter may
be left out. Strings are compared without case, blanks and ``,./-_*^``; a gold of another type than the parameter's stands for a
variable, and is compared as it is. The rules are the leaderboard's, with its oddities, so that scores are comparable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .bfcl_calls import Call
from .bfcl_languages import PYTHON, Language

Function = Mapping[str, Any]
"""A function as the data describe it: ``name``, and ``parameters`` with ``properties`` and ``required``."""
Gold = Mapping[str, Mapping[str, list[Any]]]
"""One function's name, and the values that are right for each of its parameters."""

_IGNORED = re.compile(r"[ ,./\-_*^]")


def calls_match(
    functions: Sequence[Function], calls: Sequence[Call], golds: Sequence[Gold], *, any_order: bool, language: Language = PYTHON
) -> bool:
    """Whether every gold has its own call and no call is left over.

    Args:
        any_order: the calls of a parallel category may come in any order: each gold takes the first call that fits it.
    """
    if len(calls) != len(golds):
        return False
    left = list(calls)
    for gold in golds:
        name = next(iter(gold))
        function = next((one for one in functions if one["name"] == name), None if any_order or len(functions) > 1 else functions[0])
        if function is None:
            return False
        fits = next((place for place, call in enumerate(left) if call_matches(function, call, gold, language)), None)
        if fits is None:
            return False
        del left[fits]
    return True


def call_matches(function: Function, call: Call, gold: Gold, language: Language = PYTHON) -> bool:
    """Whether one call is one gold: the described function, all required and only known parameters, every value right."""
    wanted = next(iter(gold.values()))
    described = function["parameters"]["properties"]
    if call.name != function["name"] or any(name not in call.arguments for name in function["parameters"]["required"]):
        return False
    for name, value in call.arguments.items():
        if name not in described or name not in wanted or not value_matches(described[name], value, wanted[name], language):
            return False
    return all(name in call.arguments or "" in values for name, values in wanted.items())


def value_matches(described: Mapping[str, Any], value: Any, wanted: list[Any], language: Language = PYTHON) -> bool:
    """Whether a parameter's value has the right type and is one of the wanted ones."""
    kind = described["type"]
    expected = language.types[kind]
    inner_kind = described["items"]["type"] if kind in language.nested else None
    inner = None if inner_kind is None else language.types[inner_kind]
    if language.read is not None:
        value = language.read(value, kind, inner_kind)
    elif kind == "tuple" and isinstance(value, tuple):
        value = list(value)
    elif kind == "float" and type(value) is int:
        value = float(value)
    has_type, is_variable = _type_fits(value, wanted, expected, inner)
    if not has_type:
        return False
    if is_variable:
        return value in wanted
    if expected is dict:
        return _dict_matches(value, wanted)
    if expected is list and inner is dict:
        return any(_dicts_match(value, option) for option in wanted)
    if expected is str:
        return standard(value) in [standard(option) for option in wanted if isinstance(option, str)]
    if expected is list:
        return [standard(one) for one in value] in [[standard(one) for one in _members(option)] for option in wanted]
    return value in wanted


def standard(value: Any) -> Any:
    """A string without case, blanks and the punctuation that does not count; anything else as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _type_fits(value: Any, wanted: list[Any], expected: type, inner: type | None) -> tuple[bool, bool]:
    """Whether the type is right, and whether the value stands for a variable: the golds then have another type than the parameter."""
    gold_type = next((type(option) for option in wanted if option != ""), None)
    is_variable = gold_type is not None and gold_type is not expected
    if type(value) is not expected:
        return gold_type is not None and type(value) is gold_type, True
    if inner is None:
        return True, is_variable
    members: list[Any] = value if isinstance(value, list) else []
    fits = any(
        not isinstance(option, list) or all(_type_fits(one, option, inner, None)[0] for one in members) for option in wanted
    )  # an empty text among the wanted ones passes every list here; its members are compared later
    return fits, is_variable


def _dict_matches(value: Any, wanted: list[Any]) -> bool:
    """A dictionary against those wanted: only their keys, each with one of its values, and all that are not optional."""
    return isinstance(value, dict) and any(isinstance(option, dict) and _entries_match(value, option) for option in wanted)


def _entries_match(value: Mapping[Any, Any], option: Mapping[Any, Any]) -> bool:
    for key, one in value.items():
        if key not in option or standard(one) not in [standard(other) for other in _members(option[key])]:
            return False
    # One gold has a bare text for a list of values: such an entry may be left out, since every text holds an empty one.
    return all(key in value or (isinstance(values, list | str) and "" in values) for key, values in option.items())


def _dicts_match(value: Any, option: Any) -> bool:
    members = _members(option)
    return len(value) == len(members) and all(_dict_matches(one, [other]) for one, other in zip(value, members, strict=True))


def _members(option: Any) -> list[Any]:
    """The members of a list, and the letters of a text, as the leaderboard takes them; an empty text is an empty list."""
    return list(option) if isinstance(option, list | str) else []
