"""The ladder's questions, each with its written-out calculation. Pure functions of a random stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar

from .values import TaskError

T = TypeVar("T")

LARGEST_VALUE = 9999
"""Four digits at most, on the way too: with the answer's opener they fill a reserve of 8 tokens, one token a digit."""

NAMES = (
    "Anna", "Ben", "Carla", "David", "Ella", "Frank", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo", "Mia", "Noah", "Olga", "Paul",
    "Rosa", "Sam", "Tina", "Victor", "Wendy", "Yusuf", "Zoe", "Omar",
)  # fmt: skip
THINGS = ("apples", "marbles", "stamps", "pencils", "shells", "coins", "cards", "stickers", "buttons", "plums", "stones", "nuts")
TRAIN_SHARE = 5
"""One calculation in this many belongs to the train side."""

PATIENCE = 2000
"""Draws without a new calculation after which a rung is taken to have no more."""

HOLDERS = ("boxes", "bags", "baskets", "jars")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question with its worked answer."""

    key: str
    """What is calculated, whatever the wording: two problems with one key ask the same."""
    question: str
    steps: tuple[str, ...]
    """The calculation, one line a step; the last one ends in the answer."""
    answer: int


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included; only ``random()`` is promised to be equal on all Python versions."""
    return low + int(rng.random() * (high - low + 1))


def one_of(rng: Random, choices: Sequence[T]) -> T:
    """One of the choices, by the same promise."""
    return choices[int(rng.random() * len(choices))]


def small_sum(rng: Random) -> Problem:
    """A sum of two one-digit numbers."""
    a, b = between(rng, 1, 9), between(rng, 1, 9)
    return _binary(rng, a, "+", b, ("What is {a} + {b}?", "What is {a} plus {b}?", "What is the sum of {a} and {b}?"))


def product(rng: Random) -> Problem:
    """A product of two numbers below 13."""
    a, b = between(rng, 2, 12), between(rng, 2, 12)
    return _binary(rng, a, "*", b, ("What is {a} * {b}?", "What is {a} times {b}?", "What is the product of {a} and {b}?"))


def large_sum(rng: Random) -> Problem:
    """A sum or difference of two-digit numbers."""
    a, b = between(rng, 11, 99), between(rng, 11, 99)
    if rng.random() < 0.5:
        return _binary(rng, a, "+", b, ("What is {a} + {b}?", "What is {a} plus {b}?"))
    return _binary(rng, max(a, b), "-", min(a, b), ("What is {a} - {b}?", "What is {a} minus {b}?"))


def large_product(rng: Random) -> Problem:
    """A product of two two-digit numbers."""
    a, b = between(rng, 12, 99), between(rng, 12, 99)
    tens = b // 10 * 10
    steps = (f"{a} * {tens} = {a * tens}", f"{a} * {b - tens} = {a * (b - tens)}", f"{a * tens} + {a * (b - tens)} = {a * b}")
    plain = _binary(rng, a, "*", b, ("What is {a} * {b}?", "What is {a} times {b}?"))
    return Problem(key=plain.key, question=plain.question, steps=steps, answer=plain.answer)


def remainder(rng: Random) -> Problem:
    """The remainder of a product of two three-digit numbers: a long calculation with a short answer."""
    a, b, c = between(rng, 101, 999), between(rng, 101, 999), between(rng, 12, 99)
    whole = a * b // c
    steps = (f"{a} * {b} = {a * b}", f"{whole} * {c} = {whole * c}", f"{a * b} - {whole * c} = {a * b % c}")
    question = f"What is the remainder when {a} * {b} is divided by {c}?"
    return Problem(key=f"{a} * {b} % {c}", question=question, steps=steps, answer=a * b % c)


def _binary(rng: Random, a: int, sign: str, b: int, wordings: Sequence[str]) -> Problem:
    value = _value(a, sign, b)
    question = one_of(rng, wordings).format(a=a, b=b)
    return Problem(key=f"{a} {sign} {b}", question=question, steps=(f"{a} {sign} {b} = {value}",), answer=value)


