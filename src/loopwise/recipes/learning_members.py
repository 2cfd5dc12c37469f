"""The members of a set: the looped model, its identically trained twin, and the controls that belong to them. No torch.

Which models a fair comparison needs follows from the loops, the model's shape and the names of the controls alone (no-free-loop,
A.1, A.2, B.2 and D.3); `learning` trains them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ..cost import ModelShape, cost_of
from ..loops import Loop, format_loops, parse_loops
from ..training import TrainingError

Role = Literal["looped", "twin", "equal-flops", "placement"]
Equal = Literal["counted", "measured"]

LOOPED, TWIN, EQUAL_FLOPS, LENGTHS = "looped", "twin", "equal-flops", "lengths"
DEEPER_LAYERS = 8
"""How far ``deeper`` moves the span ("the span moved 8 layers deeper", A.3)."""
DEPTH_RULE = (0.45, 0.60)
"""Where the centre of ``depth-rule`` lies, in shares of the depth (Chen et al., by A.1)."""
BEST_OF_LENGTHS = (1.25, 3.0)
"""Beside the twin's own length: the three of "best of 12 spans three fine-tuning lengths and four budgets" (Table 3). 1.25 and 3 are
those of Table 4."""
MOST_FACTOR = 100.0

CONTROLS = {
    EQUAL_FLOPS: "the twin with as many training FLOPs (or seconds) as the looped model, in more steps (A.2)",
    "relocated": "a loop of equal cost right before the span, or right behind it where it does not fit (D.3)",
    "deeper": f"the span moved {DEEPER_LAYERS} layers deeper (A.3)",
    "depth-rule": "a loop of equal cost with its centre at 0.45 to 0.60 of the depth (A.1)",
    "random": "a loop of equal cost at a place drawn by --random-seed (D.3)",
    "hand": "a loop of equal cost of your own, given as --hand (D.3)",
    LENGTHS: "the twin at three fine-tuning lengths, and the looped model at the longest (Table 3, best of 12)",
    "xK": "both the looped model and its twin with K times the tokens, e.g. x1.25, x1.5, x2, x3 (B.2)",
}
"""Every control by its name on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One model of a set.

    Raises:
        TrainingError: a name that cannot be a folder's, or a factor that cannot be.
    """

    name: str
    """Also the name of its folder."""
    role: Role
    """``looped`` and ``twin`` of one ``token_factor`` are a pair; a ``placement`` is looped elsewhere at equal cost."""
    loops: tuple[Loop, ...]
    """What it is trained through; empty without a loop."""
    token_factor: float | None = 1.0
    """Its steps over the looped model's; None is found once the looped model and its twin are trained."""
    begins_with: str | None = None
    """The member of the set before (``--from``) whose model of the same seed it begins with; None: the set's base model."""
    why: str
    """One line."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9.-]+", self.name):
            raise TrainingError(f"member name {self.name!r}: give small letters, digits, '-' and '.'")
        if self.token_factor is not None and not 0 < self.token_factor <= MOST_FACTOR:
            raise TrainingError(f"member {self.name}: {self.token_factor:g} times the tokens; give more than 0 and at most {MOST_FACTOR:g}")

    @property
    def unlooped(self) -> bool:
        """Whether it has no loop."""
        return not self.loops


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """Which controls a set has beside the looped model and its twin.

    Raises:
        TrainingError: a control that does not exist, one twice, or options that do nothing.
    """

    names: tuple[str, ...] = ()
    """Of `CONTROLS`; ``xK`` with a number."""
    equal: Equal = "counted"
    """What ``equal-flops`` equals: ``counted`` training FLOPs, or the ``measured`` time of training steps."""
    hand: str | None = None
    """The loops of ``hand``."""
    random_seed: int = 0
    """Of the place of ``random``."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name == "xK" or (name not in CONTROLS and _factor(name) is None):
                raise TrainingError(f"no control is called {name!r}; use {', '.join(CONTROLS)} (a number for K, e.g. x3)")
        if doubled := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise TrainingError(f"the control {doubled[0]} is given twice; give it once")
        if self.equal not in get_args(Equal):
            raise TrainingError(f"equal is {self.equal!r}; use {' or '.join(get_args(Equal))}")
        if self.random_seed < 0:
            raise TrainingError(f"random_seed is {self.random_seed}; give at least 0")
        if self.equal != "counted" and EQUAL_FLOPS not in self.names:
            raise TrainingError(f"equal {self.equal} is for the control {EQUAL_FLOPS}; ask for that, or leave it out")
        if self.random_seed and "random" not in self.names:
            raise TrainingError(f"random_seed {self.random_seed} is for the control random; ask for that, or leave it out")
        if ("hand" in self.names) != (self.hand is not None):
            raise TrainingError(f"the control hand and its loops go together, and the loops are {self.hand!r}; give both, or neither")


