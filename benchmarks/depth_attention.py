"""What depth attention costs beside a plain residual stream: training steps at ARLoop's 140M shape, interleaved, with the bytes moved.

For every backend, window and full history, one training step (forward and backward of the decoder, no head and no optimiser) over
that of PreNormLoop. The sides of a ratio run one after the other in every repeat, so that a slow spell of the machine falls on
all; given are the median ratio of throughputs (above 1 is faster than PreNorm) and its quartiles. Beside it stand the bytes that a step
moves, the bytes that it keeps for the backward pass, and the ratio that the extra bytes alone would give at the memory bandwidth
measured on the spot: what a ratio misses beyond that is not bytes.

    python benchmarks/depth_attention.py --threads 2 --compile
    python benchmarks/depth_attention.py --layers 2 --loops 2 --tokens 64 --repeats 2   # does the script work?

Eager bytes are the inputs and outputs of every operation that is no view; compiled ones those of every kernel that the compiler
made, as it counts them. Both count a tensor once per operation, wherever it lies: caches make the true number smaller. Kept bytes are
those of an eager step; on CPUs torch's eager RMSNorm keeps one tensor more than it needs, so that depth attention, which has its own,
can keep less than PreNorm here.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._inductor import compile_fx, metrics
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loopwise.nets.configuration import Architecture
from loopwise.nets.model import LoopedTransformer

BACKENDS = ("reference", "fused", "two_phase")
WINDOW_BLOCKS = 3
GOALS = {"sw": 0.95, "full": 0.92}
"""Throughput relative to PreNorm in single precision."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Row:
    """One design beside PreNorm."""

    name: str
    seconds: float
    """Median time of a step."""
    ratio: float
    """Median over repeats of PreNorm's time over this design's."""
    quartiles: tuple[float, float]
    moved_bytes: int | None
    """By one step; None where the compiler did not count."""
    kept_bytes: int
    """For the backward pass, each storage once, parameters left out."""
    ratio_by_bytes: float | None
    """The ratio if nothing but the extra bytes took time."""


class CountBytes(TorchDispatchMode):
    """Adds up what operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten.detach.default:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            self.total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def steps(options: argparse.Namespace) -> tuple[dict[str, Callable[[], None]], dict[str, int], dict[str, int | None]]:
    """A step of every design, what each keeps and what each moves; compiled ones are compiled here."""
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
    for name, window in (("sw", WINDOW_BLOCKS), ("full", None)):
        for backend in options.backends:
            kinds[f"{name} {backend}"] = replace(plain, design="arloop", window_blocks=window, depth_backend=backend)
    tokens = torch.randint(plain.vocab_size, (options.batch, options.tokens), device=options.device)
    made, kept, moved = {}, {}, {}
    for name, arch in kinds.items():
        made[name], kept[name], moved[name] = make(name, arch, tokens, options)
    return made, kept, moved


def make(name: str, arch: Architecture, tokens: Tensor, options: argparse.Namespace) -> tuple[Callable[[], None], int, int | None]:
    """The step of one design, the bytes it keeps and the bytes it moves."""
    print(f"preparing {name} ...", file=sys.stderr, flush=True)
    torch.manual_seed(0)
    decoder = LoopedTransformer.from_architecture(arch).model.to(options.device, DTYPES[options.dtype]).train()
    for parameter_name, parameter in decoder.named_parameters():
        if parameter_name.endswith("queries"):
            torch.nn.init.normal_(parameter, std=0.02)  # as if trained: with zero queries the sources weigh the same
    run = torch.compile(decoder, fullgraph=True) if options.compile else decoder

    def step() -> None:
        decoder.zero_grad(set_to_none=True)
        output = run(input_ids=tokens, use_cache=False).last_hidden_state
        output.backward(torch.ones_like(output))

    kept = kept_bytes(lambda: decoder(input_ids=tokens, use_cache=False).last_hidden_state, decoder)
    if not options.compile:
        with CountBytes() as count:
            step()
        return step, kept, count.total
    let_the_compiler_count()
    metrics.reset()
    step()
    return step, kept, metrics.num_bytes_accessed or None


def let_the_compiler_count() -> None:
    """It counts bytes for its log only, and not for graphs from its cache."""
    torch._inductor.config.force_disable_caches = True
    log = compile_fx.inductor_metrics_log
    log.setLevel(logging.INFO)
    log.handlers, log.propagate = [logging.NullHandler()], False


def kept_bytes(forward: Callable[[], Tensor], decoder: torch.nn.Module) -> int:
    """What an eager forward pass keeps for the backward pass."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in parameters)


def bandwidth(device: str) -> float:
    """Bytes a second of adding two tensors that no cache holds."""
    left, right = (torch.ones(64 * 2**20, device=device) for _ in range(2))
    out = torch.empty_like(left)
    seconds = [timed(lambda: torch.add(left, right, out=out), device) for _ in range(4)]
    return 3 * left.numel() * left.element_size() / min(seconds)


def timed(step: Callable[[], object], device: str) -> float:
    """The seconds of one step."""
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(options: argparse.Namespace) -> list[Row]:
    """All rows, PreNorm first."""
    speed = bandwidth(options.device)
    print(f"memory bandwidth {speed / 1e9:.1f} GB/s", file=sys.stderr)
    made, kept, moved = steps(options)
    for step in made.values():
        timed(step, options.device)
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.repeats):
        for name, step in made.items():
            gc.collect()
            times[name].append(timed(step, options.device))
    rows, base_bytes = [], moved["prenorm"]
    base = statistics.median(times["prenorm"])
    for name, seconds in times.items():
        ratios = sorted(plain / own for plain, own in zip(times["prenorm"], seconds, strict=True))
        own_bytes = moved[name]
        by_bytes = None if own_bytes is None or base_bytes is None else base / (base + (own_bytes - base_bytes) / speed)
        spread = quartiles(ratios)
        rows.append(Row(name, statistics.median(seconds), statistics.median(ratios), spread, own_bytes, kept[name], by_bytes))
    return rows


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of a single value that value."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def show(rows: Sequence[Row]) -> None:
    """The table."""
    print(f"{'design':18} {'s/step':>8} {'x PreNorm':>10} {'quartiles':>14} {'goal':>5} {'moved GB':>9} {'by bytes':>9} {'kept x':>7}")
    for row in rows:
        goal = GOALS.get(row.name.split()[0])
        moved = "-" if row.moved_bytes is None else f"{row.moved_bytes / 1e9:.2f}"
        by_bytes = "-" if row.ratio_by_bytes is None else f"{row.ratio_by_bytes:.3f}"
        spread = f"{row.quartiles[0]:.3f}-{row.quartiles[1]:.3f}"
        kept = row.kept_bytes / rows[0].kept_bytes
        print(
            f"{row.name:18} {row.seconds:8.3f} {row.ratio:10.3f} {spread:>14} {goal or '':>5} {moved:>9} {by_bytes:>9} {kept:7.3f}",
            flush=True,
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of parameters and activations")
    parser.add_argument("--compile", action="store_true", help="torch.compile(fullgraph=True) of the decoder; minutes for each design")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    rows = measure(options)
    if options.json:
        for row in rows:
            print(json.dumps(asdict(row)))
    else:
        show(rows)


if __name__ == "__main__":
    main()
