"""What depth attention costs beside a plain residual stream: training steps at ARLoop's 140M shape, interleaved, with the bytes moved.

For every backend, window and full history: one training step (forward and backward of the decoder, no head and no optimiser) over that
of PreNormLoop. The sides of a ratio run one after the other in every repeat, so that a slow spell of the machine falls on all; given
are the median ratio of throughputs (above 1 is faster than PreNorm) and its quartiles. Beside it stand the bytes that a step moves,
those that it keeps for the backward pass, and the ratio that the extra bytes alone would give at the memory bandwidth measured on the
spot: what a ratio misses beyond that is not bytes.

    python benchmarks/depth_attention.py --threads 2 --kernels ~/.cache/loopwise-kernels   # 8 minutes; run it twice
    python benchmarks/depth_attention.py --threads 2 --modes whole --minutes 60
    python benchmarks/depth_attention.py --layers 2 --loops 2 --tokens 16 --width 32 --modes eager    # does the script work?

Modes. ``training``: what ``loopwise train --compile`` compiles, which is attention and MLP of every layer, and depth reads and norms.
``eager``: nothing compiled. ``blocks``: attention and MLP only. ``whole``: the decoder as one graph. ``reads`` and ``reads-eager``: the
residual stream alone, its reads compiled and as they are; attention and MLP hand on what they are given. Its times are the stream's,
and its ratio is that of a step in which attention and MLP take as long as in the first mode measured with them: PreNorm's step there
over itself plus what the stream takes more than PreNorm's; where no such mode is measured, it is the ratio of the streams. So a stream
in bf16 is compared on a machine without fast products in bf16.

A dtype whose products are too slow for the time is left out where attention and MLP run. What else the time does not reach is left out
from the end, then repeats; all of it is said. On CPUs torch's eager RMSNorm keeps one tensor more than it needs, so that depth
attention, which has its own, can keep less than PreNorm.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

from bytes_moved import CountBytes, Kept, bandwidth, counting_compiler, let_the_compiler_count, matrix_speed, timed
from loopwise.nets.configuration import Architecture
from loopwise.nets.model import LoopedDecoder, LoopedTransformer
from loopwise.training.preparing import COMPILED_KINDS

BACKENDS = ("fused", "reference", "two_phase")
MODES = ("training", "reads", "reads-eager", "eager", "blocks", "whole")
NOT_COMPILED = ("eager", "reads-eager")
WINDOW_BLOCKS = 3
GOALS = {"sw": 0.95, "full": 0.92}
"""Throughput relative to PreNorm in single precision."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PREPARING = 0.7
"""The share of the time that preparing may take; designs that come later are left out."""
SLOWEST_STEP = 0.02
"""The share of the time that a step may take by the speed of products; slower dtypes are measured without attention and MLP only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One design beside PreNorm."""

    dtype: str
    mode: str
    name: str
    seconds: float
    """Median time of a step."""
    ratio: float
    """Median over repeats of PreNorm's time over this design's; without attention and MLP, with their time added to both."""
    quartiles: tuple[float, float]
    repeats: int
    moved_bytes: int
    """By one step."""
    kept_bytes: int
    """For the backward pass, each storage once, parameters left out."""
    kept_ratio: float
    """Beside PreNorm."""
    ratio_by_bytes: float
    """The ratio if nothing but the extra bytes took time."""
    prepare_seconds: float
    """The first steps, compiling included."""


@dataclass(slots=True, kw_only=True)
class Side:
    """A design that is ready to run."""

    dtype: str
    mode: str
    name: str
    step: Callable[[], None]
    moved_bytes: int
    kept_bytes: int
    prepare_seconds: float
    step_seconds: float
    """Of the step that was counted, for a guess of what a repeat takes."""
    times: list[float] = field(default_factory=list)


