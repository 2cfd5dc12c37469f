"""The space of candidates: every place, width, number of passes, operator and beta that a search may propose, under a cost cap.

No torch: the cost comes from the model's shape. Costs of candidates are the cost room's; see `Space`.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from loopwise.cost import ModelShape, cost_of
from loopwise.loops import Loop, Part, format_loops

from .blocks import Block, Kind, Options, block_moves, inner_loops, list_blocks, moved
from .checks import PlacementError, check_values, options_of
from .counting import Ways, count_ways, shuffled_range

__all__ = ["Candidate", "Form", "PlacementError", "Space"]

Candidate = tuple[Loop, ...]
"""Loops in the canonical order of `loopwise.loops.check_loops`."""
_TOLERANCE = 1e-9


class Form(NamedTuple):
    """A part of a space: candidates of so many blocks of one kind. No two forms share a candidate."""

    kind: Kind
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search may propose for one model (no-free-loop, A.1 and D.1; its grid is the default).

    Structures: ``window``, one loop of whole layers; ``windows``, one to ``max_windows`` of them, disjoint, each with passes
    and beta of its own; ``window+mlp``, one window with an MLP loop at one of its layers, which repeats in every pass of the
    window or in its first (the searched Qwen3.5 span; it takes no operator because the window around it damps it);
    ``mlp``, loops of MLP halves only, attention-free: one to ``max_windows`` spans of one layer or of a width in ``widths``,
    with at least one layer between them, with the space's operators and betas because nothing else damps them.

    Raises:
        PlacementError: values that no loop can have, or a space without candidates; a cap that is too low names the cheapest.
    """

    shape: ModelShape
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    """Layers of a window."""
    passes: tuple[int, ...] = (2, 3, 4)
    """Passes of a window."""
    betas: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Anchors of the damped operator."""
    operators: tuple[str, ...] = ("damped",)
    structures: tuple[str, ...] = ("window",)
    max_windows: int = 2
    """The most disjoint spans of the structures ``windows`` and ``mlp``."""
    mlp_passes: tuple[int, ...] = (2, 3)
    """Passes of an MLP loop."""
    centre: tuple[float, float] | None = None
    """The band, in parts of depth, in which each window or MLP span has its centre; None is everywhere."""
    max_cost: float | None = None
    """The cap on (N + m)/N; None is none."""
    _options: dict[Kind, Options] = field(init=False, repr=False, compare=False)
    _blocks: dict[Kind, tuple[Block, ...]] = field(init=False, repr=False, compare=False)
    _by_loops: dict[Candidate, Block] = field(init=False, repr=False, compare=False)
    _ways: dict[Kind, list[list[Ways]]] = field(init=False, repr=False, compare=False)
    _sizes: dict[Form, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(beta + 0.0 for beta in self.betas))  # -0.0 is 0.0
        for name in ("widths", "passes", "betas", "operators", "structures", "mlp_passes"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))
        check_values(self)
        options = options_of(self)
        blocks = _list_blocks(self, options)
        most: dict[Kind, int] = {
            "window": self.max_windows if "windows" in self.structures else 1,
            "window+mlp": 1,
            "mlp": self.max_windows,
        }
        ways = {kind: count_ways(listed, most[kind], self.shape.num_layers, self._budget) for kind, listed in blocks.items()}
        sizes = {Form(kind, number): ways[kind][number][0].within(self._budget) for kind in blocks for number in range(1, most[kind] + 1)}
        derived = {
            "_options": options,
            "_blocks": blocks,
            "_by_loops": {block.loops: block for listed in blocks.values() for block in listed},
            "_ways": ways,
            "_sizes": {form: size for form, size in sorted(sizes.items(), key=lambda item: item[0].num_blocks) if size},
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def forms(self) -> tuple[Form, ...]:
        """The parts of the space that hold candidates, simple ones first."""
        return tuple(self._sizes)

    def size(self, form: Form) -> int:
        """How many candidates a form has."""
        return self._sizes[form]

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def __iter__(self) -> Iterator[Candidate]:
        for form in self.forms:
            for blocks in self._completions(form.kind, form.num_blocks, 0, self._budget):
                yield _joined(blocks)

    def __contains__(self, candidate: object) -> bool:
        return self.blocks_of(candidate) is not None

    def nth(self, form: Form, index: int) -> Candidate:
        """A form's candidate by its number, in the order of iteration, without listing those before it."""
        if not 0 <= index < self._sizes[form]:
            raise IndexError(f"{form} has {self._sizes[form]} candidates; {index} is not one of them")
        if form.num_blocks == 1:
            return self._blocks[form.kind][index].loops
        placed: tuple[Block, ...] = ()
        while len(placed) < form.num_blocks:
            for block in self.blocks_after(form, placed):
                count = self._num_completions(form, (*placed, block))
                if index < count:
                    placed += (block,)
                    break
                index -= count
        return _joined(placed)

    def cost(self, candidate: Candidate) -> float:
        """(N + m)/N of any loops."""
        return cost_of(self.shape, candidate).layer_pass_ratio

    def blocks_of(self, candidate: object) -> tuple[Block, ...] | None:
        """The blocks of a candidate in order of depth; None if it is not in the space."""
        if not isinstance(candidate, tuple) or not all(isinstance(loop, Loop) for loop in candidate):
            return None
        pieces: list[list[Loop]] = []
        for loop in candidate:
            if pieces and pieces[-1][0].contains(loop):
                pieces[-1].append(loop)
            else:
                pieces.append([loop])
        blocks = [self._by_loops.get(tuple(piece)) for piece in pieces]
        accepted = self._accepted(blocks) if None not in blocks else None
        return accepted if accepted and _joined(accepted) == candidate else None

    def sample(self, rng: random.Random) -> Candidate:
        """A candidate at random: a form, each as likely as the others, and evenly within it.

        Evenly over the whole space would hardly ever give a single window where pairs of them are allowed.
        """
        form = rng.choice(self.forms)
        return self.nth(form, rng.randrange(self._sizes[form]))

    def shuffled(self, rng: random.Random) -> Iterator[Candidate]:
        """Every candidate once, in random order: as `sample`, without replacement. ``rng`` is drawn from as they are taken."""
        orders = {form: shuffled_range(size, rng) for form, size in self._sizes.items()}
        while orders:
            form = rng.choice(list(orders))
            index = next(orders[form], None)
            if index is None:
                del orders[form]
            else:
                yield self.nth(form, index)

    def neighbours(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """The candidates one step away; a neighbour's neighbours include this one.

        The steps of `block_moves`, an MLP loop added to a window or taken out, a window exchanged for MLP loops over the same
        layers or back, and a window or MLP span of the least width and passes added or taken away.
        """
        return tuple(dict.fromkeys(near for group in self._moves(candidate).values() for near in group))

    def mutate(self, candidate: Candidate, rng: random.Random) -> Candidate:
        """A neighbour, every kind of step as likely as the others; one of them takes a block to any start.

        Where a candidate has no neighbour, a sample of the space.
        """
        groups = self._moves(candidate) | {"jump": self._jumps(candidate)}
        live = [group for group in groups.values() if group]
        return rng.choice(rng.choice(live)) if live else self.sample(rng)

    def additions(self, candidate: Candidate) -> Iterator[Candidate]:
        """The candidate with one more loop.

        To no loop: every single window and MLP span, and windows with their MLP loop where the space has no bare windows.
        """
        if not candidate:
            for kind, listed in self._blocks.items():
                if kind != "window+mlp" or "window" not in self._blocks:
                    yield from (block.loops for block in listed)
            return
        blocks = self._own(candidate)
        kind = blocks[0].kind
        if Form(kind, len(blocks) + 1) in self._sizes:
            yield from self._joined_if_accepted((*blocks, block) for block in self._blocks[kind])
        yield from self._with_inner(blocks)
        if len(candidate) == 1 and kind == "mlp":
            yield from (block.loops for block in self._blocks.get("window+mlp", ()) if block.loops[1] == candidate[0])

    def blocks_after(self, form: Form, placed: Sequence[Block]) -> Iterator[Block]:
        """The blocks that can come next, deeper than those placed, so that they can be completed to a candidate of the form."""
        earliest = placed[-1].end if placed else 0
        is_last = form.num_blocks == len(placed) + 1
        left = self._budget - sum(block.extra_passes for block in placed)
        for block in self._blocks[form.kind]:
            if block.start >= earliest and block.extra_passes <= left and (is_last or self._num_completions(form, (*placed, block))):
                yield block

    def to_json(self) -> dict[str, Any]:
        """What defines the space, the model's shape apart, as plain values."""
        names = ("widths", "passes", "betas", "operators", "structures", "max_windows", "mlp_passes", "centre", "max_cost")
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names}

    @property
    def _budget(self) -> float:
        """Layer passes that the cap leaves beyond the plain model's."""
        return math.inf if self.max_cost is None else (self.max_cost - 1 + _TOLERANCE) * self.shape.num_layers

    def _own(self, candidate: Candidate) -> tuple[Block, ...]:
        blocks = self.blocks_of(candidate)
        if blocks is None:
            raise PlacementError(f"the candidate {format_loops(candidate)} is not in the space; give one that is")
        return blocks

    def _accepted(self, blocks: Sequence[Block | None]) -> tuple[Block, ...] | None:
        """The blocks in order of depth if together they are a candidate."""
        found = sorted(cast(Sequence[Block], blocks), key=lambda block: block.start)
        if not found or Form(found[0].kind, len(found)) not in self._sizes or any(block.kind != found[0].kind for block in found):
            return None
        if any(after.start < before.end for before, after in itertools.pairwise(found)):
            return None
        return tuple(found) if sum(block.extra_passes for block in found) <= self._budget else None

    def _joined_if_accepted(self, proposals: Iterator[tuple[Block | None, ...]]) -> Iterator[Candidate]:
        for blocks in proposals:
            accepted = self._accepted(blocks) if None not in blocks else None
            if accepted:
                yield _joined(accepted)

    def _with_inner(self, blocks: tuple[Block, ...]) -> Iterator[Candidate]:
        """A single window with each MLP loop that it can hold."""
        if len(blocks) == 1 and blocks[0].kind == "window":
            outer = blocks[0].loops[0]
            yield from (loops for inner in inner_loops(outer, self.mlp_passes) if (loops := (outer, *inner)) in self._by_loops)

    def _moves(self, candidate: Candidate) -> dict[str, list[Candidate]]:
        blocks = self._own(candidate)
        kind = blocks[0].kind
        moves: dict[str, list[Candidate]] = {}
        for place, block in enumerate(blocks):
            for name, proposals in block_moves(block, self._options[kind]).items():
                moves.setdefault(name, []).extend(self._replaced(blocks, place, proposals))
        moves["mlp"] += self._with_inner(blocks)
        if len(blocks) == 1:
            outer = blocks[0].loops[0]
            other = {"window+mlp": (outer,), "window": _with_part(outer, "mlp"), "mlp": _with_part(outer, "layer")}[kind]
            moves["part"] = self._replaced(blocks, 0, [other])
        small = [block for block in self._blocks[kind] if self._is_smallest(block)]
        moves["add"] = list(self._joined_if_accepted((*blocks, block) for block in small))
        rests = (blocks[:place] + blocks[place + 1 :] for place, block in enumerate(blocks) if self._is_smallest(block))
        moves["remove"] = list(self._joined_if_accepted(rests))
        return moves

    def _jumps(self, candidate: Candidate) -> list[Candidate]:
        blocks = self._own(candidate)
        found = []
        for place, block in enumerate(blocks):
            width = block.loops[0].stop - block.start
            proposals = [loops for start in range(self.shape.num_layers - width + 1) for loops in moved(block, start, start + width)]
            found += self._replaced(blocks, place, proposals)
        return [other for other in found if other != candidate]

    def _replaced(self, blocks: tuple[Block, ...], place: int, proposals: Sequence[Candidate]) -> list[Candidate]:
        others = (self._by_loops.get(loops) for loops in proposals)
        return list(self._joined_if_accepted((*blocks[:place], other, *blocks[place + 1 :]) for other in others))

    def _is_smallest(self, block: Block) -> bool:
        options, outer = self._options[block.kind], block.loops[0]
        return (outer.stop - outer.start, outer.passes) == (options.widths[0], options.passes[0])

    def _num_completions(self, form: Form, placed: Sequence[Block]) -> int:
        """How many candidates of the form begin with these blocks."""
        budget = self._budget - sum(block.extra_passes for block in placed)
        end = min(placed[-1].end, self.shape.num_layers)
        return self._ways[form.kind][form.num_blocks - len(placed)][end].within(budget)

    def _completions(self, kind: Kind, num_blocks: int, earliest: int, budget: float) -> Iterator[tuple[Block, ...]]:
        if num_blocks == 0:
            yield ()
            return
        blocks = self._blocks[kind]
        for block in blocks[bisect_left(blocks, earliest, key=lambda block: block.start) :]:
            if block.extra_passes <= budget:
                for rest in self._completions(kind, num_blocks - 1, block.end, budget - block.extra_passes):
                    yield (block, *rest)


