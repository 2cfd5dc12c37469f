"""``loopwise trial --loss`` and ``loopwise evaluate --task loss`` from end to end on tiny models, and what they refuse first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwise.cli import main
from loopwise.models import save
from loopwise.protocol import LossVerdict, TrialError, loss_verdict_from_json
from loopwise.recipes.loss_trial import LossTrialSettings, loss_trial, trained_flops
from loopwise.records import read_loss_run
from loopwise.scoring import WindowSettings
from loss_runs import write_text
from tiny import tiny_model, tiny_tokenizer
from tiny_nets import tiny_net

QUICK = LossTrialSettings(windows=WindowSettings(context_tokens=16, stride_tokens=8), resamples=300)


def net(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A tiny network with loops of its own, saved as a trained one is."""
    model = tiny_net("arloop-sw", seed=seed, vocab_size=128, depth_queries="physical", **changes)
    model.config.eos_token_id = 2
    save(model, tiny_tokenizer(), folder)
    return folder


def flops(folder: Path, spent: float) -> Path:
    """As ``loopwise train`` leaves a run: ``run.json``, a checkpoint's state, ``model/``."""
    run = folder.parent
    (run / "run.json").write_text("{}")
    for step, part in ((5, 0.5), (10, 1.0)):
        state = run / "checkpoints" / f"step-{step:08}" / "state.json"
        state.parent.mkdir(parents=True)
        state.write_text(json.dumps({"step": step, "tokens": 1, "flops": part * spent, "seconds": 1.0}))
    return folder


def verdict_of(folder: Path) -> LossVerdict:
    return loss_verdict_from_json(json.loads((folder / "verdict.json").read_text()))


