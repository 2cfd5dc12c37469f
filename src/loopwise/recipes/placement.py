"""Where a loop goes: one search of a study, from a model's name to the best few candidates."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..cost import ModelShape, read_shape
from ..data import (
    Document,
    TextMixture,
    balanced_mixture,
    check_fits,
    check_sources,
    hash_documents,
    named_documents,
    read_sources,
    standard_documents,
    used_documents,
    write_text_hashes,
)
from ..models import Loaded, Source, load, model_hash, resolve, resolve_loops
from ..placement import (
    GenericText,
    Ledger,
    Measurer,
    Objective,
    PlacementError,
    Race,
    Ranks,
    Recorded,
    Space,
    TextMeasurer,
    TextScorer,
    check_search,
    join_ranks,
    objective_named,
    search,
    text_computer,
    write_summary,
)
from ..records import Study, StudyWriter, check_study, read_study
from ..tasks import task_named, worked_text
from .placement_settings import PlaceSettings, SpaceSettings, TextSettings
from .training_accuracy import AccuracyMeasurer, check_trains, training_documents

__all__ = ["PlaceSettings", "SpaceSettings", "TextSettings", "checked_space", "place", "study_header"]

ACCURACY = "accuracy:"
Progress = Callable[[str, float, float], None]
"""Called with what is being done, the work done and all the work."""


def checked_space(settings: PlaceSettings, shape: ModelShape) -> Space:
    """The candidates, once everything is checked that needs neither a model nor its text.

    Raises:
        PlacementError: no candidates, a search without an end, or a task without training problems.
        DataError, TaskError: no such text, no such task.
    """
    space = settings.space.space(shape)
    for algorithm in settings.algorithms:
        check_search(algorithm, settings.evaluations, space)
    if settings.text.sources:
        check_sources(settings.text.sources)
    if settings.objective.startswith(ACCURACY):
        check_trains(task_named(settings.objective.removeprefix(ACCURACY)))
    return space


def place(model: str | Path, *, out: str | Path, settings: PlaceSettings | None = None, progress: Progress | None = None) -> Study:
    """Search for a loop's place in a model and return the study; the same call goes on where a killed one stopped.

    Under torchrun every process scores a part; the first one writes. Scores are a filter of placements: nothing here says
    that a loop pays, only a trial does.

    Raises:
        PlacementError, DataError, ModelError, TaskError: bad input, before anything long begins.
        StudyError: ``out`` holds a study of another model or text, or this search with other settings.
    """
    settings = settings or PlaceSettings()
    objective = objective_named(settings.objective)
    source = resolve(model)
    if resolve_loops(source):
        raise PlacementError(f"{source.name} has loops already; give the plain model, whose layers they are in")
    space = checked_space(settings, read_shape(source.folder))
    documents = _documents(settings.text)
    ranks = join_ranks()
    say = _say(progress if ranks.rank == 0 else None)
    say(f"loading {source.name}", 0.0, 1.0)
    loaded = load(model, loops="none", dtype=settings.dtype, device=_own_device(settings.device))
    say(f"loading {source.name}", 1.0, 1.0)
    mixture = _mixture(documents, loaded, settings.text)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)  # every process may keep states there
    header = study_header(source, loaded, mixture, settings)
    if ranks.rank == 0:
        check_study(out, header)
    make_measurer, read = _measuring(out, loaded, mixture, documents, objective, settings, ranks, say)
    measurer = make_measurer(None)
    plain = [measurer.scorer.unlooped_result()] if isinstance(measurer, TextMeasurer) else []
    # Only now, so that what cannot be scored leaves no study behind that binds the folder.
    study = StudyWriter(out, header) if ranks.rank == 0 else None
    ledger = Ledger(study, ranks)
    if study:
        write_text_hashes(out, hash_documents(read))
    ledger.add(plain)
    for (algorithm, seed), name in zip(settings.searches, settings.search_names, strict=True):
        search(
            ledger,
            space,
            objective,
            make_measurer(ledger.losses),
            algorithm=algorithm,
            seed=seed,
            evaluations=settings.evaluations,
            dropped_counts=settings.races,
            name=name,
            extra=_race_settings(settings),
            progress=partial(say, f"{algorithm}, seed {seed}: {len(space):,} candidates by {objective.what}"),
        )
    if study:
        write_summary(out)
    found: Study = ranks.from_first(read_study(out) if study else None)  # another machine may not see the folder
    return found


def _race_settings(settings: PlaceSettings) -> dict[str, Any]:
    """What a search's header says of its race; a study of before there was a tolerance says nothing of one."""
    if not settings.races:
        return {"race_error": None}
    tolerance = {} if settings.race_tolerance is None else {"race_tolerance_nats": settings.race_tolerance}
    return {"race_error": settings.race_error, **tolerance}


