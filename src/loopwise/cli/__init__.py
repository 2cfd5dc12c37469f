"""The command line: one file per command, each a frozen dataclass of its options with a ``run``.

Nothing heavy is imported before a command runs, so that ``loopwise --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from .console import UsageError, one_line
from .ranks import end_silently, is_silent

COMMANDS = {
    "show": "resolved layers, call sites and cost of a loop, from a config.json alone",
    "insert": "a folder with a model's own weights and a loop beside them",
    "generate": "an answer from a model with a loop",
    "place": "where a loop could go in a model, by calibrated perplexity on text",
    "place validate": "whether a study's scores say anything of accuracy: placements along the depth on a task",
    "data tokenize": "text into token shards to train on, resumable",
    "data traces": "reasoning traces and chats into a set to fine-tune on, resumable",
    "data generate": "a model's own traces: its correct answers to training problems, resumable",
    "data plan": "what a run would train on, without reading it",
    "data decontaminate": "text without the documents that evaluation items are in",
    "train": "a looped network from scratch, or a model further, on token shards, resumable",
    "pretrain": "a table of a paper, its rows trained from scratch on the same data and compared, resumable",
    "learn": "a loop that a trained model learns, with its twin and matched controls: a whole set, resumable",
    "evaluate": "one arm on one task: graded answers, resumable",
    "trial": "a loop against its twin: plan, runs, verdict, report",
    "judge": "the verdict on anybody's per-item results",
    "analyze exchange-rate": "how many tokens the twin needs to match the looped model, from their loss curves",
    "bench": "what a loop costs at serving time on this device: latency, throughput, memory, plain beside looped",
    "report": "a trial's verdict and report again, from its records",
    "demo": "the whole line on the embedded default model",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; every expected failure is one line on stderr and a non-zero status."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(_overview())
        raise SystemExit(0 if args else 2)
    if args[0] == "--version":
        from .. import __version__

        print(__version__)
        return
    name = args.pop(0)
    if args and f"{name} {args[0]}" in COMMANDS:
        name += f" {args.pop(0)}"
    if name not in COMMANDS:
        _fail(f"loopwise: unknown command {name!r}; use {', '.join(COMMANDS)}", status=2)
    # The libraries' own warnings and retries are not this command's output; what goes wrong is said in one line.
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")
    # Threads that spin while they wait cost little on an idle machine and everything on a busy one: measured in docs/log.md.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    command = importlib.import_module(f".{name.replace(' ', '_').replace('-', '_')}", __name__).Command
    try:
        _parse(command, name, args).run()
    except KeyboardInterrupt:
        _fail(f"loopwise {name}: interrupted; what was written stays", status=130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ValueError, OSError, ImportError, MemoryError) as error:
        # Every room's own errors are ValueErrors; the others are files, missing extras and machines that are too small.
        if os.environ.get("LOOPWISE_TRACEBACK"):
            raise
        _fail(f"loopwise {name}: {one_line(error)}", status=1)
    except RuntimeError as error:  # torch's word for a shape, a device or a memory that does not fit
        if os.environ.get("LOOPWISE_TRACEBACK"):
            raise
        _fail(f"loopwise {name}: {one_line(error)[:300]} (LOOPWISE_TRACEBACK=1 shows where)", status=1)


def _parse(command: type[Any], name: str, args: list[str]) -> Any:
    """The options as a value; tyro's boxed message becomes one line."""
    import tyro

    file, args = _take_config(name, args)
    if file is not None:
        args = _saved_args(command, name, file, args) + args
    boxed = io.StringIO()
    try:
        with contextlib.redirect_stderr(boxed):
            return tyro.cli(
                command,
                prog=f"loopwise {name}",
                args=args,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        _fail(f"loopwise {name}: {_unboxed(boxed.getvalue())}; see loopwise {name} --help", status=2)


def _take_config(name: str, args: list[str]) -> tuple[Path | None, list[str]]:
    """The file that ``--config`` names, and the other arguments."""
    for at, arg in enumerate(args):
        if arg.startswith("--config="):
            return Path(arg.partition("=")[2]), args[:at] + args[at + 1 :]
        if arg == "--config":
            if at + 1 == len(args):
                _fail(f"loopwise {name}: --config needs a file, e.g. the config.json that a run saves", status=2)
            return Path(args[at + 1]), args[:at] + args[at + 2 :]
    return None, args


_POSITIONAL = {"place validate": "study", "pretrain": "name", "learn": "recipe"}
"""The option that a command takes without its name, where it is not ``model``."""


def _saved_args(command: type[Any], name: str, file: Path, given: list[str]) -> list[str]:
    """A saved configuration as the arguments it came from, less those that are given anew; so it is checked as they are."""
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        found, config = saved["command"], dict(saved["config"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        _fail(f"loopwise {name}: --config {file} cannot be read ({type(error).__name__}: {one_line(error)})", status=2)
    if found != name:
        _fail(f"loopwise {name}: {file} was saved by loopwise {found}", status=2)
    model = config.pop(_POSITIONAL.get(found, "model"), None)
    models = model if isinstance(model, list) else [] if model is None else [model]
    args = [] if given and not given[0].startswith("-") else [*map(str, models)]
    named = {arg.partition("=")[0].replace("_", "-") for arg in given}
    on = {field.name for field in fields(command) if field.default is True}
    for key, value in config.items():
        if key in on:  # such a flag can only be turned off
            key, value = f"no_{key}", value is False
        flag = f"--{key.replace('_', '-')}"
        if flag in named or value in (None, False) or value == []:
            continue
        if key == "allow_code_execution":  # a permission is given by whoever runs, never by a file
            continue
        args += [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
    return args


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "usage: loopwise COMMAND [options]\n\nDoes a loop pay?\n\n"
        f"{lines}\n\n"
        "loopwise COMMAND --help has the options and an example. Start with: loopwise demo"
    )


def _unboxed(text: str) -> str:
    """A boxed message of several lines as one line: without its title, up to its ruler; without a terminal the box is of dashes."""
    words: list[str] = []
    title_is_a_line = "╭" not in text
    for line in text.splitlines():
        line = line.strip("│╭╮╰╯ ")
        if line[:3] in ("───", "---"):
            if title_is_a_line:
                words, title_is_a_line = [], False
            elif words:
                break
        elif line and not line.endswith("───"):
            words.append(line)
    return " ".join(words) or "the arguments cannot be read"


def _fail(message: str, *, status: int) -> NoReturn:
    if status == 2 and is_silent():  # every process of torchrun gets the same arguments
        end_silently()
    print(message, file=sys.stderr)
    raise SystemExit(status)


__all__ = ["COMMANDS", "UsageError", "main"]