def fail(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    assert stop.value.code != 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def test_a_trained_pair_goes_through_a_trial_of_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looped, twin = flops(net(tmp_path / "l" / "model"), 3e9), flops(net(tmp_path / "t" / "model", num_loops=1), 1e9)
    deep = flops(net(tmp_path / "d" / "model", num_loops=1, num_hidden_layers=4), 3e9)
    write_text(tmp_path / "text.jsonl", 40)
    out = tmp_path / "trial"
    args = ["trial", looped, "--twin", twin, "--unlooped", deep, "--loss", tmp_path / "text.jsonl", "--context", "16", "--out", out]
    main(list(map(str, args)))
    printed, verdict = capsys.readouterr().out, verdict_of(out)
    assert "test 1, equal parameters" in printed and verdict.sentence.split(":")[0] in " ".join(printed.split())
    runs = {name: read_loss_run(out / "runs" / name) for name in ("looped-0", "twin-0", "unlooped-1-0")}
    assert [runs[name].header["loops"] for name in runs] == [verdict.loops, "none", "none"] and verdict.cost_ratio == 3.0
    losses = [run.totals.nats_per_token for run in runs.values()]
    assert [model.loss_nats for model in verdict.models] == pytest.approx(losses)
    assert verdict.equal_parameters.comparison.delta_millinats == pytest.approx(1000 * (losses[1] - losses[0]))
    assert [model.training_flops for model in verdict.models] == [3e9, 1e9, 3e9]
    assert {row.comparison.other for row in verdict.equal_flops.rows if row.eligible} == {f"{tmp_path.name}/t", f"{tmp_path.name}/d"}
    for file in ("report.html", "report.md", "figures/loss-differences.svg", "loss_plan.json", "config.json"):
        assert (out / file).stat().st_size > 0
    before = {name: (out / "runs" / name / "records.jsonl").read_bytes() for name in runs}
    again = ["trial", "--config", str(out / "config.json"), "--json"]
    main(again)
    assert json.loads(capsys.readouterr().out)["sentence"] == verdict.sentence and verdict_of(out) == verdict
    assert {name: (out / "runs" / name / "records.jsonl").read_bytes() for name in runs} == before
    (out / "verdict.json").unlink()
    main(["report", str(out)])
    assert verdict_of(out) == verdict
    assert "whose plan has another alpha (0.05, now 0.01)" in fail(capsys, *again[:3], "--alpha", "0.01")
    assert "another stride_tokens" in fail(capsys, *again[:3], "--stride", "4")


def test_a_training_free_loop_is_judged_against_its_own_weights(tmp_path: Path) -> None:
    save(tiny_model("llama"), tiny_tokenizer(), tmp_path / "base")
    write_text(tmp_path / "text.jsonl", 40)
    verdict = loss_trial([tmp_path / "base"], texts=[str(tmp_path / "text.jsonl")], out=tmp_path / "trial", loops="2:4 x2", settings=QUICK)
    assert verdict.training_free and "‡" in verdict.marks and verdict.loops == "2:4 x2"
    assert [model.name for model in verdict.models] == [f"{tmp_path.name}/base", f"{tmp_path.name}/base, no loop"]
    looped, twin = (read_loss_run(tmp_path / "trial" / "runs" / name) for name in ("looped-0", "twin-0"))
    assert looped.header["model_hash"] == twin.header["model_hash"] and looped.records != twin.records
    assert verdict.equal_flops is None


def test_several_training_seeds_are_paired_in_order(tmp_path: Path) -> None:
    looped = [net(tmp_path / f"l{n}", seed=n) for n in range(2)]
    twins = [net(tmp_path / f"t{n}", seed=n + 5, num_loops=1) for n in range(2)]
    deep = [net(tmp_path / f"d{n}", seed=n + 9, num_loops=1, num_hidden_layers=4) for n in range(2)]
    write_text(tmp_path / "text.jsonl", 30)
    args = [
        "trial",
        *looped,
        "--twin",
        *twins,
        "--unlooped",
        *deep,
        "--loss",
        tmp_path / "text.jsonl",
        "--context",
        16,
        "--out",
        tmp_path / "o",
    ]
    main([str(arg) for arg in args])
    verdict = verdict_of(tmp_path / "o")
    assert verdict.num_seeds == 2 and verdict.resampling == "items and seeds" and len(verdict.models) == 3
    runs = {name: read_loss_run(tmp_path / "o" / "runs" / name).totals.nats_per_token for name in ("looped-1", "twin-1")}
    assert verdict.equal_parameters.comparison.seed_deltas[1] == pytest.approx(1000 * (runs["twin-1"] - runs["looped-1"]))


def test_evaluate_writes_a_run_of_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_model("llama"), tiny_tokenizer(), tmp_path / "base")
    write_text(tmp_path / "text.jsonl", 6)
    args = ["evaluate", tmp_path / "base", "--task", "loss", "--text", tmp_path / "text.jsonl", "--context", 16, "--loops", "1:3 x2"]
    main([str(arg) for arg in [*args, "--out", tmp_path / "run"]])
    printed, run = capsys.readouterr().out, read_loss_run(tmp_path / "run")
    assert f"{run.totals.nats_per_token:.4f} nats per token" in printed and "loops 1:3 x2" in printed and len(run.records) == 6
    main([str(arg) for arg in [*args, "--limit", 2, "--json", "--out", tmp_path / "two"]])
    assert json.loads(capsys.readouterr().out)["num_documents"] == 2
    main(["evaluate", "--config", str(tmp_path / "run" / "config.json")])
    assert read_loss_run(tmp_path / "run") == run


