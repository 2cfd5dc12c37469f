"""A trial's plan: everything that is fixed before it runs, and the arms that follow from it.

The deciding budget, decoding rule, measure and alpha stand in ``plan.json`` before the first answer, so that nobody can
choose them by their results. Without a choice of yours the plan takes

- the **rule** ``budget-forcing`` where the plan has it (it costs nothing, both models get it, and a gain that it wipes out
  was a gain in ending answers, section 3), else ``plain``, else the first rule of the plan;
- the **largest budget** that holds the reserve of every benchmark under that rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .values import MEASURES, Measure, Resampling, TrialError

RULES = ("plain", "budget-forcing", "repetition-stop", "budget-forcing+repetition-stop")
RULE_PREFERENCE = ("budget-forcing", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """One benchmark of a trial and its token budgets."""

    name: str
    version: str
    budgets_tokens: tuple[int, ...]
    """Ascending; the trial's n-th budget is the n-th of every benchmark (0.5x, 1x, ... of its own default)."""
    reserve_tokens: int
    """What budget forcing keeps for the answer."""
    further_reserves_tokens: tuple[int, ...] = ()
    """Other reserves that both arms of a pair are tried with under budget forcing too (no-free-loop, B.2); never deciding."""
    samples: int | None = None
    """Answers per item and seed in both arms of a pair, where the benchmark has a number of its own; None: the plan's."""
    temperature: float | None = None
    """Of the pairs' decoding, likewise."""
    thinking: bool = False
    """Whether the benchmark is always asked in thinking mode."""

    def __post_init__(self) -> None:
        if not self.budgets_tokens or list(self.budgets_tokens) != sorted(set(self.budgets_tokens)) or self.budgets_tokens[0] < 1:
            raise TrialError(
                f"task {self.name}: budgets are {list(self.budgets_tokens)}; give ascending, distinct numbers of tokens from 1"
            )
        if self.reserve_tokens < 0:
            raise TrialError(f"task {self.name}: the reserve is {self.reserve_tokens} tokens; give at least 0")
        reserves = (self.reserve_tokens, *self.further_reserves_tokens)
        if len(set(reserves)) < len(reserves) or min(reserves) < 0 or (self.further_reserves_tokens and min(reserves) < 1):
            raise TrialError(f"task {self.name}: reserves are {list(reserves)} tokens; give distinct numbers from 1")
        if self.samples is not None and (self.samples < 1 or (self.samples > 1 and not (self.temperature or 0) > 0)):
            raise TrialError(
                f"task {self.name}: {self.samples} samples at temperature {self.temperature}; give 1, or several with a temperature"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArm:
    """One arm that the plan asks for."""

    name: str
    """Also the name of its folder under ``runs/``."""
    looped: bool
    """False: the twin."""
    rule: str
    budgets_tokens: tuple[tuple[str, int], ...]
    """The budget of each benchmark."""
    reserves_tokens: tuple[tuple[str, int], ...]
    """The reserve of each benchmark under budget forcing; empty under other rules."""
    further_reserve: bool
    """Whether these are not the reserves that decide."""
    samples: int
    """Answers per item and seed."""
    temperature: float
    """0 is greedy."""
    purpose: str
    """``pair`` (both arms have it), ``longer twin``, ``repeated sampling`` or ``larger model``."""
    applicable: bool
    reason: str
    """Why it is not applicable; empty where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a trial will run and how it will be judged.

    Raises:
        TrialError: a value that cannot be, or deciding choices that the plan's own arms do not have.
    """

    model: str
    loops: str
    """In the canonical notation."""
    layer_pass_ratio: float
    """c = (N+m)/N of the loops."""
    tasks: tuple[PlannedTask, ...]
    rules: tuple[str, ...]
    seeds: tuple[int, ...]
    samples: int = 1
    """Answers per item and seed in every arm of a pair, averaged per item."""
    temperature: float = 0.0
    """Of the pairs' decoding; 0 is greedy, and then one sample is all there is."""
    deciding_rule: str
    deciding_budget_index: int
    """Position of the deciding budget among each benchmark's budgets, from 0."""
    alpha: float = 0.05
    measure: Measure = "layer-passes"
    """The cost that the second test decides under; the others are computed beside it."""
    resampling: Resampling = "items"
    resamples: int = 10_000
    resampling_seed: int = 0
    thinking: bool = False
    """Whether the chat template's thinking mode is used, in all arms."""
    limit: int | None = None
    """Items per benchmark; None: all."""
    batch_size: int = 16
    longer_twin_ratio: float | None = 1.25
    """The twin also runs at this multiple of the deciding budget; None: it does not."""
    vote_samples: int = 0
    """Samples per item of the twin's repeated sampling with majority vote, under the deciding rule at every budget; 0: none."""
    vote_temperature: float = 0.7
    larger_model: str | None = None
    """A larger model that runs under the deciding rule at every budget: shown, never deciding; None: none runs."""

    def __post_init__(self) -> None:
        self._check_lists()
        self._check_numbers()
        if self.deciding_rule not in self.rules:
            raise TrialError(f"plan: the deciding rule {self.deciding_rule!r} is not among its rules {', '.join(self.rules)}")
        count = len(self.tasks[0].budgets_tokens)
        if not 0 <= self.deciding_budget_index < count:
            raise TrialError(f"plan: deciding budget number {self.deciding_budget_index} of {count}; count from 0")
        reason = not_applicable(self.tasks, self.deciding_rule, self.deciding_budgets_tokens())
        if reason:
            raise TrialError(f"plan: the deciding arm cannot run: {reason}")

    def _check_lists(self) -> None:
        for name in ("tasks", "rules", "seeds"):
            values = [one.name for one in self.tasks] if name == "tasks" else list(getattr(self, name))
            if not values or len(set(values)) < len(values):
                raise TrialError(f"plan: {name} are {values}; give at least one, each once")
        for rule in self.rules:
            if rule not in RULES:
                raise TrialError(f"plan: unknown decoding rule {rule!r}; use {', '.join(RULES)}")
        first = self.tasks[0]
        for task in self.tasks[1:]:
            if len(task.further_reserves_tokens) != len(first.further_reserves_tokens):
                raise TrialError(
                    f"plan: {task.name} has {len(task.further_reserves_tokens)} further reserves, {first.name} "
                    f"{len(first.further_reserves_tokens)}; give as many"
                )
            if len(task.budgets_tokens) != len(first.budgets_tokens):
                raise TrialError(
                    f"plan: {task.name} has {len(task.budgets_tokens)} budgets, {first.name} {len(first.budgets_tokens)}; give as many"
                )

    def _check_numbers(self) -> None:
        if not 0 < self.alpha < 1:
            raise TrialError(f"plan: alpha is {self.alpha}; give a number between 0 and 1")
        if not self.layer_pass_ratio >= 1:
            raise TrialError(f"plan: the loop's layer-pass ratio is {self.layer_pass_ratio}; a loop costs at least 1")
        if self.measure not in MEASURES:
            raise TrialError(f"plan: unknown measure of cost {self.measure!r}; use {', '.join(MEASURES)}")
        if self.resampling not in ("items", "items and seeds"):
            raise TrialError(f"plan: unknown resampling {self.resampling!r}; use 'items' or 'items and seeds'")
        for name, least in (("samples", 1), ("resamples", 100), ("batch_size", 1), ("vote_samples", 0)):
            if getattr(self, name) < least:
                raise TrialError(f"plan: {name} is {getattr(self, name)}; give at least {least}")
        if self.samples > 1 and not self.temperature > 0:
            raise TrialError(f"plan: {self.samples} samples at temperature {self.temperature} are all alike; give a temperature above 0")
        if self.vote_samples and not self.vote_temperature > 0:
            raise TrialError(f"plan: a vote at temperature {self.vote_temperature} is no vote; give a vote_temperature above 0")
        if self.vote_samples == 1:
            raise TrialError("plan: vote_samples is 1; a vote needs at least 2, 0 is none")
        if self.limit is not None and self.limit < 1:
            raise TrialError(f"plan: limit is {self.limit}; give at least 1, or None for all items")
        if self.longer_twin_ratio is not None and not self.longer_twin_ratio > 1:
            raise TrialError(f"plan: longer_twin_ratio is {self.longer_twin_ratio}; give more than 1, or None")

    def deciding_budgets_tokens(self) -> dict[str, int]:
        """The deciding budget of each benchmark."""
        return {task.name: task.budgets_tokens[self.deciding_budget_index] for task in self.tasks}

    def deciding_reserves_tokens(self) -> dict[str, int]:
        """The reserve of each benchmark under the deciding rule; empty where it forces nothing."""
        return {task.name: task.reserve_tokens for task in self.tasks} if "budget-forcing" in self.deciding_rule else {}

    def draws(self, arm: PlannedArm, task: str) -> tuple[int, float]:
        """Answers per item and seed, and the temperature, of an arm on a benchmark: what the benchmark has of its own comes before
        the plan's, save in repeated sampling."""
        own = next(one for one in self.tasks if one.name == task)
        if arm.purpose == "repeated sampling":
            return arm.samples, arm.temperature
        return own.samples or arm.samples, arm.temperature if own.temperature is None else own.temperature

    def arms(self) -> tuple[PlannedArm, ...]:
        """Every arm of the trial; those that cannot run say why."""
        return (*self._pairs(), *self._longer_twin(), *self._repeated_sampling(), *self._larger_model())

    def _budgets(self) -> Iterator[dict[str, int]]:
        for index in range(len(self.tasks[0].budgets_tokens)):
            yield {task.name: task.budgets_tokens[index] for task in self.tasks}

    @property
    def _num_further(self) -> int:
        return len(self.tasks[0].further_reserves_tokens)

    def _pairs(self) -> Iterator[PlannedArm]:
        for budgets in self._budgets():
            for rule in self.rules:
                for further in range(1 + (self._num_further if "budget-forcing" in rule else 0)):
                    for looped in (True, False):
                        yield self._arm(looped, rule, budgets, self.samples, "pair", further)

    def _longer_twin(self) -> Iterator[PlannedArm]:
        if self.longer_twin_ratio is None:
            return
        longer = {name: math.ceil(self.longer_twin_ratio * budget) for name, budget in self.deciding_budgets_tokens().items()}
        if longer not in list(self._budgets()):
            yield self._arm(False, self.deciding_rule, longer, self.samples, "longer twin")

    def _repeated_sampling(self) -> Iterator[PlannedArm]:
        if self.vote_samples:
            for budgets in self._budgets():
                yield self._arm(False, self.deciding_rule, budgets, self.vote_samples, "repeated sampling")

    def _larger_model(self) -> Iterator[PlannedArm]:
        if self.larger_model is not None:
            for budgets in self._budgets():
                yield self._arm(False, self.deciding_rule, budgets, self.samples, "larger model")

    def _arm(self, looped: bool, rule: str, budgets: Mapping[str, int], samples: int, purpose: str, further: int = 0) -> PlannedArm:
        """``further`` counts the reserves: 0 is the one that decides."""
        sampled = purpose == "repeated sampling"
        reserves = {one.name: (one.reserve_tokens, *one.further_reserves_tokens)[further] for one in self.tasks}
        reason = not_applicable(self.tasks, rule, budgets, reserves)
        side = "larger" if purpose == "larger model" else "looped" if looped else "twin"
        ends = (f"-reserve{_label(reserves)}" if further else "") + (f"-sampled{samples}" if sampled else "")
        return PlannedArm(
            name=f"{side}-{rule}-{_label(budgets)}{ends}",
            looped=looped,
            rule=rule,
            budgets_tokens=tuple(budgets.items()),
            reserves_tokens=tuple(reserves.items()) if "budget-forcing" in rule else (),
            further_reserve=further > 0,
            samples=samples,
            temperature=self.vote_temperature if sampled else self.temperature,
            purpose=purpose,
            applicable=not reason,
            reason=reason,
        )


def _label(values: Mapping[str, int]) -> str:
    """``128``, or one for each benchmark: ``768-2048``."""
    return str(next(iter(values.values()))) if len(set(values.values())) == 1 else "-".join(map(str, values.values()))


def not_applicable(tasks: Sequence[PlannedTask], rule: str, budgets: Mapping[str, int], reserves: Mapping[str, int] | None = None) -> str:
    """Why a decoding rule cannot run under these budgets, or an empty text: the reserve must leave room for thinking."""
    if "budget-forcing" in rule:
        for task in tasks:
            reserve = task.reserve_tokens if reserves is None else reserves[task.name]
            if reserve >= budgets[task.name]:
                return f"{task.name}: a budget of {budgets[task.name]} tokens cannot hold the reserve of {reserve}"
    return ""


def make_plan(
    *,
    model: str,
    loops: str,
    layer_pass_ratio: float,
    tasks: Sequence[PlannedTask],
    rules: Sequence[str] = ("plain", "budget-forcing"),
    seeds: Sequence[int] = (0,),
    deciding: tuple[str | None, int | None] = (None, None),
    **more: Any,
) -> Plan:
    """A plan, with the deciding rule and budget filled in by this module's defaults where ``deciding`` leaves them open.

    Args:
        deciding: the rule, and the budget in tokens (of any one benchmark).
        more: further fields of `Plan`.

    Raises:
        TrialError: as `Plan`; no budget holds the reserve; or a deciding budget that no benchmark has.
    """
    rule, budget = deciding
    tasks = tuple(tasks)
    count = min((len(task.budgets_tokens) for task in tasks), default=0)
    at = [{task.name: task.budgets_tokens[index] for task in tasks} for index in range(count)]
    if rule is None:
        able = [one for one in rules if any(not not_applicable(tasks, one, budgets) for budgets in at)]
        rule = next((one for one in RULE_PREFERENCE if one in able), able[0] if able else None)
        if rule is None:
            raise TrialError(
                f"plan: no rule of {list(rules)} can run at any budget: {not_applicable(tasks, rules[0], at[-1]) if rules and at else ''}"
            )
    if budget is not None:
        able_at = [index for index, budgets in enumerate(at) if budget in budgets.values()]
        if not able_at:
            raise TrialError(f"plan: no benchmark has the deciding budget of {budget} tokens; budgets are {at}")
    else:
        able_at = [index for index, budgets in enumerate(at) if not not_applicable(tasks, rule, budgets)]
        if not able_at:
            raise TrialError(f"plan: {rule} can run at no budget: {not_applicable(tasks, rule, at[-1]) if at else 'there is none'}")
    return Plan(
        model=model,
        loops=loops,
        layer_pass_ratio=layer_pass_ratio,
        tasks=tasks,
        rules=tuple(rules),
        seeds=tuple(seeds),
        deciding_rule=rule,
        deciding_budget_index=able_at[-1],
        **more,
    )
