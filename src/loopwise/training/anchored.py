"""Anchored recurrent depth (ARD): a core applied K times, kept near the original at one pass (no-free-loop, sections 4.4 and A.3).

The text names four terms and gives no formula, weight or curriculum; what is chosen here is marked as a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import NO_LOSS, BatchSource
from ..loops import Loop
from ..models import inserted_loops, loop_passes
from .adapters import LoraSettings, adapter_off
from .divergences import gold_log_probabilities, summed_kl, with_targets
from .engine import Evaluate, train
from .losses import head_inputs
from .merging import merge_and_save
from .objectives import Forward, StepContext
from .pass_schedule import PassSchedule
from .reporting import Reporter, TrainResult
from .settings import Execution, TrainingError
from .tuning import LoopsGiven, Tuning, load_member


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredDepth:
    """The task's loss at K passes, plus an anchor, plus consistency, less a reward, over positions with a target.

    With p_k what the model says after k passes and p_0 what the frozen original says (adapter and loop off):

    - task: -log p_K(target);
    - anchor: KL(p_0 || p_1), which ties the one-pass model to the original;
    - consistency: the mean over k < K of KL(stopped p_K || p_k), which pulls shallower passes to the deepest;
    - reward: for every row in which K passes make the targets likelier than one pass, the gain log p_K - stopped log p_1 of all
      its targets together; no other row has one. Pushing p_1 down thus earns nothing.

    At K = 1, which is all that a model without a loop has, task and anchor remain. The direction of both divergences and the form of
    the reward are guesses.

    Raises:
        TrainingError: a weight that is negative or not finite.
    """

    anchor_weight: float = 0.5
    """A guess: below the 0.9 of conversion, where staying near is all that is wanted."""
    consistency_weight: float = 0.1
    """A guess: a regulariser beside the task."""
    reward_weight: float = 0.1
    """A guess: below one, so that the task's own pull on p_K stays the larger part."""

    def __post_init__(self) -> None:
        for name in ("anchor_weight", "consistency_weight", "reward_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TrainingError(f"{name} is {getattr(self, name)}; give a number, at least 0")
        if self.reward_weight >= 1:
            raise TrainingError(f"reward_weight is {self.reward_weight}; give less than 1, the weight of the task")

    def __call__(
        self, model: Any, inputs: Tensor, targets: Tensor, arguments: Mapping[str, Any], context: StepContext
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective`; terms ``task``, ``anchor``, ``consistency``, ``reward`` in nats; ``rewarded``: targets in such rows."""
        head, gold = model.lm_head.weight, targets[targets != NO_LOSS]

        def read(passes: int) -> Tensor:
            with loop_passes(model, passes):
                return with_targets(head_inputs(model, inputs, arguments), targets)

        with torch.no_grad(), adapter_off(model):
            original = read(1)
        passes = _passes_of(model, context.passes)
        states = [read(number) for number in range(1, passes + 1)]
        likelihoods = gold_log_probabilities(states[-1], head, gold)
        terms = {"task": -likelihoods.sum(), "anchor": summed_kl(original, states[0], head)}
        zero = terms["task"].new_zeros(())
        terms |= {"consistency": zero, "reward": zero, "rewarded": zero}
        if passes > 1:
            terms["consistency"] = sum((summed_kl(states[-1], state, head) for state in states[:-1]), zero) / (passes - 1)
            with torch.no_grad():
                of_one_pass = gold_log_probabilities(states[0], head, gold)
            terms |= _reward(likelihoods - of_one_pass, targets)
        loss = terms["task"] + self.anchor_weight * terms["anchor"] + self.consistency_weight * terms["consistency"]
        return loss - self.reward_weight * terms["reward"], terms

    def forwards(self, passes: int | None) -> tuple[Forward, ...]:
        """The original's, and one with gradients for every depth. None is one pass, of a model without loops."""
        return ((1, False), *((number, True) for number in range(1, (passes or 1) + 1)))

    def to_json(self) -> dict[str, Any]:
        """Its name and weights."""
        return {"objective": "anchored depth", **asdict(self)}


def _passes_of(model: Any, drawn: int | None) -> int:
    if drawn is None and inserted_loops(model):
        raise TrainingError("anchored recurrent depth needs a number of passes for every step; give a schedule of passes with most")
    return drawn or 1


def _reward(gains: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The summed gains of the rows in which they are positive, and how many targets these rows have.

    Args:
        gains: of each target, in order [number of targets].
        targets: [rows, tokens].
    """
    present = targets != NO_LOSS
    rows = torch.arange(len(targets), device=targets.device)[:, None].expand_as(targets)[present]
    by_row = gains.new_zeros(len(targets)).index_add(0, rows, gains)
    likelier = by_row.detach() > 0
    return {"reward": by_row[likelier].sum(), "rewarded": (present.sum(dim=1) * likelier).sum()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredRecurrentDepth:
    """The recipe's numbers, at the paper's size.

    Raises:
        TrainingError: a schedule that does not say how many passes.
    """

    tuning: Tuning = field(default_factory=lambda: Tuning(num_tokens=50_000_000, learning_rate=1e-4))
    """50M tokens are the paper's, before and after post-training alike. The learning rate is a guess, as in conversion."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """One merged adapter is the paper's."""
    passes: PassSchedule = field(default_factory=lambda: PassSchedule(kind="curriculum", most=3))
    """K drawn from a curriculum is the paper's; up to 3, as in its long fine-tune with K from 1 to 3, is a guess."""
    objective: AnchoredDepth = field(default_factory=AnchoredDepth)

    def __post_init__(self) -> None:
        if self.passes.most is None:
            raise TrainingError("the passes of anchored recurrent depth need their largest number; give most")

    @classmethod
    def nano(cls, *, num_tokens: int = 1_000_000, learning_rate: float = 1e-3, rank: int = 16, seed: int = 0) -> AnchoredRecurrentDepth:
        """For networks of some million parameters on CPUs. Guesses."""
        tuning = Tuning(num_tokens=num_tokens, learning_rate=learning_rate, dtype="fp32", seed=seed)
        return cls(tuning=tuning, lora=LoraSettings(rank=rank, alpha=2.0 * rank))


def core(num_layers: int, *, passes: int = 2) -> Loop:
    """The fixed mid-depth span of a quarter of the layers: 8 of 32 (A.3). That it lies in the middle is a guess."""
    width = max(1, num_layers // 4)
    start = (num_layers - width) // 2
    return Loop(start, start + width, passes)


def train_anchored(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: AnchoredRecurrentDepth,
    out: str | Path,
    *,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Train one member of a set; the same call goes on where a killed one stopped.

    Args:
        model: a Hugging Face id or a folder: a base model before post-training, or one that was fine-tuned.
        loops: the core, e.g. `core`'s; the passes it is given here are those it is saved with. None trains the control: same adapter,
            data, steps and anchor without recurrence.
        source: text, or traces with targets on the answers only.

    Returns:
        Where it lies, merged in fp32: ``OUT/model``, which ``loopwise.load`` reads with its loops in.

    Raises:
        TrainingError, ModelError, LoopError: bad input, before weights are read where it can be known then; as `train`.
    """
    tuning = settings.tuning
    num_steps = tuning.num_steps(source)
    loaded = load_member(model, loops, lora=settings.lora, seed=tuning.seed, plain_head=True)
    result = train(
        loaded.model,
        source,
        tuning.settings(num_steps, None if loops is None else settings.passes),
        out,
        objective=settings.objective,
        execution=execution,
        evaluate=evaluate,
        tokenizer=loaded.tokenizer,
        reporter=reporter,
    )
    return merge_and_save(loaded, source, out, result, execution)
