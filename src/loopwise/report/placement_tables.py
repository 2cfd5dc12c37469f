"""The tables of a study's report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .blocks import Cell, Row, Table, columns, row
from .numbers import UNKNOWN, count, known_number, ratio
from .placement_axes import nats
from .placement_view import Spot, View
from .placement_words import FATE_WORDS, fates, near_sentence, number, value_of

NUM_BEST = 10


def counts_table(view: View) -> Table:
    """What became of the candidates."""
    return Table(
        name="table-candidates",
        title="Candidates",
        caption="What became of them. A ruined candidate has losses that are not finite or that no temperature calibrates; it ranks last.",
        columns=columns("Outcome", "#Candidates"),
        rows=tuple(row(FATE_WORDS[fate], words) for fate, words in fates(view)),
    )


def best_table(view: View) -> Table | None:
    """The first few by calibrated loss, as loop notation."""
    if not view.scored:
        return None
    first = view.scored[:NUM_BEST]
    rows: list[Row] = [_best_row(spot, first=n == 0, near=spot.loops in view.near) for n, spot in enumerate(first)]
    if view.unlooped:
        cells = [value_of(view.unlooped.values, name, 3) for name in ("calibrated_perplexity", "perplexity", "temperature")]
        rows.append(row("unlooped model", ratio(1.0), *cells, nats(0.0), UNKNOWN, UNKNOWN, tone="quiet"))
    return Table(
        name="table-best",
        title="Best candidates",
        caption=f"The first {len(first)} of {len(view.scored):,} scored on the whole text. Difference: calibrated loss minus the unlooped "
        "model's, in nats, with its standard error, paired by position.",
        columns=columns("Loops", "#Cost", "#PPL_T", "#PPL", "#T", "#Difference", "#Standard error", "Within one error of the best"),
        rows=tuple(rows),
        notes=(near_sentence(view),),
    )


def hiding_table(view: View, most: int = 5) -> Table | None:
    """The candidates whose plain loss misleads most; None where there are none."""
    hiding = sorted((spot for spot in view.scored if spot.hides), key=lambda spot: spot.plain_difference or 0.0)
    if not hiding:
        return None
    return Table(
        name="table-hiding",
        title="Better only until both are calibrated",
        caption=f"The {min(most, len(hiding))} of {len(hiding):,} that plain perplexity likes best: differences from the unlooped model, "
        "in nats.",
        columns=columns("Loops", "#Cost", "#T", "#Plain", "#Calibrated"),
        rows=tuple(
            row(
                spot.loops,
                ratio(spot.result.layer_pass_ratio),
                number(spot, "temperature", 3),
                nats(spot.plain_difference),
                Cell(nats(spot.difference), "loss"),
            )
            for spot in hiding[:most]
        ),
    )


def pareto_table(view: View) -> Table | None:
    """The front; None where no summary has it."""
    by_loops = {spot.loops: spot for spot in view.scored}
    rows = []
    for loops in view.summary.get("pareto", ()):
        if loops in by_loops:
            spot = by_loops[loops]
            rows.append(row(loops, ratio(spot.result.layer_pass_ratio), nats(spot.difference)))
        elif not loops:
            rows.append(row("unlooped model", ratio(1.0), nats(0.0), tone="quiet"))
    if not rows:
        return None
    return Table(
        name="table-pareto",
        title="Pareto front",
        caption="Candidates that none of at most their cost beats by calibrated loss (nats against the unlooped model).",
        columns=columns("Loops", "#Cost", "#Difference"),
        rows=tuple(rows),
    )


def searches_table(view: View) -> Table | None:
    """Each search's winner, its centre and its rank."""
    winners: Sequence[Mapping[str, Any]] = view.summary.get("winners", ())
    if not winners:
        return None
    several = len({one["study"] for one in winners}) > 1
    basis = {"grid": "the ended grid", "scored": "all scored"}
    rows = []
    for one in winners:
        behind = f" (+{one['num_behind']:,} behind)" if one["num_behind"] else ""
        rows.append(
            row(
                f"{one['study']}/{one['search']}" if several else str(one["search"]),
                str(one["algorithm"]),
                UNKNOWN if one["seed"] is None else str(one["seed"]),
                str(one["objective"]),
                count(one["evaluations"]),
                str(one["loops"]),
                f"{one['centre']:.3f}",
                f"{one['rank']:,} of {one['num_ranked']:,}{behind}, {basis[one['basis']]}",
            )
        )
    return Table(
        name="table-searches",
        title="Searches and their winners",
        caption="Centre: of the looped window, in parts of depth. The rank by the search's own objective is among the candidates of an "
        "exhaustive grid where one has ended, else among all candidates that the study scored; those dropped or ruined count as behind.",
        columns=columns("Search", "Algorithm", "#Seed", "Objective", "#Evaluations", "Best", "#Centre", "Rank"),
        rows=tuple(rows),
    )


def stability_table(view: View) -> Table | None:
    """Mean and spread of the winners' window centres; None where no search has a winner."""
    spreads: Sequence[Mapping[str, Any]] = view.summary.get("spreads", ())
    if not spreads:
        return None
    titles = {"all": "All searches", "seed": "By seed", "objective": "By objective", "text": "By text", "model": "By model"}
    rows: list[Row] = []
    heading = ""
    for one in spreads:
        title = titles.get(one["group"], f"By {one['group']}")
        if title != heading and one["group"] != "all":
            rows.append(row(title, tone="heading"))
        heading = title
        spread = UNKNOWN if one["standard_deviation"] is None else f"{one['standard_deviation']:.3f}"
        name = "All searches" if one["group"] == "all" else str(one["value"])[: 16 if one["group"] == "text" else 80]
        ends = f"{one['lowest']:.3f} to {one['highest']:.3f}"
        rows.append(row(name, count(one["num_searches"]), f"{one['mean']:.3f}", spread, ends, tone="key" if one["group"] == "all" else ""))
    studies = view.summary.get("studies", ())
    return Table(
        name="table-stability",
        title="Window centres",
        caption="Of the searches' winners, as parts of depth: mean, standard deviation between searches, and range"
        + (f", over {len(studies)} studies" if len(studies) > 1 else "")
        + ". The paper's 26 searches centre at 0.47 ± 0.03 (no-free-loop, D.1).",
        columns=columns("Searches", "#Number", "#Mean", "#Standard deviation", "#Range"),
        rows=tuple(rows),
    )


def header_table(header: Mapping[str, Any]) -> Table:
    """study.json as it is."""
    return Table(
        name="table-study",
        title="The study",
        caption="What every result in it depends on.",
        columns=columns("Field", "Value"),
        rows=tuple(row(name, _short(value)) for name, value in header.items()),
    )


def _best_row(spot: Spot, *, first: bool, near: bool) -> Row:
    error = known_number(spot.result.values.get("standard_error_nats"))
    values = [number(spot, name, 3) for name in ("calibrated_perplexity", "perplexity", "temperature")]
    cells = (ratio(spot.result.layer_pass_ratio), *values, nats(spot.difference), UNKNOWN if error is None else f"{error:.4f}")
    return row(spot.loops, *cells, "yes" if near else "no", tone="key" if first else "")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:197] + "..."
