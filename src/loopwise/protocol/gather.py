"""From runs to arms. A run with a header says what it is; plain JSONL is taken by the side it was given on.

Own runs of one side belong to one arm when loops, decoding and budget agree; several models then are training seeds. Plain
files of the looped side (or the twin's) are one arm unless their lines carry ``arm``, ``budget_tokens`` (or ``budget``), or a
decoding rule's name in ``rule``; every unlooped file is an arm of its own unless its lines carry ``arm``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..records import Record, Run
from .arms import Arm, TaskTable, build_table
from .plan import RULES
from .values import Side, TrialError

SAME_SIZE = 1.01
"""Models whose parameter counts differ by less than this factor are of one size."""
_DECODING = ("temperature", "top_p", "top_k", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Records of one run that ran in one way."""

    side: Side
    header: Mapping[str, Any]
    source: str
    label: str | None
    """What sets it apart besides rule and budget: an ``arm`` on foreign lines, an unlooped run's model or file."""
    rule: str | None
    budget_tokens: int | None
    records: tuple[Record, ...]

    @property
    def tasks(self) -> set[str]:
        return {record.task for record in self.records}

    @property
    def decoding(self) -> tuple[tuple[str, Any], ...] | None:
        values = self.header.get("decoding")
        return None if not isinstance(values, dict) else tuple((name, values[name]) for name in _DECODING if name in values)

    @property
    def loops(self) -> str:
        return str(self.header.get("loops", "unknown" if self.side == "looped" else "none"))

    def samples_of(self, task: str) -> int:
        return len({record.sample for record in self.records if record.task == task})


def gather(runs: Sequence[Run], side: Side, cost_ratio: float | None = None) -> tuple[Arm, ...]:
    """The arms of one side's runs, by rule and budget.

    Args:
        cost_ratio: (N+m)/N of looped records without a header.

    Raises:
        TrialError: a run given on the wrong side, or as `build_table`.
    """
    parts = [part for run in runs for part in _parts(run, side)]
    budget_key = _budget_keys(parts)
    groups: dict[Hashable, list[_Part]] = defaultdict(list)
    for part in parts:
        groups[(part.loops, part.label, part.rule, part.decoding, budget_key(part))].append(part)
    arms = [_arm(group, cost_ratio) for whole in groups.values() for group in _split(whole)]
    return tuple(sorted(arms, key=lambda arm: arm.order))


def _parts(run: Run, side: Side) -> list[_Part]:
    header = run.header
    if header:
        looped = header.get("looped")
        if isinstance(looped, bool) and looped != (side == "looped"):
            raise TrialError(
                f"{run.source}: given as {side}, but its header says {'looped' if looped else 'unlooped'}; give it on the other side"
            )
        label = str(header.get("arm") or header.get("model") or run.source) if side == "unlooped" else None
        budget = header.get("budget_tokens")
        rule = "plain" if header.get("rule") == "letters" else header.get("rule")  # scored without decoding
        return [_part(run, side, label=label, rule=rule, budget_tokens=budget, records=run.records)]
    split: dict[tuple[str | None, str | None, int | None], list[Record]] = defaultdict(list)
    for record in run.records:
        split[_foreign_key(record, run.source, side)].append(record)
    return [
        _part(run, side, label=label, rule=rule, budget_tokens=budget, records=tuple(of)) for (label, rule, budget), of in split.items()
    ]


def _part(run: Run, side: Side, **more: Any) -> _Part:
    return _Part(side=side, header=run.header, source=run.source, **more)


def _foreign_key(record: Record, source: str, side: Side) -> tuple[str | None, str | None, int | None]:
    label = record.extra.get("arm")
    if label is None and side == "unlooped":
        label = source
    rule = next((value for value in (record.extra.get("decoding_rule"), record.rule) if value in RULES), None)
    budget = record.extra.get("budget_tokens", record.extra.get("budget"))
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float) or budget != int(budget) or budget < 1):
        raise TrialError(f"{source}: item {record.item!r} has the budget {budget!r}; give a whole number of tokens")
    return (None if label is None else str(label), rule, None if budget is None else int(budget))


def _budget_keys(parts: Sequence[_Part]) -> Callable[[_Part], int | None]:
    """What makes budgets of several benchmarks one: their rank among each benchmark's own, as in a plan; if unequally many, the tokens."""
    budgets: dict[str, set[int]] = defaultdict(set)
    for part in parts:
        for task in part.tasks:
            if part.budget_tokens is not None:
                budgets[task].add(part.budget_tokens)
    ranked = len({len(values) for values in budgets.values()}) == 1

    def key(part: _Part) -> int | None:
        if part.budget_tokens is None:
            return None
        ranks = {sorted(budgets[task]).index(part.budget_tokens) for task in part.tasks}
        return ranks.pop() if ranked and len(ranks) == 1 else -part.budget_tokens  # negative: never taken for a rank

    return key


