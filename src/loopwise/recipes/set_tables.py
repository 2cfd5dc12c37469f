"""The tables of a set's trial beside its verdicts, as Markdown. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..protocol import Comparison, Verdict
from ..protocol.words import interval, p_text, points
from .learning_members import LOOPED

if TYPE_CHECKING:
    from .set_judging import SetTrialPlan

PAIRS_FOLDER = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """The looped model against a looped control, the twin against a test depth, or the looped model against a longer trained twin."""

    table: Literal["placements", "depths", "longer twins"]
    ours: str
    other: str
    loops: str
    """Of the control."""
    comparison: Comparison
    holm_p: float
    """Over the rows of the table."""


_TITLES = {
    "placements": "Looped controls of equal cost: the loop under test against the same recipe with its loop elsewhere",
    "depths": "Test depths: the looped model at other numbers of passes against its twin",
    "longer twins": "Shown, never deciding: the loop under test against twins that were trained longer than it (not a fair test, B.2)",
}


def set_report(tested: SetTrialPlan, verdicts: Mapping[str, Verdict], rows: Sequence[ControlRow], more: Sequence[str] = ()) -> str:
    """The set's tables as Markdown, ``more`` behind them."""
    lines = [f"# The set {tested.folder}, seeds {', '.join(map(str, tested.seeds))}", ""]
    for name, verdict in verdicts.items():
        looped = tested.named(name)
        candidates = ", ".join(one.name for one in tested.candidates(looped))
        where = "report.html" if name == LOOPED else f"{PAIRS_FOLDER}/{name}/report.html"
        lines += [f"## {name}: {verdict.verdict}", "", verdict.sentence, ""]
        lines += [f"Unlooped candidates beside its twin: {candidates or 'none'}. Report: {where}", ""]
    for table, title in _TITLES.items():
        if of_table := [row for row in rows if row.table == table]:
            lines += [f"## {title}", "", *_table(of_table), ""]
    lines += [*more, ""]
    lines += [f"- left out, {name}: {reason}" for name, reason in tested.left_out.items()]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[ControlRow]) -> list[str]:
    lines = ["| first | second | loops | first % | second % | difference, points | p (Holm) | seeds ahead |"]
    lines.append("| --- | --- | --- | ---: | ---: | --- | --- | ---: |")
    for row in rows:
        c = row.comparison
        cells = (row.ours, row.other, row.loops, f"{c.looped_percent:.1f}", f"{c.other_percent:.1f}")
        difference = f"{points(c.delta_points)} {interval(c.ci95)}"
        lines.append("| " + " | ".join((*cells, difference, p_text(row.holm_p), f"{c.seeds_favouring} of {len(c.seeds)}")) + " |")
    return lines