def expression(rng: Random, num_operations: int, largest: int) -> Problem:
    """An expression with parentheses over the numbers 2 to ``largest``; no value on the way is negative."""
    while True:
        steps: list[str] = []
        text, value, _ = _expression(rng, num_operations, largest, steps)
        if 0 <= value <= LARGEST_VALUE and len(steps) == num_operations:
            return Problem(key=text, question=f"What is {text}?", steps=tuple(steps), answer=value)


def _expression(rng: Random, num_operations: int, largest: int, steps: list[str]) -> tuple[str, int, str]:
    """Text, value and outermost sign of one part; a part that leaves the allowed values adds no step, so that its whole is drawn anew."""
    if num_operations == 0:
        number = between(rng, 2, largest)
        return str(number), number, ""
    num_left = between(rng, 0, num_operations - 1)
    left, a, left_sign = _expression(rng, num_left, largest, steps)
    right, b, right_sign = _expression(rng, num_operations - 1 - num_left, largest, steps)
    sign = one_of(rng, ("+", "-", "*"))
    value = _value(a, sign, b)
    if 0 <= value <= LARGEST_VALUE:
        steps.append(f"{a} {sign} {b} = {value}")
    if sign == "*" and left_sign in ("+", "-"):
        left = f"({left})"
    if right_sign in ("+", "-") and sign in ("-", "*"):
        right = f"({right})"
    return f"{left} {sign} {right}", value, sign


class Event(NamedTuple):
    """Something that happens in a story."""

    sentence: str
    sign: str
    number: int
    before: tuple[str, ...] = ()
    """Calculations that give ``number`` first."""


def story(rng: Random, num_events: int, largest: int, events: Sequence[Callable[[Random, int, int], Event]]) -> Problem:
    """Somebody has some things, and ``num_events`` events change how many; numbers up to ``largest``."""
    name = one_of(rng, NAMES)
    friend = one_of(rng, tuple(n for n in NAMES if n != name))
    things = one_of(rng, THINGS)
    value = between(rng, 2, largest)
    sentences, steps, key = [f"{name} has {value} {things}."], [], f"story {value}"
    while len(sentences) <= num_events:
        event = one_of(rng, events)(rng, value, largest)
        after = _value(value, event.sign, event.number)
        if 0 < after <= LARGEST_VALUE:
            sentences.append(event.sentence.format(name=name, friend=friend, things=things))
            steps += [*event.before, f"{value} {event.sign} {event.number} = {after}"]
            key += f" {event.sign} {event.number}"
            value = after
    sentences.append(f"How many {things} does {name} have now?")
    return Problem(key=key, question=" ".join(sentences), steps=tuple(steps), answer=value)


