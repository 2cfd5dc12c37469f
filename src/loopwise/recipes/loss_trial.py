"""A whole loss trial: the plan first, then the loss of every model on the same text, then the verdict. Killed anywhere, it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from ..cost import cost_of, read_shape
from ..data import Document, check_texts, read_texts
from ..evaluation import LossText, encode_text, evaluate_loss
from ..loops import Loop, format_loops
from ..models import ModelError, Source, load, resolve, resolve_loops, trained_loops
from ..protocol import MARGIN_MILLINATS, Bootstrap, LossVerdict, TrialError
from ..protocol.loss_values import LossSide
from ..protocol.losses import check_rules
from ..protocol.values import Resampling
from ..records import read_json, write_json
from ..scoring import WindowSettings, check_documents, start_token_id
from .judging_losses import LOSS_PLAN_FILE, LOSS_PLAN_FORMAT, judge_loss_trial

Progress = Callable[[str, float, float], None]
"""Called with what is being done, the work done and all the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTrialSettings:
    """How a loss trial runs and how it will be judged.

    Raises:
        TrialError: an alpha or a margin that cannot be.
        StatsError: too few resamples.
    """

    windows: WindowSettings = field(default_factory=WindowSettings)
    """Context, stride and batch size."""
    limit: int | None = None
    """Only the first documents."""
    column: str | None = None
    """Of rows, where the text is; None: the first that usually holds text."""
    alpha: float = 0.05
    margin_millinats: float = MARGIN_MILLINATS
    resampling: Resampling | None = None
    """None: documents and training seeds where there are several seeds, else documents alone."""
    resamples: int = 10_000
    dtype: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_rules(self.alpha, self.margin_millinats)
        Bootstrap(resamples=self.resamples, resampling=self.resampling or "items")


@dataclass(frozen=True, slots=True)
class _Member:
    """One model of the trial: one side's, one training seed."""

    folder: str
    """Of its run, under ``runs/``."""
    side: LossSide
    group: int
    """Which of the unlooped models, from 1; 0 for the looped one and its twin."""
    source: Source
    loops: tuple[Loop, ...]


def loss_trial(
    models: Sequence[str | Path],
    *,
    texts: Sequence[str],
    out: str | Path,
    loops: str | Loop | Sequence[Loop] | None = None,
    twins: Sequence[str | Path] = (),
    unlooped: Sequence[str | Path] = (),
    progress: Progress | None = None,
    settings: LossTrialSettings | None = None,
) -> LossVerdict:
    """Judge a loop against its twin and other unlooped models by held-out loss; the same call goes on where a killed one stopped.

    ``loss_plan.json`` is written before the first window is read. Every model's run lies under ``runs/``; ``verdict.json``,
    ``report.html``, ``report.md`` and the figure follow.

    Args:
        models: the looped model, as for `loopwise.load`; several are training seeds of it.
        texts: sources of documents, as for `read_texts`.
        loops: default the models' own.
        twins: the identically trained twins, paired with ``models`` in order; default the same weights without the loop (a
            training-free loop). Networks that were trained with loops of their own need them.
        unlooped: further unlooped models; with several seeds all seeds of the first, then all of the next.

    Raises:
        TrialError: models that do not go together, tokenizers that differ, or ``out`` holds another trial.
        DataError, LoopError, ModelError, ScoringError, CostError: bad input, before a model is loaded.
    """
    settings, out = settings or LossTrialSettings(), Path(out)
    if settings.resampling == "items and seeds" and len(models) < 2:
        raise TrialError("resampling training seeds needs at least two of each model; give more, or resample 'items'")
    check_texts(texts)
    members = _members(models, twins, unlooped, loops)
    documents = read_texts(texts, column=settings.column, limit=settings.limit)
    text = _same_text(members, documents, settings.windows)
    _keep_plan(out, _plan(members, text, settings, num_seeds=len(models)))
    flops = [cost_of(read_shape(member.source.folder), member.loops).flops_per_token for member in members]
    for number, member in enumerate(members):

        def report(share: float, number: int = number) -> None:
            if progress:
                progress("reading the text", sum(flops[:number]) + share * flops[number], sum(flops))

        model, tokenizer = load(member.source.name, loops=member.loops or "none", dtype=settings.dtype, device=settings.device)
        evaluate_loss(
            model,
            tokenizer,
            documents,
            out=out / "runs" / member.folder,
            windows=settings.windows,
            training_flops=trained_flops(member.source.folder),
            arm=member.folder,
            progress=report,
        )
        del model, tokenizer  # before the next one is loaded
        report(1.0)
    return judge_loss_trial(out)


def trained_flops(folder: Path) -> float | None:
    """What ``loopwise train`` spent on the model that it wrote into ``folder``, by its newest checkpoint; None of any other model.

    Of a model that was trained further it is this training alone.
    """
    run = folder.resolve().parent
    if folder.resolve().name != "model" or not (run / "run.json").is_file():
        return None
    states = {int(name): file for file in run.glob("checkpoints/step-*/state.json") if (name := file.parent.name[5:]).isdigit()}
    found = read_json(states[max(states)]).get("flops") if states else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and found > 0 else None


