"""What a placement search is asked for; see `placement`. Values that cannot be are refused at birth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..cost import ModelShape
from ..placement import DEPTH_RULE, ENDS_BY_ITSELF, PlacementError, Race, Space, algorithm_named, objective_named, search_name
from ..records import check_search_name

MID_DEPTH = (0.25, 0.75)
"""Where window centres may lie when the divergence chooses among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """The text that candidates are scored on, and how it is read."""

    sources: tuple[str, ...] = ()
    """As for `loopwise.data.read_sources`; empty: worked arithmetic, Python's language reference and its library."""
    fit_tokens: int = 1024
    """Where temperatures are fitted."""
    score_tokens: int = 3072
    """Where candidates are scored."""
    window_tokens: int = 256
    stride: int = 1
    """Every how many tokens of the scoring split one is scored."""
    fit_stride: int = 4
    """Likewise of the fitting split: one temperature needs fewer positions than a comparison of losses."""
    seed: int = 0
    """Of the choice of documents."""
    batch_windows: int = 1
    """Windows of the first batch; later ones have up to two."""

    def __post_init__(self) -> None:
        least = {"fit_tokens": 1, "score_tokens": 1, "window_tokens": 2, "stride": 1, "fit_stride": 1, "batch_windows": 1}
        for name, smallest in least.items():
            check_whole(name, getattr(self, name), smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """What may be proposed; see `loopwise.placement.Space`."""

    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    passes: tuple[int, ...] = (2, 3, 4)
    betas: tuple[float, ...] = (0.25, 0.5, 0.75)
    operators: tuple[str, ...] = ("damped",)
    structures: tuple[str, ...] = ("window",)
    max_windows: int = 2
    mlp_passes: tuple[int, ...] = (2, 3)
    centre: tuple[float, float] | None = None
    max_cost: float | None = None

    def space(self, shape: ModelShape) -> Space:
        """The candidates for a model of this shape.

        Raises:
            PlacementError: there are none.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Space(shape=shape, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSettings:
    """How a study searches; every field has a default."""

    text: TextSettings = field(default_factory=TextSettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    objective: str = "ppl_t"
    algorithms: tuple[str, ...] = ("grid",)
    seeds: tuple[int, ...] = (0,)
    """Each algorithm runs with each; those that draw nothing run once."""
    evaluations: float | None = None
    """Stop after so many; None: when the algorithm ends by itself."""
    race: bool = True
    """Drop candidates by paired losses as the text is read; only under ``ppl_t``."""
    race_error: float = 0.05
    race_tolerance: float | None = None
    """Nats by which the best may be missed; None: the race keeps all that lie within one standard error of the best."""
    memory_gb: float = 2.0
    """What kept states and candidates at work may take, beside the model."""
    items: int = 64
    """Training problems, for ``accuracy:TASK``."""
    data: Path | None = None
    """Where tasks' files are, for ``accuracy:TASK``."""
    name: str | None = None
    """The search's folder in the study; default from algorithm, objective and seed."""
    dtype: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        objective_named(self.objective)
        for algorithm in self.algorithms:
            algorithm_named(algorithm)
        if not self.algorithms or not self.seeds:
            raise PlacementError(f"{'seeds' if self.algorithms else 'algorithms'} is empty; give one or more")
        if self.evaluations is not None and not 0 < self.evaluations < math.inf:
            raise PlacementError(f"evaluations is {self.evaluations:g}; give at least 1, or None for all")
        if not 0 < self.memory_gb < math.inf:
            raise PlacementError(f"memory_gb is {self.memory_gb:g}; give the GB that may be taken, e.g. 2")
        check_whole("items", self.items, 1)
        if self.race_tolerance is not None and not self.races:
            raise PlacementError(f"race_tolerance is {self.race_tolerance:g}, and nothing races here; leave it out")
        if self.races:
            Race(error=self.race_error, tolerance_nats=self.race_tolerance)
        if self.name is not None:
            check_search_name(self.name)
        if self.objective == "kl":
            object.__setattr__(self, "space", narrowed_for_kl(self.space))

    @property
    def search_names(self) -> tuple[str, ...]:
        """The folders of `searches` in the study."""
        objective = objective_named(self.objective)
        own = tuple(search_name(algorithm, objective, seed) for algorithm, seed in self.searches)
        return own if self.name is None else (self.name,) if len(own) == 1 else tuple(f"{self.name}-{name}" for name in own)

    @property
    def searches(self) -> tuple[tuple[str, int], ...]:
        """Every algorithm with every seed, those without chance once."""
        return tuple((name, seed) for name in self.algorithms for seed in self.seeds[: 1 if name in ENDS_BY_ITSELF else None])

    @property
    def races(self) -> bool:
        """Whether candidates may be dropped early."""
        return self.race and self.objective == "ppl_t"


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises:
        PlacementError: names the setting.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PlacementError(f"{name} is {value!r}; give a whole number of at least {least}")


def narrowed_for_kl(space: SpaceSettings) -> SpaceSettings:
    """The space in which the divergence may choose: it favours loops that do nothing, so that their size and depth are fixed (A.1).

    Without a band of its own it gets that of the depth rule.

    Raises:
        PlacementError: several widths, other structures than single windows, or a band that is not at mid-depth.
    """
    if len(set(space.widths)) != 1:
        raise PlacementError("kl over several widths favours loops that do little; give one width, e.g. --widths 8 (and see --centre)")
    if set(space.structures) != {"window"}:
        raise PlacementError(f"kl over {', '.join(space.structures)} favours loops that do little; it chooses among single windows only")
    centre = space.centre or DEPTH_RULE
    if not MID_DEPTH[0] <= centre[0] <= centre[1] <= MID_DEPTH[1]:
        raise PlacementError(
            f"kl over the band {centre[0]:g} to {centre[1]:g} favours loops that do little; keep the centre within {MID_DEPTH[0]:g} to "
            f"{MID_DEPTH[1]:g} of depth, e.g. --centre 0.45 0.6"
        )
    return replace(space, centre=centre)
