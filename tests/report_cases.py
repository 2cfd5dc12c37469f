"""Judged trials to report on, from synthetic answers: an item needs so many tokens, and is right or wrong when they are there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from typing import Any

from loopwise.protocol import Plan, PlannedTask, Verdict, judge, make_plan
from loopwise.protocol.values import LargerModel
from loopwise.records import Record, Run

HOSTILE = '<script>alert(1)</script> | *bold* [x](http://evil.example/) "q" & {{ 7*7 }}'
TASKS = {"gsm8k": (768, 120), "math500": (2048, 90)}
"""Budget and items of each benchmark."""
Trained = tuple[Verdict, Plan, dict[str, dict[str, Any]]]
NOISE = {"arm": "twin-budget-forcing-768-2048", "batch_sizes": [16, 8], "num_answers": 840, "changed_texts": 61, "changed_answers": 29}
NOISE |= {"changed_grades": 21, "accuracy_points": -0.4}
RATIO = 1.25
GIGA_FLOPS_PER_TOKEN = 1.5


def header(arm: str, *, looped: bool, rule: str, task: str, budget: int, **more: Any) -> dict[str, Any]:
    """A run's header as an evaluation writes it."""
    parity = {
        "compared": "cached greedy decoding against full recompute, left-padded batch",
        "dtype": "float32",
        "prompt_tokens": [41, 57, 80, 122],
        "new_tokens": 64,
        "max_abs_logit_difference": 3.1e-5 if looped else 2.2e-5,
        "tolerance": 1e-3,
        "tolerance_from": "fixed",
        "tokens_differing": 0,
        "seconds": 9.4,
        "ok": True,
    }
    return {
        "format": "loopwise-run/1",
        "arm": arm,
        "model": "Qwen3.5-0.8B",
        "model_hash": "9f2c41d07be35a18" if looped else "51aa0e7d3c94be02",
        "weights": "bf16",
        "num_layers": 24,
        "num_parameters": 752_393_024,
        "loops": "8:14 x2" if looped else "none",
        "looped": looped,
        "layer_pass_ratio": RATIO if looped else 1.0,
        "flops_ratio": 1.16 if looped else 1.0,
        "dtype": "bfloat16",
        "device": "NVIDIA H100 80GB HBM3",
        "task": task,
        "task_version": "1",
        "num_items": TASKS.get(task, (0, 0))[1],
        "rule": rule,
        "decoding": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "thinking": False},
        "budget_tokens": budget,
        "reserve_tokens": 512 if "forcing" in rule else None,
        "samples": 1,
        "batch_size": 16,
        "batch_plan": "shrinking",
        "versions": {"loopwise": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "transformers": "5.24.0"},
        "parity": parity,
        "started": "2026-11-03T14:05:11+00:00",
        **more,
    }


def answers(
    head: dict[str, Any], *, seeds: int, gain: float = 0.0, shorter: float = 1.0, samples: int = 1, num_items: int | None = None
) -> Run:
    """A run whose items are the same in every arm: one hash of (task, item) gives difficulty and length.

    Args:
        gain: what the arm adds to an item's chance of being right.
        shorter: factor on the tokens that an answer needs.
    """
    task, budget, records = head["task"], head["budget_tokens"], []
    for seed in range(seeds):
        for n in range(num_items or TASKS[task][1]):
            item = random.Random(f"{task}/{n}")
            ability, need = item.betavariate(1.6, 1.1), item.lognormvariate(0, 0.7)
            for sample in range(samples):
                own = random.Random(f"{task}/{n}/{seed}/{sample}/{head['looped']}/{budget if samples > 1 else ''}")
                tokens = 0.45 * TASKS.get(task, (64, 0))[0] * need * own.uniform(0.85, 1.15) * shorter
                finished = tokens <= budget
                forced = "forcing" in head["rule"] and not finished and own.random() < 0.8
                right = 0.15 * own.random() + 0.85 * item.random() < ability + gain
                chance = right and (finished or (forced and own.random() < 0.6))
                used = round(min(tokens, budget))
                records.append(
                    Record(
                        task=task, item=f"{task}-{n:04d}", seed=seed, sample=sample, correct=chance, finished=finished or forced,
                        stop_reason="end" if finished else "forced" if forced else "budget", answer=str(n if chance else own.randrange(99)),
                        gold=str(n), prompt_tokens=90, generated_tokens=used, forced_tokens=7 if forced else 0,
                        flops=1e9 * GIGA_FLOPS_PER_TOKEN * head["flops_ratio"] * (used + 90),
                        seconds=used * 0.021 * (1.23 if head["looped"] else 1.0),
                    )
                )  # fmt: skip
    return Run(head, tuple(records), head["arm"])


