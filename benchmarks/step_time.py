"""What a step of a looped fine-tune takes beside its twin's, from both runs taking turns, a step each, in one process.

Both are runs of the training engine, forward, loss, backward, clipping and AdamW on all weights, on the same batches. So a slow spell of
the machine falls on both; given are the median ratio of the pairs of steps with its quartiles, and the medians of both sides with
theirs, beside the layer-pass ratio and the ratio of matrix products, which counts the head. The ratio of times is to be at most 1.05
times the layer-pass ratio. Run it on a machine that does nothing else:

    python benchmarks/step_time.py                                   # SmolLM2-135M-Instruct and a nano network: some minutes
    python benchmarks/step_time.py --models smollm2 --loops "10:20 x2" --repeats 15
    python benchmarks/step_time.py --models random --batch 1 --tokens 16 --repeats 2    # does the script work?
    python benchmarks/step_time.py --check                           # exit status 1 if a ratio misses its target

Models are smollm2, folders, ``nets:NAME`` (a network with loops of its own, whose twin runs them once) and ``random``, a small Llama.
Tokens are random: they cost what text costs. The first steps of each side are not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from loopwise.cost import cost_of, read_shape
from loopwise.data import TokenBatch
from loopwise.loops import format_loops, parse_loops
from loopwise.models import insert, load, loops_of
from loopwise.nets import PREFIX, LoopedTransformer, named
from loopwise.training import Execution, Silent, StepMetrics, TrainSettings, train

TARGET = 1.05
"""Time of a looped step over the twin's, at most this many times their layer-pass ratio."""
WARM_STEPS = 2
"""Steps of each side that are not counted: they allocate and warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    median_seconds: float
    quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A looped fine-tune beside its twin."""

    model: str
    loops: str
    batch: int
    sequence_tokens: int
    repeats: int
    ratio: float
    """Median over pairs of steps, looped over twin."""
    quartiles: tuple[float, float]
    looped: Side
    twin: Side
    layer_pass_ratio: float
    flops_ratio: float
    """Of matrix products, head included."""
    target: float
    ok: bool


