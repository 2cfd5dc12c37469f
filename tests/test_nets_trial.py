"""A network that was trained with loops against its twin that was trained without, through the two tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwise.loops import format_loops
from loopwise.models import save
from loopwise.nets import own_loops
from loopwise.protocol import TrialError
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import read_run
from tiny import tiny_tokenizer
from tiny_nets import tiny_net

QUICK = TrialSettings(rules=("plain",), limit=3)


def saved(folder: Path, **changes: int) -> Path:
    net = tiny_net("arloop-sw", vocab_size=128, depth_queries="physical", **changes)
    net.config.eos_token_id = 2
    net.generation_config.eos_token_id = 2
    save(net, tiny_tokenizer(), folder)
    return folder


def test_a_trained_pair_goes_through_a_trial(tmp_path: Path) -> None:
    looped, twin = saved(tmp_path / "looped"), saved(tmp_path / "twin", num_loops=1)
    trial(looped, twin=twin, tasks=("ladder",), budgets=(4,), out=tmp_path / "trial", settings=QUICK)
    loops = format_loops(own_loops(tiny_net("arloop-sw").config.architecture))
    headers = [read_run(file.parent).header for file in sorted((tmp_path / "trial" / "runs").rglob("header.json"))]
    assert {header["loops"] for header in headers} == {loops, "none"}
    ratios = {header["looped"]: header["layer_pass_ratio"] for header in headers}
    assert ratios == {True: 3.0, False: 1.0}
    assert (tmp_path / "trial" / "report.html").exists()


def test_loops_of_its_own_cannot_be_taken_out(tmp_path: Path) -> None:
    looped, other = saved(tmp_path / "looped"), saved(tmp_path / "other")
    with pytest.raises(TrialError, match="was trained with its loops and cannot run without"):
        trial(looped, tasks=("ladder",), budgets=(4,), out=tmp_path / "trial", settings=QUICK)
    with pytest.raises(TrialError, match=r"other was trained with loops of its own, 0:\d x3; a twin has none"):
        trial(looped, twin=other, tasks=("ladder",), budgets=(4,), out=tmp_path / "trial", settings=QUICK)
    assert not (tmp_path / "trial").exists()
