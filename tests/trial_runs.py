"""Made-up runs for the tests of the trial room: answers drawn from named accuracies, items of unequal difficulty."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopwise.records import Record, Run

HASH = "sha256:base"


def header(*, looped: bool, rule: str = "plain", budget: int = 128, task: str = "ladder", **more: Any) -> dict[str, Any]:
    """A header as an evaluation writes it, as far as judging reads it."""
    forcing = "budget-forcing" in rule
    values = {
        "arm": f"{'looped' if looped else 'twin'}-{rule}-{budget}",
        "model": "SmolLM2-135M-Instruct",
        "model_hash": HASH,
        "num_layers": 30,
        "num_parameters": 134_515_008,
        "loops": "10:16 x2" if looped else "none",
        "looped": looped,
        "layer_pass_ratio": 1.2 if looped else 1.0,
        "rule": rule,
        "decoding": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "budget_forcing": forcing, "reserve_tokens": 8, "thinking": False},
        "budget_tokens": budget,
        "reserve_tokens": 8 if forcing else None,
        "task": task,
        "task_version": "1",
        "batch_size": 16,
        "batch_plan": "shrinking",
        "dtype": "bfloat16",
    }
    return values | more


def draw(
    accuracy: float,
    *,
    tokens: float = 60.0,
    seeds: int = 1,
    items: int = 200,
    task: str = "ladder",
    samples: int = 1,
    flops: float | None = 1e9,
    stream: int = 0,
) -> list[Record]:
    """Records whose accuracy is exactly ``accuracy`` in each seed, rounded to whole answers; items keep their difficulty between arms."""
    hard = np.random.default_rng(7).normal(size=items)
    rng = np.random.default_rng([stream, int(1e6 * accuracy)])
    records = []
    for seed in range(seeds):
        for sample in range(samples):
            right = np.argsort(np.argsort(hard + 0.5 * rng.normal(size=items))) < round(accuracy * items)
            lengths = np.maximum(1, rng.poisson(tokens, size=items))
            records += [
                Record(
                    task=task,
                    item=f"{task}-{n:04d}",
                    seed=seed,
                    sample=sample,
                    correct=bool(right[n]),
                    finished=bool(hard[n] < 1.0 or right[n]),
                    answer=str(n) if right[n] else f"{n} {rng.integers(3)} wrong",
                    gold=str(n),
                    generated_tokens=int(lengths[n]),
                    flops=None if flops is None else flops * float(lengths[n]),
                    seconds=0.01 * float(lengths[n]),
                )
                for n in range(items)
            ]
    return records


def run(records: list[Record], head: dict[str, Any] | None = None, source: str = "made-up") -> Run:
    """A run of these records."""
    return Run(head or {}, tuple(records), source)


def arm(
    accuracy: float,
    *,
    looped: bool,
    tokens: float = 60.0,
    rule: str = "plain",
    budget: int = 128,
    seeds: int = 1,
    items: int = 200,
    **more: Any,
) -> Run:
    """One own run with its header."""
    ratio = 1.2 if looped else 1.0
    records = draw(accuracy, tokens=tokens, seeds=seeds, items=items, flops=1e9 * ratio, stream=int(looped) + 2 * budget)
    return run(records, header(looped=looped, rule=rule, budget=budget, **more))
