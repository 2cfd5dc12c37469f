"""The values that a space may be made of, checked before anything is listed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from loopwise.loops import Operator
from loopwise.loops.values import MOST_PASSES

from .blocks import Kind, Options, Setting

if TYPE_CHECKING:
    from .space import Space

Structure = Literal["window", "windows", "window+mlp", "mlp"]
STRUCTURES: tuple[Structure, ...] = get_args(Structure)


class PlacementError(ValueError):
    """Placements that cannot be made or scored: names what, the value and the remedy in one line."""


def check_values(space: Space) -> None:
    """Refuse values that no loop of the model can have.

    Raises:
        PlacementError: with the field, the value and what to give.
    """
    layers = space.shape.num_layers
    for name, known in (("operators", get_args(Operator)), ("structures", STRUCTURES)):
        unknown = [value for value in getattr(space, name) if value not in known]
        if unknown or not getattr(space, name):
            fault = f"{name} has {unknown[0]!r}" if unknown else f"{name} is empty"
            raise PlacementError(f"{fault}; use some of {', '.join(known)}")
    bounds = {"widths": (1, layers), "passes": (2, MOST_PASSES), "mlp_passes": (2, MOST_PASSES)}
    for name, (least, most) in bounds.items():
        values = getattr(space, name)
        wrong = [value for value in values if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most]
        if wrong or not values:
            why = f"the model has {layers} layers" if name == "widths" else "1 pass is the plain model"
            fault = f"{name} has {wrong[0]!r}" if wrong else f"{name} is empty"
            raise PlacementError(f"{fault}; give whole numbers of {least} to {most} ({why})")
    if "damped" in space.operators and not space.betas:
        raise PlacementError("betas is empty; the damped operator needs its anchor, e.g. 0.25")
    if wrong := [beta for beta in space.betas if not 0 <= beta <= 1]:
        raise PlacementError(f"betas has {wrong[0]!r}; give numbers in [0, 1] (0 never anchors, 1 is the plain span)")
    if space.max_windows < 1:
        raise PlacementError(f"max_windows is {space.max_windows}; give at least 1")
    if space.centre is not None and not 0 <= space.centre[0] <= space.centre[1] <= 1:
        raise PlacementError(f"centre is {space.centre}; give a band in parts of depth, from low to high, e.g. 0.45 and 0.6")
    if space.max_cost is not None and not 1 < space.max_cost < math.inf:
        raise PlacementError(f"max_cost is {space.max_cost}; the plain model costs 1, give more, e.g. 1.25, or no cap")


def options_of(space: Space) -> dict[Kind, Options]:
    """What blocks of each kind may be, for the kinds that the structures name."""
    settings: list[Setting] = [("repeat", None)] if "repeat" in space.operators else []
    settings += [("damped", float(beta)) for beta in space.betas] if "damped" in space.operators else []
    window = Options(widths=space.widths, passes=space.passes, settings=tuple(settings), inner_passes=space.mlp_passes)
    mlp = replace(window, widths=tuple(sorted({1, *space.widths})), passes=space.mlp_passes)
    options: dict[Kind, Options] = {"window": window, "window+mlp": window, "mlp": mlp}
    named = {"window" if structure == "windows" else structure for structure in space.structures}
    return {kind: value for kind, value in options.items() if kind in named}
