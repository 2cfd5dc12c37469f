"""How often the two tests are right, on made-up trials whose truth is known. Prints Markdown tables.

    python benchmarks/simulate_trials.py                  # the figures of docs/two-tests.md, some three minutes on one core
    python benchmarks/simulate_trials.py --trials 100     # a quick look

Items differ in difficulty (a normal with standard deviation 2 on the logit scale, so that many are nearly always or nearly never
solved), which all arms share; each arm has its own strengths (0.7) that all of its training seeds share; given both, answers are
drawn. An arm's accuracy over all items there could be is exact: it is what the arm's level is solved for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from loopwise.protocol.arms import Arm, TaskTable
from loopwise.protocol.deciding import Choice
from loopwise.protocol.judging import Rules, judge_arms
from loopwise.protocol.values import Side, Verdict
from loopwise.stats import Bootstrap, Resampling, macro_bootstrap

Array = npt.NDArray[np.float64]
DIFFICULTY_SD, STRENGTH_SD = 2.0, 0.7
KINDS: tuple[Resampling, ...] = ("items", "items and seeds")
LOOP_COST, UNLOOPED_COST = 1.25, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true in a simulated trial."""

    looped: float
    """Accuracy of the looped arm, as a share, over all training runs and items."""
    twin: float
    unlooped: tuple[float, ...] = ()
    """Further unlooped arms, all cheaper than the loop."""
    items: tuple[int, ...] = (400,)
    """Of each benchmark."""
    offsets: tuple[float, ...] = (0.0,)
    """Added to every arm's accuracy on each benchmark."""
    seeds: int = 4
    seed_sd: float = 0.0
    """Standard deviation of an arm's accuracy between its training runs."""

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Looped, twin, further ones."""
        return (self.looped, self.twin, *self.unlooped)


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated trial: right or wrong, and what these very training runs would score on all items."""

    answers: tuple[Array, ...]
    """For each benchmark ``[arms, seeds, items]``."""
    levels: Array
    """Accuracy of each arm's training runs, mean over seeds and benchmarks."""


