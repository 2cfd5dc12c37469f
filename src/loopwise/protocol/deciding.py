"""Which looped arm and which twin decide: by the plan, by the caller, or by the same defaults as a plan's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .arms import Arm, other_reserve
from .pairing import check_twins, decoding_differences
from .plan import RULE_PREFERENCE, Plan, PlannedArm
from .values import ExcludedArm, TrialError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The looped arms with their twins, and the pair that decides."""

    looped: Arm
    twin: Arm
    pairs: tuple[tuple[Arm, Arm], ...]
    """All pairs, by rule and budget; the deciding one among them."""
    by: Literal["plan", "caller", "default"]
    excluded: tuple[ExcludedArm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was fixed about the deciding pair; None is open."""

    rule: str | None = None
    budget_tokens: int | None = None
    budgets_tokens: Mapping[str, int] | None = None
    reserves_tokens: Mapping[str, int] | None = None
    by: Literal["plan", "caller", "default"] = "default"

    @classmethod
    def of(cls, plan: Plan | None, budget_tokens: int | None, rule: str | None) -> Choice:
        """The plan's choice; without a plan the caller's, as far as it goes.

        Raises:
            TrialError: the caller chooses other than the plan.
        """
        if plan is None:
            return cls(rule=rule, budget_tokens=budget_tokens, by="default" if budget_tokens is None and rule is None else "caller")
        budgets = plan.deciding_budgets_tokens()
        if rule not in (None, plan.deciding_rule) or (budget_tokens is not None and budget_tokens not in budgets.values()):
            raise TrialError(
                f"the plan, written before the runs, decides by {plan.deciding_rule} at {budgets}, not by {rule} at {budget_tokens}: "
                "leave the choice out"
            )
        return cls(rule=plan.deciding_rule, budgets_tokens=budgets, reserves_tokens=plan.deciding_reserves_tokens(), by="plan")

    def allows(self, arm: Arm) -> bool:
        """Whether an arm fits what was fixed."""
        budgets = arm.budgets_tokens
        return (
            self.rule in (None, arm.rule)
            and (self.budget_tokens is None or self.budget_tokens in budgets.values())
            and (self.budgets_tokens is None or budgets == dict(self.budgets_tokens))
            and _has_reserves(arm, self.reserves_tokens or {})
        )


def _has_reserves(arm: Arm, wanted: Mapping[str, int]) -> bool:
    """Whether an arm kept these for the answer, as far as it says."""
    return all(reserve is None or reserve == wanted.get(task, reserve) for task, reserve in arm.reserves_tokens.items())


def find_pairs(looped: Sequence[Arm], twins: Sequence[Arm], choice: Choice) -> Pairs:
    """Pair the looped arms with their twins and choose the pair that decides.

    Raises:
        TrialError: no looped arm or twin fits the choice, two do, or they do not match (`check_twins`).
    """
    tasks = sorted({task for arm in looped for task in arm.tasks})
    whole = [arm for arm in looped if list(arm.tasks) == tasks]
    excluded = [ExcludedArm(name=arm.name, reason=f"covers only {', '.join(arm.tasks)}") for arm in looped if arm not in whole]
    able = [arm for arm in whole if choice.allows(arm)]
    if not able:
        raise TrialError(f"no looped arm covers {', '.join(tasks)} {_words(choice)}; there are: {_list(looped)}")
    if len(able) == 1 and len(those := [arm for arm in twins if choice.allows(arm)]) == 1:
        check_twins(able[0], those[0])
    pairs = []
    for arm in whole:
        twin = _twin_of(arm, twins)
        if twin is None:
            excluded.append(ExcludedArm(name=arm.name, reason="no twin with the same budget, decoding and samples"))
            continue
        check_twins(arm, twin)
        pairs.append((arm, twin))
    if not any(choice.allows(arm) for arm, _ in pairs):
        _name_difference(able, twins)
    deciding = _decide([pair for pair in pairs if choice.allows(pair[0])], choice, looped, twins)
    return Pairs(looped=deciding[0], twin=deciding[1], pairs=tuple(pairs), by=choice.by, excluded=tuple(excluded))


def _name_difference(looped: Sequence[Arm], twins: Sequence[Arm]) -> None:
    """Refuse by the first setting in which arms of one budget differ: plainer than a list of all arms."""
    for arm in looped:
        for twin in twins:
            if arm.budgets_tokens == twin.budgets_tokens:
                check_twins(arm, twin)


def _twin_of(arm: Arm, twins: Sequence[Arm]) -> Arm | None:
    found = [twin for twin in twins if _match(arm, twin)]
    if len(found) > 1:
        raise TrialError(f"{arm.name} has {len(found)} twins: {_list(found)}; give one")
    return found[0] if found else None


def _match(arm: Arm, twin: Arm) -> bool:
    samples = all(arm.tables[task].samples == twin.tables[task].samples for task in arm.tasks if task in twin.tables)
    alike = arm.rule == twin.rule and arm.budgets_tokens == twin.budgets_tokens and not other_reserve(arm, twin)
    return alike and samples and not decoding_differences(arm, twin)


def _decide(pairs: Sequence[tuple[Arm, Arm]], choice: Choice, looped: Sequence[Arm], twins: Sequence[Arm]) -> tuple[Arm, Arm]:
    if not pairs:
        raise TrialError(
            f"no looped arm and twin {_words(choice)} agree in budget, decoding and samples; looped: {_list(looped)}; twin: {_list(twins)}"
        )
    rules = [arm.rule for arm, _ in pairs]
    rule = next((one for one in RULE_PREFERENCE if one in rules), rules[0])
    of_rule = [pair for pair in pairs if pair[0].rule == rule]
    largest = max(pair[0].order for pair in of_rule)
    best = [pair for pair in of_rule if pair[0].order == largest]
    if len(best) > 1:
        raise TrialError(
            f"several looped arms at one budget and rule: {_list([arm for arm, _ in best])}; judge one loop at a time, with one reserve"
        )
    return best[0]


def check_complete(plan: Plan, looped: Sequence[Arm], unlooped: Sequence[Arm]) -> tuple[ExcludedArm, ...]:
    """Refuse a trial with an arm that was planned and not run: leaving out a comparator would favour the loop.

    Returns:
        The planned arms that are not applicable, with the reason.

    Raises:
        TrialError: the first missing arm.
    """
    excluded = []
    for planned in plan.arms():
        if not planned.applicable:
            excluded.append(ExcludedArm(name=planned.name, reason=f"not applicable: {planned.reason}"))
            continue
        samples = {task: plan.draws(planned, task)[0] for task, _ in planned.budgets_tokens}
        if not any(_is_planned(arm, planned, samples) for arm in (looped if planned.looped else unlooped)):
            raise TrialError(f"the plan's arm {planned.name} has no complete run; finish the trial before it is judged")
    return tuple(excluded)


def _is_planned(arm: Arm, planned: PlannedArm, samples: Mapping[str, int]) -> bool:
    counts = {task: len(table.samples) for task, table in arm.tables.items()}
    if planned.purpose == "larger model" and arm.name != planned.name:  # the twin has an arm that reads like it
        return False
    alike = arm.rule == planned.rule and arm.budgets_tokens == dict(planned.budgets_tokens) and counts == dict(samples)
    return alike and _has_reserves(arm, dict(planned.reserves_tokens))


def _words(choice: Choice) -> str:
    words = [f"under {choice.rule}"] if choice.rule else []
    if choice.budgets_tokens is not None:
        words.append(f"at the plan's budgets {dict(choice.budgets_tokens)}")
    elif choice.budget_tokens is not None:
        words.append(f"at {choice.budget_tokens} tokens")
    return " ".join(words)


def _list(arms: Sequence[Arm]) -> str:
    return (
        "; ".join(
            f"{arm.name} ({arm.loops}, rule {arm.rule or '-'}, budget {arm.budget_label}, samples {_samples(arm)}, {', '.join(arm.tasks)})"
            for arm in arms
        )
        or "none"
    )


def _samples(arm: Arm) -> str:
    return "/".join(map(str, dict.fromkeys(len(table.samples) for table in arm.tables.values())))
