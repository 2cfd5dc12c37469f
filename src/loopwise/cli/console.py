"""What commands share on the console: JSON or tables, progress with the time left, saved options."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any


class UsageError(ValueError):
    """Options that do not go together."""


def one_line(error: BaseException) -> str:
    """An error's message in one line, with the file's name where there is one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def print_json(value: Any) -> None:
    """Machine-readable output on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """A plain text table; columns of numbers are right-aligned."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1] in "+-0123456789<≤" for cell in column[1:] if cell) for column in columns]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def save_config(folder: Path, command: str, options: Any) -> None:
    """Keep a command's resolved options beside what it makes, once; ``--config`` reads them back."""
    if (folder / "config.json").exists():
        return
    config = json.loads(json.dumps(asdict(options), default=str))
    del config["json"]  # how one call prints is no setting of what it makes
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": command, "config": config, "hash": digest}, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


_LEAST_SHARE = 0.01
"""Of the work done, from which on the time left is told: less says nothing of the rest."""


class Progress:
    """The share done and the time left, on stderr: a live bar on a terminal, a line every 15 seconds elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.label = ""
        self.started = self.last = self.first = 0.0
        self.bar: Any = None
        self.task: Any = None
        if sys.stderr.isatty() and not quiet:
            from rich import progress
            from rich.console import Console

            columns = ("[progress.description]{task.description}", progress.BarColumn(), progress.TaskProgressColumn())
            times = (progress.TimeElapsedColumn(), "gone,", progress.TimeRemainingColumn(), "left")
            self.bar = progress.Progress(*columns, *times, console=Console(stderr=True))

    def __call__(self, label: str, done: float, total: float) -> None:
        """``done`` of ``total`` units of the step called ``label``."""
        if self.quiet:
            return
        now = time.monotonic()
        if label != self.label:
            # What was done before (by an earlier process, or ahead of another step) took none of the time that counts from here on.
            self.label, self.started, self.last, self.first = label, now, now, done
            if self.bar:
                self.bar.start()
                self.task = self.bar.add_task(label, total=total, completed=done)
        if self.bar:
            self.bar.update(self.task, completed=done, total=total)
        elif now - self.last >= 15.0 or done >= total:
            self.last = now
            elapsed = now - self.started
            own = done - self.first
            known = own > 0 and own >= _LEAST_SHARE * total
            seconds_left = 0.0 if done >= total else elapsed * (total - done) / own if known else None
            left = "time left not known yet" if seconds_left is None else f"{_clock(seconds_left)} left"
            print(f"{label}: {done / total:.0%}, {_clock(elapsed)} gone, {left}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.bar:
            self.bar.console.print(text, markup=False, highlight=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bars as they are and give the terminal back."""
        if self.bar:
            self.bar.stop()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
