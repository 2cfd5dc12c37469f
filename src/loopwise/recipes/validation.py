"""Whether a study's score says anything of accuracy: placements of equal cost along depth, answered on a task (no-free-loop, D.1)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..cost import read_shape
from ..decoding import DecodingRule
from ..evaluation import evaluate
from ..loops import format_loops
from ..models import Loaded, insert, load, model_hash, remove, resolve
from ..placement import Candidate, PlacementError, Space
from ..records import CandidateResult, Run, Study, read_json, read_study, write_json
from ..report import render_study
from ..stats import RankCorrelation, score_accuracy_rho
from ..tasks import Item, Task, permit, task_named
from .placement import PlaceSettings, Progress
from .selection import check_apart
from .validation_values import ValidatedPlacement, Validation, ValidationSettings

__all__ = ["ValidatedPlacement", "Validation", "ValidationSettings", "validate"]

Correct = list[npt.NDArray[np.float64]]
"""For each task ``[placements, items]``: 1 where the answer is right."""


def validate(
    study: str | Path,
    *,
    tasks: Sequence[str],
    out: str | Path | None = None,
    settings: ValidationSettings | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Answer a task with placements of equal cost along depth, and correlate; the same call goes on where a killed one stopped.

    Answers lie in ``out`` (default ``validation`` in the study), ``out/validation.json`` has the result; a copy in the study is what
    its report reads, which is written anew.

    Raises:
        PlacementError: placements that cannot be or that the study has not scored on its whole text, or another model.
        TrialError: items share text with what the study read.
        StudyError, DataError, TaskError, ModelError, DecodingError, ParityError, RecordsError: bad input, or another run in ``out``.
    """
    settings, folder = settings or ValidationSettings(), Path(study)
    if len(set(tasks)) != len(tasks) or not tasks:
        raise PlacementError(f"tasks are {', '.join(tasks) or 'none'}; give one or more different ones")
    chosen = [permit(task_named(name), False) for name in tasks]  # runs no code of a model
    items = [task.load(settings.data, settings.limit, settings.split) for task in chosen]
    for task in chosen:
        _rule(task).check_budget(_budget(task, settings))
    found = read_study(folder)
    placements = _placements(found, settings)
    scores = _scores(found, placements, settings)
    check_apart(folder, chosen, data=settings.data, limit=settings.limit, split=settings.split)
    out = folder / "validation" if out is None else Path(out)
    runs = _answer(_load(found, settings), out, [(), *placements], list(zip(chosen, items, strict=True)), settings, progress)
    validation = _correlate(found, scores, chosen, runs, settings)
    out.mkdir(parents=True, exist_ok=True)
    for file in (out / "validation.json", folder / "validation.json"):
        write_json(file, validation.to_json())
    render_study(folder)
    return validation


def _placements(study: Study, settings: ValidationSettings) -> tuple[Candidate, ...]:
    """Windows of one width along depth."""
    shape = read_shape(resolve(study.header["model"]).folder)
    space = Space(shape=shape, widths=(settings.width,), passes=(settings.passes,), betas=(settings.beta,))
    every = sorted(space, key=lambda candidate: candidate[0].start)
    if settings.num_placements is None:
        if settings.step < 1:
            raise PlacementError(f"step is {settings.step}; give at least 1 layer")
        chosen = every[:: settings.step]
    else:
        steps = max(1, settings.num_placements - 1)
        chosen = [every[at] for at in sorted({round(n * (len(every) - 1) / steps) for n in range(settings.num_placements)})]
    if len(chosen) < 3:
        raise PlacementError(f"{len(chosen)} placements of {settings.width} layers have no rank correlation; take a smaller step or width")
    return tuple(chosen)


def _scores(study: Study, placements: Sequence[Candidate], settings: ValidationSettings) -> tuple[CandidateResult, ...]:
    """What the study measured of each on its whole text."""
    ended = [r for r in study.results if r.status in ("scored", "ruined") and r.share == 1.0]
    whole = {r.loops: r for r in ended if r.measure in ("text", "text+kl")}
    names = [format_loops(placement) for placement in placements]
    if missing := [name for name in names if name not in whole]:
        raise PlacementError(
            f"{len(missing)} of {len(names)} placements are not scored on the whole text of {study.folder}, the first is {missing[0]}; "
            f"first run: {_remedy(study, settings)}"
        )
    return tuple(whole[name] for name in names)


def _remedy(study: Study, settings: ValidationSettings) -> str:
    """The command that scores them, on the same text."""
    command = ["loopwise place", str(study.header["model"]), "--out", str(study.folder)]
    command += ["--widths", f"{settings.width}", "--passes", f"{settings.passes}", "--betas", repr(settings.beta), "--no-race"]
    command += ["--name", f"windows-{settings.width}-x{settings.passes}-{settings.beta!r}"]
    default = PlaceSettings()
    same = {"text": default.text.sources, "text_seed": default.text.seed, "dtype": default.dtype, "device": default.device}
    same |= {name: getattr(default.text, name) for name in ("fit_tokens", "score_tokens", "window_tokens", "stride", "fit_stride")}
    try:
        config = read_json(study.folder / "config.json")["config"]
    except (FileNotFoundError, ValueError, KeyError):
        return " ".join([*command, "and the text options that the study was made with"])
    for name, value in same.items():
        given = config.get(name, value)
        if given != (list(value) if isinstance(value, tuple) else value):
            command += [f"--{name.replace('_', '-')}", *map(str, given if isinstance(given, list) else [given])]
    return " ".join(command)


