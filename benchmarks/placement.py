"""How fast candidates are scored: one by one, with exact sharing, and in a race. Seconds per candidate from one run.

Naive is every candidate's own looped forward over the whole text, in batches of eight windows: with the head at all positions,
as anybody would write it, and with the head at the same positions as the others. One candidate of each group is timed that
way after the group was scored with exact sharing, so that a slow spell of the machine falls on both; the race then runs over
the whole grid. The exhaustive scores are the reference for the race: its regret, and what it dropped that it should not have.

    python benchmarks/placement.py                        # SmolLM2-135M, the 182 windows of widths 2-8 at K = 2, one beta
    python benchmarks/placement.py --grid paper           # widths 2-8, passes 2-4, three betas; no race
    python benchmarks/placement.py --random               # a small random model: does the script work?
    python benchmarks/placement.py --check                # exit status 1 if a target is missed
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from loopwise.cost import read_shape
from loopwise.data import TextMixture, Window, balanced_mixture, named_documents, standard_documents
from loopwise.loops import format_loops
from loopwise.models import decoder_layers, load
from loopwise.placement import Candidate, GenericText, Race, Ranks, Scored, Space, TextMeasurer, TextScorer, text_computer
from loopwise.records import StudyWriter, read_losses, read_study
from loopwise.scoring import make_batches
from loopwise.tasks import worked_text

SHARING_TARGET, RACE_TARGET, TOTAL_TARGET, REGRET_TARGET_NATS = 2.3, 2.5, 6.0, 0.002
NAIVE_WINDOWS = 8


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of some candidates, wall clock and processor."""

    wall: list[float]
    cpu: list[float]

    def add(self, began: tuple[float, float], candidates: int) -> None:
        self.wall.append((time.perf_counter() - began[0]) / candidates)
        self.cpu.append((time.process_time() - began[1]) / candidates)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    model, mixture = small() if args.random else smollm2(args)
    shape = read_shape(model.config.to_dict())
    grid: dict[str, Any] = {"passes": (2,), "betas": (0.25,)} if args.grid == "reference" else {}
    widths = (1, 2) if args.random else (2, 3, 4, 5, 6, 7, 8)
    candidates = list(Space(shape=shape, widths=widths, **grid))
    before = peak_bytes()
    began = clocks()
    computer = text_computer(model, mixture, stride=args.stride, fit_stride=4, memory_bytes=int(args.memory_gb * 1e9))
    prepared = time.perf_counter() - began[0]
    scorer = TextScorer(computer, shape, race=Race(error=args.error))
    splits = {"all": (1, 1), "same": (4, args.stride)}
    naive = {name: naive_scorer(model, mixture, strides) for name, strides in splits.items()}
    groups = computer.groups(candidates)
    timed = groups if args.grid == "reference" and not args.scores else sample(groups, args.sampled_groups)
    exhaustive, times = run_exhaustive(scorer, naive, timed)
    if args.scores:
        exhaustive = stored(args.scores)
    memory = peak_bytes() - before
    if args.study:
        keep(args.study, model, mixture, scorer, exhaustive)
    sharing = weighted(times["sharing"].wall, timed)
    result: dict[str, Any] = {
        "candidates": len(candidates),
        "layers": shape.num_layers,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "tokens": sum(mixture.num_tokens("fit").values()) + sum(mixture.num_tokens("score").values()),
        "stride": args.stride,
        "group": computer.max_group,
        "prepare_seconds": prepared,
        "seconds": {name: summary(one) for name, one in times.items()},
        "peak_bytes_over_model": memory,
        "budget_bytes": int(args.memory_gb * 1e9),
        "ratios": {f"naive ({name} positions) over sharing": statistics.fmean(times[name].wall) / sharing for name in naive},
    }
    result["seconds"]["sharing"]["mean_wall"] = sharing
    if args.grid == "reference":
        raced, (wall, cpu) = run_race(scorer, candidates)
        each = wall / len(candidates)
        result["race"] = {"wall": each, "cpu": cpu / len(candidates), "read": read(raced, len(candidates))}
        result["ratios"] |= {"sharing over race": sharing / each}
        result["ratios"] |= {f"naive ({name} positions) over race": statistics.fmean(times[name].wall) / each for name in naive}
        result |= quality(exhaustive, raced)
    show(result, args.json)
    if args.check:
        sys.exit(not passes(result))


def naive_scorer(model: Any, mixture: TextMixture, strides: tuple[int, int]) -> TextScorer:
    """Every candidate by its own forward, in batches as large as they are efficient."""
    parts = zip(("fit", "score"), strides, strict=True)
    fit, score = (make_batches(mixture.token_ids(split), stride=stride, batch_size=NAIVE_WINDOWS) for split, stride in parts)  # type: ignore[arg-type]
    return TextScorer(GenericText(model, fit, score), read_shape(model.config.to_dict()))


