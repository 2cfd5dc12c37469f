"""What a model is told before a question of the leaderboard: its system prompt, and the functions as it describes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

PROMPT = """You are an expert in composing functions. You are given a question and a set of possible functions. Based on the question, \
you will need to make one or more function/tool calls to achieve the purpose.
If none of the functions can be used, point it out. If the given question lacks the parameters required by the function, also point it out.
You should only return the function calls in your response.

If you decide to invoke any of the function(s), you MUST put it in the format of \
[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]
You SHOULD NOT include any other text in the response.

At each turn, you should try your best to complete the tasks requested by the user within the current turn. Continue to output functions \
to call until you have fulfilled the user's request to the best of your ability. Once you have no more functions to call, the system \
will consider the current turn complete and proceed to the next turn or task.

Here is a list of functions in JSON format that you can invoke.
{functions}

"""
"""The leaderboard's system prompt of version 3, word for word (bfcl-eval 2025.6.16, Apache-2.0). It stands at the head of the one user
turn, as the leaderboard puts it for models whose template has no system turn."""

MORE_FUNCTIONS = "{functions}\nI have updated some more functions you can choose from. What about now?"
"""What the user says in a turn that brings functions, word for word; those are described without `HINT`."""

HINTS = {
    "java": " Note that the provided function is in Java 8 SDK syntax.",
    "javascript": " Note that the provided function is in JavaScript syntax.",
}
HINT = " Note that the provided function is in Python 3 syntax."
"""What the leaderboard adds to each function's description, by category; ``HINT`` to that of all others."""
_NAMES = {"java": "Java", "javascript": "JavaScript"}


def described_for(functions: Sequence[dict[str, Any]], category: str) -> str:
    """The functions as the leaderboard writes them: a Python list, though its prompt says JSON."""
    described = copy.deepcopy(list(functions))
    for function in described:
        function["description"] += HINTS.get(category, HINT)
        if category in _NAMES:
            for parameter in function["parameters"]["properties"].values():
                _as_text(parameter, category)
    return str(described)


def _as_text(parameter: dict[str, Any], category: str) -> None:
    """Describe a parameter as a text that holds a value of its type, with the leaderboard's sentences."""
    name, kind = _NAMES[category], parameter["type"]
    if kind == "any":
        parameter["description"] += f" This parameter can be of any type of {name} object in string representation."
    else:
        parameter["description"] += f" This is {name} {kind} type parameter in string representation."
    if kind in ("ArrayList", "Array", "array"):
        inner = parameter.pop("items")["type"]
        parameter["description"] += f" The list elements are of type {inner}; they are not in string representation."
    if kind == "dict" and "properties" in parameter:
        entries = json.dumps(parameter.pop("properties"))
        parameter["description"] += f" The dictionary entries have the following schema; they are not in string representation. {entries}"
    parameter["type"] = "string"
