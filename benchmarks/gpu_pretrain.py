"""Tokens per second, MFU and peak memory of training ARLoop beside PreNormLoop, in the form of ARLoop's Table 4.

One training step is forward, loss, backward and AdamW, in bf16 autocast with fp32 weights, at R = 4: ``eager``; with attention and MLP of
every layer and depth reads and norms compiled (``blocks``, what ``loopwise train --compile`` does at any depth); or, where asked for,
with the decoder compiled as a whole (``whole``: at one depth, and much longer to compile). The designs of a size take turns in every
repeat, so that a slow spell falls on all; given is the median. Each configuration is tried on its own, and running out of memory is a
result. A line of JSON is written as soon as it is known; what the time budget does not reach is said.

    python benchmarks/gpu_pretrain.py --out results.jsonl --seconds 560
    python benchmarks/gpu_pretrain.py --sizes nano --device cpu --repeats 2   # does the script work?

Tokens are random: they cost what text costs. Peak memory is torch's count of the design's own tensors, those of the others taken off;
on a CPU it is that of the whole process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from loopwise.nets import Depth, LoopedTransformer, named
from loopwise.nets.configuration import DepthBackend
from loopwise.nets.depth_attention_fla import check_fla
from loopwise.training.flops import step_flops
from loopwise.training.losses import summed_loss
from loopwise.training.metrics import peak_flops
from loopwise.training.optimizers import make_optimizers, parameter_groups
from loopwise.training.preparing import COMPILED_KINDS, peak_memory_bytes, prepare
from loopwise.training.settings import Execution, TrainSettings

DESIGNS = ("prenorm", "arloop-full", "arloop-sw")
SHAPES = {"nano": (2, 128), "140m": (8, 2048), "370m": (8, 2048), "0.6b": (4, 4096), "1.2b": (2, 4096)}
"""Sequences of a step and their tokens (ARLoop, Table 4)."""
WARM_UP_STEPS = 3
MODES = ("eager", "blocks", "whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration."""

    size: str
    design: str
    mode: str
    """``eager``, ``blocks`` or ``whole``."""
    batch: int
    sequence_tokens: int
    num_loops: int
    depth_backend: str
    """What computes the depth reads of the ARLoop designs."""
    result: str
    """``measured``, ``out of memory``, ``no time left``, or ``failed: ...``."""
    tokens_per_second: float | None = None
    """The median over repeats."""
    relative: float | None = None
    """Beside PreNorm in the same mode."""
    mfu: float | None = None
    """Model FLOPs (6 per parameter that a token meets, without attention scores) over the device's dense bf16 peak."""
    peak_memory_bytes: int | None = None
    warm_up_seconds: float | None = None
    """The first steps, compiling included."""
    repeats: int = 0


class Trained:
    """A network with its optimizer, and steps of it."""

    def __init__(self, size: str, design: str, options: argparse.Namespace) -> None:
        self.batch, self.tokens = SHAPES[size]
        device = torch.device(options.device)
        self.settings = TrainSettings(num_steps=1, dtype="bf16")
        with device:
            changes = {"depth_backend": options.depth_backend} if design.startswith("arloop") else {}
            self.model = LoopedTransformer.from_architecture(named(f"{design}-{size}", num_loops=options.loops, **changes))
        prepare(self.model, self.settings, Execution(device=device.type), device)
        self.optimizers = make_optimizers(self.model, parameter_groups(self.model, "adamw"), self.settings)
        self.device, self.loops = device, options.loops
        self.ids = torch.randint(self.model.config.vocab_size, (self.batch, self.tokens + 1), device=device)
        for name, parameter in self.model.named_parameters():
            if name.endswith(("queries", "o_proj.weight", "down_proj.weight")):
                torch.nn.init.normal_(parameter, std=0.02)  # as if trained for a while

    def compile(self, mode: str) -> None:
        """Compile what the mode names."""
        if mode == "whole":
            self.model.model.compile(fullgraph=True)
        elif mode == "blocks":
            for layer in self.model.model.layers:
                layer.attention.compile()
                layer.mlp.compile()
            self.model.model.design.compile_reads()

    def step(self) -> float:
        """One step; its seconds."""
        _synchronize(self.device)
        began = time.perf_counter()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = summed_loss(self.model, self.ids[:, :-1], self.ids[:, 1:], num_loops=self.loops)
        (loss / self.ids[:, 1:].numel()).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        _synchronize(self.device)
        return time.perf_counter() - began

    def flops(self) -> float:
        """Of one step."""
        found = step_flops(self.model)
        assert found is not None
        return found.per_token(Depth(num_loops=self.loops)) * self.batch * self.tokens


