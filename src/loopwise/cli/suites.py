"""Suites on the command line: ``loopwise evaluate MODEL --task arloop-controlled``, every task in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..records import Record, Run
from .console import UsageError, print_json, table
from .ranks import refuse_ranks

if TYPE_CHECKING:
    from ..tasks import Item
    from .evaluate import Command

DECODING = (
    "budget",
    "budget_forcing",
    "reserve",
    "repetition_stop",
    "thinking",
    "temperature",
    "top_p",
    "top_k",
    "samples",
    "fixed_rows",
    "engine",
)
"""Options of ``evaluate`` that say how answers are decoded: nothing for tasks of log-likelihoods."""
LETTERS_UNUSED = tuple(name for name in DECODING if name != "thinking")
"""Those that say nothing for tasks that are answered by letters; thinking mode changes their prompts."""


def is_likelihood(task: str) -> bool:
    """Whether a task of that name is answered by log-likelihoods."""
    return task.startswith("lm-eval:")


def evaluate_suite_command(command: Command) -> None:
    """Every task of a suite with one model, in the suite's order; the same command goes on after a kill.

    Raises:
        UsageError: options for decoding, and no task that decodes; or a task that this model cannot be asked, such as a prompt that it
            has no positions for, before the first is answered.
        TaskError: a task whose rows are missing, or that runs code without permission, before the model is loaded.
    """
    refuse_ranks(f"--task {command.task}")
    from ..tasks import SUITES, permit, task_named

    suite = SUITES[command.task]
    defaults: dict[str, Any] = {field.name: field.default for field in fields(command) if field.name in DECODING}
    given = next((name for name, default in defaults.items() if getattr(command, name) != default), None)
    if given and all(map(is_likelihood, suite.names)):
        raise UsageError(f"--{given.replace('_', '-')} has no meaning with --task {command.task}, which decodes nothing; leave it out")
    if command.engine == "vllm":
        from ..evaluation import check_vllm_way
        from ..models import resolve

        temperature = command.temperature or 0.0
        check_vllm_way([resolve(command.model)], temperature=temperature, fixed_rows=command.fixed_rows, num_ranks=1)
    commands: dict[str, Command] = {}
    items: dict[str, Sequence[Item]] = {}
    tasks = {name: permit(task_named(name), command.allow_code_execution) for name in suite.names}
    for name, task in tasks.items():
        items[name] = task.load(command.data, command.limit)
        unused = {"generate": (), "letters": LETTERS_UNUSED, "log-likelihood": DECODING}[task.kind]
        changes: dict[str, Any] = {"task": name, "out": command.out / name.replace(":", "-")}
        commands[name] = replace(command, **changes, **{option: defaults[option] for option in unused})
        commands[name].asked()
    from ..evaluation import asked_items
    from ..models import load
    from ..serving import VllmHost

    loaded = load(command.model, loops=command.loops, dtype=command.dtype, device=command.device)
    for name, one in commands.items():
        task, rule, budget = one.asked()
        if task.kind == "generate":
            try:
                asked_items(*loaded, task, items[name], rule, budget)
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from None
    found: dict[str, Run] = {}
    with VllmHost() as host:
        for name, one in commands.items():
            found[name] = one.evaluated(loaded=loaded, host=host)
    if command.json:
        runs = {name: run.header | {"out": run.source} | run_figures(run) for name, run in found.items()}
        print_json({"suite": command.task, "source": suite.source, "tasks": runs})
        return
    guessed = {one.task: one.guessed for one in suite.tasks}
    lines = [(name, f"{run_figures(run)['accuracy_percent']:.2f}", str(len(run.records)), guessed[name]) for name, run in found.items()]
    first = next(iter(found.values())).header
    print(f"{command.task} ({suite.source}), {first['model']}, loops {first['loops']}, layer passes {first['layer_pass_ratio']:.3f}x")
    print(table([*lines, ("mean", f"{_mean(found.values()):.2f}", "", "")], ("task", "% correct", "answers", "guessed")))
    print(f"every run: {command.out}")


def parity_words(parity: Mapping[str, Any]) -> str:
    """The check of a run's decoding, in a line."""
    if "max_abs_nats" in parity:
        return f"vLLM's log-probabilities are Hugging Face's to {parity['max_abs_nats']:.1g} nats ({parity['dtype']})"
    return f"cached decoding equals full recompute to {parity['max_abs_logit_difference']:.1g} ({parity['dtype']})"


def run_figures(run: Run) -> dict[str, float | None]:
    """Percentages of a run: right, right as the mean over subtasks (None where there are none), finished."""
    answers = run.records
    return {
        "accuracy_percent": 100 * sum(record.correct for record in answers) / len(answers),
        "macro_percent": _macro_percent(answers),
        "finished_percent": 100 * sum(bool(record.finished) for record in answers) / len(answers),
    }


def _macro_percent(answers: Sequence[Record]) -> float | None:
    """The unweighted mean of the accuracies of a benchmark's subtasks; None where it has none."""
    subtasks: dict[str, list[bool]] = {}
    for record in answers:
        if "subtask" in record.extra:
            subtasks.setdefault(record.extra["subtask"], []).append(record.correct)
    return 100 * sum(sum(one) / len(one) for one in subtasks.values()) / len(subtasks) if subtasks else None


def _mean(runs: Any) -> float:
    """The unweighted mean over a suite's tasks, of BIG-Bench Hard and the like as the mean over their subtasks."""
    figures = [run_figures(run) for run in runs]
    values = [one["accuracy_percent"] if one["macro_percent"] is None else one["macro_percent"] for one in figures]
    return sum(value for value in values if value is not None) / len(values)
