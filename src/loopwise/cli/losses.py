"""Held-out loss on the command line: ``loopwise evaluate --task loss`` and ``loopwise trial --loss``."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol import LossTest, LossVerdict, loss_verdict_to_json
from ..protocol.words import interval, p_text, points
from .console import Progress, UsageError, print_json, save_config, table

if TYPE_CHECKING:
    from ..scoring import WindowSettings
    from .evaluate import Command as EvaluateCommand
    from .trial import Command as TrialCommand

LOSS_TASK = "loss"
EVALUATE_ONLY = ("text", "context", "stride", "column")
"""Options of ``evaluate`` that only ``--task loss`` reads."""
TRIAL_ONLY = ("loss", "unlooped", "context", "stride", "column")
"""Options of ``trial`` that only ``--loss`` reads."""
_SHARED = ("model", "out", "loops", "limit", "batch_size", "dtype", "device", "json")


def refuse_given(command: Any, names: Collection[str], reason: str) -> None:
    """Refuse options that were given and would do nothing.

    Raises:
        UsageError: the first of ``names`` that differs from its default; ``reason`` ends the message.
    """
    for field in fields(command):
        if field.name in names and getattr(command, field.name) != field.default:
            raise UsageError(f"--{field.name.replace('_', '-')} {reason}")


def evaluate_loss_command(command: EvaluateCommand) -> None:
    """``loopwise evaluate MODEL --task loss --text FILE ...``"""
    others = {field.name for field in fields(command)} - {"task", *EVALUATE_ONLY, *_SHARED}
    refuse_given(command, others, "has no meaning with --task loss, which scores text and decodes nothing; leave it out")
    if not command.text:
        raise UsageError("--task loss needs text; give --text with one or more .txt, .jsonl or .parquet files")
    from ..data import read_texts

    documents = read_texts(command.text, column=command.column, limit=command.limit)  # fails before a model is loaded
    from ..evaluation import evaluate_loss
    from ..models import load, resolve
    from ..recipes.loss_trial import readable_text, trained_flops

    windows, source = _windows(command), resolve(command.model)
    readable_text(source, documents, windows)
    model, tokenizer = load(command.model, loops=command.loops, dtype=command.dtype, device=command.device)
    save_config(command.out, "evaluate", command)
    progress = Progress(quiet=command.json)
    run = evaluate_loss(
        model,
        tokenizer,
        documents,
        out=command.out,
        windows=windows,
        training_flops=trained_flops(source.folder),
        progress=lambda share: progress("reading the text", share, 1.0),
    )
    progress.close()
    found, header = run.totals, run.header
    figures = {"nats_per_token": found.nats_per_token, "perplexity": found.perplexity, "bits_per_byte": found.bits_per_byte}
    if command.json:
        print_json(header | figures | {"out": str(command.out)})
        return
    first = (
        "the first token of each not scored" if header["start_token"] is None else f"first tokens predicted from {header['start_token']}"
    )
    bits = "bits per byte not known" if found.bits_per_byte is None else f"{found.bits_per_byte:.4f} bits per byte"
    print(
        f"{command.out}: {found.nats_per_token:.4f} nats per token, perplexity {found.perplexity:.4g}, {bits}\n"
        f"{header['num_documents']:,} documents, {found.num_targets:,} tokens, {first}; context {header['context_tokens']:,}, "
        f"stride {header['stride_tokens']:,}\nloops {header['loops']}, layer passes {header['layer_pass_ratio']:.3f}x, "
        f"{header['flops_per_token']:.4g} FLOPs per token"
    )


def loss_trial_command(command: TrialCommand) -> None:
    """``loopwise trial MODEL --loss FILE ...``"""
    others = {field.name for field in fields(command)} - {"twin", "alpha", *TRIAL_ONLY, *_SHARED}
    refuse_given(command, others, "has no meaning with --loss, which scores text and decodes nothing; leave it out")
    from ..recipes.loss_trial import LossTrialSettings, loss_trial

    settings = LossTrialSettings(
        windows=_windows(command),
        limit=command.limit,
        column=command.column,
        alpha=command.alpha,
        dtype=command.dtype,
        device=command.device,
    )
    progress = Progress(quiet=command.json)
    verdict = loss_trial(
        command.model,
        texts=command.loss,
        out=command.out,
        loops=command.loops,
        twins=command.twin,
        unlooped=command.unlooped,
        progress=progress,
        settings=settings,
    )
    progress.close()
    save_config(command.out, "trial", command)
    show_loss_verdict(verdict, command.out, as_json=command.json)


def show_loss_verdict(verdict: LossVerdict, folder: Path, *, as_json: bool) -> None:
    """Print a verdict on loss."""
    if as_json:
        print_json(loss_verdict_to_json(verdict) | {"out": str(folder)})
    else:
        print(loss_summary(verdict, folder))


def loss_summary(verdict: LossVerdict, folder: Path) -> str:
    """The verdict in a sentence, the tests, every model, and where the report lies."""
    lines = [f"{verdict.verdict.upper()} (held-out loss)", *textwrap.wrap(verdict.sentence, 110), ""]
    lines += _test("test 1, equal parameters", verdict.equal_parameters, None)
    lines += _test("test 2, equal FLOPs", verdict.equal_flops, verdict.equal_flops_reason)
    lines += _test("beside, equal training FLOPs", verdict.equal_training, verdict.equal_training_reason)
    rows = [
        (
            model.name,
            model.side,
            f"{model.loss_nats:.4f}",
            "" if model.bits_per_byte is None else f"{model.bits_per_byte:.4f}",
            f"{model.perplexity:.4g}",
            f"{model.flops_ratio:.3f}",
            "" if model.training_flops is None else f"{model.training_flops:.3g}",
        )
        for model in verdict.models
    ]
    header = ("model", "side", "nats/token", "bits/byte", "perplexity", "FLOPs/token, loop = 1", "training FLOPs")
    lines += ["", table(rows, header), "", *textwrap.wrap(verdict.advice, 110), "", f"report: {folder / 'report.html'}"]
    return "\n".join(lines)


def _test(name: str, test: LossTest | None, reason: str | None) -> list[str]:
    if test is None:
        return [f"{name}: none: {reason}"]
    c = test.comparison
    standing = "" if test.reached or test.name == "equal training FLOPs" else " (not reached, does not decide)"
    return [
        f"{name}: {test.result}{standing}",
        f"  against {c.other}: {points(c.delta_millinats)} milli-nats per token {interval(c.ci95)}, {p_text(test.deciding_p)}",
        f"  a gain of {test.smallest_detectable_millinats:.1f} milli-nats would be found in 4 of 5 trials of this size",
    ]


def _windows(command: EvaluateCommand | TrialCommand) -> WindowSettings:
    from ..scoring import WindowSettings

    return WindowSettings(context_tokens=command.context, stride_tokens=command.stride, batch_size=command.batch_size)
