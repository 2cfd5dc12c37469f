"""Engines side by side on the same GSM8K prompts: how many tokens a second, and how much a loop slows each of them down.

Two figures an engine, from interleaved runs (one repeat runs every engine once, in an order that is turned round each time):

- answers: greedy answers that end by themselves, at unequal lengths, up to the budget; tokens per second, plain model, and its
  ratio to Hugging Face's ``generate`` in batches of the same size. Target: the own engine at 1.5 or more.
- slowdown: every row writes the same number of tokens; time looped over time plain. Target: at most 1.05 times the layer-pass ratio.

Engines: own eager with slot refill, own compiled (static shapes, torch.compile), Hugging Face ``generate``, Hugging Face continuous
batching, vLLM in an environment of its own. One that cannot run here is named with its reason. Run it on a machine that does nothing
else:

    python benchmarks/engines.py --data gsm8k/test.jsonl                   # SmolLM2-135M-Instruct
    python benchmarks/engines.py --random --prompts 6 --repeats 1 --budget 6 --tokens 4   # a small random model: does the script work?
    python benchmarks/engines.py --data gsm8k/test.jsonl --vllm-python .venv-vllm/bin/python
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from decode_speed import make_prompts, no_end_of_text, random_model, without_end
from loopwise.cost import cost_of, read_shape
from loopwise.decoding import generate, plan_batches, read_chat
from loopwise.loops import Loop, call_sites, format_loops, parse_loops
from loopwise.models import insert, load, remove, resolve
from vllm_worker import WorkerError, ask, end, start

ANSWERS_TARGET = 1.5
"""The own engine's tokens per second over those of Hugging Face's ``generate``, at least."""
SLOWDOWN_TARGET = 1.05
"""Looped over plain time, at most this many times the layer-pass ratio."""
FIGURES = ("answers", "slowdown")
HUGGING_FACE = "Hugging Face generate"
PAGE_TOKENS = 32
"""Of continuous batching's cache, as vLLM's blocks are of 16 to 128. A guess."""
Prompts = Sequence[tuple[int, ...]]
Lengths = list[int]
"""Tokens that each prompt's answer had."""


