"""Reports on what others wrote: arms known only by name, hostile characters in names, and headers with values of another type."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

import report_cases
from loopwise.protocol import Bootstrap, Verdict, judge
from loopwise.records import Record, Run
from loopwise.report import render
from report_cases import Page


def plain_files(names: tuple[str, ...] = ("best.jsonl", "other.jsonl", "third.jsonl")) -> Verdict:
    """Plain files of answers with their tokens: the looped model, its twin, and further unlooped uses of compute, costs near 100."""

    def answers(name: str, chance: float, tokens: int) -> Run:
        rng = random.Random(name)
        parts = [
            Record(task="quiz", item=str(n), seed=0, sample=0, correct=rng.random() < chance, generated_tokens=tokens) for n in range(160)
        ]
        return Run({}, tuple(parts), name)

    unlooped = [answers(name, 0.7 - 0.1 * n, 80 + 10 * n) for n, name in enumerate(names)]
    return judge(
        looped=answers("looped.jsonl", 0.9, 100),
        twin=answers("twin.jsonl", 0.5, 100),
        unlooped=unlooped,
        cost_ratio=1.2,
        bootstrap=Bootstrap(resamples=200),
    )


def test_foreign_arms_are_told_apart_by_name(tmp_path: Path) -> None:
    verdict = plain_files()
    names = {arm.name for arm in verdict.arms if arm.side != "looped"}
    best = next(name for name in names if "best" in name)
    assert verdict.equal_flops is not None and verdict.equal_flops.comparator == best and len(names) == 4
    files = render(verdict, tmp_path)
    page = Page(files.html.read_text())
    called = {f"Unlooped ({name})" for name in names}
    assert {row[0] for row in page.table("Setting") if row[0].startswith("Unlooped")} == called
    others = [row[1].rstrip("§") for row in page.table("Looped arm (budget in tokens)")[1:] if len(row) > 1]
    assert set(others) == called
    top = page.text[: page.text.index("Before quoting these numbers")]
    assert re.findall(r"Comparator (Unlooped \([^)]*\))", top) == [
        f"Unlooped ({verdict.equal_parameters.comparator})",
        f"Unlooped ({best})",
    ]
    assert f"| **Equal FLOPs** | Unlooped ({best}) |" in files.markdown.read_text()
    assert f"Unlooped ({best})" in next(path for path in files.figures if path.stem == "accuracy-against-cost").read_text()


@pytest.mark.parametrize("control", ["\u202e", "\u2067", "\u200f", "\u061c"])
def test_names_cannot_turn_the_numbers_round(tmp_path: Path, control: str) -> None:
    verdict = plain_files((f"a{control}b.jsonl", "other.jsonl"))
    verdict = replace(verdict, model=f"m{control}n", sentence=f"s{control}t", notes=(f"u{control}v",))
    headers = [{"arm": f"c{control}d", "device": f"e{control}f", "looped": True}]
    files = render(verdict, tmp_path, headers=headers)
    for path in (files.html, files.markdown, *files.figures):
        assert control not in path.read_text(), path
    for text in ("m\ufffdn", "s\ufffdt", "u\ufffdv", "e\ufffdf", "a\ufffdb"):
        assert text in files.html.read_text() and text in files.markdown.read_text(), text
    assert "a\ufffdb" in next(path for path in files.figures if path.stem == "accuracy-against-cost").read_text()


def test_ticks_are_plain_numbers(tmp_path: Path) -> None:
    figure = next(path for path in render(plain_files(), tmp_path).figures if path.stem == "accuracy-against-cost").read_text()
    ticks = re.findall(r">([\d.,]+(?:e[+-]?\d+)?)</text>", figure)
    assert {"80", "100", "110"} <= set(ticks) and not any("e" in one for one in ticks)


WRONG: tuple[object, ...] = ("many", "24", ["x"], {"a": 1}, True, float("nan"), float("inf"), 10**400, None, -3, 2.5, 10**12)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: str(one)[:12])
def test_headers_with_values_of_another_type_still_make_a_report(tmp_path: Path, wrong: object) -> None:
    parity = dict.fromkeys(("prompt_tokens", "new_tokens", "max_abs_logit_difference", "tolerance", "tokens_differing", "ok"), wrong)
    names: tuple[str, ...] = (
        "num_layers",
        "num_parameters",
        "layer_pass_ratio",
        "flops_ratio",
        "num_items",
        "budget_tokens",
        "reserve_tokens",
        "samples",
    )
    names += ("seeds", "loops", "rule", "arm", "task", "model", "decoding", "versions", "threads", "batch_size", "started", "dtype")
    headers = [report_cases.header(side, looped=side == "looped", rule="plain", task="quiz", budget=64) for side in ("looped", "twin")]
    bad = [{**header, **dict.fromkeys(names, wrong), "parity": parity} for header in headers]
    noise = dict.fromkeys((*report_cases.NOISE, "batch_sizes"), wrong)
    render(report_cases.foreign(), tmp_path, headers=[*bad, {"parity": wrong, "looped": wrong}], noise_floor=noise)
    page = Page(render(report_cases.foreign(), tmp_path, headers=bad, noise_floor=noise).html.read_text())
    if isinstance(wrong, str):
        run = page.table("Run", "Loop", "Decoding")[1]
        assert run[3:7] == ["–"] * 4
        assert page.table("Runs", "Compared")[1][4:8] == ["–"] * 4
        shared = {row[0]: row[1] for row in page.table("What", "Value")}
        assert {shared[one] for one in ("Layers", "Parameters", "Batch size", "Threads")} == {"–"}


def test_a_size_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    verdict = replace(report_cases.foreign(), model="m", num_parameters="1B")  # type: ignore[arg-type]
    assert "Model m Loop" in Page(render(verdict, tmp_path).html.read_text()).text
