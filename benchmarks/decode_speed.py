"""How fast decoding is: looped against unlooped, and against Hugging Face's ``generate``. Ratios from interleaved runs.

Time per token of a looped model over that of the unlooped one, beside its layer-pass ratio, at each batch size; and the
time for a batch of answers of unequal length over that of ``model.generate``. The two sides of a ratio run one after the
other in every repeat, so that a slow spell of the machine falls on both; the median of the repeats is given with its
quartiles. Run it on a machine that does nothing else:

    python benchmarks/decode_speed.py                      # SmolLM2-135M-Instruct, all ratios
    python benchmarks/decode_speed.py --random --repeats 3 # a small random model: does the script work?
    python benchmarks/decode_speed.py --check              # exit status 1 if a ratio misses its target
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from loopwise.cost import cost_of, read_shape
from loopwise.decoding import generate, read_chat
from loopwise.loops import format_loops, parse_loops
from loopwise.models import insert, load, remove

LOOPED_TARGET = 1.03
"""Looped over unlooped time per token, at most this many times the layer-pass ratio."""
HUGGING_FACE_TARGET = 1.0
"""Our time over Hugging Face's, at most."""
NEVER = "<|never|>"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times, with the spread of its repeats."""

    what: str
    batch_size: int
    median: float
    quartiles: tuple[float, float]
    target: float
    seconds: tuple[float, float]
    """Median times of the two sides: a decode step, or a whole batch."""
    layer_pass_ratio: float | None = None

    @property
    def ok(self) -> bool:
        return self.median <= self.target


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    model, tokenizer = random_model() if options.random else load(options.model, loops="none", dtype=options.dtype, device=options.device)
    prompts = make_prompts(model, tokenizer, max(options.batch))
    ratios = []
    for batch_size in options.batch:
        for loops in options.loops or default_loops(model.config.num_hidden_layers):
            ratios.append(looped_ratio(model, tokenizer, prompts[:batch_size], loops, options))
            show(ratios[-1], options.json)
    if not options.skip_hugging_face:
        for fixed_rows in (False, True):
            ratios.append(hugging_face_ratio(model, tokenizer, prompts, fixed_rows, options))
            show(ratios[-1], options.json)
    if options.json:
        print(json.dumps({"options": vars(options), "ratios": [asdict(ratio) | {"ok": ratio.ok} for ratio in ratios]}, indent=2))
    if options.check and not all(ratio.ok for ratio in ratios):
        sys.exit("a ratio missed its target")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a Hugging Face id or folder (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--random", action="store_true", help="a small random model instead")
    parser.add_argument("--dtype", default="bf16", help="auto, bf16, fp16 or fp32 (default: bf16)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="batch sizes (default: 1 16)")
    parser.add_argument(
        "--loops", nargs="+", help="loops in the notation (default: two spans up to a layer-pass ratio of 1.25, and one damped)"
    )
    parser.add_argument("--tokens", type=int, default=24, help="decode steps a run (default: 24)")
    parser.add_argument("--budget", type=int, default=96, help="token budget against Hugging Face (default: 96)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine, with --threads 1")
    parser.add_argument("--skip-hugging-face", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a ratio misses its target")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def default_loops(num_layers: int) -> list[str]:
    """A short and a long span in the middle: half of, and as much as, a quarter of the layers again."""
    quarter = num_layers // 4
    start = (num_layers - quarter) // 2
    long = f"{start}:{start + quarter} x2"
    return [f"{start}:{start + max(quarter // 2, 1)} x2", long, f"{long} damped beta=0.5"]


def looped_ratio(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[tuple[int, ...]], loops: str, options: argparse.Namespace
) -> Ratio:
    """Time of a decode step with the loop over that without it. No row ends before the last step."""
    parsed = parse_loops(loops, model.config.num_hidden_layers)
    layer_pass_ratio = cost_of(read_shape(model.config.to_dict()), parsed).layer_pass_ratio
    endless = without_end(tokenizer)
    clock = CLOCKS[options.clock]

    def step_seconds() -> float:
        times = [clock()]
        with no_end_of_text(model):
            generate(
                model,
                endless,
                prompts,
                budget_tokens=options.tokens,
                batch_size=len(prompts),
                progress=lambda _: times.append(clock()),
            )
        return statistics.median(after - before for before, after in itertools.pairwise(times[1:]))  # the first step is the prompts'

    def looped() -> float:
        insert(model, parsed)
        try:
            return step_seconds()
        finally:
            remove(model)

    median, quartiles, seconds = interleaved(looped, step_seconds, options.repeats)
    return Ratio(
        f"{format_loops(parsed)} / unlooped", len(prompts), median, quartiles, LOOPED_TARGET * layer_pass_ratio, seconds, layer_pass_ratio
    )


def hugging_face_ratio(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[int, ...]],
    fixed_rows: bool,
    options: argparse.Namespace,
) -> Ratio:
    """Time of a batch of greedy answers that end by themselves over that of Hugging Face's ``generate``."""
    chat = read_chat(model, tokenizer)
    width = max(map(len, prompts))
    ids = torch.tensor([[chat.pad_id] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)

    clock = CLOCKS[options.clock]

    def ours() -> float:
        started = clock()
        generate(model, tokenizer, prompts, budget_tokens=options.budget, batch_size=len(prompts), fixed_rows=fixed_rows)
        return clock() - started

    def theirs() -> float:
        started = clock()
        ends = sorted(chat.end_ids)
        out: torch.Tensor = model.generate(  # type: ignore[operator]
            ids, attention_mask=mask, max_new_tokens=options.budget, do_sample=False, eos_token_id=ends, pad_token_id=chat.pad_id
        )
        out[:, width:].tolist()
        return clock() - started

    median, quartiles, seconds = interleaved(ours, theirs, options.repeats)
    rows = "fixed rows" if fixed_rows else "rows leaving"
    return Ratio(f"ours ({rows}) / Hugging Face generate", len(prompts), median, quartiles, HUGGING_FACE_TARGET, seconds)


def interleaved(
    one: Callable[[], float], other: Callable[[], float], repeats: int
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Median and quartiles of ``one() / other()`` over repeats, each side first in turn, and the median of each side."""
    one(), other()  # warm up
    pairs = []
    for repeat in range(repeats):
        if repeat % 2:
            second, first = other(), one()
        else:
            first, second = one(), other()
        pairs.append((first, second))
    ratios = sorted(first / second for first, second in pairs)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if repeats > 1 else ratios * 3
    return statistics.median(ratios), (low, high), (statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs))


def without_end(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy whose only end of text is a token that no model can say."""
    endless = copy.deepcopy(tokenizer)
    endless.add_special_tokens({"eos_token": NEVER})
    endless.chat_template = None
    return endless


@contextmanager
def no_end_of_text(model: PreTrainedModel) -> Iterator[None]:
    """The model names no end of text meanwhile."""
    configs: tuple[Any, ...] = (model.config, model.generation_config)
    ends = [config.eos_token_id for config in configs]
    try:
        for config in configs:
            config.eos_token_id = None
        yield
    finally:
        for config, end in zip(configs, ends, strict=True):
            config.eos_token_id = end


def make_prompts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, number: int) -> list[tuple[int, ...]]:
    """Questions of unequal length, as tokens."""
    names = ("Tom", "Anna", "the baker", "a farmer", "Mrs. Miller", "the old captain", "my neighbour", "Li")
    things = ("apples", "marbles", "books", "letters", "wooden boats", "tickets")
    chat = read_chat(model, tokenizer)
    prompts = []
    for index in range(number):
        story = " ".join(
            f"Then {names[(index + day) % len(names)]} brings {3 + 2 * day + index % 5} more {things[(index + day) % len(things)]}."
            for day in range(index % 6)
        )
        first = f"There are {index + 4} {things[index % len(things)]} on the table."
        prompts.append(chat.encode(f"{first} {story} How many things are on the table now?"))
    return prompts


def random_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Twelve layers of width 128 that know a thousand words."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=128, intermediate_size=384, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2
    )
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(1000)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w0")  # type: ignore[no-untyped-call]
    return LlamaForCausalLM(config).eval(), tokenizer  # type: ignore[no-untyped-call]


def show(ratio: Ratio, as_json: bool) -> None:
    """One line as soon as it is known; to stderr where stdout is for JSON."""
    passes = "" if ratio.layer_pass_ratio is None else f", layer-pass ratio {ratio.layer_pass_ratio:.3f}"
    print(
        f"batch {ratio.batch_size:>2}  {ratio.what}: {ratio.median:.3f} ({ratio.quartiles[0]:.3f} to {ratio.quartiles[1]:.3f}), "
        f"target at most {ratio.target:.3f}{passes}; {ratio.seconds[0] * 1e3:.1f} and {ratio.seconds[1] * 1e3:.1f} ms"
        f" {'ok' if ratio.ok else 'MISSED'}",
        file=sys.stderr if as_json else sys.stdout,
        flush=True,
    )


if __name__ == "__main__":
    main()