class Unavailable(RuntimeError):
    """An engine that cannot run here, with the reason."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every engine is given."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    folder: Path | None
    """Where the weights lie; None for a model in memory only."""
    loops: tuple[Loop, ...]
    batch_size: int
    vllm_python: str | None
    positions: int
    """Tokens of the longest row, prompt and answer."""


Engine = Callable[[Setting, Prompts, int, bool, bool], Lengths]
"""From setting, prompts, tokens at most, looped or not, and whether answers end by themselves."""


def own(setting: Setting, prompts: Prompts, num_tokens: int, looped: bool, ending: bool, engine: Any = "eager") -> Lengths:
    tokenizer = setting.tokenizer if ending else without_end(setting.tokenizer)

    def run() -> Lengths:
        done = generate(setting.model, tokenizer, prompts, budget_tokens=num_tokens, batch_size=setting.batch_size, engine=engine)
        return [completion.generated_tokens for completion in done]

    insert(setting.model, setting.loops if looped else ())
    try:
        if ending:
            return run()
        with no_end_of_text(setting.model):
            return run()
    finally:
        remove(setting.model)


def own_compiled(setting: Setting, prompts: Prompts, num_tokens: int, looped: bool, ending: bool) -> Lengths:
    return own(setting, prompts, num_tokens, looped, ending, "compiled")


def hugging_face(setting: Setting, prompts: Prompts, num_tokens: int, looped: bool, ending: bool) -> Lengths:
    chat = read_chat(setting.model, setting.tokenizer)
    ends = sorted(chat.end_ids) if ending else None
    lengths = [0] * len(prompts)
    insert(setting.model, setting.loops if looped else ())
    try:
        for members in plan_batches([len(prompt) for prompt in prompts], setting.batch_size):
            width = max(len(prompts[index]) for index in members)
            ids = [[chat.pad_id] * (width - len(prompts[index])) + list(prompts[index]) for index in members]
            mask = [[0] * (width - len(prompts[index])) + [1] * len(prompts[index]) for index in members]
            with torch.inference_mode(), no_end_of_text(setting.model):
                write: Any = setting.model.generate
                out: torch.Tensor = write(
                    torch.tensor(ids, device=setting.model.device),
                    attention_mask=torch.tensor(mask, device=setting.model.device),
                    max_new_tokens=num_tokens,
                    do_sample=False,
                    eos_token_id=ends,
                    pad_token_id=chat.pad_id,
                )
            for index, row in zip(members, out[:, width:].tolist(), strict=True):
                lengths[index] = next((n for n, token in enumerate(row, 1) if token in (ends or ())), len(row))
    finally:
        remove(setting.model)
    return lengths


def continuous_batching(setting: Setting, prompts: Prompts, num_tokens: int, looped: bool, ending: bool) -> Lengths:
    """Its cache is paged by layer, so the loop is run physically unrolled, on the same weights."""
    model = setting.model
    if not hasattr(model, "generate_batch"):
        raise Unavailable("this transformers has no continuous batching")
    if looped and any(loop.operator != "repeat" or loop.part != "layer" for loop in setting.loops):
        raise Unavailable("its cache has one slot a layer: only loops that repeat whole layers can be unrolled for it")
    model = unrolled(model, setting.loops if looped else ())  # a copy of the modules, whose attention it changes
    chat = read_chat(model, setting.tokenizer)
    config = GenerationConfig(
        max_new_tokens=num_tokens, do_sample=False, eos_token_id=sorted(chat.end_ids) if ending else -1, pad_token_id=chat.pad_id
    )
    write: Any = model.generate_batch
    try:
        paging = paging_config(setting)
        with torch.inference_mode():
            done = write([list(prompt) for prompt in prompts], generation_config=config, continuous_batching_config=paging, warmup=False)
    except (RuntimeError, ValueError, TypeError, ImportError, NotImplementedError, AttributeError, AssertionError) as error:
        raise Unavailable(" ".join(str(error).split())[:200] or type(error).__name__) from None
    lengths = [len(output.generated_tokens) for output in done.values() if output.error is None]
    if len(lengths) < len(prompts):
        raise Unavailable(f"{len(prompts) - len(lengths)} of {len(prompts)} requests failed here")
    return lengths


def paging_config(setting: Setting) -> Any:
    """Room for one batch's rows: left to itself it takes nine tenths of the memory, and zeroes them at every call."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    pages = setting.batch_size * (2 + setting.positions // PAGE_TOKENS)
    return ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=pages, max_batch_tokens=max(512, setting.positions), max_requests_per_batch=setting.batch_size
    )


def cache_bytes(setting: Setting) -> int:
    """Room in vLLM for twice one batch's rows with the loops: its blocks are of up to 128 tokens, and a row's last one is half empty."""
    cost = cost_of(
        read_shape(setting.model.config.to_dict()), setting.loops, kv_dtype_bytes=next(setting.model.parameters()).dtype.itemsize
    )
    return 2 * setting.batch_size * setting.positions * cost.kv_bytes_per_token


def unrolled(model: PreTrainedModel, loops: Sequence[Loop]) -> PreTrainedModel:
    """A deeper model on the same tensors, whose layers are the call sites."""
    order = [site.layer for site in call_sites(loops, model.config.num_hidden_layers)]
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    deeper: Any = copy.deepcopy(model, dict(shared))
    layers = [copy.deepcopy(deeper.model.layers[layer], dict(shared)) for layer in order]
    for place, layer in enumerate(layers):
        layer.self_attn.layer_idx = place
    deeper.model.layers = nn.ModuleList(layers)
    deeper.config.num_hidden_layers = len(order)
    if getattr(deeper.config, "layer_types", None):
        deeper.config.layer_types = [deeper.config.layer_types[layer] for layer in order]
    unrolled_model: PreTrainedModel = deeper
    return unrolled_model


