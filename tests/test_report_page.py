"""The report as a page: one file, offline, legible in light and dark, and silent in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import report_cases
from loopwise.report import ReportFiles, render
from loopwise.report.drawing import PALETTE
from report_cases import Page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    verdict, plan, headers = report_cases.trained()
    return render(verdict, tmp_path_factory.mktemp("report"), plan=plan, headers=list(headers.values()), noise_floor=report_cases.NOISE)


def test_one_file_without_anything_from_outside(written: ReportFiles) -> None:
    text = written.html.read_text()
    assert written.html.stat().st_size < 400_000
    assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<script|@import|url\((?!#)|\son\w+=", text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) <= set(ids)


def test_figures_are_svg_files_that_a_dark_page_can_recolour(written: ReportFiles) -> None:
    names = {path.stem for path in written.figures}
    assert names == {"accuracy-against-cost", "forest", "benchmarks", "finish-rate"}
    light = {one for one, _ in PALETTE.values()} | {"none", "transparent", "#ffffff"}
    for path in written.figures:
        root = ElementTree.parse(path).getroot()
        assert root.get("role") == "img" and len(root.get("aria-label", "")) > 80
        assert sum(element.tag.endswith("}title") for element in root.iter()) >= 4
        used = {element.get(name) for element in root.iter() for name in ("fill", "stroke")} - {None}
        assert used <= light, used - light


def test_page_is_accessible(written: ReportFiles) -> None:
    page = Page(written.html.read_text())
    assert ("html", {"lang": "en"}) in page.tags
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert headings.count(1) == 1 and headings[0] == 1 and all(b - a <= 1 for a, b in pairwise(headings))
    count = {tag: sum(one == tag for one, _ in page.tags) for tag in ("table", "caption", "title", "figure", "figcaption")}
    assert count["table"] == count["caption"] > 8 and count["figure"] == count["figcaption"] == 4
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


def test_colours_have_contrast_in_light_and_dark() -> None:
    css = (Path(report_cases.__file__).parents[1] / "src/loopwise/report/report.css").read_text()
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)]
    assert len(schemes) == 2
    for scheme, one in zip(schemes, (0, 1), strict=True):
        for name in ("ink", "soft", "good", "bad", "open", "link"):
            assert contrast(scheme[name], scheme["paper"]) >= 4.5, name
        assert min(contrast(scheme[name], scheme[f"{name}-ground"]) for name in ("good", "bad", "open")) >= 4.5
        assert (
            min(contrast(scheme["soft"], scheme[ground]) for ground in ("key", "raised", "open-ground", "bad-ground", "good-ground")) >= 4.5
        )
        assert all(contrast(PALETTE[name][one], scheme["paper"]) >= 3 for name in ("looped", "twin", "sampling", "larger", "gain", "loss"))


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_import_is_light() -> None:
    heavy = "{'torch', 'transformers', 'altair', 'vl_convert', 'jinja2', 'scipy'}"
    code = f"import sys, loopwise.report; found = {heavy} & set(sys.modules); sys.exit(str(found) if found else 0)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "src", "PATH": ""}, cwd=Path(__file__).parents[1])


def visit(page: Path, profile: Path) -> tuple[list[str], list[str]]:
    """Load a page in headless Chromium: what its console says, and what it asks of the network."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [chromium, *flags.split(), "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", "--v=0", f"--log-net-log={profile}.json", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "<body" in done.stdout and len(done.stdout) > 200
    log = json.loads(Path(f"{profile}.json").read_text())
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [event["params"] for event in log["events"] if event["type"] == start and "url" in event.get("params", {})]
    # The browser's own errands carry no origin; a page's requests do.
    outside = [one["url"] for one in asked if one.get("initiator") != "not an origin" and not one["url"].startswith(("file:", "data:"))]
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], outside


@pytest.fixture
def planted(written: ReportFiles, tmp_path: Path) -> Iterator[Path]:
    text = written.html.read_text()
    policy = re.search(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>\n", text)
    assert policy is not None
    page = tmp_path / "planted.html"
    page.write_text(
        text.replace(policy[0], "").replace("</main>", '<img src="http://x.invalid/a.png"><script>console.error("planted")</script></main>')
    )
    yield page


def test_chromium_loads_it_without_an_error_or_an_outside_request(written: ReportFiles, tmp_path: Path) -> None:
    assert visit(written.html, tmp_path / "profile") == ([], [])


def test_chromium_would_have_told(planted: Path, tmp_path: Path) -> None:
    console, outside = visit(planted, tmp_path / "profile")
    assert len(console) == 1 and "planted" in console[0] and outside == ["http://x.invalid/a.png"]
    text = planted.read_text().replace("<head>", "<head><meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">")
    planted.write_text(text)
    console, outside = visit(planted, tmp_path / "second")
    assert len(console) >= 2 and all("Content Security Policy" in line for line in console) and outside == []