def designs(options: argparse.Namespace) -> dict[str, Architecture]:
    """PreNorm, and depth attention with every backend."""
    plain = Architecture(
        vocab_size=1024,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=max(options.width // 128, 1),
        num_key_value_heads=max(options.width // 128, 1),
        head_dim=min(options.width, 128),
        num_loops=options.loops,
        init="scaled",
    )
    kinds = {"prenorm": plain}
    for backend in options.backends:
        for name, window in (("sw", WINDOW_BLOCKS), ("full", None)):
            kinds[f"{name} {backend}"] = replace(plain, design="arloop", window_blocks=window, depth_backend=backend)
    return kinds


def prepare(dtype: str, mode: str, name: str, arch: Architecture, options: argparse.Namespace) -> Side:
    """Make a design, compile it and count its bytes."""
    start = time.perf_counter()
    torch.manual_seed(0)
    tokens = torch.randint(arch.vocab_size, (options.batch, options.tokens), device=options.device)
    decoder = LoopedTransformer.from_architecture(arch).model.to(options.device, DTYPES[dtype]).train()
    for parameter_name, parameter in decoder.named_parameters():
        if parameter_name.endswith("queries"):
            torch.nn.init.normal_(parameter, std=0.02)  # as if trained: with zero queries the sources weigh the same
    run = in_mode(decoder, mode)

    def step() -> None:
        output = run(input_ids=tokens, use_cache=False).last_hidden_state
        output.backward(torch.ones_like(output))
        decoder.zero_grad(set_to_none=True)  # all designs are held at once

    compiles = mode not in NOT_COMPILED
    if compiles:
        step()
    kept, count = Kept(decoder), CountBytes()
    counted_from = time.perf_counter()
    with count, torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        step()
    seconds = time.perf_counter() - counted_from
    assert (count.in_graphs > 0) is compiles, "the step that was counted ran otherwise than those that are timed"
    sizes = {"moved_bytes": count.total, "kept_bytes": kept.num_bytes(), "prepare_seconds": time.perf_counter() - start}
    return Side(dtype=dtype, mode=mode, name=name, step=step, step_seconds=seconds, **sizes)  # type: ignore[arg-type]


class HandOn(nn.Module):
    """Stands for attention, which gives its values beside its output, or for an MLP."""

    def __init__(self, *, attention: bool) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, *_: Any) -> Any:
        """The input itself."""
        return (x, x) if self.attention else x


def in_mode(decoder: LoopedDecoder, mode: str) -> Callable[..., Any]:
    """The decoder, compiled as the mode says."""
    if mode.startswith("reads"):
        for layer in decoder.layers:
            layer.attention, layer.mlp = HandOn(attention=True), HandOn(attention=False)
    if mode in NOT_COMPILED:
        return decoder
    if mode == "whole":
        whole: Callable[..., Any] = torch.compile(decoder, fullgraph=True, backend=counting_compiler)
        return whole
    for branch in [branch for layer in decoder.layers for branch in layer.children() if mode != "reads"]:
        branch.compile(backend=counting_compiler)
    if mode in ("training", "reads"):
        decoder.design.compile_reads(backend=counting_compiler)
    return decoder


def say(text: str) -> None:
    """A line beside the table."""
    print(text, file=sys.stderr, flush=True)


def wanted(options: argparse.Namespace) -> list[tuple[str, str, str, Architecture]]:
    """What is measured: dtype, mode, design; what compiles longest comes last, as that is what the time leaves out.

    A dtype with slow products is left out where attention and MLP run.
    """
    kinds = designs(options)
    plain = kinds["prenorm"]
    parameters = plain.num_layer_visits * (4 * plain.num_attention_heads * plain.head_dim + 2 * plain.intermediate_size) * options.width
    found = []
    for dtype in options.dtypes:
        speed = matrix_speed(options.device, DTYPES[dtype])
        seconds = 6 * parameters * options.batch * options.tokens / speed
        slow = seconds > SLOWEST_STEP * 60 * options.minutes
        say(f"{dtype}: products at {speed / 1e9:.1f} GFLOP/s, so a step of PreNorm in about {seconds:.3g} s")
        if slow and any(not mode.startswith("reads") for mode in options.modes):
            say(f"{dtype}: too slow with attention and MLP for {options.minutes:g} minutes; the residual stream alone is measured")
        modes = [mode for mode in options.modes if mode.startswith("reads") or not slow]
        found += [(dtype, mode, *kind) for mode in modes for kind in kinds.items()]
    return sorted(found, key=lambda one: one[1] not in NOT_COMPILED and one[2].endswith("two_phase"))


def measure(options: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of one dtype and mode after the other, PreNorm first."""
    start = time.monotonic()
    speed = bandwidth(options.device)
    say(f"memory bandwidth {speed / 1e9:.1f} GB/s")
    sides: list[Side] = []
    plans = wanted(options)
    for dtype, mode, name, arch in plans:
        if time.monotonic() - start > PREPARING * 60 * options.minutes:
            left_out = [" ".join(one[:3]) for one in plans[len(sides) :]]
            say(f"no time to prepare {', '.join(left_out)}; give more --minutes or fewer --modes, or run again with --kernels")
            break
        say(f"{time.monotonic() - start:4.0f} s: preparing {dtype} {mode} {name}")
        sides.append(prepare(dtype, mode, name, arch, options))
    time_steps(sides, start, options)
    groups = [[side for side in sides if (side.dtype, side.mode) == kind] for kind in dict.fromkeys((s.dtype, s.mode) for s in sides)]
    whole_steps = next((group[0].times for group in groups if not group[0].mode.startswith("reads")), None)
    for group in groups:
        yield rows(group, speed, whole_steps if group[0].mode.startswith("reads") else None)


def time_steps(sides: Sequence[Side], start: float, options: argparse.Namespace) -> None:
    """Time one step of every side in turn, as often as there is time."""
    gc.collect()
    gc.freeze()  # what is made once is not looked through before every step
    round_seconds = sum(side.step_seconds for side in sides)
    for repeat in range(options.repeats if sides else 0):
        if repeat and time.monotonic() - start + round_seconds > 60 * options.minutes:
            say(f"{repeat} repeats of {options.repeats} in {options.minutes:g} minutes")
            break
        began = time.monotonic()
        for side in sides:
            gc.collect()
            side.times.append(timed(side.step, options.device))
        round_seconds = time.monotonic() - began
        say(f"{time.monotonic() - start:4.0f} s: repeat {repeat + 1} of at most {options.repeats}")


def rows(group: Sequence[Side], speed: float, whole_steps: Sequence[float] | None) -> list[Row]:
    """Each side of a group beside its first; ``whole_steps`` are the times of PreNorm's steps where the group's are the stream's."""
    plain, made = group[0], []
    whole = whole_steps or plain.times
    for side in group:
        ratios = sorted(step / (step + own - one) for step, one, own in zip(whole, plain.times, side.times, strict=True))
        base = statistics.median(whole)
        made.append(
            Row(
                dtype=side.dtype,
                mode=side.mode,
                name=side.name,
                seconds=statistics.median(side.times),
                ratio=statistics.median(ratios),
                quartiles=quartiles(ratios),
                repeats=len(ratios),
                moved_bytes=side.moved_bytes,
                kept_bytes=side.kept_bytes,
                kept_ratio=side.kept_bytes / plain.kept_bytes,
                ratio_by_bytes=base / (base + (side.moved_bytes - plain.moved_bytes) / speed),
                prepare_seconds=side.prepare_seconds,
            )
        )
    return made


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of a single value that value."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def show(group: Sequence[Row]) -> None:
    """The table of one dtype and mode."""
    print(f"{group[0].dtype}, {group[0].mode}, {group[0].repeats} repeats")
    print(f"{'design':16} {'s/step':>8} {'x PreNorm':>10} {'quartiles':>14} {'goal':>5} {'moved GB':>9} {'by bytes':>9} {'kept x':>7}")
    for row in group:
        goal = GOALS.get(row.name.split()[0], "") if row.dtype == "fp32" else ""
        spread = f"{row.quartiles[0]:.3f}-{row.quartiles[1]:.3f}"
        moved, by_bytes, kept = f"{row.moved_bytes / 1e9:.2f}", f"{row.ratio_by_bytes:.3f}", f"{row.kept_ratio:.3f}"
        print(f"{row.name:16} {row.seconds:8.3f} {row.ratio:10.3f} {spread:>14} {goal:>5} {moved:>9} {by_bytes:>9} {kept:>7}", flush=True)
    print()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=tuple(DTYPES), help="of parameters and activations")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=("training", "reads", "reads-eager"), help="see above")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=7, help="at most")
    parser.add_argument("--minutes", type=float, default=8.0, help="in all; at least one repeat is made of what is prepared")
    parser.add_argument("--kernels", type=Path, help="an own folder in which what is compiled stays for the next run")
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    let_the_compiler_count(options.kernels)
    with torch._dynamo.config.patch(recompile_limit=COMPILED_KINDS):  # type: ignore[attr-defined]  # as training does
        for group in measure(options):
            if options.json:
                for row in group:
                    print(json.dumps(asdict(row)), flush=True)
            else:
                show(group)


if __name__ == "__main__":
    main()
