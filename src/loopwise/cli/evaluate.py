"""``loopwise evaluate``: one arm on one task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ..records import Run
from .console import Progress, print_json, save_config
from .losses import EVALUATE_ONLY, LOSS_TASK, evaluate_loss_command, refuse_given
from .ranks import refuse_ranks, together
from .suites import DECODING, LETTERS_UNUSED, evaluate_suite_command, is_likelihood, parity_words, run_figures

if TYPE_CHECKING:
    from ..decoding import DecodingRule
    from ..evaluation import Ranks
    from ..models import Loaded
    from ..serving import VllmHost
    from ..tasks import Task


@dataclass(frozen=True)
class Command:
    """Graded answers of one arm, written as they come; the same command resumes after a kill.

    Example: loopwise evaluate smollm2 --loops "12:16 x2 damped beta=0.5" --task ladder --budget 64 --limit 48 --out runs/a
    Several processes: torchrun --nproc-per-node 2 -m loopwise evaluate MODEL --task gsm8k --out runs/a
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder (a loop.json in it counts), or smollm2."""
    task: str
    """One of docs/benchmarks.md, e.g. ladder, gsm8k, math500; parts as in ladder:0-3, bbh:snarks, bfcl_v3:simple; one of lm-eval's, as
    in lm-eval:arc_challenge@25:acc_norm; a suite, e.g. arloop-controlled, each of its tasks into a folder of --out; or loss."""
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
    temperature: float | None = None
    """0 is greedy; default: the task's, which is 0 for most."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this probability."""
    top_k: int = 0
    """Draw from this many tokens; 0 is all."""
    samples: int | None = None
    """Answers per item; default: the task's, which is 1 for most and 8 for AIME. Above 1 needs a temperature."""
    seed: int = 0
    """The replicate, and the seed of the draws."""
    limit: int | None = None
    """Only the first items."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    text: tuple[str, ...] = ()
    """For --task loss: .txt, .jsonl(.gz) or .parquet files, folders of them, or hub:ORG/NAME[:SPLIT[:COLUMN]]."""
    context: int = 1024
    """For --task loss: tokens of a window."""
    stride: int | None = None
    """For --task loss: tokens from one window's beginning to the next; default: half of the context."""
    column: str | None = None
    """For --task loss: the column that the text is in; default: the first that usually holds text."""
    batch_size: int = 16
    """Answers decoded together, or windows read together."""
    fixed_rows: bool = False
    """Keep every batch as it began; finished rows are carried along, and no prompt takes their place."""
    engine: Literal["eager", "static", "compiled", "vllm"] = "eager"
    """How steps run: docs/engines.md. static keeps every shape; compiled is static through torch.compile; vllm lets vLLM answer."""
    allow_code_execution: bool = False
    """Let tasks that need it (humaneval, mbpp) run the code that the model writes, behind walls: docs/code-execution.md."""
    dtype: str = "auto"
    """auto (the weights' own; fp32 on CPUs without half precision), bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.task == LOSS_TASK:
            refuse_ranks(f"--task {LOSS_TASK}")
            return evaluate_loss_command(self)
        from ..tasks import SUITES

        if self.task in SUITES:
            return evaluate_suite_command(self)
        if is_likelihood(self.task):
            refuse_ranks(f"--task {self.task}")
        with together() as ranks:
            run = self.evaluated(ranks)
        if ranks is None or ranks.rank == 0:
            self._print(run)

    def asked(self) -> tuple[Task, DecodingRule, int]:
        """The task, the rule and the budget of its answers.

        Raises:
            UsageError: options that would do nothing.
            TaskError, DecodingError: a task, a rule or a budget that cannot be.
        """
        if is_likelihood(self.task):
            refuse_given(self, DECODING, f"has no meaning with --task {self.task}, which decodes nothing; leave it out")
        from ..tasks import permit, task_named

        task = permit(task_named(self.task), self.allow_code_execution)
        if task.kind == "letters":
            refuse_given(self, LETTERS_UNUSED, f"has no meaning with --task {task.name}, which is answered by letters; leave it out")
        from ..evaluation import check_conversations, task_budget_tokens, task_rule

        check_conversations(task, self.engine)
        rule = task_rule(
            task,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            budget_forcing=self.budget_forcing,
            reserve_tokens=max(1, task.reserve_tokens) if self.reserve is None else self.reserve,
            repetition_stop=self.repetition_stop,
            thinking=self.thinking,
        )
        budget = task_budget_tokens(task, thinking=rule.thinking) if self.budget is None else self.budget
        rule.check_budget(budget)
        return task, rule, budget

    def evaluated(self, ranks: Ranks | None = None, loaded: Loaded | None = None, host: VllmHost | None = None) -> Run:
        """Run the task; ``loaded`` is the model where it is loaded already, ``host`` keeps vLLM for the next task."""
        refuse_given(self, EVALUATE_ONLY, f"is read by --task {LOSS_TASK} only; leave it out")
        task, rule, budget = self.asked()
        if loaded is None:
            task.load(self.data, self.limit)  # fails before a model is loaded
        from ..evaluation import check_vllm_way, evaluate
        from ..models import load, resolve

        if self.engine == "vllm" and loaded is None:
            num_ranks = ranks.size if ranks else 1
            check_vllm_way([resolve(self.model)], temperature=rule.temperature, fixed_rows=self.fixed_rows, num_ranks=num_ranks)
        model, tokenizer = loaded or load(
            self.model, loops=self.loops, dtype=self.dtype, device=ranks.own_device(self.device) if ranks else self.device
        )
        if ranks is None or ranks.rank == 0:
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
            engine=self.engine,
            host=host,
            ranks=ranks,
            progress=lambda share: progress(f"{task.name}, {budget} tokens", share, 1.0),
        )
        progress.close()
        return run

    def _print(self, run: Run) -> None:
        answers = run.records
        figures = run_figures(run)
        correct, finished, macro = figures["accuracy_percent"], figures["finished_percent"], figures["macro_percent"]
        if self.json:
            print_json(run.header | {"out": str(self.out)} | figures)
        else:
            over_subtasks = "" if macro is None else f" ({macro:.1f} % as the mean over subtasks)"
            print(
                f"{self.out}: {run.header['arm']} on {run.header['task']}: {correct:.1f} % correct{over_subtasks}, "
                f"{finished:.1f} % finished, {len(answers)} answers\n"
                f"loops {run.header['loops']}, layer passes {run.header['layer_pass_ratio']:.3f}x; "
                f"{parity_words(run.header['parity'])}"
            )
