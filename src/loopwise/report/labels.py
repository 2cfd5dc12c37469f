"""How arms, tests and loops are called in a report."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from ..loops import LoopError, call_sites, parse_loops
from ..protocol import ArmSummary, TestOutcome, Verdict
from ..protocol.decide import ITEMS_FOR_EQUIVALENCE
from ..protocol.values import Side, TestResult, VerdictWord
from .blocks import Cell, Outcome, State, Tone
from .numbers import UNKNOWN, count, p_equation, percent, ratio

SIDES: dict[Side, str] = {"looped": "Looped", "twin": "Unlooped", "unlooped": "Other unlooped", "larger": "Larger model"}
RULES: dict[str, str] = {
    "plain": "plain",
    "budget-forcing": "budget forcing",
    "repetition-stop": "repetition stop",
    "budget-forcing+repetition-stop": "budget forcing + repetition stop",
}
STATES: dict[VerdictWord, State] = {"pays": "pays", "does not pay": "does-not-pay", "not shown": "not-shown"}
OUTCOMES: dict[TestResult, Outcome] = {"gain": "gain", "loss": "loss", "equivalent": "equivalent", "not shown": "not-shown"}
RESULT_WORDS: dict[TestResult, str] = {
    "gain": "gain",
    "loss": "loss",
    "equivalent": "no difference (equivalent)",
    "not shown": "no difference shown",
}

_MOST_LAYERS = 10_000
"""A header that claims more is wrong, and its layers are not listed."""


class Arms:
    """A verdict's arms by name, and how tables call them."""

    def __init__(self, verdict: Verdict) -> None:
        self._by_name = {arm.name: arm for arm in verdict.arms}
        reserves: dict[tuple[str, str, str | None], set[str]] = {}
        for arm in verdict.arms:
            if arm.reserve_label is not None:
                reserves.setdefault((arm.side, arm.budget_label, arm.rule), set()).add(arm.reserve_label)
        self._reserved = {arm.name for arm in verdict.arms if len(reserves.get((arm.side, arm.budget_label, arm.rule), ())) > 1}
        alike = Counter(self._reads(arm) for arm in verdict.arms)
        self._named = {
            arm.name
            for arm in verdict.arms
            if alike[self._reads(arm)] > 1 or (arm.rule is None and arm.budget_label == "-" and arm.side != "looped")
        }

    def _reads(self, arm: ArmSummary) -> tuple[str, str, str]:
        return setting(arm), arm.budget_label, self._reserve(arm.name)

    def _reserve(self, name: str) -> str:
        """`` (reserve 1024)`` where arms that read alike differ in it."""
        arm = self.get(name)
        return f" (reserve {arm.reserve_label})" if arm is not None and name in self._reserved and arm.reserve_label else ""

    def rule(self, name: str) -> str:
        """The arm's decoding rule, with its reserve where several were tried."""
        arm = self.get(name)
        return name if arm is None else rule_words(arm.rule) + self._reserve(name)

    def get(self, name: str) -> ArmSummary | None:
        """The arm, if the verdict lists it."""
        return self._by_name.get(name)

    def setting(self, name: str) -> str:
        """``Unlooped + budget forcing, majority vote of 4``; with the arm's name where several arms would read so, or little is known."""
        arm = self.get(name)
        if arm is None:
            return name
        text = setting(arm) + self._reserve(name)
        return f"{text} ({name})" if name in self._named else text

    def setting_with_budget(self, name: str, unit: str = " tokens") -> str:
        """The setting and its token budget."""
        arm = self.get(name)
        if arm is None or arm.budget_label == "-":
            return self.setting(name)
        return f"{self.setting(name)}, {arm.budget_label}{unit}"

    def rule_and_budget(self, name: str, unit: str = " tokens") -> str:
        """``budget forcing, 64 tokens``."""
        arm = self.get(name)
        if arm is None:
            return name
        parts = [self.rule(name)] if arm.rule else []
        parts += [arm.budget_label + unit] if arm.budget_label != "-" else []
        return ", ".join([*parts, name] if parts and name in self._named else parts) or name


