"""What long commands say while they run."""

from __future__ import annotations

import pytest

from loopwise.cli import console
from loopwise.cli.training_line import TrainingLine


def test_an_evaluation_is_told_and_one_without_results_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    line = TrainingLine(quiet=False, at_first_step=lambda: None)
    line.evaluation(4, {"held_out_loss": 1.25})
    line.evaluation(8, {})  # traces have no held-out part
    line.close()
    assert capsys.readouterr().err.splitlines() == ["step 4: held out loss 1.2500"]


def test_the_time_left_counts_what_was_done_since_a_step_began(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    progress = console.Progress()
    for at, label, done in ((0, "answering", 0), (20, "answering", 2), (30, "checking", 0), (31, "checking", 10)):
        now = float(at)
        progress(label, done, 10)
    for at, done in ((40, 6), (55, 6), (60, 8), (80, 9), (90, 10)):  # six of ten were done when the answering went on
        now = float(at)
        progress("answering", done, 10)
    assert capsys.readouterr().err.splitlines() == [
        "answering: 20%, 0:20 gone, 1:20 left",
        "checking: 100%, 0:01 gone, 0:00 left",
        "answering: 60%, 0:15 gone, time left not known yet",
        "answering: 90%, 0:40 gone, 0:13 left",
        "answering: 100%, 0:50 gone, 0:00 left",
    ]