def _value(a: int, sign: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def gain(rng: Random, value: int, largest: int) -> Event:
    """Some more."""
    n = between(rng, 2, largest)
    wordings = ("{{name}} buys {n} more.", "{{friend}} gives {{name}} {n} more {{things}}.", "{{name}} finds {n} more {{things}}.")
    return Event(one_of(rng, wordings).format(n=n), "+", n)


def loss(rng: Random, value: int, largest: int) -> Event:
    """Some fewer, at least one is left."""
    n = between(rng, 1, max(1, min(value - 1, largest)))
    wordings = ("{{name}} gives {n} to {{friend}}.", "{{name}} loses {n} of them.", "{{name}} sells {n} of them.")
    return Event(one_of(rng, wordings).format(n=n), "-", n)


def packs(rng: Random, value: int, largest: int) -> Event:
    """Several containers of some each."""
    count, each = between(rng, 2, 9), between(rng, 2, largest)
    sentence = f"{{name}} buys {count} {one_of(rng, HOLDERS)} with {each} {{things}} in each."
    return Event(sentence, "+", count * each, (f"{count} * {each} = {count * each}",))


def doubling(rng: Random, value: int, largest: int) -> Event:
    """As many again."""
    return Event("{friend} gives {name} as many {things} as {name} already has.", "*", 2)


def sharing(rng: Random, value: int, largest: int) -> Event:
    """Equal parts, of which one goes; where the number does not divide, a loss instead."""
    parts = tuple(n for n in (2, 3, 4, 5) if value % n == 0)
    if not parts:
        return loss(rng, value, largest)
    n = one_of(rng, parts)
    sentence = f"{{name}} puts all the {{things}} into {n} equal piles and gives one pile to {{friend}}."
    return Event(sentence, "-", value // n, (f"{value} / {n} = {value // n}",))


EVENTS = (gain, loss, packs, doubling, sharing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder."""

    title: str
    draw: Callable[[Random], Problem]


RUNGS: tuple[Rung, ...] = (
    Rung(title="sums of numbers below 10", draw=small_sum),
    Rung(title="products of numbers below 13", draw=product),
    Rung(title="one-step stories with numbers below 10", draw=lambda rng: story(rng, 1, 9, (gain, loss))),
    Rung(title="sums and differences below 100", draw=large_sum),
    Rung(title="three-step stories with numbers up to 20", draw=lambda rng: story(rng, 3, 20, (gain, loss))),
    Rung(title="expressions of three operations", draw=lambda rng: expression(rng, 3, 12)),
    Rung(title="products of two-digit numbers", draw=large_product),
    Rung(title="six-step stories with packs, doubling and sharing", draw=lambda rng: story(rng, 6, 25, EVENTS)),
    Rung(title="expressions of eight operations", draw=lambda rng: expression(rng, 8, 20)),
    Rung(title="remainders of products of three-digit numbers", draw=remainder),
)
"""The ladder from the bottom. Rungs may be added at the end; a change to one raises the task's version."""


def side_of(problem: Problem) -> str:
    """``train`` for one calculation in `TRAIN_SHARE`, else ``test``: the same for every seed, wording and order of the numbers."""
    return "train" if _hash(" ".join(sorted(problem.key.split()))) % TRAIN_SHARE == 0 else "test"


def problems(seed: int, rung: int, split: str, num_problems: int) -> tuple[Problem, ...]:
    """The first ``num_problems`` of a rung: problem ``index`` is a function of (seed, rung, split, index) alone.

    No calculation comes twice as long as there are others; then none comes twice in the same words.

    Raises:
        TaskError: the rung has no more different questions.
    """
    rng = Random(_hash(f"{seed}/{rung}/{split}"))
    found: list[Problem] = []
    keys: set[str] = set()
    questions: set[str] = set()
    misses = 0
    while len(found) < num_problems:
        problem = RUNGS[rung].draw(rng)
        known = problem.question in questions or (problem.key in keys and misses < PATIENCE)
        if known or side_of(problem) != split:
            misses += 1
            if misses > 2 * PATIENCE:
                raise TaskError(f"rung {rung} ({RUNGS[rung].title}) has {len(found)} {split} questions; take fewer items or more rungs")
            continue
        misses = min(misses, PATIENCE) if problem.key in keys else 0
        keys.add(problem.key)
        questions.add(problem.question)
        found.append(problem)
    return tuple(found)


def worked_text(seed: int, num_documents: int, problems_per_document: int = 6) -> tuple[str, ...]:
    """Texts of questions with written-out answers, for scoring placements on reasoning; none asks what a test item asks, in any wording.

    The rungs take turns, so that every document holds easy and hard ones.
    """
    num_problems = num_documents * problems_per_document
    streams = [_stream(seed, rung) for rung in range(len(RUNGS))]
    blocks = [_worked(next(streams[n % len(RUNGS)])) for n in range(num_problems)]
    return tuple("\n\n".join(blocks[n : n + problems_per_document]) for n in range(0, num_problems, problems_per_document))


def _stream(seed: int, rung: int) -> Iterator[Problem]:
    """Problems of the train side without end; a small rung repeats itself."""
    rng = Random(_hash(f"{seed}/{rung}/text"))
    while True:
        problem = RUNGS[rung].draw(rng)
        if side_of(problem) == "train":
            yield problem


def solution(problem: Problem) -> str:
    """The calculation in words, ending in the answer."""
    if len(problem.steps) == 1:
        return f"{problem.steps[0]}. The answer is {problem.answer}."
    openings = ["First,", *["Then,"] * (len(problem.steps) - 2), "Last,"]
    sentences = [f"{opening} {step}." for opening, step in zip(openings, problem.steps, strict=True)]
    return " ".join([*sentences, f"The answer is {problem.answer}."])


def _worked(problem: Problem) -> str:
    return f"Question: {problem.question}\nAnswer: {solution(problem)}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