def _list_blocks(space: Space, options: dict[Kind, Options]) -> dict[Kind, tuple[Block, ...]]:
    """The blocks of each kind that the cap allows by themselves."""
    listed = {kind: list_blocks(kind, option, space.shape, space.centre) for kind, option in options.items()}
    kept = {kind: tuple(block for block in blocks if block.extra_passes <= space._budget) for kind, blocks in listed.items()}
    if not any(kept.values()):
        what = f"no placement ({', '.join(space.structures)}) of {', '.join(map(str, space.widths))} layers"
        cheapest = min((block for blocks in listed.values() for block in blocks), key=lambda block: block.extra_passes, default=None)
        if cheapest is None:
            raise PlacementError(f"{what} has its centre at {space.centre} of depth; allow other widths or a wider band")
        name, cost = format_loops(cheapest.loops), space.cost(cheapest.loops)
        raise PlacementError(f"{what} costs at most {space.max_cost:g} times the plain model; the cheapest, {name}, costs {cost:.4g}")
    return {kind: blocks for kind, blocks in kept.items() if blocks}


def _with_part(loop: Loop, part: Part) -> Candidate:
    return (replace(loop, part=part),)


def _joined(blocks: Sequence[Block]) -> Candidate:
    return tuple(loop for block in blocks for loop in block.loops)
