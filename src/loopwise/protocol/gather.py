"""From runs to arms. A run with a header says what it is; plain JSONL is taken by the side it was given on.

Own runs of one side belong to one arm when loops, decoding and budget agree; several models then are training seeds. Plain
files of the looped side (or the twin's) are one arm unless their lines carry ``arm``, ``budget_tokens`` (or ``budget``), or a
decoding rule (any text in ``decoding_rule``, or one of our rules' names in ``rule``, which grading rules share), or settings of
the decoding; every unlooped file is an arm of its own unless its lines carry ``arm``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..records import Record, Run
from .arms import Arm, TaskTable, build_table
from .asked import items_hashes
from .naming import models_name
from .plan import RULES
from .values import Side, TrialError, number_within

SAME_SIZE = 1.01
"""Models whose parameter counts differ by less than this factor are of one size."""
SCORED_RULES = ("letters", "log-likelihood")
"""What the headers of runs say that were scored without decoding; they stand beside plain decoding."""
_DECODING = ("temperature", "top_p", "top_k", "thinking")
_FOREIGN_DECODING = (*_DECODING, "reserve_tokens")
_LARGEST_BUDGET_TOKENS = 10**12

_Settings = tuple[tuple[str, Any], ...]


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
    decoding: _Settings | None
    records: tuple[Record, ...]

    def owns(self, setting: str, value: Any) -> bool:
        """Whether a setting of the decoding is what the task itself asks for, so that nobody chose it."""
        own = self.header.get("task_decoding")
        return isinstance(own, dict) and setting in own and own[setting] == value

    @property
    def tasks(self) -> set[str]:
        return {record.task for record in self.records}

    @property
    def reserve_tokens(self) -> Any:
        return self.header.get("reserve_tokens") if self.header else dict(self.decoding or ()).get("reserve_tokens")

    @property
    def loops(self) -> str:
        return str(self.header.get("loops", "unknown" if self.side == "looped" else "none"))

    def records_of(self, task: str) -> list[Record]:
        return [record for record in self.records if record.task == task]

    def samples_of(self, task: str) -> int:
        return len({record.sample for record in self.records_of(task)})


def gather(runs: Sequence[Run], side: Side, cost_ratio: float | None = None) -> tuple[Arm, ...]:
    """The arms of one side's runs, by rule and budget.

    Args:
        cost_ratio: (N+m)/N of looped records without a header.

    Raises:
        TrialError: a run given on the wrong side, or as `build_table`.
    """
    parts = [part for run in runs for part in _parts(run, side)]
    budget_key = _budget_keys(parts)
    groups: dict[tuple[Hashable, ...], list[_Part]] = defaultdict(list)
    for part in parts:
        groups[(part.loops, part.label, part.rule, part.decoding, budget_key(part))].append(part)
    arms = [_arm(group, cost_ratio) for whole in _joined(groups) for group in _split(whole)]
    return tuple(sorted(arms, key=lambda arm: arm.order))


def _parts(run: Run, side: Side) -> list[_Part]:
    header = run.header
    if header:
        _check_header(header, run.source)
        looped = header.get("looped")
        if isinstance(looped, bool) and looped != (side == "looped"):
            raise TrialError(
                f"{run.source}: given as {side}, but its header says {'looped' if looped else 'unlooped'}; give it on the other side"
            )
        label = str(header.get("arm") or header.get("model") or run.source) if side == "unlooped" else None
        budget = header.get("budget_tokens")
        rule = "plain" if header.get("rule") in SCORED_RULES else header.get("rule")
        values = header.get("decoding")
        decoding = tuple((name, values[name]) for name in _DECODING if name in values) if isinstance(values, dict) else None
        return [_part(run, side, label=label, rule=rule, budget_tokens=budget, decoding=decoding, records=run.records)]
    split: dict[_ForeignKey, list[Record]] = defaultdict(list)
    for record in run.records:
        split[_foreign_key(record, run.source, side)].append(record)
    return [
        _part(run, side, label=label, rule=rule, budget_tokens=budget, decoding=decoding, records=tuple(of))
        for (label, rule, budget, decoding), of in split.items()
    ]


def _check_header(header: Mapping[str, Any], source: str) -> None:
    """Numbers that judging computes with."""
    for name, least, most in (("layer_pass_ratio", 1, 1e30), ("num_parameters", 1, 1e30), ("budget_tokens", 1, _LARGEST_BUDGET_TOKENS)):
        value = header.get(name)
        if value is not None and not number_within(value, least, most):
            raise TrialError(f"{source}: {name} in its header is {repr(value)[:40]}; give a number of at least {least}, or repeat the run")


def _part(run: Run, side: Side, **more: Any) -> _Part:
    return _Part(side=side, header=run.header, source=run.source, **more)


_ForeignKey = tuple[str | None, str | None, int | None, _Settings | None]


def _foreign_key(record: Record, source: str, side: Side) -> _ForeignKey:
    label = record.extra.get("arm")
    if label is None and side == "unlooped":
        label = source
    budget = record.extra.get("budget_tokens", record.extra.get("budget"))
    if budget is not None and (not number_within(budget, 1, _LARGEST_BUDGET_TOKENS) or budget != int(budget)):
        raise TrialError(f"{source}: item {record.item!r} has the budget {repr(budget)[:40]}; give a whole number of tokens")
    return (
        None if label is None else str(label),
        _foreign_rule(record, source),
        None if budget is None else int(budget),
        _foreign_decoding(record, source),
    )


def _foreign_rule(record: Record, source: str) -> str | None:
    rule = record.extra.get("decoding_rule")
    if rule is None:
        return record.rule if record.rule in RULES else None
    if not isinstance(rule, str) or not rule.strip():
        raise TrialError(f"{source}: item {record.item!r} has the decoding_rule {repr(rule)[:40]}; give its name, or leave it out")
    return rule


def _foreign_decoding(record: Record, source: str) -> _Settings | None:
    """The settings that a line gives; null is "not said"."""
    settings = tuple((name, record.extra[name]) for name in _FOREIGN_DECODING if record.extra.get(name) is not None)
    for name, value in settings:
        if not isinstance(value, str | bool) and not number_within(value, -1e30, 1e30):
            raise TrialError(f"{source}: item {record.item!r} has {name} {repr(value)[:40]}; give one plain value, or leave it out")
    return settings or None


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
    """A group taken apart where it is more than one arm: other sample counts or reserves for one task, or unlooped models that share
    seeds."""
    counts: dict[str, set[int]] = defaultdict(set)
    for part in group:
        for task in part.tasks:
            counts[task].add(part.samples_of(task))
    by_samples = any(len(one) > 1 for one in counts.values()) and group[0].header
    reserves: dict[str, set[int]] = defaultdict(set)
    for part in group:
        for task in part.tasks if part.header and isinstance(part.reserve_tokens, int) else ():
            reserves[task].add(part.reserve_tokens)
    by_reserve = any(len(one) > 1 for one in reserves.values())
    by_model = group[0].side == "unlooped" and group[0].header and _models_share_seeds(group)
    split: dict[Hashable, list[_Part]] = defaultdict(list)
    for part in group:
        samples = max(part.samples_of(task) for task in part.tasks) if by_samples else None
        reserve = _rank(part, reserves) if by_reserve else None
        split[(samples, reserve, part.header.get("model") if by_model else None)].append(part)
    return list(split.values())


def _rank(part: _Part, reserves: Mapping[str, set[int]]) -> int | None:
    """Which of each benchmark's reserves a part has, counted from the smallest, as budgets are; if these differ, its tokens."""
    if not isinstance(part.reserve_tokens, int):
        return None
    ranks = {sorted(reserves[task]).index(part.reserve_tokens) for task in part.tasks}
    return ranks.pop() if len(ranks) == 1 else -part.reserve_tokens  # negative: never taken for a rank