def test_what_is_wrong_is_said_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("loopwise.recipes.loss_trial.load", no_load)
    monkeypatch.setattr("loopwise.models.load", no_load)
    looped, twin = net(tmp_path / "l"), net(tmp_path / "t", num_loops=1)
    save(tiny_model("llama"), tiny_tokenizer(), tmp_path / "base")
    other = net(tmp_path / "other", num_loops=1)
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "w9"
    tokenizer.save_pretrained(other)
    write_text(tmp_path / "text.jsonl")
    text, out = tmp_path / "text.jsonl", tmp_path / "out"
    trial, loss = ["trial", looped, "--out", out], ["--loss", text, "--context", 16]
    cases: list[tuple[list[object], str]] = [
        ([*trial, "--twin", twin, "--loss", tmp_path / "none.jsonl"], "no such file or folder"),
        ([*trial, *loss], "was trained with its loops and cannot run without; give the twin"),
        ([*trial, *loss, "--twin", net(tmp_path / "l1")], "was trained with loops of its own"),
        ([*trial, *loss, "--twin", twin, "--unlooped", tmp_path / "l1"], "was trained with loops of its own"),
        ([*trial, *loss, "--twin", twin, twin], "1 looped models and 2 twins"),
        ([*trial, *loss, "--twin", twin, "--unlooped", twin], "is given twice"),
        ([*trial, *loss, "--twin", other], "cannot be compared; compare bits per byte"),
        ([*trial, "--loss", text, "--twin", twin, "--context", 0], "context_tokens is 0"),
        ([*trial, *loss, "--twin", twin, "--alpha", 2], "alpha is 2"),
        ([*trial, *loss, "--twin", twin, "--budgets", 8], "--budgets has no meaning with --loss"),
        ([*trial, *loss, "--twin", twin, "--placement", tmp_path], "--placement has no meaning with --loss"),
        ([*trial, "--twin", twin, "--unlooped", twin], "--unlooped is read with --loss only"),
        (
            ["trial", looped, tmp_path / "l1", "--twin", twin, "--out", out],
            "2 looped models and 1 twins: a trial of answers has one of each",
        ),
        (["trial", tmp_path / "base", *loss, "--out", out], "has no loop"),
        (["trial", "--out", out, *loss], "no looped model is given"),
        (["evaluate", twin, "--task", "loss", "--out", out], "--task loss needs text"),
        (["evaluate", twin, "--task", "loss", "--text", text, "--budget", 3, "--out", out], "--budget has no meaning with --task loss"),
        (["evaluate", twin, "--task", "loss", "--text", tmp_path / "none.jsonl", "--out", out], "no such file or folder"),
        (
            ["evaluate", tmp_path / "base", "--task", "loss", "--text", text, "--context", 4, "--stride", 5, "--out", out],
            "stride_tokens is 5",
        ),
        (["evaluate", twin, "--task", "ladder", "--text", text, "--out", out], "--text is read by --task loss only"),
    ]
    capsys.readouterr()
    for args, words in cases:
        assert words in fail(capsys, *args), args
    assert not out.exists()
    out.mkdir()
    (out / "plan.json").write_text("{}")
    assert "holds a trial of answers" in fail(capsys, *trial, *loss, "--twin", twin)


def test_a_document_that_is_too_short_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    looped, twin = net(tmp_path / "l"), net(tmp_path / "t", num_loops=1)
    for folder in (looped, twin):
        tokenizer = tiny_tokenizer()
        tokenizer.eos_token = None
        tokenizer.save_pretrained(folder)
    (tmp_path / "text.jsonl").write_text('{"text": "w5"}\n')
    with pytest.raises(ValueError, match="none of 1 documents has a token to predict"):
        loss_trial([looped], twins=[twin], texts=[str(tmp_path / "text.jsonl")], out=tmp_path / "out", settings=QUICK)
    assert not (tmp_path / "out").exists()


def test_training_flops_are_those_of_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    assert trained_flops(folder) is None
    assert trained_flops(flops(folder, 4e9)) == 4e9
    part = tmp_path / "run" / "checkpoints" / "step-00000020.part"
    part.mkdir()
    (part / "state.json").write_text("{}")
    assert trained_flops(folder) == 4e9


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"alpha": 0.0}, {"margin_millinats": -1.0}):
        with pytest.raises(TrialError):
            LossTrialSettings(**wrong)