def rule_words(rule: str | None) -> str:
    """A decoding rule in words."""
    return UNKNOWN if rule is None else RULES.get(rule, rule)


def setting(arm: ArmSummary) -> str:
    """An arm as Table 4 names it, its budget left out."""
    text = str(arm.model or SIDES[arm.side]) if arm.side == "larger" else "Unlooped" if arm.side == "unlooped" else SIDES[arm.side]
    if arm.rule not in (None, "plain"):
        text += f" + {rule_words(arm.rule)}"
    if arm.votes is not None:
        text += f", majority vote of {arm.votes}"
    elif arm.samples > 1:
        text += f", mean of {arm.samples} samples"
    return text


def budget_words(label: str) -> str:
    """A token budget with its unit."""
    return UNKNOWN if label == "-" else f"{label} tokens"


def budget_order(arm: ArmSummary) -> tuple[int, ...]:
    """Sorts budgets that differ by benchmark."""
    return tuple(score.budget_tokens or 0 for score in arm.tasks)


def arrow(verdict: Verdict, other: float, looped: float, p_value: float, tone: Tone) -> Cell:
    """``44.2 → 48.3 (p<0.001)△``, coloured and bold where significant."""
    text = f"{percent(other)} → {percent(looped)} ({p_equation(p_value)}){verdict.marks}"
    return Cell(text, tone, tone in ("gain", "loss"))


def significance(delta: float, p_value: float, alpha: float) -> Tone:
    """Whether a difference counts as a gain or a loss of the loop."""
    if p_value >= alpha or delta == 0:
        return ""
    return "gain" if delta > 0 else "loss"


def result_tone(result: TestResult) -> Tone:
    """The colour of a test's outcome."""
    return "gain" if result == "gain" else "loss" if result == "loss" else ""


def equivalent_text(equivalent: bool, num_items: int) -> str:
    """``yes``, ``no``, or ``(yes)`` where so few items cannot show it."""
    return "no" if not equivalent else "yes" if num_items >= ITEMS_FOR_EQUIVALENCE else "(yes)"


def seeds_text(verdict: Verdict, seeds: int, favouring: int, with_deltas: int) -> str:
    """The seeds column of Tables 2 and 3: ``4 (3/4)``, or a dash for a training-free loop evaluated once."""
    if verdict.training_free and seeds <= 1:
        return UNKNOWN
    return f"{seeds} ({favouring}/{with_deltas})" if with_deltas else str(seeds)


def passes_text(num_layers: int | None, c: float | None) -> str:
    """Layer passes and cost: ``32 → 41 (1.29×)``."""
    if c is None:
        return UNKNOWN
    return ratio(c) if num_layers is None else f"{num_layers} → {count(num_layers * c)} ({ratio(c)})"


def learned_by(verdict: Verdict) -> str:
    """How the loop came into the model, as far as the runs say."""
    if verdict.model is None:
        return UNKNOWN
    return f"none (training-free){'' if '‡' in verdict.marks else '‡'}" if verdict.training_free else "training"


def outcome_words(test: TestOutcome) -> str:
    """A test's outcome in a few words."""
    return f"{'passed' if test.passed else 'not passed'}: {RESULT_WORDS[test.result]}"


def execution_order(loops: str, num_layers: int | None) -> str:
    """The layers in the order in which a forward pass runs them, e.g. ``0–9, 10–13, 10–13, 14–29``; empty where unknown."""
    if num_layers is None or num_layers > _MOST_LAYERS:
        return ""
    try:
        sites = call_sites(parse_loops(loops), num_layers)
    except LoopError:  # a header in another notation, or "unknown": shown as it is
        return ""
    # One stretch: consecutive layers in the same passes of the same loops; an MLP run stands alone.
    stretches = groupby(enumerate(sites), key=lambda at: (at[1].part, at[1].layer - at[0], at[1].passes))
    words = []
    for (part, _, _), group in stretches:
        layers = [site.layer for _, site in group]
        if part == "mlp":
            words += [f"{layer}.mlp" for layer in layers]
        else:
            words.append(str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}")
    return ", ".join(words)
