"""``loopwise data generate``: a model's own reasoning traces, to fine-tune on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .console import Progress, print_json, save_config, table

if TYPE_CHECKING:
    from ..recipes.own_traces import OwnTracesReport


@dataclass(frozen=True)
class Command:
    """Let a model answer a task's training problems, and keep what the task's grader finds correct; the same command goes on after a kill.

    OUT/traces.jsonl goes into loopwise data traces --text, or loopwise learn --data. Nothing is cut, and what shares 13 words in a row
    with a test item is left out.

    Example: loopwise data generate sets/long/twin/seed-0/model --task math --temperature 0.7 --samples 4 --out own
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder (a loop.json in it counts), e.g. SET/MEMBER/seed-0/model, or smollm2."""
    task: str
    """One with training problems: gsm8k, math, ladder (rungs as in ladder:0-3)."""
    out: Path
    """A folder: traces.jsonl, report.json, and all answers."""
    keep: str = "correct"
    """correct: answers that end and that the grader finds right; finished: all that end."""
    samples: int = 1
    """Answers to a problem; above 1 it needs a temperature."""
    budget: int | None = None
    """Tokens of an answer, at most; default: the task's. What needs more is left out, never cut."""
    temperature: float | None = None
    """0 is greedy; default: the task's, which is 0 for most."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this probability."""
    top_k: int = 0
    """Draw from this many tokens; 0 is all."""
    thinking: bool = False
    """Use the template's thinking mode."""
    seed: int = 0
    """Of the draws."""
    limit: int | None = None
    """Only the first training problems."""
    against: tuple[str, ...] = ()
    """Tasks, or [BENCHMARK=]FILE.jsonl, to keep apart from; default: gsm8k, math500, aime24, aime25, gpqa_diamond and the task's own test
    items. none: nothing."""
    data: Path | None = None
    """A local JSONL file, or a folder of them; default: LOOPWISE_DATA, then the hub."""
    loops: str | None = None
    """The loops; default: the folder's own, else none."""
    batch_size: int = 16
    """Answers decoded together."""
    dtype: str = "auto"
    """auto (the weights' own; fp32 on CPUs without half precision), bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.own_traces import OwnTraces, make_own_traces

        settings = OwnTraces(
            task=self.task,
            keep=self.keep,  # type: ignore[arg-type]  # checked there
            samples=self.samples,
            budget_tokens=self.budget,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            thinking=self.thinking,
            seed=self.seed,
            limit=self.limit,
            against=self.against,
            data=self.data,
            batch_size=self.batch_size,
        )
        progress = Progress(quiet=self.json)
        try:
            report = make_own_traces(
                self.model,
                settings,
                self.out,
                loops=self.loops,
                dtype=self.dtype,
                device=self.device,
                note=progress.note,
                progress=lambda share: progress(f"answering {self.task}", share, 1.0),
            )
        finally:
            progress.close()
        save_config(self.out, "data generate", self)
        if self.json:
            print_json(asdict(report) | {"out": str(self.out)})
        else:
            print(_text(report, self.out))


def _text(report: OwnTracesReport, out: Path) -> str:
    from ..recipes.own_traces import DROPS, TRACES_FILE

    rows = [("answers", f"{report.num_answers:,}"), ("kept", f"{report.num_kept:,}")]
    rows += [(f"answers {words}", f"{report.dropped[reason]:,}") for reason, words in DROPS.items() if report.dropped[reason]]
    asked = report.num_problems - report.num_problems_decontaminated
    left_out = f", {report.num_problems_decontaminated:,} more left out with a test item's words" if asked < report.num_problems else ""
    return "\n".join(
        [
            table(rows, (report.task, "number")),
            "",
            f"{report.num_solved:,} of {asked:,} problems have a trace that is kept{left_out}",
            f"{report.generated_tokens:,} tokens written, {report.kept_tokens:,} of them kept; apart from {', '.join(report.benchmarks)}",
            f"traces: {out / TRACES_FILE}",
        ]
    )
