"""``loopwise trial``: a loop against its twin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ..protocol import verdict_to_json
from .console import Progress, UsageError, print_json, save_config
from .losses import TRIAL_ONLY, loss_trial_command, refuse_given
from .ranks import refuse_ranks, together
from .set_plan import set_plan_command
from .sets import SET_ONLY, set_trial_command
from .summary import larger_model, summary
from .trial_plan import PLAN_ONLY, plan_command

if TYPE_CHECKING:
    from ..evaluation import Ranks
    from ..recipes.trial_settings import TrialSettings


@dataclass(frozen=True)
class Command:
    """Plan, run and judge a trial, and write its report; the same command goes on after a kill.

    Example: loopwise trial smollm2 --loops "12:16 x2 damped beta=0.5" --task ladder --budgets 32 64 128 --limit 48 --out trials/x
    Several processes: torchrun --nproc-per-node 2 -m loopwise trial MODEL --loops "12:16 x2" --task gsm8k --out trials/x
    """

    model: Annotated[tuple[str, ...], tyro.conf.Positional]
    """The looped model: a Hugging Face id, a folder (a loop.json in it counts), or smollm2; or the folder of a set that loopwise learn
    wrote, all of whose members and seeds are judged. With --loss several are training seeds."""
    out: Path
    """The trial's folder."""
    loops: str | None = None
    """The loops; default: the folder's own, or the best of --placement."""
    placement: Path | None = None
    """The folder of the loopwise place that chose the loops: no item may be in the text it read."""
    twin: tuple[str, ...] = ()
    """The identically trained twin; default: the same weights without the loop. With --loss one for each training seed, in order."""
    loss: tuple[str, ...] = ()
    """Judge by held-out loss on this text, and not by answers: .txt, .jsonl(.gz) or .parquet files, folders of them, or hub:ORG/NAME."""
    unlooped: tuple[str, ...] = ()
    """With --loss: unlooped models that put the loop's compute to another use; all training seeds of one, then of the next."""
    context: int = 1024
    """With --loss: tokens of a window."""
    stride: int | None = None
    """With --loss: tokens from one window's beginning to the next; default: half of the context."""
    column: str | None = None
    """With --loss: the column that the text is in; default: the first that usually holds text."""
    depths: tuple[int, ...] = ()
    """Of a set: further passes that the looped model is evaluated at; default: those that the recipe anchored was trained at."""
    before: Path | None = None
    """Of a set: the finished trial of the set before post-training, on the same items, for the difference of differences; may be named
    when this trial is finished too."""
    task: tuple[str, ...] = ("ladder",)
    """One or more of docs/benchmarks.md, e.g. ladder, gsm8k, math500; bbh:each is its 27 subtasks."""
    budgets: tuple[int, ...] = ()
    """Tokens an answer can have, ascending; default: half, once and twice each task's own."""
    rules: tuple[str, ...] = ("plain", "budget-forcing")
    """Decoding rules, each on both arms: plain, budget-forcing, repetition-stop, budget-forcing+repetition-stop."""
    arms: str = "default"
    """A named set of arms; paper: every rule, budget, reserve and vote of no-free-loop (docs/two-tests.md), in place of --rules."""
    reserves: tuple[int, ...] = ()
    """Tokens that budget forcing keeps for the answer; the first decides, the others are shown. Default: each task's own."""
    deciding_rule: str | None = None
    """The rule that decides; default: budget-forcing where it is among the rules."""
    deciding_budget: int | None = None
    """The budget that decides; default: the largest."""
    alpha: float = 0.05
    """Level of both tests."""
    votes: int = 0
    """Also let the twin answer this often at every budget and take the majority."""
    thinking: bool = False
    """Use the template's thinking mode."""
    limit: int | None = None
    """Only the first items of each task, or documents of the text."""
    seed: int = 0
    """Seed of the draws of repeated sampling."""
    larger: str | None = None
    """A larger model's name, with --larger-parameters and --larger-accuracy, for the threshold effect."""
    larger_parameters: float | None = None
    """Its parameters."""
    larger_accuracy: float | None = None
    """Its accuracy on these tasks, in percent."""
    larger_model: str | None = None
    """A larger model, by id or folder, that runs too, under the deciding rule at every budget: shown, never deciding."""
    noise_floor: bool = False
    """Repeat the twin in other batches and count the answers that change."""
    noise_floor_of: tuple[str, ...] = ()
    """The same for other arms, by their names as --plan prints them, or all."""
    plan: bool = False
    """Print arms, items, expected tokens, FLOPs, time and the smallest gain that could be found, and run nothing."""
    prior: tuple[Path, ...] = ()
    """With --plan: folders of earlier runs or trials, for lengths of answers, throughput and how much arms differ; default: --out."""
    throughput: float | None = None
    """With --plan: tokens a second of the plain model, in batches like these."""
    probe: bool = False
    """With --plan: load the model and measure its throughput for some seconds."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    batch_size: int = 16
    """Answers decoded together."""
    fixed_rows: bool = False
    """Keep every batch as it began; finished rows are carried along, and no prompt takes their place."""
    engine: Literal["eager", "static", "compiled", "vllm"] = "eager"
    """How steps run: docs/engines.md. static keeps every shape; compiled is static through torch.compile; vllm lets vLLM answer."""
    allow_code_execution: bool = False
    """Let tasks that need it (humaneval, mbpp) run the code that the models write, behind walls: docs/code-execution.md."""
    dtype: str = "auto"
    """auto (the weights' own; fp32 on CPUs without half precision), bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.loss:
            refuse_ranks("trial --loss")
            return loss_trial_command(self)
        refuse_given(self, TRIAL_ONLY, "is read with --loss only; leave it out")
        from ..recipes.learning_files import is_set

        of_set = len(self.model) == 1 and is_set(self.model[0])
        if self.plan:
            refuse_ranks("trial --plan")
            return set_plan_command(self) if of_set else plan_command(self)
        refuse_given(self, PLAN_ONLY, "is read with --plan only; leave it out")
        if of_set:
            refuse_ranks("the trial of a set")
            return set_trial_command(self)
        with together() as ranks:
            self._answer(ranks)
        if ranks is None or ranks.rank == 0:
            self._judge()

    def _answer(self, ranks: Ranks | None) -> None:
        refuse_given(self, SET_ONLY, "is for the folder of a set that loopwise learn wrote; leave it out")
        if len(self.model) != 1 or len(self.twin) > 1:
            raise UsageError(
                f"{len(self.model)} looped models and {len(self.twin)} twins: a trial of answers has one of each; several training seeds "
                "are judged from their runs (loopwise judge), or by held-out loss (--loss)"
            )
        from ..recipes.trial import answer_trial

        settings = self.settings()
        progress = Progress(quiet=self.json)
        answer_trial(
            self.model[0],
            out=self.out,
            loops=self.loops,
            tasks=self.task,
            budgets=self.budgets,
            twin=self.twin[0] if self.twin else None,
            progress=progress,
            settings=replace(settings, device=ranks.own_device(settings.device)) if ranks else settings,
            ranks=ranks,
        )
        progress.close()

    def _judge(self) -> None:
        from ..recipes.judging import judge_trial

        verdict = judge_trial(self.out)
        save_config(self.out, "trial", self)
        if self.json:
            print_json(verdict_to_json(verdict) | {"out": str(self.out)})
        else:
            print(summary(verdict, self.out))

    def settings(self) -> TrialSettings:
        """The options as a trial takes them."""
        from ..recipes.trial_settings import TrialSettings

        return TrialSettings(
            rules=self.rules,
            thinking=self.thinking,
            limit=self.limit,
            vote_samples=self.votes,
            seed=self.seed,
            alpha=self.alpha,
            deciding_rule=self.deciding_rule,
            deciding_budget=self.deciding_budget,
            larger=larger_model(self.larger, self.larger_parameters, self.larger_accuracy),
            noise_floor=self.noise_floor,
            noise_floor_of=self.noise_floor_of,
            arms=self.arms,
            reserves=self.reserves,
            larger_model=self.larger_model,
            data=self.data,
            placement=self.placement,
            batch_size=self.batch_size,
            fixed_rows=self.fixed_rows,
            engine=self.engine,
            allow_code_execution=self.allow_code_execution,
            dtype=self.dtype,
            device=self.device,
        )
