"""A study's report: figures from real numbers, honest words, and a page as safe and silent as a verdict's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import placement_studies as studies
from loopwise.cli import main
from loopwise.placement.stability import write_summary
from loopwise.records import CandidateResult, StudyError, StudyWriter
from loopwise.report import render_study
from loopwise.report.drawing import PALETTE
from loopwise.report.placement_axes import NatsScale, thin
from loopwise.report.placement_figures import profile_figure, traces_figures
from loopwise.report.placement_view import best_by_start, series_of, spots_of, view_study
from report_cases import HOSTILE, Page
from test_report_page import visit

GRID = studies.windows(passes=(2, 4), betas=(0.25,))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("studies")
    studies.full_study(base / "one", candidates=GRID)
    studies.full_study(base / "two", candidates=GRID, shift=0.06, seeds=(0,), mixture_sha256="b" * 64)
    write_summary(base / "one", [base / "two"])
    render_study(base / "one", others=[base / "two"])
    return base / "one"


def test_every_figure_is_an_svg_that_a_dark_page_can_recolour(study: Path) -> None:
    figures = {path.stem: path for path in (study / "figures").iterdir()}
    assert figures.keys() == {"location-profile", "temperature", "pareto", "search-traces-ppl-t", "validation", "studies"}
    light = {one for one, _ in PALETTE.values()} | {"none", "transparent", "#ffffff"}
    for path in figures.values():
        root = ElementTree.parse(path).getroot()
        assert root.get("role") == "img" and len(root.get("aria-label", "")) > 40 and "NaN" not in path.read_text()
        used = {element.get(name) for element in root.iter() for name in ("fill", "stroke")} - {None}
        assert used <= light, used - light


def test_page_is_one_accessible_file(study: Path) -> None:
    text = (study / "report.html").read_text()
    assert len(text) < 600_000 and not re.search(r"<script|@import|url\((?!#)|\son\w+=", text)
    assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) <= set(ids)
    headings = [int(tag[1]) for tag, _ in Page(text).tags if re.fullmatch(r"h\d", tag)]
    assert headings.count(1) == 1 and all(b - a <= 1 for a, b in pairwise(headings))


def test_chromium_is_silent(study: Path, tmp_path: Path) -> None:
    assert visit(study / "report.html", tmp_path / "profile") == ([], [])


def test_it_says_what_the_score_is_and_how_much_is_noise(study: Path) -> None:
    text, view = (study / "report.md").read_text(), view_study(study)
    best = view.scored[0]
    assert f"Best placement by score: {best.loops}" in text and "promises no gain" in text
    assert f"{abs(best.difference or 0):.4f} nats below the unlooped model" in text
    assert f"{len(view.near):,} of {len(view.scored):,} candidates, the best among them, lie within one paired standard error" in text
    at = dict(view.dropped_at())
    assert f"({at[0.25]} at 25%, {at[0.5]} at 50% of the text)" in text and sum(at.values()) == view.count("dropped") > 10
    assert re.search(rf"\| Ruined \| {view.count('ruined')} \|", text) and view.count("ruined") > 5
    assert "positive where the better score has the higher accuracy: +0.88 (95% interval +0.61 to +0.97)" in text


def test_fates_add_up_and_a_whole_score_replaces_a_dropped_one(study: Path) -> None:
    view = view_study(study)
    assert sum(view.count(fate) for fate in ("scored", "part", "dropped", "ruined", "failed")) == len(view.spots) == len(GRID)
    dropped = next(spot for spot in view.spots if spot.fate == "dropped")
    again = replace(dropped.result, status="scored", share=1.0)
    spots = {spot.loops: spot for spot in spots_of(replace(view.study, results=(*view.study.results, again)))}
    assert spots[dropped.loops].fate == "scored" and dropped.plain_difference is None


def test_profile_marks_ruined_and_dropped_places(study: Path) -> None:
    view = view_study(study)
    figure = profile_figure(view)
    assert figure is not None and "on a part of the text" in figure.svg
    best = best_by_start(spot for spot in view.spots if spot.width == 7)
    assert best[0].fate == "dropped" and best[12].fate == "scored" and list(best) == list(range(24))
    ruined = replace(view, spots=tuple(spot for spot in view.spots if spot.fate == "ruined" or spot.start > 8))
    drawn = profile_figure(ruined)
    assert drawn is not None and "ruined (at the top edge)" in drawn.svg and ": ruined<" in drawn.svg


def test_hiding_is_better_on_plain_loss_only(study: Path) -> None:
    view = view_study(study)
    hiding = [spot for spot in view.scored if spot.hides]
    assert hiding and all((s.plain_difference or 0) < 0 < (s.difference or 0) for s in hiding)
    assert f"hides behind temperature: {len(hiding)}<" in (study / "figures" / "temperature.svg").read_text()


def render(folder: Path, results: Sequence[CandidateResult], **header: object) -> str:
    StudyWriter(folder, studies.header(**header)).append(results)
    render_study(folder)
    return (folder / "report.md").read_text()


def test_a_study_that_has_only_begun(tmp_path: Path) -> None:
    text = render(tmp_path, [])
    assert "No candidate is scored on the whole text yet" in text and "summary.json is not there" in text
    assert list((tmp_path / "figures").iterdir()) == []
    text = render(tmp_path, [studies.measured("12:16 x2")[0]])
    assert "The unlooped model has no result yet" in text and not (tmp_path / "figures" / "temperature.svg").exists()
    text = render(tmp_path, [studies.measured("none")[0]])
    assert "The unlooped model has no result yet" not in text and (tmp_path / "figures" / "temperature.svg").exists()


def test_a_study_whose_candidates_are_all_ruined_says_so(tmp_path: Path) -> None:
    plain, ruined = studies.measured("none")[0], [replace(studies.measured(loops)[0], status="ruined", values={}) for loops in GRID[:4]]
    text = render(tmp_path, [plain, *ruined[:2]])
    assert "All 2 candidates are ruined so far" in text and "may still be running" not in text and "smaller" not in text
    assert "Try other places, fewer passes or a larger beta" in text
    writer = StudyWriter(tmp_path, studies.header())
    writer.append(ruined[2:])
    studies.search(writer, "grid", GRID[:4])
    render_study(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert (
        "All 4 candidates are ruined" in text and "so far" not in text and " yet." not in text.split("How to read")[0].split("summary")[0]
    )


def test_whether_a_search_has_ended_is_known_of_a_grid_and_of_spent_evaluations(tmp_path: Path) -> None:
    part = [replace(studies.measured(loops)[0], share=0.25) for loops in GRID[:6]]
    for name, header, ended in (
        ("grid", {"evaluations": None}, True),
        ("grid", {"evaluations": None, "space": {"num_candidates": 7}}, False),
        ("random", {"evaluations": 1.5}, True),
        ("random", {"evaluations": 60}, False),
        ("greedy", {"evaluations": None}, False),
    ):
        folder = tmp_path / f"{name}{header}".replace("/", "")
        writer = StudyWriter(folder, studies.header())
        writer.append(part)
        studies.search(writer, name, GRID[:6], **header)
        render_study(folder)
        text = (folder / "report.md").read_text()
        assert view_study(folder).has_ended is ended
        assert ("The searches have ended, and no candidate has a score on the whole text" in text) is ended
        assert ("Where a search still runs" in text) is not ended


def test_the_next_step_names_the_study(study: Path) -> None:
    best = view_study(study).scored[0].loops
    assert f'loopwise trial SmolLM2-135M-Instruct --loops "{best}" --placement {study} --out TRIAL' in (study / "report.md").read_text()


def test_none_better_and_none_told_apart_are_said(tmp_path: Path) -> None:
    plain = studies.measured("none")[0]
    worse = studies.measured("2:6 x2")[0]
    text = render(tmp_path / "worse", [plain, worse])
    assert "No candidate scores better than the unlooped model" in text and "nats above the unlooped model" in text
    alike = replace(worse, values=worse.values | {"difference_nats": -0.0001})
    assert "cannot be told from the unlooped model" in render(tmp_path / "alike", [plain, alike])


def test_structures_beside_single_windows(tmp_path: Path) -> None:
    loops = ["4:8 x2 + 14:18 x2", "10.mlp x3 + 11.mlp x3", "10:18 x2 + 10.mlp x3 in pass 1", "12:16 x2"]
    text = render(tmp_path, [studies.measured(one)[0] for one in ("none", *loops)])
    series = {name: [spot.start for spot in spots] for name, spots in series_of(view_study(tmp_path).spots).items()}
    assert series == {"width 4": [12], "width 8": [10], "several windows": [4], "MLP halves only": [10]}
    assert all(one in text for one in ("4:8 x2 + 14:18 x2", "10.mlp x3 + 11.mlp x3"))


def test_many_widths_share_lines(tmp_path: Path) -> None:
    results = [studies.measured(f"4:{stop} x2")[0] for stop in range(5, 25)]
    render(tmp_path, results)
    series = series_of(view_study(tmp_path).spots)
    assert len(series) == 7 and sum(map(len, series.values())) == 20


def test_traces_only_where_something_searched(study: Path, tmp_path: Path) -> None:
    view = view_study(study)
    only_grid = replace(view.study, searches=tuple(one for one in view.study.searches if one.name == "grid"))
    assert len(traces_figures(view)) == 1 and traces_figures(replace(view, study=only_grid)) == []
    assert (study / "figures" / "search-traces-ppl-t.svg").read_text().count("<title>") == len(view.study.searches)


def test_names_from_anywhere_stay_text(tmp_path: Path) -> None:
    text = render(tmp_path, [studies.measured("none")[0], studies.measured("12:16 x2")[0]], model=HOSTILE)
    html = (tmp_path / "report.html").read_text()
    assert "<script>" not in html + text and "&lt;script&gt;" in html


def test_two_thousand_candidates_stay_small() -> None:
    places = [(0.37 * n % 700, 0.11 * n % 300) for n in range(20_000)]
    kept = thin(places, lambda place: place)
    assert kept[0] == places[0] and len(kept) < 8_500
    assert len({(int(x // 5), int(y // 5)) for x, y in kept}) == len(kept)


def test_scale_holds_gains_of_thousandths_and_harm_of_nats() -> None:
    scale = NatsScale.of([-0.012, 0.004, 5.5])
    assert 0 < scale.place(-0.012) < scale.place(0.0) < scale.place(0.004) < scale.place(5.5) < 1
    assert scale.place(0.0) - scale.place(-0.012) > 0.1
    assert {0.0, -0.01, 3.0} < set(scale.ticks()) and all(scale.low < tick < scale.high for tick in scale.ticks())
    assert NatsScale.of([]).place(0.0) == pytest.approx(0.5)


def test_the_command_reports_a_study(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies.full_study(tmp_path / "x", candidates=GRID[:60], seeds=())
    main(["report", str(tmp_path / "x")])
    printed = capsys.readouterr().out
    assert "best by score: " in printed and "the rank among these is noise" in printed and "report.html" in printed
    assert (tmp_path / "x" / "summary.json").exists() and not list((tmp_path / "x" / "figures").glob("search-traces*"))


def test_no_study_no_report(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="holds no study"):
        render_study(tmp_path)