def study_header(source: Source, loaded: Loaded, mixture: TextMixture, settings: PlaceSettings) -> dict[str, Any]:
    """What every result of a study depends on."""
    text = settings.text
    return {
        "format": 1,
        "model": source.name,
        "model_hash": model_hash(loaded.model),
        "weights": source.weights,
        "num_layers": read_shape(source.folder).num_layers,
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        "device": str(next(loaded.model.parameters()).device.type),
        "mixture_sha256": mixture.sha256,
        "sources": list(text.sources) or ["worked arithmetic", "Python's language reference", "Python's library"],
        "fit_tokens": mixture.num_tokens("fit"),
        "score_tokens": mixture.num_tokens("score"),
        "documents": mixture.num_documents,
        "stride": text.stride,
        "fit_stride": text.fit_stride,
        "batch_windows": text.batch_windows,
        "versions": {
            "python": ".".join(map(str, sys.version_info[:2])),
            "torch": version("torch"),
            "transformers": version("transformers"),
            "loopwise": version("loopwise"),
        },
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _documents(text: TextSettings) -> tuple[Document, ...]:
    if text.sources:
        return read_sources(text.sources)
    return (*named_documents("reasoning", worked_text(seed=text.seed, num_documents=64)), *standard_documents())


def _mixture(documents: Sequence[Document], loaded: Loaded, text: TextSettings) -> TextMixture:
    mixture = balanced_mixture(
        documents,
        loaded.tokenizer,
        fit_tokens=text.fit_tokens,
        score_tokens=text.score_tokens,
        window_tokens=text.window_tokens,
        seed=text.seed,
    )
    check_fits(mixture, int(loaded.model.config.get_text_config().vocab_size))
    return mixture


def _measuring(
    out: Path,
    loaded: Loaded,
    mixture: TextMixture,
    documents: Sequence[Document],
    objective: Objective,
    settings: PlaceSettings,
    ranks: Ranks,
    say: Progress,
) -> tuple[Callable[[Recorded | None], Measurer | None], tuple[Document, ...]]:
    """What makes a measurer for each search, and the documents that it reads."""
    if objective.measure is None:
        return lambda recorded: None, ()
    if objective.measure.startswith(ACCURACY):
        task = task_named(objective.measure.removeprefix(ACCURACY))
        items, read = training_documents(task, settings.items, settings.data)
        return lambda recorded: AccuracyMeasurer(loaded, task, items, out, ranks), read
    computer = text_computer(
        loaded.model,
        mixture,
        stride=settings.text.stride,
        fit_stride=settings.text.fit_stride,
        batch_windows=settings.text.batch_windows,
        memory_bytes=int(settings.memory_gb * 1e9),
        folder=out,
        progress=partial(say, "running the plain model once over the text"),
    )
    if isinstance(computer, GenericText):
        say(f"{type(loaded.model).__name__} does more than run its layers one after the other: nothing is shared", 1.0, 1.0)
    shape = read_shape(loaded.model.config.to_dict())
    race = Race(error=settings.race_error, tolerance_nats=settings.race_tolerance) if settings.races else None
    scorer = TextScorer(computer, shape, race=race, with_kl=objective.measure == "text+kl")
    looked = partial(say, "a first look at all candidates")
    return lambda recorded: TextMeasurer(scorer, ranks, looked=looked, recorded=recorded), used_documents(mixture, documents)


def _own_device(device: str) -> str:
    """Under torchrun each process has a GPU of its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def _say(progress: Progress | None) -> Progress:
    return progress or (lambda label, done, total: None)