def make_members(loops: Sequence[Loop], shape: ModelShape, controls: Controls, *, flops_ratio: float | None) -> tuple[Member, ...]:
    """The members of a set; the looped model and its twin come first.

    Args:
        flops_ratio: the looped model's training FLOPs over the twin's, as counted, for ``equal-flops``; None: known once both are trained.

    Raises:
        TrainingError: no loop, a control that the model has no place for, or two that are the same.
        LoopError: loops of ``hand`` that cannot be.
    """
    loops = tuple(loops)
    if not loops:
        raise TrainingError("no loop to learn; give loops, e.g. '10:14 x2'")
    members = [
        Member(name=LOOPED, role="looped", loops=loops, why="the loop under test"),
        Member(name=TWIN, role="twin", loops=(), why="the same recipe and batches, no loop"),
    ]
    taken = {loops: LOOPED}
    for name in controls.names:
        if name == EQUAL_FLOPS:
            members.append(_equal_flops(controls.equal, flops_ratio))
        elif name == LENGTHS or _factor(name) is not None:
            members += _longer(name, loops)
        else:
            placed = _placed(name, loops, shape, controls, taken)
            taken[placed.loops] = name
            members.append(placed)
    return tuple({member.name: member for member in members}.values())


def beginning(member: Member, there: Collection[str], chosen: str | None) -> Member:
    """The member with the one it begins with, of an earlier set.

    Args:
        there: the members of that set.
        chosen: the one that all begin with; None: each begins with its counterpart, and a longer trained one with that of its side.

    Raises:
        TrainingError: there is none.
    """
    counterparts = [chosen] if chosen else [member.name, *([TWIN] if member.unlooped else [LOOPED] if member.role == "looped" else [])]
    for name in counterparts:
        if name in there:
            return replace(member, begins_with=name)
    raise TrainingError(f"{member.name} begins with {counterparts[0]}, which the set before lacks; it has {', '.join(there)}")


def span_of(loops: Sequence[Loop]) -> tuple[int, int]:
    """The first layer of some loops and one past their last."""
    return min(loop.start for loop in loops), max(loop.stop for loop in loops)


def _factor(name: str) -> float | None:
    """K of ``xK``; None of anything else."""
    found = re.fullmatch(r"x(\d{1,3}(?:\.\d{1,3})?)", name)
    if found is None:
        return None
    factor = float(found[1])
    if not 1 < factor <= MOST_FACTOR:
        raise TrainingError(f"control {name}: give a K above 1 and at most {MOST_FACTOR:g}")
    return factor


def _equal_flops(equal: Equal, flops_ratio: float | None) -> Member:
    if equal == "counted" and flops_ratio is None:
        why = "the twin, its first stage longer until both together have the looped model's training FLOPs"
        return Member(name=EQUAL_FLOPS, role="equal-flops", loops=(), token_factor=None, why=why)
    if equal == "measured":
        why = "the twin, trained for as many seconds of steps as the looped model took"
        return Member(name=EQUAL_FLOPS, role="equal-flops", loops=(), token_factor=None, why=why)
    why = f"the twin with the looped model's training FLOPs: {flops_ratio:.4g} times the steps"
    return Member(name=EQUAL_FLOPS, role="equal-flops", loops=(), token_factor=flops_ratio, why=why)


def _longer(name: str, loops: tuple[Loop, ...]) -> list[Member]:
    """Both members with K times the tokens; for three lengths the twin at each, and the looped model at the longest."""
    factor = _factor(name)
    both = max(BEST_OF_LENGTHS) if factor is None else factor
    twins = BEST_OF_LENGTHS if factor is None else (factor,)
    why = "with {:g} times the tokens; training only the twin longer is not a fair test (B.2)"
    found = [Member(name=f"{LOOPED}-x{both:g}", role="looped", loops=loops, token_factor=both, why="looped " + why.format(both))]
    found += [
        Member(
            name=f"{TWIN}-x{one:g}",
            role="twin",
            loops=(),
            token_factor=one,
            why="twin " + why.format(one) if one == both else f"the twin with {one:g} times the tokens, one of three lengths (Table 3)",
        )
        for one in twins
    ]
    return found


