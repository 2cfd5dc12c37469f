"""Where a loop goes: one search of a study, from a model's name to the best few candidates."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    hash_documents,
    named_documents,
    read_sources,
    standard_documents,
    used_documents,
    write_text_hashes,
)
from ..models import Loaded, Source, load, model_hash, resolve, resolve_loops
from ..placement import (
    ENDS_BY_ITSELF,
    GenericText,
    Ledger,
    Measurer,
    Objective,
    PlacementError,
    Race,
    Ranks,
    Space,
    TextMeasurer,
    TextScorer,
    check_search,
    join_ranks,
    objective_named,
    search,
    search_name,
    text_computer,
    write_summary,
)
from ..records import Study, StudyWriter, read_study
from ..tasks import task_named, worked_text
from .training_accuracy import AccuracyMeasurer, training_documents

Progress = Callable[[str, float, float], None]
"""Called with what is being done, the work done and all the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """The text that candidates are scored on, and how it is read."""

    sources: tuple[str, ...] = ()
    """As for `loopwise.data.read_sources`; empty: worked arithmetic, Python's language reference and its library."""
    fit_tokens: int = 1024
    """Where temperatures are fitted."""
    score_tokens: int = 3072
    """Where candidates are scored."""
    window_tokens: int = 256
    stride: int = 2
    """Every how many tokens one is scored."""
    seed: int = 0
    """Of the choice of documents."""
    batch_windows: int = 1
    """Windows of the first batch; each further one is as large as all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """What may be proposed; see `loopwise.placement.Space`."""

    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    passes: tuple[int, ...] = (2, 3, 4)
    betas: tuple[float, ...] = (0.25, 0.5, 0.75)
    operators: tuple[str, ...] = ("damped",)
    structures: tuple[str, ...] = ("window",)
    max_windows: int = 2
    mlp_passes: tuple[int, ...] = (2, 3)
    centre: tuple[float, float] | None = None
    max_cost: float | None = None

    def space(self, shape: ModelShape) -> Space:
        """The candidates for a model of this shape.

        Raises:
            PlacementError: there are none.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Space(shape=shape, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSettings:
    """How a study searches; every field has a default."""

    text: TextSettings = field(default_factory=TextSettings)
    space: SpaceSettings = field(default_factory=SpaceSettings)
    objective: str = "ppl_t"
    algorithms: tuple[str, ...] = ("grid",)
    seeds: tuple[int, ...] = (0,)
    """Each algorithm runs with each; those that draw nothing run once."""
    evaluations: float | None = None
    """Stop after so many; None: when the algorithm ends by itself."""
    race: bool = True
    """Drop candidates by paired losses as the text is read; only under ``ppl_t``."""
    race_error: float = 0.01
    memory_gb: float = 2.0
    """What kept states and candidates at work may take, beside the model."""
    items: int = 64
    """Training problems, for ``accuracy:TASK``."""
    data: Path | None = None
    """Where tasks' files are, for ``accuracy:TASK``."""
    name: str | None = None
    """The search's folder in the study; default from algorithm, objective and seed."""
    dtype: str = "auto"
    device: str = "cpu"

    @property
    def searches(self) -> tuple[tuple[str, int], ...]:
        """Every algorithm with every seed, those without chance once."""
        return tuple((name, seed) for name in self.algorithms for seed in self.seeds[: 1 if name in ENDS_BY_ITSELF else None])

    @property
    def races(self) -> bool:
        """Whether candidates may be dropped early."""
        return self.race and self.objective == "ppl_t"


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
    space = settings.space.space(read_shape(source.folder))
    for algorithm in settings.algorithms:
        check_search(algorithm, settings.evaluations, space)
    documents = _documents(settings.text)
    ranks = join_ranks()
    say = _say(progress if ranks.rank == 0 else None)
    say(f"loading {source.name}", 0.0, 1.0)
    loaded = load(model, loops="none", dtype=settings.dtype, device=_own_device(settings.device))
    say(f"loading {source.name}", 1.0, 1.0)
    mixture = _mixture(documents, loaded, settings.text)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)  # every process may keep states there
    study = StudyWriter(out, study_header(source, loaded, mixture, settings)) if ranks.rank == 0 else None
    make_measurer, read = _measuring(out, loaded, mixture, documents, objective, settings, ranks, say)
    ledger = Ledger(study, ranks)
    if study:
        write_text_hashes(out, hash_documents(read))
    for algorithm, seed in settings.searches:
        measurer = make_measurer()
        if isinstance(measurer, TextMeasurer):
            ledger.add([measurer.scorer.unlooped_result()])
        own = search_name(algorithm, objective, seed)
        search(
            ledger,
            space,
            objective,
            measurer,
            algorithm=algorithm,
            seed=seed,
            evaluations=settings.evaluations,
            dropped_counts=settings.races,
            name=own if settings.name is None else settings.name if len(settings.searches) == 1 else f"{settings.name}-{own}",
            extra={"race_error": settings.race_error if settings.races else None},
            progress=partial(say, f"{algorithm}, seed {seed}: {len(space):,} candidates by {objective.what}"),
        )
    if study:
        write_summary(out)
    found: Study = ranks.from_first(read_study(out) if study else None)  # another machine may not see the folder
    return found


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
) -> tuple[Callable[[], Measurer | None], tuple[Document, ...]]:
    """What makes a measurer for each search, and the documents that it reads."""
    if objective.measure is None:
        return lambda: None, ()
    if objective.measure.startswith("accuracy:"):
        task = task_named(objective.measure.removeprefix("accuracy:"))
        items, read = training_documents(task, settings.items, settings.data)
        return lambda: AccuracyMeasurer(loaded, task, items, out, ranks), read
    computer = text_computer(
        loaded.model,
        mixture,
        stride=settings.text.stride,
        batch_windows=settings.text.batch_windows,
        memory_bytes=int(settings.memory_gb * 1e9),
        folder=out,
        progress=partial(say, "running the plain model once over the text"),
    )
    if isinstance(computer, GenericText):
        say(f"{type(loaded.model).__name__} does more than run its layers one after the other: nothing is shared", 1.0, 1.0)
    shape = read_shape(loaded.model.config.to_dict())
    race = Race(error=settings.race_error) if settings.races else None
    scorer = TextScorer(computer, shape, race=race, with_kl=objective.measure == "text+kl")
    return lambda: TextMeasurer(scorer, ranks), used_documents(mixture, documents)


def _own_device(device: str) -> str:
    """Under torchrun each process has a GPU of its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def _say(progress: Progress | None) -> Progress:
    return progress or (lambda label, done, total: None)
