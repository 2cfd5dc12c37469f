"""The report's content: the verdict's numbers in HTML and in Markdown, whatever the records say or call themselves."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import report_cases
from loopwise.report import ReportFiles, render
from loopwise.report import numbers as said
from loopwise.report.labels import equivalent_text, execution_order
from report_cases import Page, Trained


@pytest.fixture(scope="module")
def trained() -> report_cases.Trained:
    return report_cases.trained()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    verdict, plan, headers = report_cases.trained()
    return render(verdict, tmp_path_factory.mktemp("report"), plan=plan, headers=list(headers.values()), noise_floor=report_cases.NOISE)


def signed(value: float) -> str:
    """A difference as a reader should see it, written here on its own."""
    return f"{'+' if value > 0.05 else '−' if value < -0.05 else ''}{abs(value):.1f}"


def test_the_verdict_and_both_tests_stand_at_the_top(trained: Trained, written: ReportFiles) -> None:
    verdict = trained[0]
    page = Page(written.html.read_text())
    assert verdict.equal_flops is not None and verdict.verdict == "pays"
    assert [one["class"] for _, one in page.tags if "verdict" in (one.get("class") or "").split()] == ["verdict pays"]
    assert (
        page.text.index("The loop pays")
        < page.text.index(verdict.sentence)
        < page.text.index("Test 1: equal parameters")
        < page.text.index("Test 2: equal FLOPs")
    )
    top = page.text[: page.text.index("Before quoting these numbers")]
    for test in (verdict.equal_parameters, verdict.equal_flops):
        for fact in (
            signed(test.delta_points),
            f"[{signed(test.ci95[0])}, {signed(test.ci95[1])}]",
            f"{test.smallest_detectable_points:.1f}",
        ):
            assert fact in top
    assert all(note in page.text for note in verdict.notes) and verdict.advice in page.text
    assert any("chosen among" in note for note in verdict.notes)


def test_tables_2_3_4_and_8_carry_the_verdicts_numbers(trained: Trained, written: ReportFiles) -> None:
    verdict = trained[0]
    page = Page(written.html.read_text())
    flops = verdict.equal_flops
    assert flops is not None
    table2 = page.table("Model", "Loop learned by", "Layer passes (cost)")
    assert len(table2) - 1 == len(verdict.equal_parameters.rows) and table2[1][2] == "24 → 30 (1.25×)"
    assert table2[1][7].startswith(f"{verdict.equal_parameters.comparator_percent:.1f} → {verdict.equal_parameters.looped_percent:.1f} (p")
    assert table2[1][5] == f"4 ({verdict.equal_parameters.comparison.seeds_favouring}/4)"
    table3 = page.table("Looped arm (budget in tokens)")
    body = [row for row in table3[1:] if len(row) > 1]
    assert sorted(row[6].split(" (p")[0] for row in body) == sorted(
        f"{one.comparison.other_percent:.1f} → {one.comparison.looped_percent:.1f}" for one in flops.rows
    )
    assert (
        any("unfair" in row[0] for row in table3)
        and any("yes: costs" in row[3] for row in body)
        and any("no: costs" in row[3] for row in body)
    )
    table4 = page.table("Setting", "gsm8k", "math500", "Macro", "Finished (%)")
    settings = [row for row in table4[1:] if len(row) > 1]
    assert sorted(row[3] for row in settings) == sorted(f"{arm.accuracy_percent:.1f}" for arm in verdict.arms)
    assert {"Unlooped + budget forcing, majority vote of 4", "Looped + budget forcing", "Looped"} <= {row[0] for row in settings}
    assert all(re.fullmatch(r"[<>]?\d+ / [<>]?\d+", row[4]) for row in settings)
    table8 = page.table("Benchmark", "Items", "Comparator → looped")
    gsm = next(row for row in table8 if row[0] == "gsm8k")
    first = verdict.equal_parameters.comparison.tasks[0]
    assert gsm[1] == "120" and gsm[3] == signed(first.delta_points) and gsm[4] == f"[{signed(first.ci95[0])}, {signed(first.ci95[1])}]"
    finished = page.table("Benchmark", "Finished (%)", "Pairs both finish")
    both = verdict.equal_parameters.comparison.both_finished
    assert both is not None and any(row[0] == "macro" and row[2] == f"{both.num_answers:,}" for row in finished)


def test_arms_that_read_differently_go_without_their_names(trained: Trained, written: ReportFiles) -> None:
    settings = [row[0] for row in Page(written.html.read_text()).table("Setting") if len(row) > 1]
    assert len(settings) > 10 and not any(arm.name in cell for arm in trained[0].arms for cell in settings)


def test_what_ran_is_said(trained: Trained, written: ReportFiles) -> None:
    page = Page(written.html.read_text())
    assert page.table("Loop", "Order of execution")[1][:3] == ["8:14 x2", "0–7, 8–13, 8–13, 14–23", "24 → 30"]
    shared = {row[0]: row[1] for row in page.table("What", "Value")}
    assert (
        shared["Model hash"] == "9f2c41d07be35a18 (looped runs); 51aa0e7d3c94be02 (unlooped runs)" and "torch 2.13.0" in shared["Versions"]
    )
    runs = page.table("Run", "Loop", "Decoding")
    assert (
        len(runs) - 1 == len(trained[2]) and {row[-1] for row in runs[1:]} == {"0, 1, 2, 3"} and {row[6] for row in runs[1:]} == {"1", "4"}
    )
    parity = page.table("Runs", "Compared", "dtype")
    assert parity[1][5:] == ["3.1e-05", "1.0e-03 (fixed)", "0", "yes"] and parity[1][3] == "41, 57, 80, 122"
    assert "21 of 840 answers (2.5%) flip" in page.text and "accuracy moves by −0.4 points" in page.text
    assert any("cannot hold the reserve" in row[1] for row in page.table("Arm", "Reason"))


def test_markdown_carries_the_same_tables(written: ReportFiles) -> None:
    text = written.markdown.read_text()
    plain = [[_plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line.startswith("|")]
    rows = [row for row in plain if not set("".join(row)) <= set("-:")]
    for table in Page(written.html.read_text()).tables:
        for row in table:
            assert any(other[: len(row)] == row and not any(other[len(row) :]) for other in rows), row
    assert [path.name for path in written.figures] == [f"{name}.svg" for name in re.findall(r"\(figures/([\w-]+)\.svg\)", text)]


def _plain(cell: str) -> str:
    text = cell.strip()
    text = text[2:-2] if text.startswith("**") else text
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, char)
    return re.sub(r"\\(.)", r"\1", text)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    verdict, headers = report_cases.training_free(model=report_cases.HOSTILE)
    hostile = [{**header, "device": report_cases.HOSTILE, "loops": report_cases.HOSTILE} for header in headers.values()]
    one = render(verdict, tmp_path / "a", headers=hostile, noise_floor={"arm": report_cases.HOSTILE})
    other = render(report_cases.foreign(task=report_cases.HOSTILE), tmp_path / "b")
    assert verdict.training_free and "none (training-free)" in one.html.read_text()
    for files in (one, other):
        page = Page(files.html.read_text())
        assert "script" not in {tag for tag, _ in page.tags} and "{{ 7*7 }}" in page.text and report_cases.HOSTILE in page.text
        assert "<script" not in files.markdown.read_text() and "[x](http" not in files.markdown.read_text()
        assert all("<script" not in path.read_text() for path in files.figures)


def test_records_that_say_little_still_make_a_report(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "finish-rate.svg").write_text("of an earlier report")
    verdict = report_cases.foreign()
    files = render(verdict, tmp_path)
    page = Page(files.html.read_text())
    assert verdict.equal_flops is None and verdict.equal_flops_reason is not None and "no second test" in page.text
    assert verdict.equal_flops_reason in page.text and "came without headers" in page.text and "△" in page.text
    assert (
        {path.name for path in (tmp_path / "figures").iterdir()}
        == {"forest.svg", "benchmarks.svg"}
        == {path.name for path in files.figures}
    )
    assert "None" not in page.text and "nan" not in page.text


def test_a_flip_under_another_measure_is_shown(trained: Trained, tmp_path: Path) -> None:
    verdict = trained[0]
    assert verdict.equal_flops is not None
    flipped = [replace(one, flips=one.measure == "seconds", verdict="not shown") for one in verdict.equal_flops.measures]
    changed = replace(verdict, verdict="does not pay", equal_flops=replace(verdict.equal_flops, measures=tuple(flipped)))
    page = Page(render(changed, tmp_path).html.read_text())
    rows = page.table("Measure of cost")
    assert (
        "The loop does not pay" in page.text and ("section", {"class": "verdict does-not-pay", "aria-labelledby": "verdict"}) in page.tags
    )
    assert [row[-1] for row in rows[1:]] == ["no", "no", "yes, the verdict flips"] and rows[3][0] == "measured seconds"


def test_numbers_are_written_for_readers() -> None:
    assert [said.points(one) for one in (4.12, -0.31, 0.04, -0.04, None)] == ["+4.1", "−0.3", "0.0", "0.0", "–"]
    assert [said.p_number(one) for one in (0.0002, 0.001, 0.0499, 0.0996, 0.211, 1.0)] == [
        "<0.001",
        "0.001",
        "0.050",
        "0.10",
        "0.21",
        "1.00",
    ]
    assert [said.whole_percent(one) for one in (0, 0.2, 72.4, 99.7, 100)] == ["0", "<1", "72", ">99", "100"]
    assert [said.scaled(one) for one in (134_515_008, 999_600, 4.2e9, 950)] == ["135M", "1.00M", "4.20B", "950"]
    assert [equivalent_text(yes, items) for yes, items in ((True, 150), (True, 149), (False, 12))] == ["yes", "(yes)", "no"]
    assert said.scaled(1.235e12, "FLOPs") == "1.24 TFLOPs" and said.scaled(8.4e9, "B") == "8.40 GB"
    assert (
        execution_order("0:8 x2 + 0.mlp x3 in pass 1", 10) == "0, 0.mlp, 0.mlp, 1–7, 0–7, 8–9"
        and execution_order("3 x3", 5) == "0–2, 3, 3, 3, 4"
    )
