"""Where a loop could go: a grid of damped spans about the middle of the depth."""

from __future__ import annotations

from collections.abc import Sequence

from loopwise.cost import ModelShape, cost_of
from loopwise.loops import Loop


class PlacementError(ValueError):
    """Placements that cannot be made or scored: names what, the value and the remedy in one line."""


def damped_grid(
    shape: ModelShape,
    *,
    centre: tuple[float, float] = (0.45, 0.60),
    widths: Sequence[int] = (2, 3, 4, 5, 6, 7, 8),
    passes: int = 2,
    betas: Sequence[float] = (0.25,),
    max_layer_pass_ratio: float = 1.25,
    max_candidates: int | None = None,
) -> tuple[tuple[Loop, ...], ...]:
    """All single damped spans of these widths whose centre lies in a band of the depth and whose cost is under a cap.

    The defaults are the depth rule that Chen et al. find with benchmark labels and the calibrated search finds without
    (no-free-loop, section 2 and D.1), that paper's widths, its K = 2 and beta = 0.25 (D.1), and the cost c = 1.25 of its
    unsearched loops (Table 2). Spans at the first layers of a small Llama ruin it, so a wider band is to be scored, not trusted.

    Args:
        centre: the band, in parts of the depth; a span of layers s to e-1 has its centre at (s + e)/2.
        max_layer_pass_ratio: the cap on (N + m)/N.
        max_candidates: where the grid is larger, keep this many, evenly spread over it.

    Raises:
        PlacementError: an empty grid, or a count below 1.
        LoopError: passes or betas that a loop cannot have.
    """
    if max_candidates is not None and max_candidates < 1:
        raise PlacementError(f"max_candidates is {max_candidates}; give at least 1, or None for the whole grid")
    low, high = centre
    spans = [
        (start, start + width)
        for width in sorted(set(widths))
        for start in range(shape.num_layers - width + 1)
        if low - 1e-9 <= (2 * start + width) / 2 / shape.num_layers <= high + 1e-9
    ]
    grid = [(Loop(start, stop, passes, "damped", beta),) for start, stop in spans for beta in betas]
    ratios = [cost_of(shape, loops).layer_pass_ratio for loops in grid]
    kept = tuple(loops for loops, ratio in zip(grid, ratios, strict=True) if ratio <= max_layer_pass_ratio + 1e-9)
    if not kept:
        cheapest = f"; the cheapest costs {min(ratios):.3g}" if ratios else ""
        raise PlacementError(
            f"no span of {', '.join(map(str, widths))} layers lies at {low:g} to {high:g} of {shape.num_layers} layers and costs "
            f"at most {max_layer_pass_ratio:g} times the plain model{cheapest}: allow other widths, a wider band or a higher cost"
        )
    if max_candidates is None or max_candidates >= len(kept):
        return kept
    step = len(kept) / max_candidates
    return tuple(kept[int((number + 0.5) * step)] for number in range(max_candidates))
