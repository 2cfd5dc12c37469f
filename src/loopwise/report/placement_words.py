"""What a study's report says in words: title, sentences, warnings, and the two cards at a glance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from .blocks import Card, Outcome
from .numbers import UNKNOWN, count, known_number, ratio
from .placement_axes import nats
from .placement_view import FATES, Fate, Spot, View

FILTER = (
    "The score is a filter: it rules out placements that harm the model, and promises no gain. The loops that it chose for the paper "
    "improved calibrated perplexity at every size from 1.7B to 32B, and benchmark accuracy clearly at only one of them, 8B (no-free-loop, "
    "Appendix E). Whether a loop pays is for a trial to say."
)
FATE_WORDS: dict[Fate, str] = {
    "scored": "Scored on the whole text",
    "part": "Scored on a part of the text",
    "dropped": "Dropped by the race",
    "ruined": "Ruined",
    "failed": "Failed",
}


def headline(view: View) -> str:
    """The report's title line."""
    if view.all_ruined:
        return f"All {len(view.spots):,} candidates are ruined" + ("" if view.has_ended else " so far")
    if not view.scored:
        return "No candidate is scored on the whole text" + ("" if view.has_ended else " yet")
    best = view.scored[0]
    if (best.difference or 0.0) >= 0:
        return "No candidate scores better than the unlooped model"
    return f"Best placement by score: {best.loops}"


def advice(view: View) -> str:
    """What to do next."""
    if view.scored:
        model, folder = shlex.quote(str(view.study.header["model"])), shlex.quote(str(view.study.folder))
        loops = view.scored[0].loops
        return f'A placement to try, not a gain. Next: loopwise trial {model} --loops "{loops}" --placement {folder} --out TRIAL'
    if view.all_ruined:
        return "None of these loops leaves the model finite losses. Try other places, fewer passes or a larger beta."
    if view.has_ended:
        return "The searches have ended, and no candidate has a score on the whole text."
    return "No candidate has a score on the whole text. Where a search still runs, loopwise report writes this report again."


def sentence(view: View) -> str:
    """What the best candidate measured."""
    if not view.scored:
        return f"{len(view.spots):,} candidates have a result{'' if view.has_ended else ' so far'}."
    best, error = view.scored[0], known_number(view.scored[0].result.values.get("standard_error_nats"))
    side = "below" if (best.difference or 0.0) < 0 else "above"
    positions = known_number(best.result.values.get("num_score_positions"))
    paired = f"paired over {positions:,.0f} positions" if positions else "paired by position"
    spread = "" if error is None else f" (standard error {error:.4f}, {paired})"
    alike = error is not None and abs(best.difference or 0.0) <= error
    return (
        f"{best.loops} costs {ratio(best.result.layer_pass_ratio)} and reaches a calibrated perplexity of "
        f"{number(best, 'calibrated_perplexity', 3)}, {abs(best.difference or 0.0):.4f} nats {side} the unlooped model{spread}, at a "
        f"fitted temperature of {number(best, 'temperature', 3)}."
        + (" On this text it cannot be told from the unlooped model." if alike else "")
    )


def near_sentence(view: View) -> str:
    """How much of the ranking is noise."""
    if not view.near:
        return "How many candidates the text cannot tell from the best is not computed yet."
    compared = known_number(view.summary.get("num_compared"))
    return (
        f"{len(view.near):,} of {count(compared)} candidates, the best among them, lie within one paired standard error of the best one: "
        "the rank among these is noise."
    )


def warnings(view: View) -> tuple[str, ...]:
    """What a reader must know before quoting."""
    found = [FILTER]
    if view.scored:
        found.append(near_sentence(view))
        found.append(
            f"The best of {len(view.scored):,} candidates is chosen by the very losses that are quoted for it: its difference is flattered."
        )
    if view.unlooped is None:
        found.append("The unlooped model has no result yet, so there are no differences of plain losses.")
    if view.summary and view.summary.get("num_results") != len(view.study.results):
        found.append("The study has grown since its summary was computed; loopwise report brings both up to date.")
    if view.count("dropped"):
        shares = ", ".join(f"{number:,} at {share:.0%}" for share, number in view.dropped_at())
        found.append(f"Dropped candidates were read in part ({shares} of the text); their values are of that part.")
    tolerances = {known_number(search.header.get("race_tolerance_nats")) for search in view.study.searches} - {None}
    for tolerance in sorted(tolerances, key=str):
        found.append(
            f"A race sought the best alone, to {tolerance:g} nats: what it dropped may lie within one standard error of the best, and is "
            "not among those that are counted there."
        )
    if view.count("failed"):
        found.append(f"{view.count('failed'):,} candidates failed for a reason outside them; they are not ranked.")
    return tuple(found)


