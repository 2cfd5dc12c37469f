"""What of a set can be checked by its options, its loops and its data's folders alone, before anything is read or trained."""

from __future__ import annotations

from collections.abc import Sequence

from ..data import parse_training_sources
from ..loops import Loop
from ..training import PassSchedule, TrainingError
from .learning_data import LearningData, endless_mixture, has_held_out
from .learning_recipes import LearningRecipe, Reads

_DRAWS_ITS_OWN = ("anchored",)
"""Recipes whose passes in training say nothing of the loop's own: it may be given with one."""


def check_data(data: LearningData, recipe: LearningRecipe, *, evaluate_every: int | None = None) -> None:
    """Check what can be checked before anything is encoded.

    Args:
        evaluate_every: steps between losses on held-out text; None: only at the end.

    Raises:
        TrainingError: data that the recipe does not read, or an option that does nothing with it.
        DataError: sources that are not there, or a damaged folder.
    """
    kind = data.kind
    reads: Reads = "text" if kind == "shards" else "traces"
    if reads not in recipe.reads:
        wanted = {"traces": "traces (JSONL, Parquet, hub:..., or a folder of loopwise data traces)", "text": "folders of token shards"}
        raise TrainingError(f"{recipe.name} reads {wanted[recipe.reads[0]]}, and {data.given[0]} holds {reads}; give those")
    if kind == "sources":
        parse_training_sources(data.given)
    else:
        _refuse_encoding(data)
    if kind == "shards":
        _refuse_of_traces(data, evaluate_every)
    else:
        _refuse_of_shards(data, evaluate_every)


def check_passes(recipe: LearningRecipe, loops: Sequence[Loop], drawn: PassSchedule | None) -> None:
    """Check that the loop under test adds passes, as it is given and as they are drawn in training.

    Raises:
        TrainingError: a loop of one pass, which is the plain model, or passes that are never more than one.
    """
    idle = next((loop for loop in loops if loop.passes == 1), None)
    if idle is not None and recipe.name not in _DRAWS_ITS_OWN:
        raise TrainingError(f"loop {idle.span} x1 adds no pass, so its twin would be the same model; give at least x2, or leave it out")
    if drawn is not None and drawn.most == 1:
        raise TrainingError(
            f"passes are drawn from {drawn.least} to 1, so the loop is never trained; draw up to at least 2, e.g. --draw-passes 1 3"
        )


def _refuse_encoding(data: LearningData) -> None:
    """Refuse options of encoding for data that are encoded."""
    if data.raw or data.question is not None or data.answer is not None:
        raise TrainingError(f"{data.given[0]} is encoded already; leave --raw, --question and --answer out")
    if data.against:
        raise TrainingError(f"{data.given[0]} is encoded already, apart from what it was made apart from; leave --against out")
    if data.workers != 1:
        raise TrainingError(f"{data.given[0]} is encoded already, and --workers {data.workers} are processes that encode; leave it out")


def _refuse_of_traces(data: LearningData, evaluate_every: int | None) -> None:
    """Refuse options of traces for token shards."""
    endless_mixture(data)
    if data.packing != "auto":
        raise TrainingError(f"--packing {data.packing} is for traces, and {data.given[0]} holds token shards; leave it out")
    if evaluate_every is not None and not has_held_out(data):
        raise TrainingError(f"--evaluate-every {evaluate_every} is for held-out text, and {data.given[0]} has none; leave it out")


def _refuse_of_shards(data: LearningData, evaluate_every: int | None) -> None:
    """Refuse options of token shards for traces."""
    if data.mixture != "single":
        raise TrainingError(f"--mixture {data.mixture} is for token shards, and {data.given[0]} holds traces; leave it out")
    if evaluate_every is not None:
        raise TrainingError(
            f"--evaluate-every {evaluate_every} is for token shards with held-out text, and {data.given[0]} holds traces; leave it out"
        )
