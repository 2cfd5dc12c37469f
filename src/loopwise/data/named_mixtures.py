"""Mixtures of published runs, by name.

ARLoop's three stages: the tokens of each source in each stage are those of its Table 14, as far as the page shows them: 147.24 of
180 and 409.00 of 500 billion. Figure 7, which would show the domains' shares, is a picture. What the page does not show is the
source ``unlisted`` here, and how long each stage is, is a guess, though one that fits: with stages of 60, 20 and 20 % every visible
share is the same in both runs, and most are round (StackExchange 2 %, each FineMath 1 % of stage 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .documents import DataError
from .training_mixture import Mixture, Stage, read_mixture, single_mixture

UNLISTED = "unlisted"
"""The name of a source that stands for the tokens that Table 14's visible rows leave over."""

TABLE_14: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "arloop-0.6b": {
        "fineweb-edu": (89.02, 26.36, 22.06),
        "stackexchange": (2.16, 0.64, 0.04),
        "finemath-3plus": (1.08, 0.36, 0.07),
        "infiwebmath-3plus": (1.08, 0.36, 0.07),
        "finemath-4plus": (1.08, 1.96, 0.90),
    },
    "arloop-1.2b": {
        "fineweb-edu": (247.29, 73.22, 61.27),
        "stackexchange": (6.00, 1.78, 0.10),
        "finemath-3plus": (3.00, 1.00, 0.20),
        "infiwebmath-3plus": (3.00, 1.00, 0.20),
        "finemath-4plus": (3.00, 5.44, 2.50),
    },
}
"""Billion tokens of each source in the three stages (ARLoop, Table 14, visible rows)."""
TOTAL_BILLIONS: Mapping[str, float] = {"arloop-0.6b": 180.0, "arloop-1.2b": 500.0}
"""Of each run (ARLoop, Table 14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArloopMixture:
    """ARLoop's three-stage recipe (Figure 7, Table 14).

    Raises:
        DataError: stages that do not add up to one, or are shorter than what the table says is in them.
    """

    run: str
    """``arloop-0.6b`` or ``arloop-1.2b``."""
    stage_shares: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """The length of each stage; a guess."""
    unlisted: bool = True
    """Whether tokens that no visible row accounts for are drawn from a source ``unlisted``, a guess; else the visible rows are all."""

    def mixture(self) -> Mixture:
        """The stages with their tokens and shares."""
        if self.run not in TABLE_14:
            raise DataError(f"no run of ARLoop's is called {self.run!r}; use {', '.join(TABLE_14)}")
        if abs(sum(self.stage_shares) - 1) > 1e-9:
            raise DataError(f"stage_shares are {self.stage_shares}; give three that add up to 1")
        stages = []
        for number, share in enumerate(self.stage_shares):
            billions = {source: row[number] for source, row in TABLE_14[self.run].items()}
            visible, total = sum(billions.values()), TOTAL_BILLIONS[self.run] * share
            if self.unlisted:
                if visible > total:
                    raise DataError(
                        f"stage {number + 1} has {total:g} billion tokens, its visible rows {visible:g}; give it a larger share"
                    )
                billions[UNLISTED] = round(total - visible, 2)
            stages.append(Stage(tokens=round(sum(billions.values()) * 1e9), shares=billions))
        return Mixture(name=self.run, stages=tuple(stages))


NAMED_MIXTURES: Mapping[str, Callable[[], Mixture]] = {
    "single": single_mixture,
    **{run: ArloopMixture(run=run).mixture for run in TABLE_14},
    **{f"{run}-listed": ArloopMixture(run=run, unlisted=False).mixture for run in TABLE_14},
}
"""``single`` is all of a folder; ``-listed`` are the visible rows alone."""


def named_mixture(name: str) -> Mixture:
    """A mixture by its name, or from the JSON file of that path.

    Raises:
        DataError: neither.
    """
    if name in NAMED_MIXTURES:
        return NAMED_MIXTURES[name]()
    if not name.endswith(".json"):
        raise DataError(f"no mixture is called {name!r}; use {', '.join(NAMED_MIXTURES)}, or a .json file")
    return read_mixture(name)