def facts(view: View) -> tuple[tuple[str, str], ...]:
    """What was searched, at a glance."""
    header, unlooped = view.study.header, view.unlooped
    values: Mapping[str, Any] = unlooped.values if unlooped else {}
    perplexity, temperature = known_number(values.get("calibrated_perplexity")), known_number(values.get("temperature"))
    objectives = dict.fromkeys(str(search.header.get("objective")) for search in view.study.searches)
    return (
        ("Model", str(header.get("model", UNKNOWN))),
        ("Layers", count(view.num_layers)),
        ("Text (hash of its tokens)", str(header.get("mixture_sha256", UNKNOWN))[:16]),
        ("Candidates", count(len(view.spots))),
        ("Searches", f"{len(view.study.searches)} ({', '.join(objectives)})" if objectives else "0"),
        ("Unlooped PPL_T (T)", UNKNOWN if perplexity is None or temperature is None else f"{perplexity:.3f} ({temperature:.3f})"),
    )


def cards(view: View) -> tuple[Card, ...]:
    """The best candidate, and how far its rank can be trusted."""
    if not view.scored:
        return ()
    best = view.scored[0]
    error = known_number(best.result.values.get("standard_error_nats"))
    measured = (
        ("Loops", best.loops),
        ("Standard error, paired", UNKNOWN if error is None else f"{error:.4f} nats"),
        ("Calibrated perplexity, PPL_T", number(best, "calibrated_perplexity", 3)),
        ("Plain perplexity", number(best, "perplexity", 3)),
        ("Fitted temperature, T", number(best, "temperature", 3)),
        ("Cost", ratio(best.result.layer_pass_ratio)),
    )
    near = view.near
    return (
        _card(
            "card-best",
            "Best by score",
            "Which candidate has the lowest calibrated loss?",
            ("absent", "a filter, no promise of a gain"),
            (nats(best.difference), "nats against the unlooped model"),
            measured,
        ),
        _card(
            "card-rank",
            "How much of the rank is noise",
            "How many candidates can the text not tell from the best?",
            ("equivalent", "the rank among these is noise") if near else ("absent", "not computed yet"),
            (f"{len(near):,}", "within one paired standard error") if near else ("", ""),
            tuple((FATE_WORDS[fate], words) for fate, words in fates(view)),
        ),
    )


def _card(
    name: str, title: str, question: str, outcome: tuple[Outcome, str], delta: tuple[str, str], measured: tuple[tuple[str, str], ...]
) -> Card:
    return Card(
        name=name,
        title=title,
        question=question,
        outcome=outcome[0],
        outcome_text=outcome[1],
        delta=delta[0],
        unit=delta[1],
        facts=measured,
        statement="",
        interval=None,
    )


def fates(view: View) -> list[tuple[Fate, str]]:
    """How many candidates met each fate, in words."""
    words: list[tuple[Fate, str]] = []
    for fate in FATES:
        among_all = view.count(fate)
        shares = ", ".join(f"{among:,} at {share:.0%}" for share, among in view.dropped_at()) if fate == "dropped" else ""
        if among_all or fate != "part":
            words.append((fate, f"{among_all:,}" + (f" ({shares} of the text)" if shares else "")))
    return words


def number(spot: Spot, name: str, digits: int) -> str:
    """One of a candidate's values."""
    return value_of(spot.result.values, name, digits)


def value_of(values: Mapping[str, float], name: str, digits: int) -> str:
    """One of a result's values; a perplexity of a harmed model may be astronomical."""
    value = known_number(values.get(name))
    return UNKNOWN if value is None else f"{value:.{digits}f}" if value < 1e5 else f"{value:.2e}"
