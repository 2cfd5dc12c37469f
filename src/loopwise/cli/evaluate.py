"""``loopwise evaluate``: one arm on one task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from .console import Progress, print_json, save_config


@dataclass(frozen=True)
class Command:
    """Graded answers of one arm, written as they come; the same command resumes after a kill.

    Example: loopwise evaluate smollm2 --loops "12:16 x2 damped beta=0.5" --task ladder --budget 64 --limit 48 --out runs/a
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder (a loop.json in it counts), or smollm2."""
    task: str
    """ladder (ladder:2, ladder:0-3 choose rungs), gsm8k, math500 or arc_challenge."""
    out: Path
    """The run's folder: header.json and records.jsonl."""
    loops: str | None = None
    """The loops; default: the folder's own, else none."""
    budget: int | None = None
    """Tokens an answer can have; default: the task's."""
    budget_forcing: bool = False
    """Close the thinking, or open the answer, --reserve tokens before the budget."""
    reserve: int | None = None
    """Tokens that budget forcing keeps for the answer; default: the task's."""
    repetition_stop: bool = False
    """End the reasoning once it repeats itself three times."""
    thinking: bool = False
    """Use the template's thinking mode."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this probability."""
    top_k: int = 0
    """Draw from this many tokens; 0 is all."""
    samples: int = 1
    """Answers per item; above 1 give a temperature."""
    seed: int = 0
    """The replicate, and the seed of the draws."""
    limit: int | None = None
    """Only the first items."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    batch_size: int = 16
    """Answers decoded together."""
    fixed_rows: bool = False
    """Keep every batch as it began; finished rows are carried along."""
    dtype: str = "auto"
    """auto, bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..tasks import task_named

        task = task_named(self.task)
        task.load(self.data, self.limit)  # fails before a model is loaded
        from ..decoding import DecodingRule
        from ..evaluation import evaluate
        from ..models import load

        rule = DecodingRule(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            budget_forcing=self.budget_forcing,
            reserve_tokens=max(1, task.reserve_tokens) if self.reserve is None else self.reserve,
            repetition_stop=self.repetition_stop,
            thinking=self.thinking,
        )
        budget = self.budget
        if budget is None:
            budget = (task.thinking_budget_tokens if self.thinking else None) or task.budget_tokens
        rule.check_budget(budget)
        model, tokenizer = load(self.model, loops=self.loops, dtype=self.dtype, device=self.device)
        save_config(self.out, "evaluate", self)
        progress = Progress(quiet=self.json)
        run = evaluate(
            model,
            tokenizer,
            task,
            out=self.out,
            rule=rule,
            budget_tokens=budget,
            samples=self.samples,
            seed=self.seed,
            limit=self.limit,
            data=self.data,
            batch_size=self.batch_size,
            fixed_rows=self.fixed_rows,
            progress=lambda share: progress(f"{task.name}, {budget} tokens", share, 1.0),
        )
        progress.close()
        answers = run.records
        correct = sum(record.correct for record in answers) / len(answers)
        finished = sum(bool(record.finished) for record in answers) / len(answers)
        if self.json:
            print_json(run.header | {"out": str(self.out), "accuracy_percent": 100 * correct, "finished_percent": 100 * finished})
        else:
            parity = run.header["parity"]
            print(
                f"{self.out}: {run.header['arm']} on {task.name}: {100 * correct:.1f} % correct, {100 * finished:.1f} % finished, "
                f"{len(answers)} answers\nloops {run.header['loops']}, layer passes {run.header['layer_pass_ratio']:.3f}x; "
                f"cached decoding equals full recompute to {parity['max_abs_logit_difference']:.1g} ({parity['dtype']})"
            )
