"""``loopwise analyze exchange-rate``: how many tokens the twin needs for one of the looped model's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .console import UsageError, print_json

if TYPE_CHECKING:
    from ..recipes.exchange_rate import ExchangeRateSettings

_COSTS = {"layers": "layers", "flops": "FLOPs", "time": "time"}


@dataclass(frozen=True)
class Command:
    """The token exchange rate from loss curves, its training-cost lines, and the three thresholds of a loop.

    RUN is a folder of loopwise train with evaluations at several steps, or a CSV or JSONL file of tokens and loss. Several are seeds,
    paired in order.

    Example: loopwise analyze exchange-rate --looped runs/looped-0 runs/looped-1 --twin runs/twin-0 runs/twin-1 --out rate/
    """

    looped: tuple[Path, ...]
    """Runs or files of the looped model."""
    twin: tuple[Path, ...]
    """Runs or files of its identically trained twin."""
    out: Path
    """The folder for result.json, report.md, report.html and the figures."""
    first_pass: tuple[Path, ...] = ()
    """Files with the looped model's loss when it is evaluated with one pass."""
    metric: str = "held_out_loss"
    """Which of the runs' evaluations is the loss."""
    first_pass_metric: str | None = None
    """Which of the looped runs' evaluations is its loss with one pass."""
    layers_ratio: float | None = None
    """Training cost of a looped token in tokens of the twin, counting layers; default: read from the runs."""
    flops_ratio: float | None = None
    """The same counting FLOPs, head included."""
    time_ratio: float | None = None
    """The same in measured training time."""
    equal_compute: Literal["layers", "flops", "time"] | None = None
    """Which cost the twin's tokens are multiplied by for equal training compute; default: the first that is known."""
    interval: Literal["seeds", "documents"] | None = None
    """What intervals are over; default: seeds where there are two, else documents where files list their losses."""
    resamples: int = 2000
    """Bootstrap resamples of the documents."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.exchange_rate import analyze_exchange_rate

        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"--out {self.out}: is a file; give a folder")
        result = analyze_exchange_rate(self._settings(), self.out)
        if self.json:
            print_json(result)
        else:
            print("\n".join(self._lines(result)))

    def _settings(self) -> ExchangeRateSettings:
        from ..recipes.exchange_rate import ExchangeRateSettings
        from ..stats import Bootstrap

        given = {"layers": self.layers_ratio, "flops": self.flops_ratio, "time": self.time_ratio}
        return ExchangeRateSettings(
            looped=self.looped,
            twin=self.twin,
            first_pass=self.first_pass,
            metric=self.metric,
            first_pass_metric=self.first_pass_metric,
            ratios={_COSTS[name]: ratio for name, ratio in given.items() if ratio is not None},
            equal_compute=None if self.equal_compute is None else _COSTS[self.equal_compute],
            interval=self.interval,
            bootstrap=Bootstrap(resamples=self.resamples),
        )

    def _lines(self, result: dict[str, Any]) -> list[str]:
        words = [one["words"] for one in (*result["rate"]["lines"], *result["thresholds"])]
        return [*words, *(f"note: {one}" for one in result["warnings"]), f"report: {self.out / 'report.html'}"]