class Turns:
    """Lets runs in threads go on one after the other, a step each; one that has left is not waited for."""

    def __init__(self, count: int) -> None:
        self._changed, self._count = threading.Condition(), count
        self._here, self._now = set(range(count)), 0

    def wait(self, member: int) -> None:
        """Until it is this one's turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._now == member)

    def hand_on(self, member: int) -> None:
        """Let the next one have its turn."""
        with self._changed:
            self._now = min(self._here, key=lambda one: (one - member - 1) % self._count, default=member)
            self._changed.notify_all()

    def leave(self, member: int) -> None:
        """Take no further turn."""
        with self._changed:
            self._here.discard(member)
        self.hand_on(member)


class Times(Silent):
    """Keeps the time of each step of a run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def step(self, metrics: StepMetrics, num_steps: int) -> None:
        """Keep one."""
        self.seconds.append(metrics.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRows:
    """A `BatchSource` of random tokens, every one of them trained on."""

    num_sequences: int
    sequence_tokens: int
    vocab_size: int

    @property
    def identity(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows of a step's batch."""
        rows = np.random.default_rng(step).integers(self.vocab_size, size=(self.num_sequences, self.sequence_tokens + 1))
        return TokenBatch(input_ids=rows[first:stop, :-1], targets=rows[first:stop, 1:])


class _EnoughError(Exception):
    """Ends a run that has made its steps."""


def alternating_steps(
    models: Sequence[PreTrainedModel], source: RandomRows, settings: TrainSettings, folder: Path, device: str
) -> list[list[float]]:
    """Train all models by turns, a step each; the seconds of every step. No weights are written.

    Raises:
        Exception: what a run raised; the others are ended.
    """
    turns, times = Turns(len(models)), [Times() for _ in models]
    last = settings.num_steps - 1  # a run that ended would save its weights
    failures: list[BaseException] = []

    def run(member: int) -> None:
        def after_step(model: PreTrainedModel, step: int) -> dict[str, float]:
            turns.hand_on(member)
            turns.wait(member)
            if step == last or failures:
                raise _EnoughError
            return {}

        turns.wait(member)
        try:
            execution = Execution(device=device, evaluate_every_steps=1, checkpoint_every_steps=settings.num_steps + 1)
            train(models[member], source, settings, folder / str(member), execution=execution, evaluate=after_step, reporter=times[member])
        except _EnoughError:
            pass
        except BaseException as error:  # the other thread must not wait for this one
            failures.append(error)
        finally:
            turns.leave(member)

    threads = [threading.Thread(target=run, args=(member,)) for member in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [one.seconds for one in times]


def make_pair(name: str, options: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A looped model and its twin, with the same first weights."""
    if name.startswith(PREFIX):
        pair = []
        for loops in (options.net_loops, 1):
            torch.manual_seed(0)
            pair.append(LoopedTransformer.from_architecture(named(name, num_loops=loops)))
        return pair[0], pair[1]
    looped, twin = (_random() if name == "random" else load(name, loops="none", dtype="fp32").model for _ in range(2))
    insert(looped, parse_loops(options.loops or default_loops(looped.config.num_hidden_layers), looped.config.num_hidden_layers))
    return looped, twin


def default_loops(num_layers: int) -> str:
    """A quarter of the layers in the middle, twice."""
    width = max(1, num_layers // 4)
    start = (num_layers - width) // 2
    return f"{start}:{start + width} x2"


def _random() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2
    )
    model: PreTrainedModel = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return model


def measure(name: str, options: argparse.Namespace) -> Row:
    """One model and its twin."""
    pair = make_pair(name, options)
    source = RandomRows(num_sequences=options.batch, sequence_tokens=options.tokens, vocab_size=pair[0].config.vocab_size)
    settings = TrainSettings(num_steps=WARM_STEPS + options.repeats + 1, learning_rate=1e-5, dtype=options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        seconds = alternating_steps(pair, source, settings, Path(folder), options.device)
    looped, twin = (one[WARM_STEPS:] for one in seconds)
    ratios = [ours / theirs for ours, theirs in zip(looped, twin, strict=True)]
    costs = [cost_of(read_shape(model.config.to_dict()), loops_of(model)) for model in pair]
    passes = costs[0].layer_pass_ratio / costs[1].layer_pass_ratio
    ratio = statistics.median(ratios)
    return Row(
        model=name,
        loops=format_loops(loops_of(pair[0])),
        batch=options.batch,
        sequence_tokens=options.tokens,
        repeats=len(ratios),
        ratio=ratio,
        quartiles=quartiles(ratios),
        looped=Side(median_seconds=statistics.median(looped), quartiles=quartiles(looped)),
        twin=Side(median_seconds=statistics.median(twin), quartiles=quartiles(twin)),
        layer_pass_ratio=passes,
        flops_ratio=costs[0].flops_per_token / costs[1].flops_per_token,
        target=TARGET * passes,
        ok=ratio <= TARGET * passes,
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of a single value that value."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def show(row: Row) -> None:
    """A model as soon as it is known."""
    print(
        f"{row.model}, {row.loops}, {row.batch} x {row.sequence_tokens} tokens, {row.repeats} steps of each side\n"
        f"  step time, looped / twin: {row.ratio:.3f} ({row.quartiles[0]:.3f} to {row.quartiles[1]:.3f}), at most {row.target:.3f}: "
        f"{'ok' if row.ok else 'MISSED'}\n"
        f"  layer passes {row.layer_pass_ratio:.3f}, matrix products {row.flops_ratio:.3f}; looped {_seconds(row.looped)}, "
        f"twin {_seconds(row.twin)}",
        flush=True,
    )


def _seconds(side: Side) -> str:
    return f"{side.median_seconds:.4g} s ({side.quartiles[0]:.4g} to {side.quartiles[1]:.4g})"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2", "nets:prenorm-nano"])
    parser.add_argument("--loops", help="in the notation, of models without loops of their own (default: the middle quarter, twice)")
    parser.add_argument("--net-loops", type=int, default=2, help="of networks with loops of their own (default: 2)")
    parser.add_argument("--batch", type=int, default=2, help="rows of a step (default: 2)")
    parser.add_argument("--tokens", type=int, default=256, help="inputs of a row (default: 256)")
    parser.add_argument("--repeats", type=int, default=9, help="steps of each side that count (default: 9)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of products (default: fp32)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a ratio misses its target")
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    options = parser.parse_args(arguments)
    if min(options.batch, options.tokens, options.repeats, options.threads, options.net_loops) < 1:
        parser.error("--batch, --tokens, --repeats, --threads and --net-loops are at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.models:
        rows.append(measure(name, options))
        if options.json:
            print(
                json.dumps({"torch": torch.__version__, "threads": options.threads, "dtype": options.dtype} | asdict(rows[-1])), flush=True
            )
        else:
            show(rows[-1])
    if options.check and not all(row.ok for row in rows):
        sys.exit("a ratio missed its target")


if __name__ == "__main__":
    main()
