"""What a training run shows while it runs: a live line on a terminal, a line every 15 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ..training.metrics import StepMetrics
from ..training.reporting import duration

_SECONDS_BETWEEN_LINES = 15.0
_RECENT = 0.9
"""How much of the mean time of a step is remembered from step to step."""


class TrainingLine:
    """Loss, tokens per second, MFU, memory and time left, on stderr; the `Reporter` of the command line."""

    def __init__(self, *, quiet: bool, at_first_step: Callable[[], None]) -> None:
        self.quiet, self.at_first_step = quiet, at_first_step
        self.last = 0.0
        self.step_seconds: float | None = None
        self.live: Any = None
        if sys.stderr.isatty() and not quiet:
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self.live.start()

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.live:
            self.live.console.print(text, markup=False, highlight=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def step(self, metrics: StepMetrics, num_steps: int) -> None:
        """Show a step."""
        if self.step_seconds is None:
            self.at_first_step()
            self.step_seconds = metrics.seconds
        self.step_seconds = _RECENT * self.step_seconds + (1 - _RECENT) * metrics.seconds
        text = self._text(metrics, num_steps, (num_steps - metrics.step) * self.step_seconds)
        if self.live:
            from rich.text import Text

            self.live.update(Text(text))
        elif not self.quiet and (time.monotonic() - self.last >= _SECONDS_BETWEEN_LINES or metrics.step == num_steps):
            self.last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def evaluation(self, step: int, results: dict[str, float]) -> None:
        """Show what an evaluation found; nothing where there was nothing to measure on."""
        if not results:
            return
        found = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in results.items())
        self.note(f"step {step}: {found}")

    def close(self) -> None:
        """Give the terminal back."""
        if self.live:
            self.live.stop()

    def _text(self, metrics: StepMetrics, num_steps: int, seconds_left: float) -> str:
        mfu = "" if metrics.mfu is None else f", MFU {metrics.mfu:.1%}"
        loops = "" if metrics.num_loops is None else f", {metrics.num_loops:.3g} loops"
        return (
            f"step {metrics.step}/{num_steps}: loss {metrics.loss:.4f}{loops}, {metrics.tokens_per_second:,.0f} tokens/s{mfu}, "
            f"{metrics.memory_bytes / 1e9:.2f} GB, {duration(seconds_left)} left"
        )