def _split(group: list[_Part]) -> list[list[_Part]]:
    """A group taken apart where it is more than one arm: other sample counts for one task, or unlooped models that share seeds."""
    counts: dict[str, set[int]] = defaultdict(set)
    for part in group:
        for task in part.tasks:
            counts[task].add(part.samples_of(task))
    by_samples = any(len(one) > 1 for one in counts.values()) and group[0].header
    by_model = group[0].side == "unlooped" and group[0].header and _models_share_seeds(group)
    split: dict[Hashable, list[_Part]] = defaultdict(list)
    for part in group:
        samples = max(part.samples_of(task) for task in part.tasks) if by_samples else None
        split[(samples, part.header.get("model") if by_model else None)].append(part)
    return list(split.values())


def _models_share_seeds(group: list[_Part]) -> bool:
    seen: dict[tuple[str, int], Any] = {}
    for part in group:
        for key in {(record.task, record.seed) for record in part.records}:
            if seen.setdefault(key, part.header.get("model")) != part.header.get("model"):
                return True
    return False


def _arm(group: list[_Part], cost_ratio: float | None) -> Arm:
    first = group[0]
    name = _name(group)
    tables: dict[str, TaskTable] = {}
    for task in sorted({task for part in group for task in part.tasks}):
        of_task = [part for part in group if task in part.tasks]
        records = [record for part in of_task for record in part.records if record.task == task]
        header = of_task[0].header
        _check_same_run(name, of_task)
        version = header.get("task_version")
        tables[task] = build_table(
            task,
            records,
            f"{name} ({', '.join(dict.fromkeys(part.source for part in of_task))})",
            budget_tokens=of_task[0].budget_tokens,
            reserve_tokens=header.get("reserve_tokens"),
            version=None if version is None else str(version),
        )
    ratio = (first.header.get("layer_pass_ratio") or cost_ratio) if first.side == "looped" else 1.0
    models = list(dict.fromkeys(str(part.header["model"]) for part in group if part.header.get("model")))
    return Arm(
        name=name,
        side=first.side,
        loops=first.loops,
        rule=first.rule,
        decoding=first.decoding,
        layer_pass_ratio=ratio,
        model=", ".join(models) or None,
        num_parameters=first.header.get("num_parameters"),
        headers=tuple(part.header for part in group if part.header),
        tables=tables,
    )


def _check_same_run(name: str, parts: Sequence[_Part]) -> None:
    first = parts[0]
    for other in parts[1:]:
        for field in ("task_version", "reserve_tokens"):
            one, two = first.header.get(field), other.header.get(field)
            if one != two:
                raise TrialError(f"{name}: {field} is {one!r} in {first.source}, {two!r} in {other.source}; repeat one of them")


def _name(group: list[_Part]) -> str:
    first = group[0]
    names = {part.header.get("arm") for part in group}
    if len(names) == 1 and first.header.get("arm"):
        return str(first.header["arm"])
    words = [_file_name(first.source) if first.label == first.source else first.label or first.side]
    if first.rule is not None:
        words.append(first.rule)
    budgets = list(dict.fromkeys(part.budget_tokens for part in group if part.budget_tokens is not None))
    return " ".join([*words, *(["/".join(map(str, budgets))] if budgets else [])])


def _file_name(source: str) -> str:
    path = Path(source)
    return path.parent.name if path.name == "records.jsonl" and path.parent.name else path.name.removesuffix(".jsonl").removesuffix(".json")


def unique_names(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms with a number behind a name that is there before."""
    seen: dict[str, int] = defaultdict(int)
    unique = []
    for arm in arms:
        seen[arm.name] += 1
        unique.append(arm if seen[arm.name] == 1 else replace(arm, name=f"{arm.name} ({seen[arm.name]})"))
    return tuple(unique)


def mark_larger(arms: Sequence[Arm], num_parameters: int | None) -> tuple[Arm, ...]:
    """Unlooped arms of a model with more parameters than the looped one get their own side."""
    if num_parameters is None:
        return tuple(arms)
    return tuple(
        replace(arm, side="larger") if arm.num_parameters is not None and arm.num_parameters > SAME_SIZE * num_parameters else arm
        for arm in arms
    )