def _joined(groups: Mapping[tuple[Hashable, ...], list[_Part]]) -> list[list[_Part]]:
    """Groups that differ only in settings of the decoding which their tasks own are one arm: sampled AIME beside greedy GSM8K."""
    joined: list[tuple[Hashable, list[_Part]]] = []
    for (loops, label, rule, _, budget), group in groups.items():
        key = (loops, label, rule, budget)
        there = next((parts for known, parts in joined if known == key and _agree([*parts, *group])), None)
        if there is None:
            joined.append((key, list(group)))
        else:
            there += group
    return [group for _, group in joined]


def _agree(parts: Sequence[_Part]) -> bool:
    """Whether parts of different tasks decode alike, but for settings that are each task's own."""
    by_task: dict[str, set[_Settings | None]] = defaultdict(set)
    values: dict[str, set[Any]] = defaultdict(set)
    for part in parts:
        for task in part.tasks:
            by_task[task].add(part.decoding)
        for name, value in part.decoding or ():
            values[name].add(value)
    differ = {name for name, of in values.items() if len(of) > 1}
    owned = all(part.owns(name, value) for part in parts for name, value in part.decoding or () if name in differ)
    known = all(part.header and part.decoding is not None for part in parts)
    return owned and known and all(len(of) == 1 for of in by_task.values())