def measure(size: str, options: argparse.Namespace, ends: float) -> Iterator[Row]:
    """All configurations of a size, each as soon as it is known."""
    made: dict[str, Trained] = {}
    batch, tokens = SHAPES[size]
    for mode in options.modes:
        facts: dict[str, Any] = dict(size=size, mode=mode, batch=batch, sequence_tokens=tokens, num_loops=options.loops)
        facts["depth_backend"] = options.depth_backend
        warm_up: dict[str, float] = {}
        peaks: dict[str, int] = {}
        for design in DESIGNS:
            if time.monotonic() > ends:
                yield Row(design=design, result="no time left", **facts)
                continue
            fault = _try(partial(_warm_up, design, size, mode, made, options, warm_up, peaks))
            if fault:
                made.pop(design, None)
                _free()
                yield Row(design=design, result=fault, **facts)
        seconds: dict[str, list[float]] = {design: [] for design in warm_up}
        for repeat in range(options.repeats):
            for design in list(seconds):
                if time.monotonic() > ends and repeat:  # what was made ready is measured once at least
                    break
                fault = _try(partial(_timed, made[design], seconds[design]))
                if fault:
                    del seconds[design]
                    yield Row(design=design, result=fault, **facts)
        plain = statistics.median(seconds["prenorm"]) if seconds.get("prenorm") else None
        for design, found in seconds.items():
            median = statistics.median(found)
            peak = peak_flops(torch.cuda.get_device_name()) if made[design].device.type == "cuda" else None
            yield Row(
                design=design,
                result="measured",
                tokens_per_second=batch * tokens / median,
                relative=plain / median if plain else None,
                mfu=made[design].flops() / median / peak if peak else None,
                peak_memory_bytes=peaks[design],
                warm_up_seconds=warm_up[design],
                repeats=len(found),
                **facts,
            )


def _warm_up(
    design: str,
    size: str,
    mode: str,
    made: dict[str, Trained],
    options: argparse.Namespace,
    warm_up: dict[str, float],
    peaks: dict[str, int],
) -> None:
    began = time.monotonic()
    if design not in made:
        made[design] = Trained(size, design, options)
    one = made[design]
    one.compile(mode)
    for _ in range(WARM_UP_STEPS):
        one.step()
    seconds = time.monotonic() - began
    before = _allocated(one.device)
    own = sum(p.numel() * p.element_size() * 3 for p in one.model.parameters())  # weights and the two moments of AdamW
    if one.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    one.step()
    peaks[design] = peak_memory_bytes(one.device) - (max(before - own, 0) if one.device.type == "cuda" else 0)
    warm_up[design] = seconds


def _timed(one: Trained, seconds: list[float]) -> None:
    seconds.append(one.step())


def _try(run: Callable[[], None]) -> str | None:
    """What went wrong, if anything did."""
    try:
        run()
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # a configuration that fails must not cost the others
        return f"failed: {' '.join(str(error).split())[:200]}"
    return None


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=["140m", "370m", "0.6b", "1.2b"])
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=560.0, help="no configuration is begun and no step repeated after so long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "blocks"], help="in the order of MODES")
    parser.add_argument("--depth-backend", choices=get_args(DepthBackend), default="fused", help="fla needs pip install 'loopwise[fla]'")
    parser.add_argument("--out", type=Path, help="lines of JSON are appended here as well")
    options = parser.parse_args()
    if options.depth_backend == "fla":
        check_fla(torch.device(options.device))
    ends = time.monotonic() + options.seconds
    options.modes = [mode for mode in MODES if mode in options.modes]  # what is compiled stays so
    if options.modes != ["eager"]:
        from torch._dynamo import config as compiler

        compiler.recompile_limit = COMPILED_KINDS
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"
    for size in options.sizes:
        for row in measure(size, options, ends):
            line = json.dumps({"device": device, "torch": torch.__version__, **asdict(row)})
            print(line, flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
        torch.compiler.reset()  # the next size's shapes are its own
        _free()
    print(f"done with {ends - time.monotonic():.0f} of {options.seconds:.0f} seconds left", file=sys.stderr)


if __name__ == "__main__":
    main()