def run_exhaustive(
    scorer: TextScorer, naive: dict[str, TextScorer], groups: Sequence[tuple[Candidate, ...]]
) -> tuple[dict[str, Scored], dict[str, Timed]]:
    """Every group with sharing; after each, one of its candidates alone, in both naive ways."""
    times = {name: Timed([], []) for name in (*naive, "sharing")}
    found: dict[str, Scored] = {}
    for number, group in enumerate(groups):
        began = clocks()
        scored = scorer.score(group)
        times["sharing"].add(began, len(group))
        found |= {one.result.loops: one for one in scored}
        candidate = group[number % len(group)]
        for name, alone in naive.items():
            began = clocks()
            result = alone.score([candidate])[0]
            times[name].add(began, 1)
            if name == "same":
                check_equal(result, found[format_loops(candidate)])
        print(f"\rgroup {number + 1} of {len(groups)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found, times


def check_equal(naive: Scored, shared: Scored) -> None:
    """Sharing must not change a score by more than rounding."""
    tolerance = 1e-4 if naive.result.status != "scored" or shared.result.status != "scored" else 0.05
    difference = abs(naive.result.values.get("loss_nats", 0.0) - shared.result.values.get("loss_nats", 0.0))
    if naive.result.status != shared.result.status or difference > tolerance:
        raise SystemExit(f"{naive.result.loops}: naive and shared scores differ by {difference:g}")


def keep(folder: Path, model: Any, mixture: TextMixture, scorer: TextScorer, exhaustive: dict[str, Scored]) -> None:
    """The exhaustive scores as a study."""
    header = {"model": "smollm2", "num_layers": len(decoder_layers(model)), "mixture_sha256": mixture.sha256, "dtype": str(model.dtype)}
    every = [scorer.unlooped_result(), *exhaustive.values()]
    losses = {one.result.loops: one.losses for one in every if one.losses is not None}
    StudyWriter(folder, header).append([one.result for one in every], losses)


def stored(folder: Path) -> dict[str, Scored]:
    """The exhaustive scores that `keep` wrote."""
    results = [one for one in read_study(folder).results if one.loops]
    return {one.loops: Scored(result=one, losses=read_losses(folder, one.loops)) for one in results}


def run_race(scorer: TextScorer, candidates: Sequence[Candidate]) -> tuple[dict[str, Scored], tuple[float, float]]:
    """The whole grid as a race."""
    found: dict[str, Scored] = {}

    def tell(scored: Sequence[Scored]) -> None:
        for one in scored:
            found.setdefault(one.result.loops, one)
        print(f"\rraced {len(found)} of {len(candidates)}", end="", file=sys.stderr, flush=True)

    began = clocks()
    TextMeasurer(scorer, Ranks())(candidates, 1.0, lambda loops: found[loops].result if loops in found else None, tell)
    print(file=sys.stderr)
    return found, (time.perf_counter() - began[0], time.process_time() - began[1])


def quality(exhaustive: dict[str, Scored], raced: dict[str, Scored]) -> dict[str, Any]:
    """What the race lost, by the exhaustive scores of the candidates that have them."""
    whole = {loops: one for loops, one in exhaustive.items() if one.losses is not None}
    losses = {loops: one.result.values["loss_nats"] for loops, one in whole.items()}
    best = min(losses, key=lambda loops: losses[loops])
    survivors = {loops: one.result.values["loss_nats"] for loops, one in raced.items() if one.result.status == "scored"}
    winner = min(survivors, key=lambda loops: survivors[loops])
    near = [loops for loops in whole if loops == best or losses[loops] - losses[best] <= standard_error(whole[loops], whole[best])]
    dropped = [loops for loops in near if raced[loops].result.status == "dropped"]
    return {
        "best": best,
        "race_winner": winner,
        "regret_nats": losses[winner] - losses[best],
        "within_one_standard_error": len(near),
        "of_these_dropped": dropped,
        "survivors": len(survivors),
    }


def standard_error(one: Scored, other: Scored) -> float:
    assert one.losses is not None and other.losses is not None
    differences = one.losses.astype(np.float64) - other.losses
    return float(differences.std(ddof=1)) / math.sqrt(len(differences))


def read(raced: dict[str, Scored], num_candidates: int) -> float:
    """The part of the text that a candidate read, on average."""
    return sum(one.result.share if one.result.status == "dropped" else 1.0 for one in raced.values()) / num_candidates


def sample(groups: Sequence[tuple[Candidate, ...]], number: int) -> list[tuple[Candidate, ...]]:
    """Groups drawn evenly over the depth."""
    draws = random.Random(0)
    step = len(groups) / min(number, len(groups))
    return [groups[int((at + draws.random()) * step)] for at in range(min(number, len(groups)))]


def weighted(seconds: Sequence[float], groups: Sequence[Sequence[Candidate]]) -> float:
    """Seconds per candidate over groups of unequal size."""
    return sum(one * len(group) for one, group in zip(seconds, groups, strict=True)) / sum(map(len, groups))


def summary(times: Timed) -> dict[str, Any]:
    quartiles = statistics.quantiles(times.wall, n=4) if len(times.wall) > 1 else [times.wall[0]] * 3
    return {
        "mean_wall": statistics.fmean(times.wall),
        "median_wall": quartiles[1],
        "quartiles_wall": [quartiles[0], quartiles[2]],
        "mean_cpu": statistics.fmean(times.cpu),
        "timed": len(times.wall),
    }


def show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(
        f"{result['candidates']:,} candidates, {result['layers']} layers, {result['dtype']}, {result['threads']} threads, "
        f"{result['tokens']:,} tokens, stride {result['stride']}, {result['group']} candidates side by side"
    )
    labels = {"all": "naive, head at all positions", "same": "naive, head at the same positions", "sharing": "exact sharing"}
    for name, one in result["seconds"].items():
        low, high = one["quartiles_wall"]
        spread = f"quartiles {low:.2f} to {high:.2f}, processor {one['mean_cpu']:.2f}, {one['timed']} timed"
        print(f"{labels[name]:34} {one['mean_wall']:6.2f} s a candidate ({spread})")
    if race := result.get("race"):
        print(
            f"{'race':34} {race['wall']:6.2f} s a candidate (processor {race['cpu']:.2f}; {race['read']:.0%} of the text read on average)"
        )
    for name, ratio in result["ratios"].items():
        print(f"{name}: {ratio:.2f}")
    if race:
        lost = ", ".join(result["of_these_dropped"]) or "none"
        print(f"best {result['best']}; the race's winner {result['race_winner']}, regret {result['regret_nats']:.4f} nats")
        near = f"{result['within_one_standard_error']} lie within one paired standard error of the best, dropped of these: {lost}"
        print(f"{result['survivors']} came through; {near}")
    print(f"peak memory over the model's {result['peak_bytes_over_model'] / 1e9:.2f} GB, budget {result['budget_bytes'] / 1e9:.2f} GB")


def passes(result: dict[str, Any]) -> bool:
    """The targets: of sharing on the paper's grid, of the race on the reference grid."""
    ratios = result["ratios"]
    if "race" not in result:
        return bool(ratios["naive (all positions) over sharing"] >= SHARING_TARGET)
    return bool(
        ratios["sharing over race"] >= RACE_TARGET
        and ratios["naive (all positions) over race"] >= TOTAL_TARGET
        and result["regret_nats"] <= REGRET_TARGET_NATS
        and not result["of_these_dropped"]
        and result["peak_bytes_over_model"] <= result["budget_bytes"]
    )


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def smollm2(args: argparse.Namespace) -> tuple[Any, TextMixture]:
    model, tokenizer = load("smollm2", dtype=args.dtype)
    documents = [*named_documents("reasoning", worked_text(seed=0, num_documents=64 * args.scale)), *standard_documents()]
    mixture = balanced_mixture(documents, tokenizer, fit_tokens=1024 * args.scale, score_tokens=3072 * args.scale)
    return model, mixture


def small() -> tuple[Any, TextMixture]:
    """A random model and text drawn from it, so that there is something to predict."""
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4, pad_token_id=0, eos_token_id=1
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    rows = model.generate(torch.full((24, 1), 5), do_sample=True, max_new_tokens=63, min_new_tokens=63).tolist()
    windows = tuple(Window(document=str(number), domain="drawn", token_ids=tuple(row)) for number, row in enumerate(rows))
    return model, TextMixture(fit=windows[:8], score=windows[8:])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", choices=("reference", "paper"), default="reference")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--scale", type=int, default=1, help="times 4,096 tokens")
    parser.add_argument("--error", type=float, default=Race().error)
    parser.add_argument("--memory-gb", type=float, default=2.0)
    parser.add_argument("--sampled-groups", type=int, default=32, help="timed ones, of the paper's grid or with --scores")
    parser.add_argument("--scores", type=Path, help="what --study wrote: judge the race by these scores and time sampled groups alone")
    parser.add_argument("--study", type=Path, help="a folder that the exhaustive scores are written into, as a study")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
