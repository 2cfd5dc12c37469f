"""What a trial takes from the study that chose its loops: the loops, and proof that no item was in the study's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data import overlapping, read_text_hashes, without_wording
from ..loops import Loop, format_loops
from ..models import Source, resolve_loops
from ..protocol import TrialError
from ..records import read_json, read_study, write_json
from ..tasks import Item, Task

FILE = "placement.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The study behind a trial's loops, as the trial's folder records it."""

    study: str
    """The name of the study's folder."""
    mixture_sha256: str | None
    """The hash of the study's text, where the study says it."""


def check_apart(study: Path, tasks: Sequence[Task], *, data: Path | None, limit: int | None, split: str = "test") -> Selection:
    """Check that none of the items that a trial judges on shares text with what the study read.

    Args:
        data: where the tasks' items are, as for `Task.load`; ``limit`` and ``split`` likewise.

    Raises:
        TrialError: some do; their number and the first are named.
        StudyError: no study there.
        DataError: a study without the hashes of its text.
        TaskError: as `Task.load`.
    """
    header = read_study(study).header
    hashes = read_text_hashes(study).hashes
    found: list[str] = []
    for task in tasks:
        items = task.load(data, limit, split)
        worked = [(item.name, str(item.extra["solution"])) for item in items if "solution" in item.extra]
        names = {
            *overlapping(_questions(task, items, data, split), hashes, whole=task.from_templates),
            *overlapping(worked, hashes, whole=task.from_templates, short=False),
        }
        found += [f"{item.name!r} of {task.name}" for item in items if item.name in names]
    if found:
        raise TrialError(
            f"text of {len(found)} items is in the text that {study} chose its placement on, the first is {found[0]}: "
            "a loop is not judged on what it was chosen on; take other tasks, or make a study on other text"
        )
    return Selection(study=study.resolve().name, mixture_sha256=header.get("mixture_sha256"))


def loops_of_study(source: Source, study: Path, out: Path) -> tuple[Loop, ...]:
    """The loops of the study's lowest calibrated loss, or those of the plan in ``out``: a study may have grown since.

    Where a study has chosen by the divergence only, those of the lowest divergence.

    Raises:
        TrialError: the study has no candidate that was scored on the whole text, or the model has other loops of its own.
        StudyError: no study there.
        LoopError: loops that the model cannot have, as those of another model's study.
    """
    plan = out / "plan.json"
    chosen = resolve_loops(source, read_json(plan).get("loops") if plan.exists() else _best_loops(study))
    own = resolve_loops(source)
    if own and own != chosen:
        raise TrialError(
            f"{source.name} has the loops {format_loops(own)} of its own, the best of {study} are {format_loops(chosen)}; "
            "say with --loops which are to be judged"
        )
    return chosen


def keep_selection(out: Path, selection: Selection | None) -> None:
    """Record the study in a new trial's folder, or check that the trial there has the same one.

    Raises:
        TrialError: the trial was planned with another study, with none, or with one that is not given now.
    """
    ours = None if selection is None else {"study": selection.study, "mixture_sha256": selection.mixture_sha256}
    there = read_selection(out)
    if (out / "plan.json").exists():
        if there != ours:
            raise TrialError(
                f"{out} holds a trial whose plan has another placement study ({_named(there)}, now {_named(ours)}); "
                "a plan is fixed before its trial runs: give a new --out"
            )
    elif ours is None:
        (out / FILE).unlink(missing_ok=True)  # of a trial that was stopped before it had a plan
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / FILE, ours)


def read_selection(out: Path) -> dict[str, str | None] | None:
    """The study that a trial's folder records; None where it records none."""
    return read_json(out / FILE) if (out / FILE).exists() else None


def _named(selection: dict[str, str | None] | None) -> str:
    return f"{selection['study']} on text {str(selection['mixture_sha256'])[:12]}" if selection else "none"


def _questions(task: Task, items: Sequence[Item], data: Path | None, split: str) -> Iterator[tuple[str, str]]:
    """The items' questions without the wording that the task puts around each."""
    # The wording is what the items have in common, so that one item alone needs a second beside it.
    beside = task.load(data, 2, split) if len(items) == 1 else items
    prompts = without_wording([item.prompt for item in beside])
    yield from ((item.name, prompt) for item, prompt in zip(items, prompts, strict=False))


def _best_loops(study: Path) -> str:
    results = read_study(study).results
    for measure, value in (("text", "loss_nats"), ("text+kl", "kl_nats")):
        scored = [
            (result.values[value], result.layer_pass_ratio, result.loops)
            for result in results
            if result.status == "scored" and result.measure == measure and result.share == 1.0 and result.loops
        ]
        if scored:
            return min(scored)[2]
    raise TrialError(f"{study}: no loop in it was scored on its whole text; let loopwise place go on with it, or give --loops")
