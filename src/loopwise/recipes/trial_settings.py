"""How a trial runs and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..evaluation import EvaluationEngine
from ..protocol import LargerModel

Progress = Callable[[str, float, float], None]
"""Called with what is being done, the work done and all the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """How a trial runs and how it will be judged; every field has a default."""

    rules: tuple[str, ...] = ("plain", "budget-forcing")
    """Decoding rules, each on both arms."""
    arms: str = "default"
    """A set of `trial_arms.ARM_SETS`; ``paper`` has every rule, budget, reserve and vote of no-free-loop, in place of ``rules``."""
    reserves: tuple[int, ...] = ()
    """Tokens that budget forcing keeps for the answer; the first decides, the others are shown. Default: each task's own."""
    larger_model: str | Path | None = None
    """A larger model that runs too, under the deciding rule at every budget: shown, never deciding."""
    noise_floor_of: tuple[str, ...] = ()
    """Arms by their names in the plan, or ``all``, that are repeated as `noise_floor` repeats the twin's deciding one."""
    thinking: bool = False
    """Use the chat template's thinking mode, and the tasks' budgets for it."""
    limit: int | None = None
    """Only the first items of each task."""
    vote_samples: int = 0
    """Also let the twin answer this often at every budget and take the majority; 0: not."""
    seed: int = 0
    """Of the draws of repeated sampling; greedy arms do not depend on it."""
    alpha: float = 0.05
    deciding_rule: str | None = None
    """Default: budget forcing where it is among the rules."""
    deciding_budget: int | None = None
    """Default: the largest."""
    larger: LargerModel | None = None
    """A larger model's size and accuracy on these tasks, for Delta* and the rule of section 4.5."""
    noise_floor: bool = False
    """Repeat the twin's deciding arm in batches of another size and count the answers that change."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    placement: Path | None = None
    """The study that chose the loops: no item may be in its text, and without loops its best ones are taken."""
    batch_size: int = 16
    fixed_rows: bool = False
    """Keep every batch as it began; finished rows are carried along."""
    engine: EvaluationEngine = "eager"
    """How steps run, or who runs them; as for `loopwise.evaluation.evaluate`."""
    allow_code_execution: bool = False
    """Let tasks that need it run the code that the models write, behind walls."""
    dtype: str = "auto"
    device: str = "cpu"
