"""Verdicts and plans as JSON, and back to the same values."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from .loss_values import LossVerdict
from .plan import Plan
from .values import TrialError, Verdict

T = TypeVar("T")

VERDICT_FORMAT = "loopwise verdict 1"
PLAN_FORMAT = "loopwise plan 1"
LOSS_VERDICT_FORMAT = "loopwise loss verdict 1"


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON values; ``equal_parameters`` and ``equal_flops`` hold ``delta_points``, ``ci95``, ``p_value``, ``equivalent``."""
    return {"format": VERDICT_FORMAT, **to_json(verdict)}


def verdict_from_json(value: dict[str, Any]) -> Verdict:
    """The verdict that `verdict_to_json` wrote.

    Raises:
        TrialError: another format, or a field that is missing, unknown or of the wrong type, named.
    """
    return _read(Verdict, value, VERDICT_FORMAT, "verdict")


def loss_verdict_to_json(verdict: LossVerdict) -> dict[str, Any]:
    """The verdict on held-out loss as JSON values."""
    return {"format": LOSS_VERDICT_FORMAT, **to_json(verdict)}


def loss_verdict_from_json(value: dict[str, Any]) -> LossVerdict:
    """The verdict that `loss_verdict_to_json` wrote.

    Raises:
        TrialError: as `verdict_from_json`.
    """
    return _read(LossVerdict, value, LOSS_VERDICT_FORMAT, "verdict")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {"format": PLAN_FORMAT, **to_json(plan)}


def plan_from_json(value: dict[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote.

    Raises:
        TrialError: as `verdict_from_json`, or a plan that is none.
    """
    return _read(Plan, value, PLAN_FORMAT, "plan")


def _read(kind: type[T], value: dict[str, Any], wanted: str, name: str) -> T:
    if not isinstance(value, dict) or value.get("format") != wanted:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise TrialError(f"{name}: format is {found!r}, not {wanted!r}; judge the runs again with this version")
    return typing.cast(T, from_json(kind, {k: v for k, v in value.items() if k != "format"}, name))


def to_json(value: Any) -> Any:
    """A value type as JSON: dataclasses become objects, tuples lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(one) for one in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    return value


def from_json(kind: Any, value: Any, where: str) -> Any:
    """JSON read back as ``kind``, checked on the way; ``where`` names the place in messages.

    Raises:
        TrialError: a field is missing or unknown, or a value has the wrong type.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_json(kind, value, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        rest = [one for one in args if one is not type(None)]
        return None if value is None and len(rest) < len(args) else from_json(rest[0], value, where)
    if origin is tuple and isinstance(value, list):
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(kinds) == len(value):
            return tuple(from_json(one, v, f"{where}[{n}]") for n, (one, v) in enumerate(zip(kinds, value, strict=True)))
    if origin is dict and isinstance(value, dict):
        return {key: from_json(args[1], v, f"{where}.{key}") for key, v in value.items()}
    if origin is typing.Literal and value in args:
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise TrialError(
        f"{where} is {str(value)[:60]!r}, which is no {getattr(kind, '__name__', kind)}; judge the runs again with this version"
    )


def _dataclass_from_json(kind: type, value: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict):
        raise TrialError(f"{where} is {str(value)[:60]!r}, not an object; judge the runs again with this version")
    optional = {one.name for one in fields(kind) if one.default is not MISSING or one.default_factory is not MISSING}
    for name in sorted((hints.keys() ^ value.keys()) - (optional - value.keys())):  # of an earlier version
        fault = "is missing" if name in hints else "is unknown"
        raise TrialError(f"{where}.{name} {fault}; judge the runs again with this version")
    return kind(**{name: from_json(hint, value[name], f"{where}.{name}") for name, hint in hints.items() if name in value})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
