"""A set's trial against the trial of the set before post-training: the difference of differences, member by member. No torch.

What is before and what is after is the user's: the set that the other was chained to by ``--from``, or anchored recurrent depth before
and after a long fine-tune (no-free-loop, A.3, B.1 and Table 9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import stats
from ..protocol import BeforeAfter, Bootstrap, Plan, TrialError, before_after
from ..protocol.arms import Arm
from ..protocol.post_training import check_times, corrected
from ..protocol.words import interval, p_text, points
from .learning_members import EQUAL_FLOPS, LOOPED, TWIN

if TYPE_CHECKING:
    from .set_judging import SetTrialPlan


_TITLE = "## Before and after: what post-training did to the loop's worth"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRow:
    """One looped member and its control, before and after."""

    looped: str
    control: str
    loops_before: str
    loops: str
    contrast: BeforeAfter
    holm_p: float
    """Over the rows of the table."""


def check_before(plan: Plan, before: Plan, where: Path) -> None:
    """Refuse a trial of other items or other decoding, before anything is evaluated.

    Raises:
        TrialError: the first thing in which the two plans differ.
    """
    tasks, its_tasks = ([(task.name, task.version) for task in one.tasks] for one in (plan, before))
    drawn, its_drawn = ([(task.name, task.samples, task.temperature, task.thinking) for task in one.tasks] for one in (plan, before))
    for what, ours, theirs in (
        ("tasks", tasks, its_tasks),
        ("a deciding rule", plan.deciding_rule, before.deciding_rule),
        ("deciding budgets", plan.deciding_budgets_tokens(), before.deciding_budgets_tokens()),
        ("deciding reserves", plan.deciding_reserves_tokens(), before.deciding_reserves_tokens()),
        ("a limit", plan.limit, before.limit),
        ("thinking", plan.thinking, before.thinking),
        ("samples", plan.samples, before.samples),
        ("a temperature", plan.temperature, before.temperature),
        ("samples, temperature and thinking by task", drawn, its_drawn),
    ):
        if ours != theirs:
            raise TrialError(f"{where}: the trial before has {what} of {theirs}, this one of {ours}; evaluate both times alike")


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a trial is about to ask of one task."""

    golds: Mapping[str, str | None]
    """Reference answers by the names of items."""
    items_hash: str | None = None
    """As a run's header has it; None while no tokenizer is loaded."""


def check_questions(asked: Mapping[str, Questions], before: Iterable[Arm], where: Path, num_parameters: int | None = None) -> None:
    """Refuse a trial that is about to ask otherwise than the trial before did, by the same rules as its judging.

    Args:
        asked: by the tasks' names.
        num_parameters: of this trial's model, where that is loaded.

    Raises:
        TrialError: the first difference; ``where`` opens the message.
    """
    for arm in before:
        tables = {}
        for task, questions in asked.items():
            names = tuple(sorted(questions.golds))
            hashes = () if questions.items_hash is None else (questions.items_hash,)
            golds = tuple(questions.golds[name] for name in names)
            tables[task] = replace(arm.tables[task], items=names, golds=golds, prompts=(), items_hashes=hashes)
        now = replace(arm, name="this trial", num_parameters=num_parameters, tables=tables)
        try:
            check_times(replace(arm, name=f"{arm.name} (before)"), now)
        except TrialError as error:
            raise TrialError(f"{where}: {error}; ask as the trial before did, or leave --before out") from None


def before_rows(
    tested: SetTrialPlan,
    before: SetTrialPlan,
    arm: Callable[[str], Arm],
    arm_before: Callable[[str], Arm],
    bootstrap: Bootstrap,
    alpha: float,
) -> tuple[BeforeRow, ...]:
    """The looped model with its twin first, then whatever else both trials have.

    Args:
        arm: the deciding arm of a member of this trial; ``arm_before`` of the trial before.

    Raises:
        TrialError: arms that do not match.
    """
    there = {one.name for one in before.members}
    pairs = [pair for pair in _pairs(tested) if there.issuperset(pair)]
    found = [
        before_after((arm_before(looped), arm_before(control)), (arm(looped), arm(control)), bootstrap, alpha=alpha)
        for looped, control in pairs
    ]
    adjusted = stats.holm([one.p_value for one in found])
    return tuple(
        BeforeRow(
            looped=looped,
            control=control,
            loops_before=before.named(looped).loops,
            loops=tested.named(looped).loops,
            contrast=one if len(found) == 1 else corrected(one, float(p), len(found), alpha),
            holm_p=float(p),
        )
        for (looped, control), one, p in zip(pairs, found, adjusted, strict=True)
    )


def _pairs(tested: SetTrialPlan) -> list[tuple[str, str]]:
    """Each looped member with its twin, the loop under test with its FLOP-matched control, and every test depth with the twin."""
    found = []
    for one in tested.members:
        if one.role == "looped" and (twin := tested.twin_of(one)) is not None:
            found.append((one.name, twin.name))
        elif one.role == "depth":
            found.append((one.name, TWIN))
    if any(one.name == EQUAL_FLOPS for one in tested.members):
        found.insert(1, (LOOPED, EQUAL_FLOPS))
    return found


def not_judged_report(reason: str) -> list[str]:
    """In place of the table."""
    return [_TITLE, "", f"Not judged: {reason}"]


def before_report(rows: Sequence[BeforeRow], before: SetTrialPlan, *, added: bool = False) -> list[str]:
    """The table as lines of Markdown.

    Args:
        added: whether the trial before was named once this one had begun.
    """
    lines = [
        _TITLE,
        "",
        rows[0].contrast.statement,
        "",
        f"Before is the set {before.folder}, seeds {', '.join(map(str, before.seeds))}. A difference of differences is (looped after −",
        "looped before) − (control after − control before); above 0 the loop is worth more after.",
        "",
        "| looped | control | gap before | gap after | difference of differences, points | seeds resampled too | p (Holm) | seeds up |",
        "| --- | --- | ---: | ---: | --- | --- | --- | ---: |",
    ]
    for row in rows:
        found = row.contrast
        seeded = "–" if found.ci95_items_and_seeds is None else interval(found.ci95_items_and_seeds)
        up = sum(one.points > 0 for one in found.seed_deltas)
        cells = (
            row.looped,
            row.control,
            points(found.before.delta_points),
            points(found.after.delta_points),
            f"{points(found.delta_points)} {interval(found.ci95)}",
            seeded,
            p_text(row.holm_p),
            f"{up} of {len(found.seed_deltas)}" if found.seed_deltas else "other seeds",
        )
        lines.append("| " + " | ".join(cells) + " |")
    others = [row for row in rows if row.loops_before != row.loops]
    changed = [f"- {row.looped} had the loops {row.loops_before} before, {row.loops} after" for row in others]
    notes = [f"- note: {note}" for note in dict.fromkeys(note for row in rows for note in row.contrast.notes)]
    if added:
        notes.append("- note: the trial before was named when this one had begun; the plan did not ask for this comparison")
    return [*lines, *(["", *changed, *notes] if changed or notes else [])]