def trained_plan() -> Plan:
    """The plan of `trained_runs`."""
    return make_plan(
        model="Qwen3.5-0.8B",
        loops="8:14 x2",
        layer_pass_ratio=RATIO,
        tasks=[
            PlannedTask(name=task, version="1", budgets_tokens=(full // 2, full, 2 * full), reserve_tokens=512)
            for task, (full, _) in TASKS.items()
        ],
        rules=("plain", "budget-forcing"),
        seeds=(0, 1, 2, 3),
        longer_twin_ratio=1.25,
        vote_samples=4,
        resamples=1000,
        deciding=("budget-forcing", 2048),
    )  # fmt: skip


def trained_runs(plan: Plan, *, gain: float) -> Iterator[Run]:
    """One run for each arm and benchmark of a plan."""
    for arm in plan.arms():
        if arm.applicable:
            for task, budget in arm.budgets_tokens:
                head = header(
                    arm.name,
                    looped=arm.looped,
                    rule=arm.rule,
                    task=task,
                    budget=budget,
                    seeds=list(plan.seeds),
                    samples=arm.samples,
                )
                yield answers(
                    head, seeds=len(plan.seeds), gain=gain if arm.looped else 0.0, shorter=0.97 if arm.looped else 1.0, samples=arm.samples
                )


@cache
def trained(gain: float = 0.1) -> Trained:
    """A trained pair on two benchmarks, four seeds, three budgets, two rules, a longer twin, votes and a larger model."""
    plan = trained_plan()
    runs = list(trained_runs(plan, gain=gain))
    larger = LargerModel(name="Qwen3.5-4B", num_parameters=4.2e9, accuracy_percent=83.4)
    verdict = judge(
        looped=[run for run in runs if run.header["looped"]],
        twin=[run for run in runs if not run.header["looped"]],
        plan=plan,
        larger=larger,
    )
    return verdict, plan, {f"{run.header['arm']}/{run.header['task']}": run.header for run in runs}


def training_free(model: str = "SmolLM2-135M-Instruct") -> tuple[Verdict, dict[str, dict[str, Any]]]:
    """The small trial: one benchmark, one seed, the same weights on both sides."""
    facts = {"model": model, "model_hash": "77d0", "num_layers": 30, "num_parameters": 134_515_008, "weights": "dequantised Q4_1"}
    runs = []
    for budget in (32, 64, 128):
        for rule in ("plain", "budget-forcing"):
            for looped in (True, False):
                head = header("", looped=looped, rule=rule, task="ladder", budget=budget, seeds=[0], **facts)
                head |= {"arm": f"{'looped' if looped else 'twin'}-{rule}-{budget}", "device": "cpu", "num_items": 48}
                head |= {"loops": "14:17 x2 damped beta=0.5", "layer_pass_ratio": 1.1} if looped else {}
                runs.append(answers(head, seeds=1, gain=0.02 if looped else 0.0, num_items=48))
    verdict = judge(looped=[run for run in runs if run.header["looped"]], twin=[run for run in runs if not run.header["looped"]])
    return verdict, {run.header["arm"]: run.header for run in runs}


def foreign(task: str = "quiz") -> Verdict:
    """Anybody's records: right or wrong by item, nothing else known."""
    sides = []
    for looped in (True, False):
        rng = random.Random(looped)
        sides.append(
            Run(
                {},
                tuple(Record(task=task, item=str(n), seed=0, sample=0, correct=rng.random() < 0.5) for n in range(60)),
                f"{looped}.jsonl",
            )
        )
    return judge(looped=sides[0], twin=sides[1])


class Page(HTMLParser):
    """What a reader finds in a page: tables as rows of cells, headings in order, tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self._cell: list[str] | None = None
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._cell is not None:
            self.tables[-1][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def table(self, *first_columns: str) -> list[list[str]]:
        """The table that begins with these columns."""
        return next(table for table in self.tables if table[0][: len(first_columns)] == list(first_columns))