def _placed(name: str, loops: tuple[Loop, ...], shape: ModelShape, controls: Controls, taken: dict[tuple[Loop, ...], str]) -> Member:
    if name == "hand":
        assert controls.hand is not None
        chosen, why = parse_loops(controls.hand, shape.num_layers), "designed by hand"
        _check_equal_cost(chosen, loops, shape)
    else:
        shift, why = _shift(name, loops, shape, controls, taken)
        chosen = _moved(loops, shift)
    if chosen in taken:
        raise TrainingError(f"control {name} would be {format_loops(chosen)}, which {taken[chosen]} is already; leave one of them out")
    return Member(name=name, role="placement", loops=chosen, why=f"{why}: {format_loops(chosen)}")


def _shift(
    name: str, loops: tuple[Loop, ...], shape: ModelShape, controls: Controls, taken: dict[tuple[Loop, ...], str]
) -> tuple[int, str]:
    """By how many layers the loops move, and why there."""
    (start, stop), count = span_of(loops), shape.num_layers
    shifts = _equal_shifts(loops, shape)
    span = f"the span {start}:{stop} of a model with {count} layers"
    if name == "deeper":
        if DEEPER_LAYERS not in shifts:
            raise TrainingError(f"control deeper: {span} does not fit {DEEPER_LAYERS} layers deeper at equal cost; leave it out")
        return DEEPER_LAYERS, f"{DEEPER_LAYERS} layers deeper"
    if name == "relocated":
        before = [shift for shift in shifts if stop + shift <= start]
        behind = [shift for shift in shifts if start + shift >= stop]
        if before:
            return max(before), "right before the span"
        if behind:
            return min(behind), "right behind the span, before which there is no room"
        raise TrainingError(f"control relocated: {span} leaves no room for a second one of equal cost beside it; take a narrower loop")
    if name == "depth-rule":
        low, high = DEPTH_RULE
        centre = (start + stop) / 2 / count
        if low <= centre <= high:
            raise TrainingError(f"control depth-rule: {span} has its centre at {centre:.2f}, where the rule puts it; leave it out")
        within = [shift for shift in shifts if low <= (start + stop + 2 * shift) / 2 / count <= high]
        if not within:
            raise TrainingError(f"control depth-rule: no span like {span} has its centre at {low} to {high} of the depth; leave it out")
        middle = (low + high) / 2
        nearest = min(within, key=lambda shift: abs((start + stop + 2 * shift) / 2 / count - middle))
        return nearest, f"its centre at {low} to {high} of the depth"
    free = [shift for shift in shifts if _moved(loops, shift) not in taken]
    if not free:
        raise TrainingError(f"control random: {span} has no other place of equal cost; leave it out")
    return random.Random(f"{controls.random_seed}:{format_loops(loops)}:{count}").choice(free), f"drawn with seed {controls.random_seed}"


def _moved(loops: tuple[Loop, ...], shift: int) -> tuple[Loop, ...]:
    return tuple(replace(loop, start=loop.start + shift, stop=loop.stop + shift) for loop in loops)


def _equal_shifts(loops: tuple[Loop, ...], shape: ModelShape) -> list[int]:
    """Every move of the loops that stays within the model and costs as many layer passes."""
    start, stop = span_of(loops)
    moves = [shift for shift in range(-start, shape.num_layers - stop + 1) if shift]
    return [shift for shift in moves if _same_cost(_moved(loops, shift), loops, shape)]


def _same_cost(one: Sequence[Loop], other: Sequence[Loop], shape: ModelShape) -> bool:
    return abs(cost_of(shape, one).layer_passes - cost_of(shape, other).layer_passes) < 1e-9


def _check_equal_cost(chosen: Sequence[Loop], loops: Sequence[Loop], shape: ModelShape) -> None:
    if not chosen:
        raise TrainingError("the loops of hand are none; give some of equal cost, e.g. '4:8 x2'")
    if not _same_cost(chosen, loops, shape):
        found, wanted = (cost_of(shape, one).layer_passes for one in (chosen, loops))
        raise TrainingError(
            f"the loops of hand, {format_loops(chosen)}, make {found:.4g} layer passes, {format_loops(loops)} makes {wanted:.4g}; "
            "give loops of equal cost"
        )
