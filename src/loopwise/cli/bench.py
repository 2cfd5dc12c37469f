"""``loopwise bench``: what a loop costs at serving time, on this device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from .console import Progress, UsageError, print_json, table

if TYPE_CHECKING:
    from ..recipes.bench_values import ArmBench, Bench, BenchSettings, Spread


@dataclass(frozen=True)
class Command:
    """Latency, throughput at the largest batch, memory and what bounds a step, plain beside looped in one interleaved run.

    Example: loopwise bench smollm2 --loops "12:16 x2 damped beta=0.5" --dtype bf16
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder (a loop.json in it counts), or smollm2."""
    loops: str | None = None
    """The loops; default: the folder's own, else none, and then the plain model alone is measured."""
    engine: Literal["eager", "static", "compiled"] = "eager"
    """How steps run: docs/engines.md. compiled uses CUDA graphs on a GPU."""
    context: int = 512
    """Tokens of each row at the last timed step."""
    steps: int = 16
    """Timed decode steps of one repeat."""
    repeats: int = 7
    """Repeats, each of both arms; medians and quartiles are over them."""
    batch_size: int | None = None
    """Rows for the throughput; default: the most that fit, found for each arm."""
    max_batch: int = 1024
    """No search for more rows than these."""
    memory_gb: float | None = None
    """Memory to fill, the model included, in 10^9 bytes; default: nine tenths of what is free."""
    threads: int | None = None
    """CPU threads; default: torch's own number."""
    dtype: str = "auto"
    """auto (the weights' own; fp32 on CPUs without half precision), bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..recipes.bench import bench

        settings = self.settings()
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"--threads {self.threads}: give at least 1")
        from ..models import load

        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        model, _ = load(self.model, loops=self.loops, dtype=self.dtype, device=self.device)
        progress = Progress(quiet=self.json)
        found = bench(model, settings, progress=progress)
        progress.close()
        if self.json:
            print_json({"model": self.model, **found.to_json()})
        else:
            print(_text(self.model, found))

    def settings(self) -> BenchSettings:
        """The options as a measurement takes them."""
        from ..recipes.bench_values import BenchSettings

        return BenchSettings(
            engine=self.engine,
            context_tokens=self.context,
            num_steps=self.steps,
            repeats=self.repeats,
            batch_size=self.batch_size,
            max_batch=self.max_batch,
            memory_bytes=None if self.memory_gb is None else 1e9 * self.memory_gb,
        )


def _text(model: str, found: Bench) -> str:
    settings = found.settings
    lines = [
        f"{model} on {found.device}, {found.dtype}, {found.threads} threads, engine {settings.engine}, context {settings.context_tokens}, "
        f"{settings.repeats} repeats; medians (quartiles)",
        table([_row(arm) for arm in found.arms], _HEADER),
    ]
    looped = found.arms[-1]
    if found.latency_ratio and found.throughput_ratio:
        lines.append(
            f"looped / plain: latency {_times(found.latency_ratio)}, throughput {_times(found.throughput_ratio)}, "
            f"layer passes {looped.layer_pass_ratio:.3f}x, KV {looped.kv_bytes_per_token / max(1, found.arms[0].kv_bytes_per_token):.3f}x"
        )
    for arm in found.arms:
        for rows, bound in ((1, arm.at_batch_1), (arm.batch_size, arm.at_batch)):
            reached = max(bound.bandwidth_seconds, bound.compute_seconds) / bound.seconds
            share = "" if bound.regime == "launch" else f" at {100 * reached:.0f} % of the device's rate"
            lines.append(
                f"{arm.arm}, batch {rows}: {bound.regime}-bound{share}; a step takes {1e3 * bound.seconds:.2f} ms, its bytes need "
                f"{1e3 * bound.bandwidth_seconds:.2f} and its arithmetic {1e3 * bound.compute_seconds:.2f}"
            )
    rates = found.rates
    lines.append(f"the device reaches {rates.bytes_per_second / 1e9:.3g} GB/s and {rates.flops_per_second / 1e12:.3g} TFLOP/s here")
    return "\n".join(lines)


_HEADER = ("arm", "loops", "latency ms", "tokens/s", "batch", "peak GB at batch 1", "KV bytes/token", "KV MB/row")


def _row(arm: ArmBench) -> list[str]:
    return [
        arm.arm,
        arm.loops,
        _figure(arm.latency_seconds, 1e3),
        _figure(arm.tokens_per_second, 1.0),
        f"{arm.batch_size}{' (capped)' if arm.capped else ''}",
        "unknown" if arm.peak_bytes is None else f"{arm.peak_bytes / 1e9:.2f} ({arm.memory})",
        f"{arm.kv_bytes_per_token:,}",
        f"{arm.kv_bytes / 1e6:.2f}",
    ]


def _figure(spread: Spread, unit: float) -> str:
    return f"{unit * spread.median:,.4g} ({unit * spread.low:,.4g} to {unit * spread.high:,.4g})"


def _times(spread: Spread) -> str:
    return f"{spread.median:.3f}x ({spread.low:.3f} to {spread.high:.3f})"
