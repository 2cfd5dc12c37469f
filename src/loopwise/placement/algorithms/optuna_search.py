"""Optuna's samplers as search algorithms, by ask and tell.

A candidate is built by choices: its form, then, block after block, the passes, the width, the start and so on, each among what
the choices before it leave in the space and under the cap. A choice is a number in [0, 1], its option's place among the options.
So every point of the cube is a candidate, and none lies outside the space. A form has no order, so it is chosen by name.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loopwise.placement.blocks import Block
from loopwise.placement.space import Candidate, Form, PlacementError, Space

from .values import Ask, Search, take_new

START_SIZE = 10
"""Random trials before a sampler models the scores."""
TRIES = 4
"""Trials in a row that fall on candidates already scored, before a random candidate stands in."""

Choose = Callable[[str, Sequence[Any]], int]


def optuna_search(space: Space, seed: int, make_sampler: Callable[[Any], Any], *, batch_size: int) -> Search:
    """Ask a sampler for candidates until the whole space is scored. A candidate that it proposes again is told its score."""
    optuna = _import_optuna()
    order = space.shuffled(random.Random(seed))
    scores: dict[Candidate, float] = {}
    with _quiet(optuna):
        study = optuna.create_study(sampler=make_sampler(optuna.samplers))
    while True:
        batch: dict[Candidate, Any] = {}
        with _quiet(optuna):
            while len(batch) < batch_size and (drawn := _new_trial(space, study, order, scores, batch)):
                batch[drawn[0]] = drawn[1]
        if not batch:
            return
        sent = yield Ask(candidates=tuple(batch))
        scores.update(zip(batch, sent, strict=True))
        with _quiet(optuna):
            for candidate, trial in batch.items():
                study.tell(trial, _finite(scores[candidate], scores))


def _new_trial(
    space: Space, study: Any, order: Iterator[Candidate], scores: dict[Candidate, float], batch: dict[Candidate, Any]
) -> tuple[Candidate, Any] | None:
    """A candidate that is neither scored nor in the batch, with its trial; None if the space has no more."""
    for _ in range(TRIES):
        trial = study.ask()
        candidate = build_candidate(space, _chosen_by(trial))
        if candidate not in scores and candidate not in batch:
            return candidate, trial
        if candidate in scores:
            study.tell(trial, _finite(scores[candidate], scores))
        else:
            study.tell(trial, state=_failed())
    fresh = take_new(order, 1, {**scores, **dict.fromkeys(batch, 0.0)})
    if not fresh:
        return None
    study.enqueue_trial(choices_of(space, fresh[0]))
    trial = study.ask()
    return build_candidate(space, _chosen_by(trial)), trial


def _chosen_by(trial: Any) -> Choose:
    def choose(name: str, options: Sequence[Any]) -> int:
        if name == "form":
            return options.index(trial.suggest_categorical(name, list(options)))
        return min(int(trial.suggest_float(name, 0.0, 1.0) * len(options)), len(options) - 1)

    return choose


def build_candidate(space: Space, choose: Choose) -> Candidate:
    """The candidate that the choices lead to; a choice among one option is not asked for."""

    def pick(name: str, options: Sequence[Any]) -> int:
        return choose(name, options) if len(options) > 1 else 0

    forms = {_name(form): form for form in space.forms}
    form = forms[list(forms)[pick("form", list(forms))]]
    placed: tuple[Block, ...] = ()
    while len(placed) < form.num_blocks:
        blocks = list(space.blocks_after(form, placed))
        for attribute in blocks[0].attributes():
            values = [block.attributes()[attribute] for block in blocks]
            options = sorted(set(values))
            chosen = options[pick(f"{_prefix(form)}{len(placed)}.{attribute}", options)]
            blocks = [block for block, value in zip(blocks, values, strict=True) if value == chosen]
        placed += (blocks[0],)
    return tuple(loop for block in placed for loop in block.loops)


def choices_of(space: Space, candidate: Candidate) -> dict[str, Any]:
    """The choices that lead to a candidate of the space, each in the middle of its option's part of [0, 1]."""
    blocks = space.blocks_of(candidate)
    if blocks is None:
        raise PlacementError(f"the candidate {candidate} is not in the space; give one that is")
    form = Form(blocks[0].kind, len(blocks))
    wanted: dict[str, Any] = {"form": _name(form)}
    for place, block in enumerate(blocks):
        wanted |= {f"{_prefix(form)}{place}.{name}": value for name, value in block.attributes().items()}
    choices: dict[str, Any] = {}

    def choose(name: str, options: Sequence[Any]) -> int:
        index = options.index(wanted[name])
        choices[name] = wanted[name] if name == "form" else (index + 0.5) / len(options)
        return index

    build_candidate(space, choose)
    return choices


def _name(form: Form) -> str:
    return f"{form.num_blocks} {form.kind}"


def _prefix(form: Form) -> str:
    """Windows have the same parameters whether an MLP loop lies inside or not."""
    return "mlp" if form.kind == "mlp" else "window"


def _finite(score: float, scores: dict[Candidate, float]) -> float:
    """A ruined candidate is told as clearly worse than the worst finite score, not so much worse that it hides the others' differences."""
    if math.isfinite(score):
        return score
    finite = [other for other in scores.values() if math.isfinite(other)]
    return max(finite) + (max(finite) - min(finite) or 1.0) if finite else 1.0


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise PlacementError("the algorithms tpe and gp need Optuna: pip install loopwise[search], or take another algorithm") from None
    return optuna


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """No log lines and no warnings of experimental features; the caller's settings are back afterwards."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
