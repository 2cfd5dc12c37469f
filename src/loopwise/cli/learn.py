"""``loopwise learn``: a loop that a trained model learns, its identical twin and the matched controls."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .console import Progress, UsageError, print_json, save_config, table
from .data_progress import RowsProgress
from .losses import refuse_given
from .train import is_first, parse_count, resolved_dtype
from .training_line import TrainingLine

if TYPE_CHECKING:
    from ..recipes.learning_members import Member
    from ..recipes.learning_recipes import LearningSettings, Rows, Scale
    from ..recipes.learning_set import LearningSet, MemberEstimate


@dataclass(frozen=True)
class Command:
    """Train a looped model, its twin and controls on the same batches in the same order; the same command goes on after a kill.

    Example: loopwise learn short-ft --model MODEL --loops "12:20 x2" --data traces.jsonl --seeds 0 1 2 --controls relocated x3 --out sets/x
    Without --data it says what the recipe does and what in it is a guess. Started twice with one --out, the two share the members out.
    """

    recipe: Annotated[str, tyro.conf.Positional]
    """short-ft, long-ft, conversion, anchored, continued, lora-ft or lora-grpo: docs/learning.md."""
    model: str | None = None
    """The model that learns: a Hugging Face id, a folder, or smollm2."""
    begins: Annotated[Path | None, tyro.conf.arg(aliases=["--from"])] = None
    """In place of --model: SET/MEMBER, whose model of the same seed all begin with; or SET, each with its counterpart there."""
    loops: str | None = None
    """The loops, e.g. "12:20 x2 damped beta=0.5"."""
    data: tuple[str, ...] = ()
    """Traces to encode ([[DOMAIN/]NAME=]LOCATION: .jsonl, .parquet, hub:ORG/NAME), a folder of loopwise data traces, or token shards."""
    out: Path | None = None
    """The set's folder."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds: order of the data, first weights of adapters, drawn passes."""
    controls: tuple[str, ...] = ()
    """equal-flops, relocated, deeper, depth-rule, random, hand, lengths, and xK for K times the tokens on both sides, e.g. x3."""
    equal: str = "counted"
    """What equal-flops equals: counted training FLOPs, or measured time of training steps."""
    hand: str | None = None
    """The loops of the control hand."""
    random_seed: int = 0
    """Of the place of the control random."""
    scale: str = "paper"
    """paper, or nano: for networks of some million parameters on CPUs."""
    tokens: str | None = None
    """Tokens of the looped model, e.g. 1M; default: the recipe's."""
    batch: int | None = None
    """Rows of a step, over all processes; default: the recipe's."""
    sequence_tokens: int | None = None
    """Inputs of a row; default: the recipe's. A longer trace is left out, never cut."""
    learning_rate: float | None = None
    """The peak; default: the recipe's."""
    budget_seconds: float | None = None
    """Of long-ft: time of training steps that the looped model may take."""
    draw_passes: tuple[int, int] | None = None
    """Of long-ft and continued: the fewest and the most passes that each batch draws, all alike, e.g. 1 3."""
    rank: int | None = None
    """Of recipes with LoRA: the adapter's."""
    problems: tuple[str, ...] = ()
    """Of lora-grpo: tasks whose train splits are asked; default: the recipe's."""
    grpo_steps: int | None = None
    """Of lora-grpo: updates by reinforcement learning; default: the recipe's."""
    grpo_budget: int | None = None
    """Of lora-grpo: tokens of an answer at most; default: the recipe's."""
    no_thinking: bool = False
    """Of lora-grpo: ask without the chat template's thinking mode."""
    raw: bool = False
    """No chat template: each answer right behind its question."""
    question: str | None = None
    """The column that asks, with --answer."""
    answer: str | None = None
    """The column that answers."""
    against: tuple[str, ...] = ()
    """Tasks to keep traces apart from; default: gsm8k, math500, aime24, aime25, gpqa_diamond. none: nothing."""
    items: Path | None = None
    """Where the tasks' items are; default: LOOPWISE_DATA, then the hub."""
    workers: int = 1
    """Processes that encode."""
    packing: str = "auto"
    """packed: several traces a row; single: each its own; auto: packed where the model keeps them apart."""
    mixture: str = "single"
    """Of token shards: single (all of them), or a JSON file with one stage."""
    dtype: str = "auto"
    """fp32 or bf16 (weights stay in fp32); auto is bf16 on CUDA and fp32 on CPUs."""
    device: str = "auto"
    """auto, cpu or cuda."""
    micro_batch: int | None = None
    """Rows that go through a model at once in a process; default: all of its part."""
    compile: bool = False
    """Compile every layer."""
    checkpoint_activations: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    evaluate_every: int | None = None
    """Steps between losses on the shards' held-out text; default: only at the end."""
    estimate: bool = False
    """Say what each member would be charged, and stop."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.learning_recipes import check_scale, recipe_named

        recipe, scale = recipe_named(self.recipe), check_scale(self.scale)
        if not self.data:
            others = {field.name for field in fields(self)} - {"recipe", "scale", "json"}
            refuse_given(self, others, "does nothing without --data; give --data too, or leave it out")
            self._describe(scale)
            return
        from ..recipes.learning_set import plan_set
        from ..training import leave

        chosen = self._chosen(recipe.settings[scale](), recipe.rows[scale], scale)
        try:
            if self.estimate:
                self._estimate(chosen)
                return
            plan_set(chosen)  # whatever is wrong is said before the folder is made
            self._learn(chosen)
        except (ValueError, OSError):
            if not is_first():  # the first process says it
                raise SystemExit(1) from None
            raise
        finally:
            leave()

    def _chosen(self, settings: LearningSettings, rows: Rows, scale: Scale) -> LearningSet:
        from dataclasses import replace

        from ..recipes.learning_data import LearningData
        from ..recipes.learning_members import Controls
        from ..recipes.learning_recipes import tuned, with_rank
        from ..recipes.learning_set import LearningSet
        from ..training import ContinuedPretraining, Execution, LongFinetune, PassSchedule

        if self.loops is None or self.out is None:
            raise UsageError("give --loops, e.g. '12:20 x2', and --out, the set's folder")
        tokens = None if self.tokens is None else parse_count("--tokens", self.tokens)
        settings = tuned(settings, num_tokens=tokens, learning_rate=self.learning_rate, dtype=resolved_dtype(self.dtype, self.device))
        if self.rank is not None:
            settings = with_rank(settings, self.rank)
        if self.budget_seconds is not None:
            if not isinstance(settings, LongFinetune):
                raise UsageError(f"--budget-seconds is for long-ft, not for {self.recipe}; give --tokens")
            settings = replace(settings, budget_seconds=self.budget_seconds)
        if self.draw_passes is not None:
            if not isinstance(settings, LongFinetune | ContinuedPretraining):
                raise UsageError(f"--draw-passes is for long-ft and continued, not for {self.recipe}; leave it out")
            least, most = self.draw_passes
            settings = replace(settings, passes=PassSchedule(kind="uniform", least=least, most=most))
        settings = self._with_grpo(settings)
        given = {"num_sequences": self.batch, "sequence_tokens": self.sequence_tokens}
        rows = replace(rows, **{name: value for name, value in given.items() if value is not None})
        same: dict[str, Any] = {name: getattr(self, name) for name in _DATA_OPTIONS}
        return LearningSet(
            recipe=self.recipe,
            loops=self.loops,
            data=LearningData(given=self.data, rows=rows, **same),
            out=self.out,
            settings=settings,
            scale=scale,
            model=self.model,
            begins=self.begins,
            seeds=self.seeds,
            controls=Controls(names=self.controls, equal=self.equal, hand=self.hand, random_seed=self.random_seed),  # type: ignore[arg-type]
            execution=Execution(
                device=self.device,
                micro_batch_sequences=self.micro_batch,
                compile=self.compile,
                checkpoint_activations=self.checkpoint_activations,
                checkpoint_every_steps=self.checkpoint_every,
                keep_checkpoints=1,
                evaluate_every_steps=self.evaluate_every,
            ),
        )

    def _with_grpo(self, settings: LearningSettings) -> LearningSettings:
        """The settings with what was given for reinforcement learning."""
        from dataclasses import replace

        from ..training import LoraGrpo

        given: dict[str, Any] = {"problems": self.problems or None, "num_steps": self.grpo_steps, "budget_tokens": self.grpo_budget}
        given |= {"thinking": False if self.no_thinking else None}
        changes = {name: value for name, value in given.items() if value is not None}
        if changes and not isinstance(settings, LoraGrpo):
            raise UsageError(
                f"--problems, --grpo-steps, --grpo-budget and --no-thinking are for lora-grpo, not for {self.recipe}; leave them out"
            )
        return replace(settings, grpo=replace(settings.grpo, **changes)) if isinstance(settings, LoraGrpo) else settings

    def _describe(self, scale: Scale) -> None:
        from ..recipes.learning_guesses import guesses
        from ..recipes.learning_recipes import recipe_named

        recipe = recipe_named(self.recipe)
        settings, rows = recipe.settings[scale](), recipe.rows[scale]
        if self.json:
            values = {"recipe": recipe.name, "what": recipe.what, "scale": scale, "settings": asdict(settings), "rows": asdict(rows)}
            print_json(values | {"guesses": [list(one) for one in guesses()]})
            return
        print(f"{recipe.name}: {recipe.what}\nat {scale} size, reads {' or '.join(recipe.reads)}; give --data to train\n")
        values = asdict(settings)
        lines = [(f"{name}.{one}", str(each)) for name, value in values.items() if isinstance(value, dict) for one, each in value.items()]
        lines += [(name, str(value)) for name, value in values.items() if not isinstance(value, dict)]
        print(table([*lines, *((name, str(value)) for name, value in asdict(rows).items())], ("setting", "value")))
        print("\nguesses, where the paper gives nothing:")
        print("\n".join(f"  {where}.{name}: {text}" for where, name, _, text in guesses()))

    def _estimate(self, chosen: LearningSet) -> None:
        from ..recipes.learning_inputs import check_estimate
        from ..recipes.learning_set import estimate_set, plan_set

        plan = plan_set(chosen)
        check_estimate(plan)
        found = estimate_set(plan)
        if not is_first():
            return
        if self.json:
            print_json({"members": [_estimate_json(one) for one in found], "num_seeds": len(chosen.seeds)})
            return
        print(table([_estimate_row(one) for one in found], ("member", "loops", "steps", "tokens", "training FLOPs", "why")))
        if self.recipe == "lora-grpo":
            print("\nof the first stage alone: nobody knows before how long the answers of the second will be")
        known = [one.flops for one in found if one.flops is not None]
        rest = "" if len(known) == len(found) else f", {len(found) - len(known)} members left out whose steps are measured first"
        print(f"\n{len(found)} members, {len(chosen.seeds)} seeds, {len(chosen.seeds) * sum(known):.3g} training FLOPs in all{rest}")

    def _learn(self, chosen: LearningSet) -> None:
        from ..recipes.learning import Telling, learn
        from ..recipes.learning_summary import REPORT_FILE, summarise_set

        quiet = self.json or not is_first()
        progress = Progress(quiet=quiet)
        line: TrainingLine | None = None

        def reporter(member: Member, seed: int) -> TrainingLine:
            nonlocal line
            if line:
                line.close()
            line = TrainingLine(quiet=quiet, at_first_step=lambda: save_config(chosen.out, "learn", self))
            return line

        try:
            telling = Telling(note=progress.note, reporter=reporter, encoding=RowsProgress(progress, "encoding"))
            busy = learn(chosen, telling)
        finally:
            if line:
                line.close()
            progress.close()
        if not is_first():
            return
        if busy and not any(chosen.out.glob("*/seed-*/result.json")):
            print(f"not done yet: {', '.join(busy)}")
            return
        found = summarise_set(chosen.out)
        if self.json:
            print_json({"members": [asdict(row) for row in found], "busy": list(busy), "out": str(chosen.out)})
            return
        print((chosen.out / REPORT_FILE).read_text(encoding="utf-8"))
        if busy:
            print(f"not done yet, another process is at them or at what they need: {', '.join(busy)}")


_DATA_OPTIONS = ("raw", "question", "answer", "against", "items", "workers", "packing", "mixture")


def _estimate_row(one: MemberEstimate) -> tuple[str, ...]:
    from ..loops import format_loops

    steps, tokens = ("measured first" if value is None else f"{value:,}" for value in (one.num_steps, one.tokens))
    flops = "not known" if one.flops is None else f"{one.flops:.3g}"
    return (one.member.name, format_loops(one.member.loops), steps, tokens, flops, one.member.why)


def _estimate_json(one: MemberEstimate) -> dict[str, Any]:
    from ..loops import format_loops

    values = asdict(one)
    values["member"]["loops"] = format_loops(one.member.loops)
    return values
