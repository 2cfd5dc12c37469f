"""What reinforcement learning trains on and is paid for: training problems, and a correct boxed answer after finished thinking.

no-free-loop, A.3: "The reward is a correct boxed answer after finished thinking." Who is right says the task's own grader.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.permutation import Permutation
from ..decoding import Chat
from ..tasks import Item, Task
from ..tasks.answers import answer_part, last_box
from .settings import TrainingError

BOX = "\\boxed"
WORDING = "\nPut your final answer within \\boxed{}."
"""Added to prompts of tasks that ask for no box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One training problem."""

    task: Task
    item: Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """Training problems in an order of the seed's own: all members of a seed are asked the same ones, step by step.

    Raises:
        TrainingError: no problems, or two alike.
    """

    problems: tuple[Problem, ...]

    def __post_init__(self) -> None:
        if not self.problems:
            raise TrainingError("there is no problem to train on; give tasks with a train split")
        prompts = [problem.item.prompt for problem in self.problems]
        if len(set(prompts)) < len(prompts):
            doubled = next(prompt for prompt in prompts if prompts.count(prompt) > 1)
            raise TrainingError(f"the problem {doubled[:60]!r} is there twice; give it once")

    @property
    def identity(self) -> dict[str, Any]:
        """What decides every step's problems, beside the seed: tasks with their versions, and a hash of all that is asked."""
        asked = [[problem.task.name, problem.item.name, problem.item.prompt, problem.item.gold] for problem in self.problems]
        tasks = sorted({f"{problem.task.name} version {problem.task.version}" for problem in self.problems})
        digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
        return {"tasks": tasks, "num_problems": len(self.problems), "sha256": digest}

    def step(self, seed: int, step: int, count: int) -> tuple[Problem, ...]:
        """The problems of step ``step``, counted from 0: every problem once, in a drawn order, before any comes again."""
        size = len(self.problems)
        places = range(step * count, (step + 1) * count)
        return tuple(self.problems[_place(seed, place // size, size, place % size)] for place in places)


def _place(seed: int, epoch: int, size: int, place: int) -> int:
    return int(Permutation(size, f"problems {seed} {epoch}")(np.array([place]))[0])


def boxed(task: Task, items: Sequence[Item]) -> tuple[Problem, ...]:
    """A task's items as problems, each of which asks for a box.

    Raises:
        TrainingError: a task that does not write its answers, or that runs code.
    """
    if task.kind != "generate" or task.executes_code or task.begin:
        raise TrainingError(f"{task.name} is answered without a box; give tasks with one final answer, e.g. gsm8k or math")
    asked = [item if BOX in item.prompt else replace(item, prompt=item.prompt + WORDING) for item in items]
    return tuple(Problem(task=task, item=item) for item in asked)


def boxed_reward(problem: Problem, chat: Chat, prompt: Sequence[int], completion: Sequence[int]) -> float:
    """1 for a correct answer in a box, behind a thinking block that was closed if one was opened, in a text that ended; else 0.

    Args:
        prompt: token ids; some templates open the thinking there.
        completion: token ids, the end of text included.
    """
    if not completion or completion[-1] not in chat.end_ids:
        return 0.0
    opened = chat.thinking.opening if chat.thinking and chat.starts_in_thinking(prompt) else ""
    text = opened + chat.text(completion)
    part = answer_part(text)
    if part is None or last_box(part) is None:
        return 0.0
    return float(problem.task.grade(problem.item, text).correct)
