"""``loopwise analyze exchange-rate``: from runs, CSV and JSONL to result.json and a report; what it refuses, in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import exchange_curves as curves
from exchange_curves import TWIN_TOKENS, law, looped, paper_rate, twin, write_jsonl, write_run
from loopwise.cli import main
from loopwise.recipes.exchange_rate import ExchangeRateSettings, exchange_rate_result
from loopwise.records import CurveError, LossRecord, RunWriter, read_curve
from loopwise.records.losses import LOSS_FORMAT, read_loss_records
from loopwise.report.drawing import PALETTE
from loopwise.report.exchange_rate import build_exchange_rate_page
from loopwise.report.markdown import markdown
from loopwise.report.render import html
from loopwise.stats import Bootstrap
from report_cases import HOSTILE, Page

FIGURES = {"exchange-rate", "thresholds", "loss-against-compute"}


def results(looped_paths: Sequence[Path], twin_paths: Sequence[Path], **options: Any) -> dict[str, Any]:
    """What result.json would hold, without drawing."""
    return exchange_rate_result(ExchangeRateSettings(looped=tuple(looped_paths), twin=tuple(twin_paths), **options))


def fail(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["analyze", "exchange-rate", *map(str, args)])
    out, err = capsys.readouterr()
    assert stop.value.code not in (0, None) and out == "" and err.count("\n") == 1
    return err


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two seeds of a loop that costs 1.16 in FLOPs and 1.19 in time, as folders of loopwise train."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    found: dict[str, list[Path]] = {"looped": [], "twin": []}
    for seed in range(2):
        noise = rng.normal(0, 0.0002, (2, 9))
        ours = looped(paper_rate, [*TWIN_TOKENS[1:-1]], noise=noise[0, 1:-1])
        own = curves.curve("one pass", ours.tokens, np.array(ours.losses) + 0.02)
        found["looped"].append(write_run(folder / f"looped-{seed}", ours, seconds=1.19e-6, flops=1.16e9, first_pass=own))
        found["twin"].append(write_run(folder / f"twin-{seed}", twin(noise=noise[1]), seconds=1e-6, flops=1e9))
    return found


@pytest.fixture(scope="module")
def analyzed(runs: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analyzed") / "new"
    args = ["--looped", *runs["looped"], "--twin", *runs["twin"], "--layers-ratio", "1.25", "--first-pass-metric", "one_pass"]
    main(["analyze", "exchange-rate", "--out", str(out), *map(str, args)])
    return out


def test_runs_give_their_costs_and_the_paper_its_numbers(runs: dict[str, list[Path]], analyzed: Path) -> None:
    result = json.loads((analyzed / "result.json").read_text())
    settings = ExchangeRateSettings(
        looped=tuple(runs["looped"]), twin=tuple(runs["twin"]), ratios={"layers": 1.25}, first_pass_metric="one_pass"
    )
    assert result == exchange_rate_result(settings)
    lines = {one["line"]["name"]: one for one in result["rate"]["lines"]}
    assert {name: round(one["line"]["ratio"], 6) for name, one in lines.items()} == {"twin": 1, "layers": 1.25, "FLOPs": 1.16, "time": 1.19}
    assert lines["layers"]["line"]["source"] == "given" and "runs" in lines["FLOPs"]["line"]["source"]
    assert result["interval_over"] == "seeds" and result["rate"]["num_seeds"] == 2
    points = result["rate"]["points"]
    assert [point["rate"] for point in points] == pytest.approx(paper_rate([point["tokens"] for point in points]).tolist(), abs=0.012)
    assert all(low < point["rate"] < high for point in points for low, high in [point["ci95_seeds"]])
    first, second, third = result["thresholds"]
    assert first["crossing"]["status"] == "always" and first["points"][0]["difference_millinats"] == pytest.approx(20)
    assert second["crossing"]["status"] == "from" and third["ratio"] == 1.25 and third["crossing"]["status"] == "never"
    compute = result["compute"]
    assert compute["unit"] == "FLOPs" and compute["looped"]["compute"][0] == pytest.approx(1.16e9 * TWIN_TOKENS[1])
    assert compute["twin"]["losses"] == pytest.approx(law(TWIN_TOKENS), abs=1e-3)
    assert result["warnings"] == []


def test_the_report_says_it_in_words(analyzed: Path) -> None:
    text = (analyzed / "report.md").read_text()
    assert "r exceeds 1.16 (training cost by FLOPs) from between" in text.replace("\\", "")
    assert "r does not exceed 1.25 (training cost by layers) at any checkpoint" in text
    assert "the further passes lower the looped model's own loss".casefold() in text.casefold()
    assert "training compute alone" in text and "nothing is extrapolated" in text


def test_figures_and_page_are_safe_and_recolourable(analyzed: Path) -> None:
    figures = {path.stem: path for path in (analyzed / "figures").iterdir()}
    assert figures.keys() == FIGURES
    light = {one for one, _ in PALETTE.values()} | {"none", "transparent", "#ffffff"}
    for path in figures.values():
        root = ElementTree.parse(path).getroot()
        assert root.get("role") == "img" and len(root.get("aria-label", "")) > 40 and "NaN" not in path.read_text()
        used = {element.get(name) for element in root.iter() for name in ("fill", "stroke")} - {None}
        assert used <= light, used - light
    text = (analyzed / "report.html").read_text()
    assert len(text) < 400_000 and not re.search(r"<script|@import|url\((?!#)|\son\w+=", text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) <= set(ids)
    headings = [int(tag[1]) for tag, _ in Page(text).tags if re.fullmatch(r"h\d", tag)]
    assert headings.count(1) == 1 and "1.25 layers" in text and "1.16 FLOPs" in text


def test_csv_and_jsonl_give_the_same(tmp_path: Path) -> None:
    ours, theirs = looped(1.1), twin()
    files = {}
    for name, one in (("looped", ours), ("twin", theirs)):
        rows = [f"{tokens},{loss!r}" for tokens, loss in zip(one.tokens, one.losses, strict=True)]
        (tmp_path / f"{name}.csv").write_text("tokens, loss\n0,9.0\n" + "\n".join(rows) + "\n")
        files[name] = write_jsonl(tmp_path / f"{name}.jsonl", one)
    first = results([files["looped"]], [files["twin"]])
    second = results([tmp_path / "looped.csv"], [tmp_path / "twin.csv"])
    assert first["rate"] == second["rate"] and first["compute"] is None
    assert any("there is no interval" in one for one in first["warnings"])
    assert any("layers, FLOPs, time is not known" in one for one in first["warnings"])


def test_losses_of_documents_give_intervals_and_a_bound_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    effects, noise = rng.normal(0, 0.3, 60), rng.normal(0, 0.01, (2, 9, 60))
    ours = curves.on_documents("looped", TWIN_TOKENS, looped(1.1, TWIN_TOKENS).losses, effects, noise[0])
    theirs = curves.on_documents("twin", TWIN_TOKENS, law(TWIN_TOKENS), effects, noise[1])
    files = write_jsonl(tmp_path / "looped.jsonl", ours), write_jsonl(tmp_path / "twin.jsonl", theirs)
    options = ["--looped", files[0], "--twin", files[1], "--flops-ratio", "1.16", "--resamples", "300", "--out", tmp_path / "out", "--json"]
    main(["analyze", "exchange-rate", *map(str, options)])
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["interval_over"] == "documents" and result["num_documents"] == 60 and result["resamples"] == 300
    *inside, last = result["rate"]["points"]
    assert all(point["ci95_documents"][0] < 1.1 < point["ci95_documents"][1] for point in inside[:4])
    assert last["rate"] is None and last["at_least"] == pytest.approx(1.0) and result["compute"]["unit"] == "tokens of the twin"
    assert "only a bound is known" in (tmp_path / "out" / "figures" / "exchange-rate.svg").read_text()
    again = results(files[:1], files[1:], ratios={"FLOPs": 1.16}, bootstrap=Bootstrap(resamples=300))
    assert again == result  # the same draws


def test_loss_runs_are_read_with_their_documents(tmp_path: Path) -> None:
    for place in range(2):
        with RunWriter(tmp_path / f"at-{place}", {"format": LOSS_FORMAT}, read=read_loss_records) as writer:
            records = [
                LossRecord(document=name, loss_nats=(2.0 - place) * num, num_targets=num, num_bytes=1)
                for name, num in (("b", 30), ("a", 10))
            ]
            writer.append(records)
    lines = [{"tokens": 100 * (place + 1), "loss_run": f"at-{place}"} for place in range(2)]
    (tmp_path / "curve.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = read_curve(tmp_path / "curve.jsonl")
    assert found.losses == (2.0, 1.0) and found.documents == ("a", "b")
    assert found.document_tokens is not None and found.document_tokens.tolist() == [10.0, 30.0]


def test_twins_that_are_none_are_named(runs: dict[str, list[Path]], tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", twin(), seconds=1e-6, flops=1e9)
    text = (other / "metrics.jsonl").read_text()
    (other / "metrics.jsonl").write_text(text.replace('"h3"', '"another"'))
    (other / "run.json").write_text(json.dumps({"settings": {"schedule": "cosine"}}))
    result = results(runs["looped"][:1], [other])
    assert any("did not train on the same batches" in one and "step 3" in one for one in result["warnings"])
    assert any("cosine schedule" in one for one in result["warnings"])


def test_names_from_anywhere_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "_")
    folder.mkdir()
    files = write_jsonl(folder / "looped.jsonl", looped(1.1)), write_jsonl(folder / "twin.jsonl", twin())
    page = build_exchange_rate_page(results(files[:1], files[1:]))
    assert "<script" in page.title and "<script" not in html(page) and "<script" not in markdown(page, page.sections[0].blocks[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "0 points"),
        ('{"tokens": 10, "loss": 1}\n', "1 point after the first tokens; a curve needs at least 2"),
        ('{"tokens": 10, "loss": 2}\n{"tokens": 20, "loss": NaN}\n', "the loss at 20 tokens is nan"),
        ('{"tokens": 10, "loss": 2}\n{"tokens": 20, "loss": -1}\n', "the loss at 20 tokens is -1"),
        ('{"tokens": 20, "loss": 2}\n{"tokens": 10, "loss": 1}\n', "tokens do not increase, 10 comes after 20"),
        ('{"tokens": 10, "loss": 2}\n{"tokens": 10, "loss": 1}\n', "tokens do not increase"),
        ('{"tokens": -5, "loss": 2}\n', "tokens is -5; give a whole number"),
        ('{"tokens": 1.5, "loss": 2}\n', "tokens is 1.5"),
        ('{"tokens": NaN, "loss": 2}\n', "tokens is nan"),
        ('{"tokens": true, "loss": 2}\n', "tokens is 'True'; give a number"),
        ('{"loss": 2}\n', "tokens is missing"),
        ('{"tokens": 10}\n', "loss is missing"),
        ('{"tokens": 10, "loss": "high"}\n', "loss is 'high'"),
        ("[1]\n", "not a JSON object but list"),
        ('{"tokens": 10, "lo', "not a JSON object"),
        ('{"tokens": 10, "losses": []}\n', "are empty"),
        ('{"tokens": 10, "losses": 4}\n', "losses is '4'; give a list"),
        ('{"tokens": 10, "losses": [1, 2]}\n{"tokens": 20, "losses": [1]}\n', "other documents than at the first point"),
        ('{"tokens": 10, "losses": [1, 2]}\n{"tokens": 20, "loss": 1}\n', "1 of 2 points have losses"),
        ('{"tokens": 10, "losses": [1, NaN]}\n{"tokens": 20, "losses": [1, 2]}\n', "is nan"),
        ('{"tokens": 10, "losses": [1, 3], "loss": 2.5}\n{"tokens": 20, "losses": [1, 2]}\n', "the mean of its documents 2"),
        ('{"tokens": 10, "losses": [1, 3], "document_tokens": [1]}\n', "2 losses and 1 document_tokens"),
        ('{"tokens": 10, "losses": [1, 3], "document_tokens": [0, 0]}\n', "are empty"),
        ('{"tokens": 10, "losses": [1, 3], "loss_run": "x"}\n', "both losses and loss_run"),
        ('{"tokens": 10, "loss_run": "x"}\n', "holds no header.json"),
    ],
)
def test_bad_curves_are_refused_in_one_line(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jsonl").write_text(content)
    good = write_jsonl(tmp_path / "twin.jsonl", twin())
    error = fail(capsys, "--looped", tmp_path / "bad.jsonl", "--twin", good, "--out", tmp_path / "out")
    assert message in error and str(tmp_path) in error
    assert not (tmp_path / "out").exists()


def test_bad_calls_are_refused_in_one_line(runs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs, out = runs["looped"][0], runs["twin"][0], tmp_path / "out"
    pair = ["--looped", ours, "--twin", theirs, "--out", out]
    assert "2 looped and 1 twin" in fail(capsys, "--looped", *runs["looped"], "--twin", theirs, "--out", out)
    assert "they have held_out_loss, one_pass" in fail(capsys, *pair, "--metric", "accuracy")
    assert "no such file or folder" in fail(capsys, "--looped", tmp_path / "none", "--twin", theirs, "--out", out)
    (tmp_path / "empty").mkdir()
    assert "holds no metrics.jsonl" in fail(capsys, "--looped", tmp_path / "empty", "--twin", theirs, "--out", out)
    assert "give a ratio" in fail(capsys, *pair, "--layers-ratio", "nan")
    assert "is not known from the runs" in fail(capsys, *pair, "--equal-compute", "layers")
    assert "give one of the two" in fail(capsys, *pair, "--first-pass", ours, "--first-pass-metric", "one_pass")
    assert "need losses of documents" in fail(capsys, *pair, "--interval", "documents")
    assert "resamples is 5" in fail(capsys, *pair, "--resamples", "5")
    assert "is a file" in fail(capsys, "--looped", ours, "--twin", theirs, "--out", theirs / "run.json")
    (tmp_path / "bad.csv").write_text("steps,loss\n1,2\n")
    assert "no column named tokens" in fail(capsys, "--looped", tmp_path / "bad.csv", "--twin", theirs, "--out", out)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in fail(capsys, "--looped", tmp_path / "bytes.csv", "--twin", theirs, "--out", out)
    far = write_jsonl(tmp_path / "far.jsonl", curves.curve("far", [10, 20], [9.0, 8.0]))
    assert "do not overlap" in fail(capsys, "--looped", far, "--twin", theirs, "--out", out)
    assert not out.exists()


def test_a_named_column_is_never_taken_for_another(tmp_path: Path) -> None:
    """A file without the loss at one pass must not give the loss at all passes in its place."""
    file = write_jsonl(tmp_path / "looped.jsonl", looped(1.1))
    with pytest.raises(CurveError, match="one_pass is missing"):
        read_curve(file, "one_pass")