def _load(study: Study, settings: ValidationSettings) -> Loaded:
    """The study's model, which must not have changed."""
    header = study.header
    loaded = load(header["model"], loops="none", dtype=study.needed("dtype"), device=settings.device)
    if (found := model_hash(loaded.model)) != study.needed("model_hash"):
        raise PlacementError(
            f"{header['model']} is not the model of {study.folder} (hash {found}, there {header['model_hash']}): its scores say nothing of "
            "this one; make a new study"
        )
    return loaded


def _rule(task: Task) -> DecodingRule:
    """Greedy; what writes is forced to an answer, so that a placement that only writes longer does not lose by that alone."""
    return DecodingRule(budget_forcing=task.kind == "generate", reserve_tokens=max(1, task.reserve_tokens))


def _budget(task: Task, settings: ValidationSettings) -> int:
    return task.budget_tokens if settings.budget_tokens is None or task.kind != "generate" else settings.budget_tokens


def _answer(
    loaded: Loaded,
    out: Path,
    placements: Sequence[Candidate],
    tasks: Sequence[tuple[Task, tuple[Item, ...]]],
    settings: ValidationSettings,
    progress: Progress | None,
) -> list[list[Run]]:
    """A run of each placement on each task, ``[placements][tasks]``; the first placement is the unlooped model."""
    work = [len(items) * _budget(task, settings) for task, items in tasks]
    total, done, told = float(sum(work) * len(placements)), 0.0, 0.0

    def report(begun: float, share: float, part: float) -> None:
        nonlocal told
        if progress and begun + part * share > told:
            told = begun + part * share
            progress("answering", told, total)

    runs: list[list[Run]] = []
    for placement in placements:
        name = format_loops(placement) if placement else "unlooped"
        runs.append([])
        if placement:
            insert(loaded.model, placement)
        try:
            for (task, items), share in zip(tasks, work, strict=True):
                run = evaluate(
                    loaded.model,
                    loaded.tokenizer,
                    task,
                    out=out / task.name.replace(":", "-") / hashlib.sha256(name.encode()).hexdigest()[:16],
                    items=items,
                    rule=_rule(task),
                    budget_tokens=_budget(task, settings),
                    batch_size=settings.batch_size,
                    arm=name,
                    progress=partial(report, done, share),
                )
                runs[-1].append(run)
                done += share
                report(done, 0.0, 0.0)
        finally:
            remove(loaded.model)
    return runs


def _correlate(
    study: Study, scores: Sequence[CandidateResult], tasks: Sequence[Task], runs: Sequence[Sequence[Run]], settings: ValidationSettings
) -> Validation:
    """Accuracies and correlations from the runs; the first are the unlooped model's."""
    correct = [np.array([[float(record.correct) for record in own[task].records] for own in runs]) for task in range(len(tasks))]
    placed = [array[1:] for array in correct]
    placements = tuple(_placed(score, own, tasks, settings) for score, own in zip(scores, runs[1:], strict=True))
    kept = [number for number, one in enumerate(placements) if not one.destroyed]
    correlations: dict[str, RankCorrelation] = {}
    for name, values in (
        ("rho", [score.values.get("loss_nats", math.inf) for score in scores]),
        ("rho_plain", [score.values.get("plain_loss_nats", math.inf) for score in scores]),
    ):
        correlations[name] = score_accuracy_rho(values, placed)
        correlations[f"{name}_non_destructive"] = _among(kept, values, placed)
        if len(tasks) > 1:
            correlations |= {f"{name}_{task.name}": score_accuracy_rho(values, [own]) for task, own in zip(tasks, placed, strict=True)}
    return Validation(
        study=study,
        tasks=tuple(task.name for task in tasks),
        num_items=tuple(array.shape[1] for array in correct),
        settings=settings,
        placements=placements,
        unlooped_accuracy=float(np.mean([array[0].mean() for array in correct])),
        correlations=correlations,
    )


def _among(kept: Sequence[int], scores: Sequence[float], correct: Correct) -> RankCorrelation:
    return score_accuracy_rho([scores[n] for n in kept], [array[list(kept)] for array in correct]) if kept else RankCorrelation(None, None)


def _placed(score: CandidateResult, runs: Sequence[Run], tasks: Sequence[Task], settings: ValidationSettings) -> ValidatedPlacement:
    records = [run.records for run in runs]
    accuracies = [sum(record.correct for record in own) / len(own) for own in records]
    variance = sum(part * (1 - part) / len(own) for part, own in zip(accuracies, records, strict=True)) / len(records) ** 2
    difference = score.values.get("difference_nats")
    return ValidatedPlacement(
        loops=score.loops,
        layer_pass_ratio=score.layer_pass_ratio,
        score_nats=score.values.get("loss_nats"),
        plain_loss_nats=score.values.get("plain_loss_nats"),
        difference_nats=difference,
        destroyed=difference is None or difference >= settings.destroyed_nats,
        accuracy=float(np.mean(accuracies)),
        standard_error_points=100 * math.sqrt(variance),
        finished=float(np.mean([sum(bool(record.finished) for record in own) / len(own) for own in records])),
        accuracy_by_task={task.name: accuracy for task, accuracy in zip(tasks, accuracies, strict=True)},
    )