def _members(
    models: Sequence[str | Path], twins: Sequence[str | Path], unlooped: Sequence[str | Path], loops: str | Loop | Sequence[Loop] | None
) -> list[_Member]:
    """Every model of the trial with its loops, checked by its config.json alone."""
    seeds = len(models)
    if not seeds:
        raise TrialError("no looped model is given; name one, or one for each training seed")
    if len(twins) not in (0, seeds):
        raise TrialError(f"{seeds} looped models and {len(twins)} twins: seeds are paired in order; give one twin for each, or none")
    if len(unlooped) % seeds:
        raise TrialError(
            f"{len(unlooped)} unlooped models with {seeds} training seeds: give all {seeds} seeds of one model, then of the next"
        )
    sources = [resolve(model) for model in models]
    chosen = [resolve_loops(source, loops) for source in sources]
    for source, found in zip(sources, chosen, strict=True):
        if not found:
            raise TrialError(f"{source.name} has no loop; give loops, e.g. '10:14 x2'")
        if found != chosen[0]:
            raise TrialError(
                f"{source.name} has the loops {format_loops(found)}, {sources[0].name} {format_loops(chosen[0])}: training seeds share them"
            )
        if not twins and trained_loops(source):
            raise TrialError(
                f"{source.name} was trained with its loops and cannot run without; give the twin that was trained without them"
            )
    members = [_Member(f"looped-{n}", "looped", 0, source, found) for n, (source, found) in enumerate(zip(sources, chosen, strict=True))]
    members += [_Member(f"twin-{n}", "twin", 0, _unlooped(twin), ()) for n, twin in enumerate(twins or [source.name for source in sources])]
    for number, name in enumerate(unlooped):
        group, seed = 1 + number // seeds, number % seeds
        members.append(_Member(f"unlooped-{group}-{seed}", "unlooped", group, _unlooped(name), ()))
    _check_distinct(members)
    return members


def _unlooped(name: str | Path) -> Source:
    source = resolve(name)
    if own := trained_loops(source):
        raise TrialError(f"{name} was trained with loops of its own, {format_loops(own)}; a twin or an unlooped model has none")
    return source


def _check_distinct(members: Sequence[_Member]) -> None:
    """One model twice on the unlooped side, or as two seeds, would be counted twice."""
    for looped in (True, False):
        folders = [member.source.folder.resolve() for member in members if bool(member.loops) is looped]
        for folder in folders:
            if folders.count(folder) > 1:
                raise TrialError(f"{folder} is given twice; a model counts once: leave one out")


def readable_text(source: Source, documents: Sequence[Document], windows: WindowSettings) -> LossText:
    """The documents in a model's tokens, checked against its configuration; its weights are not read.

    Raises:
        ModelError: a tokenizer or a config.json that does not load.
        ScoringError: what the model cannot read.
    """
    text = encode_text(_tokenizer(source), documents)
    _check_readable(source, text, windows)
    return text


def _same_text(members: Sequence[_Member], documents: Sequence[Document], windows: WindowSettings) -> LossText:
    """The text in the tokens that all members share; refused where they do not, or where one cannot read it."""
    texts: dict[tuple[Any, ...], LossText] = {}
    first: LossText | None = None
    for member in members:
        tokenizer = _tokenizer(member.source)
        key = (tokenizer.backend_tokenizer.to_str(), start_token_id(tokenizer)) if tokenizer.is_fast else (member.folder,)
        if key not in texts:
            texts[key] = encode_text(tokenizer, documents)
        text = texts[key]
        first = first or text
        if (text.tokens_hash, text.start_token) != (first.tokens_hash, first.start_token):
            counts = f"{member.source.name} makes {text.num_targets} tokens of the text, {members[0].source.name} {first.num_targets}"
            raise TrialError(
                f"{counts}, and not the same: losses per token of two tokenizers cannot be compared; compare bits per byte of "
                "loopwise evaluate --task loss runs"
            )
        _check_readable(member.source, text, windows)
    assert first is not None
    return first


def _check_readable(source: Source, text: LossText, windows: WindowSettings) -> None:
    try:
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {source.name!r}: its config.json is not one that transformers knows ({_one_line(error)})") from None
    check_documents(config, text.documents, windows, name=source.name)


def _tokenizer(source: Source) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {source.name!r}: its tokenizer does not load ({_one_line(error)})") from None
    return tokenizer


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _plan(members: Sequence[_Member], text: LossText, settings: LossTrialSettings, *, num_seeds: int) -> dict[str, Any]:
    return {
        "format": LOSS_PLAN_FORMAT,
        "members": [
            {
                "folder": member.folder,
                "side": member.side,
                "group": member.group,
                "model": member.source.name,
                "loops": format_loops(member.loops),
            }
            for member in members
        ],
        "text_hash": text.text_hash,
        "tokens_hash": text.tokens_hash,
        "num_documents": len(text.documents),
        "num_targets": text.num_targets,
        "context_tokens": settings.windows.context_tokens,
        "stride_tokens": settings.windows.stride,
        "alpha": settings.alpha,
        "margin_millinats": settings.margin_millinats,
        "resampling": settings.resampling or ("items and seeds" if num_seeds > 1 else "items"),
        "resamples": settings.resamples,
    }


def _keep_plan(out: Path, plan: dict[str, Any]) -> None:
    """Write the plan before anything runs; a folder with another one is refused."""
    if (out / "plan.json").exists():
        raise TrialError(f"{out} holds a trial of answers; give a new --out")
    out.mkdir(parents=True, exist_ok=True)
    file = out / LOSS_PLAN_FILE
    if not file.exists():
        write_json(file, plan)
        return
    there, ours = read_json(file), json.loads(json.dumps(plan))
    for name in ours:
        if there.get(name) != ours[name]:
            raise TrialError(
                f"{out} holds a trial whose plan has another {name} ({str(there.get(name))[:80]}, now {str(ours[name])[:80]}); "
                "a plan is fixed before its trial runs: give a new --out"
            )