_workers: dict[bool, subprocess.Popen[str]] = {}


def vllm(setting: Setting, prompts: Prompts, num_tokens: int, looped: bool, ending: bool) -> Lengths:
    """In a process of its own for each arm; a loop is served by this package's plugin, from a folder with a sidecar."""
    if setting.vllm_python is None:
        raise Unavailable("give --vllm-python, an interpreter that has vllm")
    if setting.folder is None:
        raise Unavailable("it reads a model from a folder, and this one is in memory only")
    try:
        if looped not in _workers:
            dtype = str(next(setting.model.parameters()).dtype).removeprefix("torch.")
            head = {"dtype": dtype, "batch_size": setting.batch_size, "positions": setting.positions, "cache_bytes": cache_bytes(setting)}
            _workers[looped] = start(setting.vllm_python, setting.folder, setting.loops if looped else (), head)
        lengths: Lengths = ask(_workers[looped], {"prompts": [list(p) for p in prompts], "num_tokens": num_tokens, "ending": ending})
    except WorkerError as error:
        raise Unavailable(str(error)) from None
    return lengths


ENGINES: dict[str, Engine] = {
    "own eager": own,
    "own compiled": own_compiled,
    HUGGING_FACE: hugging_face,
    "Hugging Face continuous batching": continuous_batching,
    "vLLM": vllm,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over repeats with its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Result:
    """One engine's figures; None where it cannot run, with the reason."""

    engine: str
    tokens_per_second: Figure | None
    over_hugging_face: Figure | None
    slowdown: Figure | None
    slowdown_over_layer_passes: Figure | None
    reasons: tuple[str, ...]


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    setting, prompts = prepare(options)
    ratio = cost_of(read_shape(setting.model.config.to_dict()), setting.loops).layer_pass_ratio
    try:
        results = measure(setting, prompts, options, ratio)
    finally:
        for worker in _workers.values():
            end(worker)
    if options.json:
        head = {"options": vars(options), "loops": format_loops(setting.loops), "layer_pass_ratio": ratio, "torch": torch.__version__}
        print(json.dumps({**head, "results": [asdict(result) for result in results]}, indent=2))
    else:
        print(f"loops {format_loops(setting.loops)}, layer-pass ratio {ratio:.3f}, {len(prompts)} prompts, batch {setting.batch_size}")
        for result in results:
            print(text(result))
    if options.check and (missed := missed_targets(results)):
        sys.exit("; ".join(missed))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a Hugging Face id or folder (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--random", action="store_true", help="a small random model and made-up prompts instead")
    parser.add_argument("--data", type=Path, help="GSM8K's test.jsonl")
    parser.add_argument("--loops", default=None, help="in the notation (default: a fifth of the layers, in the middle, twice)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES), help="what is measured (default: both)")
    parser.add_argument("--vllm-python", help="an interpreter with vllm, e.g. .venv-vllm/bin/python")
    parser.add_argument("--dtype", default="auto", help="auto, bf16, fp16 or fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--prompts", type=int, default=64, help="how many prompts (default: 64)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--budget", type=int, default=256, help="tokens of an answer at most (default: 256)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of every row where the slowdown is taken (default: 48)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a target is missed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.random and options.data is None:
        parser.error("give --data with GSM8K's test.jsonl, or --random")
    for name in ("threads", "prompts", "batch", "budget", "tokens", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give at least 1")
    return options


def prepare(options: argparse.Namespace) -> tuple[Setting, Prompts]:
    """The model and the prompts as tokens."""
    if options.random:
        model, tokenizer = random_model()
        folder, prompts = None, make_prompts(model, tokenizer, options.prompts)
    else:
        model, tokenizer = load(options.model, loops="none", dtype=options.dtype, device=options.device)
        folder = resolve(options.model).folder
        chat = read_chat(model, tokenizer)
        lines = options.data.read_text(encoding="utf-8").splitlines()[: options.prompts]
        prompts = [chat.encode(json.loads(line)["question"]) for line in lines]
    layers = model.config.num_hidden_layers
    fifth = max(1, layers // 5)
    start = (layers - fifth) // 2
    loops = parse_loops(options.loops or f"{start}:{start + fifth} x2", layers)
    positions = max(map(len, prompts)) + max(options.budget, options.tokens)
    return Setting(model, tokenizer, folder, loops, options.batch, options.vllm_python, positions), prompts


def measure(setting: Setting, prompts: Prompts, options: argparse.Namespace, layer_pass_ratio: float) -> list[Result]:
    """Every engine's figures, from repeats that run all engines."""
    speeds: dict[str, list[float]] = {name: [] for name in options.engines}
    slowdowns: dict[str, list[float]] = {name: [] for name in options.engines}
    reasons: dict[str, list[str]] = {name: [] for name in options.engines}
    some = prompts[: setting.batch_size]

    def timed(name: str, asked: Prompts, num_tokens: int, looped: bool, ending: bool) -> tuple[float, Lengths]:
        started = time.perf_counter()
        lengths = ENGINES[name](setting, asked, num_tokens, looped, ending)
        return time.perf_counter() - started, lengths

    for repeat in range(-1, options.repeats):  # the first warms up
        for name in options.engines[:: -1 if repeat % 2 else 1]:
            for what in options.figures:
                if any(reason.startswith(what) for reason in reasons[name]):
                    continue
                try:
                    if what == "answers":
                        seconds, lengths = timed(name, prompts, options.budget, False, True)
                        found, value = speeds, sum(lengths) / seconds
                    else:
                        plain, _ = timed(name, some, options.tokens, False, False)
                        looped, _ = timed(name, some, options.tokens, True, False)
                        found, value = slowdowns, looped / plain
                except Unavailable as error:
                    reasons[name].append(f"{what}: {error}")
                    continue
                if repeat >= 0:
                    found[name].append(value)
        print(f"repeat {repeat + 1} of {options.repeats} done", file=sys.stderr, flush=True)
    base = speeds.get(HUGGING_FACE) or []
    return [
        Result(
            engine=name,
            tokens_per_second=figure(speeds[name]),
            over_hugging_face=figure([a / b for a, b in zip(speeds[name], base, strict=False)]),
            slowdown=figure(slowdowns[name]),
            slowdown_over_layer_passes=figure([one / layer_pass_ratio for one in slowdowns[name]]),
            reasons=tuple(reasons[name]),
        )
        for name in options.engines
    ]


def figure(values: Sequence[float]) -> Figure | None:
    if not values:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return Figure(statistics.median(values), low, high)


def text(result: Result) -> str:
    def shown(value: Figure | None) -> str:
        return "-" if value is None else f"{value.median:.3f} ({value.low:.3f} to {value.high:.3f})"

    line = (
        f"{result.engine}: {shown(result.tokens_per_second)} tokens/s, {shown(result.over_hugging_face)} times {HUGGING_FACE}; "
        f"looped / plain {shown(result.slowdown)}, {shown(result.slowdown_over_layer_passes)} of the layer-pass ratio"
    )
    return "\n".join([line, *(f"  not measured, {reason}" for reason in result.reasons)])


def missed_targets(results: Sequence[Result]) -> list[str]:
    """The targets that were measured and missed, in words."""
    missed = []
    owned = [r.over_hugging_face.median for r in results if r.engine.startswith("own") and r.over_hugging_face is not None]
    if owned and max(owned) < ANSWERS_TARGET:
        missed.append(f"the own engine is {max(owned):.3f} times {HUGGING_FACE}, below {ANSWERS_TARGET}")
    for result in results:
        over = result.slowdown_over_layer_passes
        if over is not None and over.median > SLOWDOWN_TARGET:
            missed.append(f"{result.engine}: the loop slows it down by {over.median:.3f} of the layer-pass ratio, above {SLOWDOWN_TARGET}")
    return missed


if __name__ == "__main__":
    main()