def _decoding(group: Sequence[_Part]) -> _Settings | None:
    """The settings of an arm; where its tasks have their own, each task's under a name of its own."""
    if len({part.decoding for part in group}) == 1:
        return group[0].decoding
    values = {(name, task): value for part in group for task in part.tasks for name, value in part.decoding or ()}
    names = dict.fromkeys(name for name, _ in values)
    of_name = {name: {task: value for (one, task), value in values.items() if one == name} for name in names}
    shared = {name: next(iter(of.values())) for name, of in of_name.items() if len(set(of.values())) == 1}
    own = {f"{name} of {task}": value for name, of in of_name.items() if name not in shared for task, value in sorted(of.items())}
    return tuple((shared | own).items())


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
        records = [record for part in of_task for record in part.records_of(task)]
        header = of_task[0].header
        _check_same_run(name, of_task)
        version = header.get("task_version", records[0].extra.get("task_version"))
        tables[task] = build_table(
            task,
            records,
            f"{name} ({', '.join(dict.fromkeys(part.source for part in of_task))})",
            budget_tokens=of_task[0].budget_tokens,
            reserve_tokens=of_task[0].reserve_tokens,
            version=None if version is None else str(version),
            items_hashes=items_hashes(task, name, [(part.source, part.header, part.records_of(task)) for part in of_task]),
            sources=[part.source for part in of_task],
        )
    ratio = (first.header.get("layer_pass_ratio") or cost_ratio) if first.side == "looped" else 1.0
    return Arm(
        name=name,
        side=first.side,
        loops=first.loops,
        rule=first.rule,
        decoding=_decoding(group),
        layer_pass_ratio=ratio,
        model=_model_name(group),
        num_parameters=first.header.get("num_parameters") if first.header else _foreign_parameters(first),
        headers=tuple(part.header for part in group if part.header),
        tables=tables,
    )


def _model_name(group: Sequence[_Part]) -> str | None:
    models = [str(part.header["model"]) for part in group if part.header.get("model")]
    return models_name(models) if models else None


def _foreign_parameters(part: _Part) -> int | None:
    """The size of the model, where lines say it."""
    value = part.records[0].extra.get("num_parameters")
    if value is not None and not number_within(value, 1, 1e30):
        raise TrialError(f"{part.source}: num_parameters is {repr(value)[:40]}; give a number from 1, or leave it out")
    return None if value is None else int(value)


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


def unique_names(arms: Sequence[Arm], taken: Collection[str] = ()) -> tuple[Arm, ...]:
    """The arms with a number behind a name that is there before, or ``taken``; no number makes a name that another arm was given."""
    given = {arm.name for arm in arms}
    used = set(taken)
    unique = []
    for arm in arms:
        name, number = arm.name, 1
        while name in used or (number > 1 and name in given):
            number += 1
            name = f"{arm.name} ({number})"
        used.add(name)
        unique.append(arm if number == 1 else replace(arm, name=name))
    return tuple(unique)


def mark_larger(arms: Sequence[Arm], num_parameters: int | None) -> tuple[Arm, ...]:
    """Unlooped arms of a model with more parameters than the looped one get their own side."""
    if num_parameters is None:
        return tuple(arms)
    return tuple(
        replace(arm, side="larger") if arm.num_parameters is not None and arm.num_parameters > SAME_SIZE * num_parameters else arm
        for arm in arms
    )