def _level_table() -> tuple[Array, Array]:
    """Accuracy against logit level: the mean of a logistic over the items' difficulty and the arm's strengths."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    levels = np.linspace(-12, 12, 4001)
    spread = np.hypot(DIFFICULTY_SD, STRENGTH_SD) * nodes
    return np.asarray((1 / (1 + np.exp(-(levels[:, None] + spread)))) @ (weights / weights.sum())), levels


_ACCURACY, _LEVEL = _level_table()


def simulate(world: World, rng: np.random.Generator) -> Trial:
    """One trial's answers."""
    arms = len(world.accuracies)
    noise = rng.normal(0.0, world.seed_sd, size=(arms, world.seeds)) if world.seed_sd else np.zeros((arms, world.seeds))
    answers, levels = [], []
    for num_items, offset in zip(world.items, world.offsets, strict=True):
        accuracy = np.clip(np.array(world.accuracies)[:, None] + offset + noise, 0.001, 0.999)
        difficulty = rng.normal(0.0, DIFFICULTY_SD, size=num_items)
        strength = rng.normal(0.0, STRENGTH_SD, size=(arms, 1, num_items))
        logit = np.interp(accuracy, _ACCURACY, _LEVEL)[:, :, None] - difficulty + strength
        answers.append((rng.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(np.float64))
        levels.append(accuracy.mean(axis=1))
    return Trial(tuple(answers), np.mean(levels, axis=0))


def arms_of(trial: Trial) -> list[Arm]:
    """The trial's answers as arms: looped, twin, further unlooped ones."""
    count = trial.answers[0].shape[0]
    return [_arm(n, [answers[n] for answers in trial.answers]) for n in range(count)]


def _arm(number: int, answers: Sequence[Array]) -> Arm:
    side: Side = "looped" if number == 0 else "twin" if number == 1 else "unlooped"
    return Arm(
        name=f"{side} {number}",
        side=side,
        loops="unknown" if number == 0 else "none",
        rule=None,
        decoding=None,
        layer_pass_ratio=LOOP_COST if number == 0 else UNLOOPED_COST,
        model=None,
        num_parameters=None,
        headers=(),
        tables={f"benchmark {t}": _table(f"benchmark {t}", one) for t, one in enumerate(answers)},
    )


def _table(task: str, right: Array) -> TaskTable:
    seeds, items = right.shape
    return TaskTable(
        task=task,
        items=tuple(f"{n:05d}" for n in range(items)),
        seeds=tuple(range(seeds)),
        samples=(0,),
        correct=right[:, :, None],
        finished=None,
        generated_tokens=np.full((seeds, items, 1), 100.0),
        flops=None,
        seconds=None,
        answers=None,
        golds=(None,) * items,
        budget_tokens=None,
        reserve_tokens=None,
        version=None,
    )


def verdict_of(trial: Trial, resampling: Resampling, resamples: int) -> Verdict:
    """What the product itself says of a simulated trial."""
    arms = arms_of(trial)
    bootstrap = Bootstrap(resamples=resamples, resampling=resampling)
    return judge_arms(arms[:1], arms[1:2], arms[2:], Rules(choice=Choice(), alpha=0.05, measure=None, bootstrap=bootstrap, larger=None))


def verdict_rates(
    world: World, *, trials: int, resampling: Resampling = "items", resamples: int = 1000, seed: int = 0
) -> Mapping[str, float]:
    """Shares of trials: each verdict, and a gain in the first test."""
    counts = dict.fromkeys(("pays", "does not pay", "not shown", "first"), 0)
    for n in range(trials):
        verdict = verdict_of(simulate(world, np.random.default_rng([seed, n])), resampling, resamples)
        counts[verdict.verdict] += 1
        counts["first"] += verdict.equal_parameters.passed
    return {name: count / trials for name, count in counts.items()}


def coverage(
    world: World, *, trials: int, resampling: Resampling = "items", resamples: int = 1000, of_runs: bool = True, seed: int = 1
) -> float:
    """How often the 95 % interval of looped minus twin, a contrast named beforehand, holds the truth.

    Args:
        of_runs: the truth about these very training runs (what ``items`` promises); else about all training runs there could be.
    """
    held = 0
    for n in range(trials):
        trial = simulate(world, np.random.default_rng([seed, n]))
        found = macro_bootstrap(
            [answers[0] - answers[1] for answers in trial.answers], Bootstrap(resamples=resamples, resampling=resampling)
        )
        truth = trial.levels[0] - trial.levels[1] if of_runs else world.looped - world.twin
        held += found.ci95[0] <= truth <= found.ci95[1]
    return held / trials


def chosen_coverage(num_arms: int, *, trials: int, resamples: int = 1000, seed: int = 2) -> tuple[float, float]:
    """Against the best of equal unlooped arms, chosen on the test items: how often the 95 % interval holds the truth, and how
    often it lies wholly below it (a miss against the loop)."""
    world = World(looped=0.5, twin=0.5, unlooped=(0.5,) * (num_arms - 1))  # the twin is one of them
    held = below = 0
    for n in range(trials):
        answers = simulate(world, np.random.default_rng([seed, n])).answers[0]
        best = 1 + int(np.argmax(answers[1:].mean(axis=(1, 2))))
        low, high = macro_bootstrap([answers[0] - answers[best]], Bootstrap(resamples=resamples)).ci95
        held += low <= 0 <= high
        below += high < 0
    return held / trials, below / trials


BOTH_NULL = World(looped=0.5, twin=0.5, unlooped=(0.5,) * 3)
ONE_AS_GOOD = World(looped=0.5, twin=0.42, unlooped=(0.42, 0.42, 0.5))
ALL_AS_GOOD = World(looped=0.5, twin=0.42, unlooped=(0.5,) * 3)
MANY_ITEMS = World(looped=0.5, twin=0.42, unlooped=(0.5,), items=(1819,), seed_sd=0.01)
GAIN = World(looped=0.48, twin=0.44, unlooped=(0.45, 0.43), items=(1319, 500), offsets=(0.11, -0.11))
"""Four points on 1,819 items of an easier and a harder benchmark, the best unlooped use of the compute three points behind (Table 3)."""
TRAINED = World(looped=0.48, twin=0.48, items=(1819,), seed_sd=0.01)


def with_seed_sd(world: World, seed_sd: float) -> World:
    """The same world with training noise."""
    return replace(world, seed_sd=seed_sd)


def _null_table(trials: int) -> None:
    print(f"\nNull trials: {trials} each, 400 items, 4 seeds, looped, twin and three further unlooped arms. Share that say *pays*:\n")
    print("| truth | training noise | interval | first test a gain | pays |\n| --- | --- | --- | --- | --- |")
    worlds = (
        ("both tests null: all five arms equal", BOTH_NULL),
        ("first true (+8), second null: one unlooped arm as good", ONE_AS_GOOD),
        ("first true (+8), second null: three unlooped arms as good", ALL_AS_GOOD),
    )
    for name, world in worlds:
        _null_row(name, world, "none", "items", trials)
    for name, world in worlds[:2]:
        for resampling in KINDS:
            _null_row(name, with_seed_sd(world, 0.01), "1 point an arm", resampling, trials)
    for resampling in KINDS:
        _null_row("the same, one unlooped arm, on 1,819 items", MANY_ITEMS, "1 point an arm", resampling, trials)


def _null_row(name: str, world: World, noise: str, resampling: Resampling, trials: int) -> None:
    rates = verdict_rates(world, trials=trials, resampling=resampling)
    print(f"| {name} | {noise} | {resampling} | {100 * rates['first']:.1f} % | {100 * rates['pays']:.1f} % |", flush=True)


def _coverage_table(trials: int) -> None:
    print(f"\nCoverage of the 95 % interval of looped minus twin, a contrast named beforehand: {trials} trials, 4 seeds:\n")
    print("| truth about | items | training noise | interval | coverage |\n| --- | --- | --- | --- | --- |")
    small = World(looped=0.5, twin=0.5)
    gain = World(looped=0.54, twin=0.5)
    rows: tuple[tuple[str, World, str, Resampling, bool], ...] = (
        ("these training runs", small, "none", "items", True),
        ("these training runs, +4 points", gain, "none", "items", True),
        ("these training runs", with_seed_sd(small, 0.01), "1 point an arm", "items", True),
        ("all training runs", TRAINED, "1 point an arm", "items", False),
        ("all training runs", TRAINED, "1 point an arm", "items and seeds", False),
    )
    for name, world, noise, resampling, of_runs in rows:
        share = coverage(world, trials=trials, resampling=resampling, of_runs=of_runs)
        print(f"| {name} | {sum(world.items)} | {noise} | {resampling} | {100 * share:.1f} % |", flush=True)


def _chosen_table(trials: int) -> None:
    print(f"\nAgainst the most accurate of equally good unlooped arms, chosen on the test items: {trials} trials, 400 items, 4 seeds:\n")
    print("| arms to choose from | coverage | misses against the loop |\n| --- | --- | --- |")
    for arms in (1, 4, 12):
        held, below = chosen_coverage(arms, trials=trials)
        print(f"| {arms} | {100 * held:.1f} % | {100 * below:.1f} % |", flush=True)


def _power_table(trials: int) -> None:
    print(f"\nA true gain of 4 points over the twin and 3 over the best unlooped arm: {trials} trials, 1,319 + 500 items, 4 seeds:\n")
    print("| training noise | interval | first test a gain | pays |\n| --- | --- | --- | --- |")
    for noise, world in (("none", GAIN), ("1 point an arm", with_seed_sd(GAIN, 0.01))):
        for resampling in KINDS:
            rates = verdict_rates(world, trials=trials, resampling=resampling)
            print(f"| {noise} | {resampling} | {100 * rates['first']:.1f} % | {100 * rates['pays']:.1f} % |", flush=True)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="simulated trials for each figure (power: a quarter)")
    trials = parser.parse_args().trials
    started = time.monotonic()
    _null_table(trials)
    _coverage_table(trials)
    _chosen_table(trials)
    _power_table(max(1, trials // 4))
    print(f"\n{time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
