"""Write the report of a loss trial: the two tests on held-out loss, every model, and what ran."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..protocol import LossTest, LossVerdict
from .blocks import Bullets, Card, Figure, Page, Section, Text
from .card_interval import card_interval
from .drawing import on_paper
from .labels import OUTCOMES, RESULT_WORDS, STATES
from .loss_figure import FIGURE, loss_figure
from .loss_tables import comparisons_table, heading, models_table, tests_of, tests_table, windows_table
from .markdown import markdown
from .numbers import UNKNOWN, count, interval, p_number, points, ratio, scaled
from .render import ReportFiles, html
from .running import shared_table

HEADLINES = {
    "pays": "The loop pays by held-out loss",
    "does not pay": "The loop does not pay by held-out loss",
    "not shown": "Not shown that the loop pays by held-out loss",
}
QUESTIONS = {
    "equal parameters": "Does the looped model predict the text better than the same model, trained identically, without the loop?",
    "equal FLOPs": "Does it predict the text better than the best unlooped model that spends no more inference FLOPs on a token?",
}


def render_losses(verdict: LossVerdict, folder: str | Path, *, headers: Sequence[Mapping[str, Any]] = ()) -> ReportFiles:
    """Write ``report.html``, ``report.md`` and the figure into a folder, each whole or not at all.

    Args:
        headers: of the runs that were judged.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    page = build_loss_page(verdict, headers)
    figure = next(block for section in page.sections for block in section.blocks if isinstance(block, Figure))
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    files = ReportFiles(html=folder / "report.html", markdown=folder / "report.md", figures=(folder / "figures" / f"{FIGURE}.svg",))
    _write(files.figures[0], on_paper(figure.svg))
    _write(files.markdown, markdown(page, tests_table(verdict)))
    _write(files.html, html(page))
    return files


def build_loss_page(verdict: LossVerdict, headers: Sequence[Mapping[str, Any]]) -> Page:
    """Everything that the report says, its figure drawn."""
    tests = [(heading(test), test) for test in tests_of(verdict)]
    ran = shared_table(headers)
    return Page(
        title=f"{HEADLINES[verdict.verdict]}: {verdict.model}",
        state=STATES[verdict.verdict],
        verdict=HEADLINES[verdict.verdict],
        sentence=verdict.sentence,
        facts=_facts(verdict),
        cards=(_card(verdict, "equal parameters"), _card(verdict, "equal FLOPs")),
        advice=verdict.advice,
        warnings=verdict.notes,
        sections=(
            Section(name="models", title="The models", blocks=(models_table(verdict),)),
            Section(
                name="tests",
                title="The two tests",
                blocks=(*(Text(words) for words in _statements(verdict)), loss_figure(verdict, tests), comparisons_table(verdict)),
            ),
            Section(name="what-ran", title="What ran", blocks=(windows_table(verdict), *(() if ran is None else (ran,)))),
            Section(name="how-to-read", title="How to read this", blocks=(_reading(verdict),)),
        ),
    )


def _statements(verdict: LossVerdict) -> list[str]:
    second, beside = verdict.equal_flops, verdict.equal_training
    return [
        verdict.equal_parameters.statement,
        f"There is no second test: {verdict.equal_flops_reason}." if second is None else second.statement,
        f"Equal training FLOPs are not compared: {verdict.equal_training_reason}." if beside is None else beside.statement,
    ]


def _facts(verdict: LossVerdict) -> tuple[tuple[str, str], ...]:
    return (
        ("Model", f"{verdict.model} ({scaled(verdict.num_parameters)} parameters)"),
        ("Loop", verdict.loops),
        ("Layer passes (cost)", ratio(verdict.cost_ratio)),
        ("Text", f"{count(verdict.num_documents)} documents, {count(verdict.num_targets)} tokens, {scaled(verdict.num_bytes, 'B')}"),
        ("Training seeds", f"{verdict.num_seeds}{' ' + verdict.marks if verdict.marks else ''}"),
    )


def _card(verdict: LossVerdict, name: str) -> Card:
    test = verdict.equal_parameters if name == "equal parameters" else verdict.equal_flops
    number, anchor = ("1", "card-equal-parameters") if name == "equal parameters" else ("2", "card-equal-flops")
    title, question = f"Test {number}: {name}", QUESTIONS[name]
    if test is None:
        return Card(
            name=anchor,
            title=title,
            question=question,
            outcome="absent",
            outcome_text="no second test",
            delta="",
            unit="",
            facts=(),
            statement=f"There is no second test: {verdict.equal_flops_reason}.",
            interval=None,
        )
    c = test.comparison
    return Card(
        name=anchor,
        title=title,
        question=question,
        outcome=OUTCOMES[test.result],
        outcome_text=f"{'passed' if test.passed else 'not passed'}: {RESULT_WORDS[test.result]}",
        delta=points(c.delta_millinats),
        unit="milli-nats per token",
        facts=_card_facts(verdict, test),
        statement="" if test.reached else "It is not reached and does not decide here: the first test was not passed.",
        interval=card_interval(c.delta_millinats, c.ci95, c.ci90, verdict.margin_millinats),
    )


def _card_facts(verdict: LossVerdict, test: LossTest) -> tuple[tuple[str, str], ...]:
    losses = {model.name: model.loss_nats for model in verdict.models}
    c = test.comparison
    how = "corrected for" if test.result == "loss" else "largest over"
    among = f" ({how} {test.num_eligible} eligible models)" if test.num_eligible > 1 else ""
    facts = [
        ("Unlooped → looped", f"{losses[c.other]:.4f} → {losses[c.looped]:.4f} nats{verdict.marks}"),
        ("95% interval", f"{interval(c.ci95)} milli-nats"),
        ("90% interval", f"{interval(c.ci90)}, equivalence needs it within ±{verdict.margin_millinats:g}"),
        ("p", p_number(test.deciding_p) + among),
        ("Comparator", c.other),
        ("Gain found with 80% power", f"{test.smallest_detectable_millinats:.1f} milli-nats or more"),
    ]
    if len(c.seed_deltas) > 1:
        facts.append(("Seeds that favour the loop", f"{c.seeds_favouring} of {len(c.seed_deltas)}"))
    return tuple(facts)


def _reading(verdict: LossVerdict) -> Bullets:
    marks = []
    if verdict.few_seeds:
        marks.append("△ fewer than three training seeds.")
    if verdict.training_free:
        marks.append("‡ training-free: twin and looped model are the same weights.")
    return Bullets(
        (
            "Loss is the mean negative log-likelihood of a token in nats; a milli-nat is a thousandth. Long documents weigh more than "
            "short ones, by their tokens. Bits per byte compare models of different tokenizers, nats per token do not.",
            "The first test asks whether the loop beats its twin. The second asks whether it beats the best unlooped model that spends at "
            "most its inference FLOPs per token, and decides only if the first is passed. Equal training FLOPs stand beside them.",
            "Pays: both tests are significant gains. Does not pay: a deciding test is a significant loss, or equivalent within "
            f"±{verdict.margin_millinats:g} milli-nats (a margin that no paper gives). Not shown: anything else.",
            "Intervals and p-values come from paired bootstraps over documents, the same draw for both models, and over training seeds "
            "where it is said.",
            "A lower loss is no higher accuracy: a loop that pays here still has to be judged on tasks.",
            *marks,
            f"{UNKNOWN} means not known or not applicable, never zero.",
        )
    )


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
